"""Forecasts of loads that are wrong too often, pool by pool: until they are well, it lends nothing.

A forecast is missed where new jobs were there with more GPUs at once than was foreseen at the
beginning of its window. Where more than `LIMIT` were, of one length and over `SPAN`, and more than
chance makes of what is designed, a pool's forecasts drift; they are well again when no more than
`WELL` of each length are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt

from daemon.engine.guardrails import DRIFT
from daemon.forecasts.load_errors import LoadErrors
from daemon.model.book import Book
from daemon.model.inputs import ForecastHealth
from sia.events import Event
from sia.wording import duration

LIMIT = 0.10
"""The share of a pool's forecasts that may be missed: what is held back for a pool is made to be
too little once in some twenty times, and lenders wait for it then."""

WELL = 0.05
"""The share at which all is well again: half, so that it does not go to and fro."""

DESIGNED = 0.05
"""The share that is missed where all is as it should be."""

CHANCE = 4.0
"""Standard deviations beyond that which chance hardly ever makes: once in some ten thousand."""

LEAST_WINDOWS = 20
"""Windows of one length, at least, of which the share is taken."""

SPAN = 86400.0
"""Seconds over which the share is taken, or `LEAST_WINDOWS` windows where these are longer."""

SLICES = 24
"""Into which that is cut: what is older than the span is forgotten slice by slice."""


SEEN = SLICES // 2
"""Of these in which forecasts were judged before anything is said: one burst is in all windows of
an hour or two, and who has just begun to learn has no other days to compare it with."""


class _Tally:
    """Forecasts of one pool and window length, by slices of time: (number, all, missed)."""

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
    """Watches what was foreseen and what then came.

    Attributes:
        why: Pools of which forecasts drift, and how far, in words.
    """

    def __init__(
        self,
        now: float,
        windows: Sequence[float],
        loads: Mapping[str, Sequence[int]],
        width: Callable[[str, int], int] | None = None,
        why: Mapping[str, str] | None = None,
    ) -> None:
        """Begin now (seconds) with what is foreseen; `why` is of pools that drifted before."""
        self.why = dict(why or {})
        self._now = now
        self._pools = list(loads)
        self._spans = {each: max(SPAN, LEAST_WINDOWS * each) for each in windows}
        self._tallies = {(pool, each): _Tally() for pool in loads for each in windows}
        self._errors = LoadErrors(now, windows, loads, width, self._over)

    def hear(self, events: Iterable[Event]) -> None:
        """Hear what the core was told, durably."""
        for event in events:
            self._now = event.time
            for _ in self._errors.hear([event]):
                pass

    def record(self, pool: str) -> list[tuple[int, int]]:
        """(Forecasts that were judged, those of them that fell short) of a pool, by window."""
        tallies = [self._tallies.get((pool, window)) for window in self._spans]
        return [(each.total, each.missed) for each in tallies if each is not None]

    def _over(self, window: float, short: Sequence[int], total: int) -> None:
        """So many windows of one length are over; these pools' first was missed."""
        missed = set(short)
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
            well &= not enough or share <= WELL
            if enough and share > LIMIT and tally.missed > _by_chance(tally.total):
                worst = worst or (
                    f"{tally.missed} of {tally.total} forecasts for {duration(window)} fell short "
                    f"in {duration(span)}"
                )
        if worst:
            self.why.setdefault(pool, worst)
        elif well and known:
            self.why.pop(pool, None)


def unwatched(book: Book) -> list[ForecastHealth]:
    """What is to be said where nobody watches how forecasts do: whoever was kept lends again."""
    return [ForecastHealth()] if any(DRIFT in pool.kept for pool in book.pools.values()) else []


def _by_chance(total: int) -> float:
    """How many of so many forecasts chance alone may make fall short."""
    return DESIGNED * total + CHANCE * sqrt(DESIGNED * (1.0 - DESIGNED) * total)
