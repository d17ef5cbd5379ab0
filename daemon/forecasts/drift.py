"""Detect drift of load forecasts, by pool. With `drift = "keep"` a pool with drift does not lend.

A forecast is missed if new jobs held more GPUs at the same time than it said at the start of its
window. A pool's forecasts drift if, for one window length and over `SPAN`, the share of missed
forecasts is above `LIMIT` times the share that the forecast aims at, and is above that share by
more than chance explains (`CHANCE`). The drift ends when the share of missed forecasts is at most
the one aimed at, for each window length. A quantile such as 0.8 aims at 0.2, and none at less than
`DESIGNED`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt

from daemon.engine.guardrails import DRIFT
from daemon.forecasts.load_errors import EndedWindow, LoadErrors
from daemon.model.book import Book
from daemon.model.inputs import ForecastHealth
from sia.events import Event
from sia.wording import duration

LIMIT = 2.0
"""A pool's forecasts may drift if the share of missed ones is more than this many times the share
aimed at. The drift ends at half of that, so that the state does not flap."""

DESIGNED = 0.05
"""Least share of missed forecasts that a reservation is designed for: one window in twenty, in
which lenders have to wait."""

CHANCE = 4.0
"""Number of standard deviations above the share aimed at that chance explains. It exceeds them
about once in 10,000 cases."""

LEAST_WINDOWS = 20
"""Minimum number of windows of one length for a verdict."""

SPAN = 86400.0
"""Seconds over which the share is computed, or `LEAST_WINDOWS` windows if these take longer."""

SLICES = 24
"""Number of slices of the span: old forecasts are dropped slice by slice."""


SEEN = SLICES // 2
"""Minimum number of slices with forecasts for a verdict. A single burst affects all windows of an
hour or two, and a new predictor has no other days to compare with."""


class _Tally:
    """Forecasts of one pool and window length, by slice of time: (number, all, missed)."""

    __slots__ = ("missed", "slices", "total")

    def __init__(self) -> None:
        self.total = self.missed = 0
        self.slices: deque[list[int]] = deque()

    def add(self, number: int, total: int, *, missed: bool) -> None:
        while self.slices and self.slices[0][0] <= number - SLICES:
            _, old, old_missed = self.slices.popleft()
            self.total, self.missed = self.total - old, self.missed - old_missed
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0, 0])
        self.slices[-1][1] += total
        self.slices[-1][2] += missed
        self.total, self.missed = self.total + total, self.missed + missed


class Drift:
    """Compare forecasts with the demand that followed, and detect drift.

    Attributes:
        why: Reason for each pool whose forecasts drift.
    """

    def __init__(
        self,
        now: float,
        windows: Sequence[float],
        loads: Mapping[str, Sequence[int]],
        width: Callable[[str, int], int] | None = None,
        why: Mapping[str, str] | None = None,
        designed: float = DESIGNED,
    ) -> None:
        """Start at `now` (seconds) with the current forecasts; `why` has pools with drift.

        `designed` is the share of missed forecasts that they aim at.
        """
        self.why = dict(why or {})
        self._designed = max(DESIGNED, designed)
        self._now = now
        self._pools = list(loads)
        self._spans = {each: max(SPAN, LEAST_WINDOWS * each) for each in windows}
        self._tallies = {(pool, each): _Tally() for pool in loads for each in windows}
        self._errors = LoadErrors(now, windows, loads, width, self._over)

    def hear(self, events: Iterable[Event]) -> None:
        """Process durable events of the core."""
        for event in events:
            self._now = event.time
            for _ in self._errors.hear([event]):
                pass

    def record(self, pool: str) -> list[tuple[int, int]]:
        """Return (judged forecasts, missed forecasts) of a pool for each window length."""
        tallies = [self._tallies.get((pool, window)) for window in self._spans]
        return [(each.total, each.missed) for each in tallies if each is not None]

    def _over(self, ended: EndedWindow, total: int) -> None:
        """Count `total` ended windows of one length, of which the first may have been missed."""
        window, missed = ended.length, set(ended.short)
        number = int(self._now // (self._spans[window] / SLICES))
        for i, pool in enumerate(self._pools):
            self._tallies[pool, window].add(number, total, missed=i in missed)
            if i in missed or pool in self.why:
                self._judge(pool)

    def _judge(self, pool: str) -> None:
        worst, well, known = "", True, False
        for window, span in self._spans.items():
            tally = self._tallies[pool, window]
            share = tally.missed / tally.total if tally.total else 0.0
            enough = tally.total >= LEAST_WINDOWS and len(tally.slices) >= SEEN
            known |= enough
            well &= not enough or share <= self._designed
            chance = _by_chance(self._designed, tally.total)
            if enough and share > LIMIT * self._designed and tally.missed > chance:
                worst = worst or (
                    f"{tally.missed} of {tally.total} forecasts for {duration(window)} fell short "
                    f"in {duration(span)}"
                )
        if worst:
            self.why.setdefault(pool, worst)
        elif well and known:
            self.why.pop(pool, None)


def unwatched(book: Book) -> list[ForecastHealth]:
    """Return the input that ends drift and its lending bans, if any, when drift is not checked."""
    drifts = any(pool.drift or DRIFT in pool.kept for pool in book.pools.values())
    return [ForecastHealth()] if drifts else []


def _by_chance(share: float, total: int) -> float:
    """Return how many of `total` forecasts chance may make too low if `share` of them should be."""
    return share * total + CHANCE * sqrt(share * (1.0 - share) * total)
