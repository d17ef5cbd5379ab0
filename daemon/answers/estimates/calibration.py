"""Estimates held to what happened: how true they were, how far off, how to move the next. Pure.

For each quantile, quantity, pool and horizon a feedback (`predictors.conformal`) moves what is
stated up by each miss and down by each hit. A job that has not ended when it should have is a miss
at that moment, or the short jobs would speak for all. The same estimates and outcomes in the same
order give the same corrections, so that a restart goes on where the one before stood.

The p90 of a start comes no nearer by it than half-way, in the logarithm, from the playouts' median
to their p90: jobs that wait for one moment are one miss, heard of hours later, and what short waits
had taught was too little for half of the starts of a burst (docs/eta.md).
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
"""Seconds to the median: the windows that forecasts go by; all that is farther is a class."""

SHARES = (0.5, 0.9)
"""The quantiles that are stated."""

RATES = (0.005, 0.04)
"""How fast each quantile is moved, in the logarithm, for all pools and again for its own: a miss of
p90 by 7 %. On Philly a median that moves as fast covers no better and is half as far off again."""

FIRST = (0.5, 0.5)
"""How far the first misses and hits move it, while few are known (`Conformal`)."""

WIDE = 0.6
"""How far the p90 of a start is moved before anything came of any."""

BOUND = 1.5
"""How far the one and the other move anything: a factor of e³ = 20 together, beyond which an
estimate is not to be mended but wrong."""

GRAIN = 30.0
"""Seconds added before something is moved: there is no multiple of no wait at all."""

ROUNDING = 1e-6
"""By which a moment that was stated may differ from the same worked out again."""

ERRORS_KEPT = 500
"""Newest errors behind the medians of each pool and horizon."""

Quantity = Literal["start", "end"]


class StatedMoment(Struct, frozen=True, array_like=True):
    """A moment as it was stated, and as the worlds had it; seconds since the epoch.

    None is beyond the horizon.
    """

    p50: float | None
    p90: float | None
    mean: float | None
    raw: tuple[float | None, float | None]
    waits: Quantiles = UNKNOWN
    """Of a start: how long those still waited that had waited as long, in seconds."""


class Given(Struct, frozen=True, omit_defaults=True):
    """An estimate that somebody was given."""

    job: str
    pool: str
    submitted: float
    made: float
    end: StatedMoment
    start: StatedMoment | None = None
    """None where it had started."""
    by: str = "playout"
    """`playout`, or `queue`: by what the playouts before it say of jobs that come after."""


class AccuracyTally:
    """How estimates of one quantity, pool and horizon did.

    Attributes:
        count: Of which it has come what was estimated.
        judged: Of which it is known whether they held, for each share.
        covered: Of these, what came no later than stated.
        errors: Seconds between the median and what happened.
        pred_errors: PCS §2.1, of ends: |JCT true - JCT predicted| / JCT predicted.
        widths: Seconds between p50 and p90.
    """

    def __init__(self) -> None:
        """None came to an end yet."""
        self.count = 0
        self.judged = [0, 0]
        self.covered = [0, 0]
        self.errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self.pred_errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self.widths: deque[float] = deque(maxlen=ERRORS_KEPT)


TallyKey = tuple[Quantity, str, int]
"""Quantity, pool, number of the horizon."""


class _Open:
    """A moment that is stated and has not come, as far as anybody knows."""

    __slots__ = ("bound", "given", "judged", "key", "said")

    def __init__(self, given: Given, said: StatedMoment, key: TallyKey) -> None:
        self.given, self.said, self.key = given, said, key
        self.bound = key[0] == "start" and _is_bound(given, said)
        self.judged = [moment is None for moment in (said.p50, said.p90)]


def horizon(seconds: float) -> int:
    """The number of the class of a moment so far away."""
    return bisect_left(HORIZONS, seconds)


class Calibration:
    """What was given, what came of it, and what is learned from it. Times never run backwards."""

    def __init__(self) -> None:
        """Nothing was given."""
        self.tallies: dict[TallyKey, AccuracyTally] = {}
        self._moves = {
            share: Conformal(rate, BOUND, first)
            for share, rate, first in zip(SHARES, RATES, FIRST, strict=True)
        }  # by pool and for all
        self._blends = [EstimateEnsemble(share) for share in SHARES]
        self._open: dict[tuple[str, Quantity], list[_Open]] = {}
        self._due: list[tuple[float, int, int, _Open]] = []  # stated, number, share
        self._numbers = 0

    def shift(self, key: TallyKey, share: float) -> float:
        """By how much (in the logarithm) this is moved now."""
        moves = self._moves[share]
        first = WIDE if key[0] == "start" and share == SHARES[1] else 0.0
        return first + moves.shift(share, (key[0], key[2])) + moves.shift(share, key)

    def corrected(
        self, pool: str, made: float, times: Times, waits: Quantiles = UNKNOWN
    ) -> tuple[StatedMoment, StatedMoment | None]:
        """End and start as they are to be stated; no job ends before it starts.

        `waits` are how long others still waited that had waited as long.
        """
        start = None
        if times.start is not None:
            start = self._said("start", pool, made, times.start, (made, made), waits)
        least = (made, made) if start is None else (_late(start.p50), _late(start.p90))
        return self._said("end", pool, made, times.end, least), start

    def _said(
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
        """This was stated. O(log n)."""
        self.advance(given.made)
        moments: tuple[tuple[Quantity, StatedMoment | None], ...] = (
            ("end", given.end), ("start", given.start),
        )  # fmt: skip
        for what, said in moments:
            if said is None:
                continue
            raw = inf if said.raw[0] is None else said.raw[0]
            opened = _Open(given, said, (what, given.pool, horizon(raw - given.made)))
            self._open.setdefault((given.job, what), []).append(opened)
            self._numbers += 1
            for i, moment in enumerate((said.p50, said.p90)):
                if moment is not None:
                    heappush(self._due, (moment, self._numbers, i, opened))

    def advance(self, now: float) -> None:
        """What was stated to have come before now and has not is missed. O(log n) for each."""
        while self._due and self._due[0][0] < now:
            _, _, share, opened = heappop(self._due)
            self._judge(opened, share, covered=False)

    def started(self, job_id: str, now: float) -> None:
        """A job runs."""
        self._came(job_id, "start", now)

    def ended(self, job_id: str, now: float) -> None:
        """A job has run and is over."""
        self._came(job_id, "start", now)
        self._came(job_id, "end", now)

    def gone(self, job_id: str, now: float) -> None:
        """A job waits no more, or not by itself: nothing more is learned of it."""
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
        moment = opened.said.p90 if share else opened.said.p50
        if moment is None and covered:
            self._move(opened, share, covered=True)
        if opened.judged[share]:
            return
        opened.judged[share] = True
        tally = self.tallies.setdefault(opened.key, AccuracyTally())
        tally.judged[share] += 1
        tally.covered[share] += covered
        if covered and share and opened.bound:
            return  # so it was by its bound: were it moved down, later misses would not count
        self._move(opened, share, covered=covered)

    def _move(self, opened: _Open, share: int, *, covered: bool) -> None:
        what, number = opened.key[0], opened.key[2]
        moves = self._moves[SHARES[share]]
        for each in ((what, number), opened.key):
            moves.update(SHARES[share], covered=covered, key=each)

    def _count(self, opened: _Open, now: float) -> None:
        """What came has come: how far off it was."""
        tally = self.tallies.setdefault(opened.key, AccuracyTally())
        tally.count += 1
        given, said = opened.given, opened.said
        if opened.key[0] == "start":
            for i, (raw, blended) in enumerate(zip(said.raw, self._blends, strict=True)):
                wait = None if raw is None else max(0.0, raw - given.made)
                blended.learn(_answers(i, wait, said.waits), _log(now - given.made))
        if said.p50 is None:
            return
        tally.errors.append(abs(now - said.p50))
        if said.p90 is not None:
            tally.widths.append(said.p90 - said.p50)
        predicted = said.p50 - given.submitted
        if opened.key[0] == "end" and predicted > 0:
            tally.pred_errors.append(abs(now - said.p50) / predicted)


def _answers(share: int, wait: float | None, waits: Quantiles) -> Answers:
    """What is said of a start, first by the worlds, as `EstimateEnsemble` takes it."""
    return [None if each is None else _log(each) for each in (wait, waits[share])]


def _half_way(p50: float, p90: float) -> float:
    """Seconds, in the logarithm."""
    return exp((_log(p50) + _log(p90)) / 2) - GRAIN


def _is_bound(given: Given, said: StatedMoment) -> bool:
    """Whether the p90 of a start is no later than it had to be stated at least."""
    p50, p90 = said.raw
    if p50 is None or p90 is None or said.p90 is None:
        return False
    return said.p90 - given.made <= _half_way(p50 - given.made, p90 - given.made) * (1 + ROUNDING)


def _log(seconds: float) -> float:
    return log(max(0.0, seconds) + GRAIN)


def _late(moment: float | None) -> float:
    """Infinite for what is beyond the horizon."""
    return inf if moment is None else moment


def finite(moment: float) -> float | None:
    """None for what is beyond the horizon."""
    return moment if isfinite(moment) else None
