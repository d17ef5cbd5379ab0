"""Compare estimates with outcomes, measure their accuracy and correct later ones. Pure.

For each quantile, quantity, pool and horizon a feedback loop (`predictors.run_times.conformal`)
raises stated values after each miss and lowers them after each hit. A job that has not ended by its
stated time counts as a miss at that moment; if misses counted only at the end, short jobs alone
would drive the correction. The same estimates and outcomes in the same order give the same
corrections, so a restart continues where the previous run stopped.

The correction never lowers the p90 of a start below the geometric mean of the simulation's p50 and
p90. The reason is that a burst of jobs waits for the same moment and so counts as one miss, which
is observed hours later. Corrections learned from short waits were too low for half of the starts of
a burst (docs/understand/eta.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import heappop, heappush
from math import exp, inf, isfinite, log
from typing import Literal

from msgspec import Struct

from daemon.answers.estimates.blend import Answers, EstimateEnsemble
from daemon.answers.estimates.recent_waits import UNKNOWN, Quantiles
from daemon.answers.estimates.worlds import HORIZON, MomentQuantiles, Times
from predictors.run_times.conformal import Conformal

HORIZONS = (300.0, 3600.0, 43200.0)
"""Upper bounds, in seconds, of the horizon classes, which divide estimates by the time to their
median. They are the forecast windows; longer times form one more class."""

SHARES = (0.5, 0.9)
"""The quantiles of each estimate."""

RATES = (0.005, 0.04)
"""Step size for each quantile q: a miss raises the correction by step · q and a hit lowers it by
step · (1 - q), in the logarithm of seconds. This is done for the correction of all pools and for
that of the job's pool, so that a miss raises the p90 by 7 % in all. On Philly a median with the
step of the p90 has the same coverage and 1.5 times the error."""

FIRST = (0.5, 0.5)
"""Step sizes of each quantile for the first hits and misses (`Conformal`)."""

WIDE = 0.6
"""Initial correction of the p90 of a start, in the logarithm."""

BOUND = 1.5
"""Limit of each of the two corrections, in the logarithm; both together reach a factor of e³ = 20.
Estimates that are off by a larger factor stay wrong."""

GRAIN = 30.0
"""Seconds added to a wait before its logarithm is taken, so that a wait of 0 has a logarithm."""

ROUNDING = 1e-6
"""Relative difference allowed between a stated time and the same time computed again."""

ERRORS_KEPT = 500
"""Errors kept for each pool and horizon, the newest; the medians are computed from them."""

Quantity = Literal["start", "end"]


class StatedMoment(Struct, frozen=True, array_like=True):
    """A stated time and the simulated time that it was corrected from, in seconds since the epoch.

    None means beyond the horizon.
    """

    p50: float | None
    p90: float | None
    mean: float | None
    raw: tuple[float | None, float | None]
    waits: Quantiles = UNKNOWN
    """For a start: the quantiles of the remaining wait, in seconds, of earlier jobs that had waited
    as long."""


class Given(Struct, frozen=True, omit_defaults=True):
    """An estimate that was given to a client."""

    job: str
    pool: str
    submitted: float
    made: float
    end: StatedMoment
    start: StatedMoment | None = None
    """None if the job had started."""
    by: str = "playout"
    """`playout` (simulated) or `queue` (derived from simulated jobs of the same queue)."""
    similar: int = 0
    """Number of ended jobs similar to this one from which its run time was estimated
    (`Evidence`)."""
    in_pool: int = 0
    """Number of ended jobs of its pool."""
    tuned: float = 0.0
    """When the options of the policy had last been changed; 0 if never."""
    stated: bool = False
    """Whether the job states its run time."""


class AccuracyTally:
    """Accuracy of the estimates of one quantity, pool and horizon.

    Attributes:
        count: Estimates whose event has happened.
        judged: Estimates known to be hits or misses, for each quantile.
        covered: Hits among them: the event happened no later than stated.
        errors: Absolute errors of the median, in seconds.
        pred_errors: For ends, the error of PCS §2.1: |JCT true - JCT predicted| / JCT predicted.
        widths: Seconds between p50 and p90.
    """

    def __init__(self) -> None:
        """Start with no estimate counted."""
        self.count = 0
        self.judged = [0, 0]
        self.covered = [0, 0]
        self.errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self.pred_errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self.widths: deque[float] = deque(maxlen=ERRORS_KEPT)


TallyKey = tuple[Quantity, str, int]
"""Quantity, pool and index of the horizon class."""


class _Open:
    """A stated time whose event has not been observed yet."""

    __slots__ = ("apart", "bound", "given", "judged", "key", "stated")

    def __init__(self, given: Given, stated: StatedMoment, key: TallyKey) -> None:
        self.given, self.stated, self.key = given, stated, key
        self.apart = False  # True if the policy's options have changed since
        self.bound = key[0] == "start" and _is_bound(given, stated)
        self.judged = [moment is None for moment in (stated.p50, stated.p90)]


def horizon(seconds: float) -> int:
    """Return the index of the horizon class of an event `seconds` away."""
    return bisect_left(HORIZONS, seconds)


class Calibration:
    """Record estimates and outcomes, and compute corrections. Times must not decrease.

    Attributes:
        tallies: Accuracy of estimates whose event happened under the same options of the policy.
        apart: Accuracy of estimates after which the options of the policy changed. They do not
            influence corrections.
    """

    def __init__(self) -> None:
        """Start with no estimate."""
        self.tallies: dict[TallyKey, AccuracyTally] = {}
        self.apart: dict[TallyKey, AccuracyTally] = {}
        self._tuned = 0.0  # when the options of the policy were last changed
        self._moves = {
            share: Conformal(rate, BOUND, first)
            for share, rate, first in zip(SHARES, RATES, FIRST, strict=True)
        }  # by pool, and for all pools
        self._blends = [EstimateEnsemble(share) for share in SHARES]
        self._open: dict[tuple[str, Quantity], list[_Open]] = {}
        self._due: list[
            tuple[float, int, int, _Open]
        ] = []  # stated time, sequence number, index of the quantile
        self._numbers = 0

    def shift(self, key: TallyKey, share: float) -> float:
        """Return the correction of a quantile: a number added to the logarithm of seconds."""
        moves = self._moves[share]
        first = WIDE if key[0] == "start" and share == SHARES[1] else 0.0
        return first + moves.shift(share, (key[0], key[2])) + moves.shift(share, key)

    def corrected(
        self, pool: str, made: float, times: Times, waits: Quantiles = UNKNOWN
    ) -> tuple[StatedMoment, StatedMoment | None]:
        """Return the corrected end and start, and at least `times.least` between them.

        Starts and ends are corrected apart, and the p90 of a start is wide at first: alone, the end
        of a short job could be stated as soon as its start.

        `waits` has quantiles of the remaining wait of earlier jobs that had waited as long.
        """
        start = None
        if times.start is not None:
            start = self._stated("start", pool, made, times.start, (made, made), waits)
        least = (made, made)
        if start is not None:
            least = _late(start.p50) + times.least, _late(start.p90) + times.least
        return self._stated("end", pool, made, times.end, least), start

    def _stated(
        self,
        what: Quantity,
        pool: str,
        made: float,
        raw: MomentQuantiles,
        least: tuple[float, float],
        waits: Quantiles = UNKNOWN,
    ) -> StatedMoment:
        key = what, pool, horizon(raw.p50 - made)
        farthest = made + HORIZON
        stated = []
        for i, (moment, low) in enumerate(zip((raw.p50, raw.p90), least, strict=True)):
            wait = max(0.0, moment - made)
            answer = _log(wait)
            if what == "start" and isfinite(wait):
                answer = self._blends[i].of(_answers(i, wait, waits))
            seconds = exp(answer + self.shift(key, SHARES[i])) - GRAIN
            if what == "start" and i:
                seconds = max(seconds, _half_way(raw.p50 - made, wait))
            stated.append(max(low, made + seconds))
        p50, p90 = (moment if moment <= farthest else inf for moment in stated)
        return StatedMoment(
            finite(p50), finite(max(p50, p90)), finite(raw.mean),
            (finite(raw.p50), finite(raw.p90)), waits,
        )  # fmt: skip

    def give(self, given: Given) -> None:
        """Record an estimate that was given to a client. O(log n)."""
        self.advance(given.made)
        moments: tuple[tuple[Quantity, StatedMoment | None], ...] = (
            ("end", given.end), ("start", given.start),
        )  # fmt: skip
        for what, stated in moments:
            if stated is None:
                continue
            raw = inf if stated.raw[0] is None else stated.raw[0]
            opened = _Open(given, stated, (what, given.pool, horizon(raw - given.made)))
            opened.apart = given.tuned < self._tuned
            self._open.setdefault((given.job, what), []).append(opened)
            self._numbers += 1
            for i, moment in enumerate((stated.p50, stated.p90)):
                if moment is not None:
                    heappush(self._due, (moment, self._numbers, i, opened))

    def advance(self, now: float) -> None:
        """Count each stated time before `now` whose event has not happened as a miss. O(log n)."""
        while self._due and self._due[0][0] < now:
            _, _, share, opened = heappop(self._due)
            self._judge(opened, share, covered=False)

    def retuned(self, now: float) -> None:
        """Record a change of the policy's options. Earlier estimates are counted in `apart`."""
        self.advance(now)
        self._tuned = now
        for each in self._open.values():
            for opened in each:
                opened.apart = True

    def started(self, job_id: str, now: float) -> None:
        """Record that a job has started."""
        self._came(job_id, "start", now)

    def ended(self, job_id: str, now: float) -> None:
        """Record that a job has run and ended."""
        self._came(job_id, "start", now)
        self._came(job_id, "end", now)

    def gone(self, job_id: str, now: float) -> None:
        """Drop the estimates of a job that left the queue or was held: they have no outcome."""
        self.advance(now)
        whats: tuple[Quantity, ...] = ("start", "end")
        for what in whats:
            for opened in self._open.pop((job_id, what), ()):
                opened.judged = [True, True]

    def _came(self, job_id: str, what: Quantity, now: float) -> None:
        self.advance(now)
        for opened in self._open.pop((job_id, what), ()):
            for share in range(len(SHARES)):
                self._judge(opened, share, covered=True)
            self._count(opened, now)

    def _judge(self, opened: _Open, share: int, *, covered: bool) -> None:
        moment = opened.stated.p90 if share else opened.stated.p50
        if moment is None and covered:
            self._move(opened, share, covered=True)
        if opened.judged[share]:
            return
        opened.judged[share] = True
        tally = self._tally(opened)
        tally.judged[share] += 1
        tally.covered[share] += covered
        if covered and share and opened.bound:
            return  # the lower bound set this value; a lower correction would hide later misses
        self._move(opened, share, covered=covered)

    def _tally(self, opened: _Open) -> AccuracyTally:
        tallies = self.apart if opened.apart else self.tallies
        return tallies.setdefault(opened.key, AccuracyTally())

    def _move(self, opened: _Open, share: int, *, covered: bool) -> None:
        if opened.apart:
            return
        what, number = opened.key[0], opened.key[2]
        moves = self._moves[SHARES[share]]
        for each in ((what, number), opened.key):
            moves.update(SHARES[share], covered=covered, key=each)

    def _count(self, opened: _Open, now: float) -> None:
        """Add the error of an estimate whose event has happened."""
        tally = self._tally(opened)
        tally.count += 1
        given, stated = opened.given, opened.stated
        if opened.key[0] == "start" and not opened.apart:
            for i, (raw, blended) in enumerate(zip(stated.raw, self._blends, strict=True)):
                wait = None if raw is None else max(0.0, raw - given.made)
                blended.learn(_answers(i, wait, stated.waits), _log(now - given.made))
        if stated.p50 is None:
            return
        tally.errors.append(abs(now - stated.p50))
        if stated.p90 is not None:
            tally.widths.append(stated.p90 - stated.p50)
        predicted = stated.p50 - given.submitted
        if opened.key[0] == "end" and predicted > 0:
            tally.pred_errors.append(abs(now - stated.p50) / predicted)


def _answers(share: int, wait: float | None, waits: Quantiles) -> Answers:
    """Return the simulated estimate of a start, and the one from past waits."""
    return [None if each is None else _log(each) for each in (wait, waits[share])]


def _half_way(p50: float, p90: float) -> float:
    """Return the geometric mean of p50 and p90, in seconds."""
    return exp((_log(p50) + _log(p90)) / 2) - GRAIN


def _is_bound(given: Given, stated: StatedMoment) -> bool:
    """Return True if the stated p90 of a start equals its lower bound."""
    p50, p90 = stated.raw
    if p50 is None or p90 is None or stated.p90 is None:
        return False
    return stated.p90 - given.made <= _half_way(p50 - given.made, p90 - given.made) * (1 + ROUNDING)


def _log(seconds: float) -> float:
    return log(max(0.0, seconds) + GRAIN)


def _late(moment: float | None) -> float:
    """Return the time, or infinity for one beyond the horizon (None)."""
    return inf if moment is None else moment


def finite(moment: float) -> float | None:
    """Return the time, or None for one beyond the horizon (infinite)."""
    return moment if isfinite(moment) else None
