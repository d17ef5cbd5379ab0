"""Features for predicting arrivals (§5.4.1, Table 9), maintained for all pools at once.

Time advances in ticks. Events in (tick - 1, tick] count into that tick. A feature is a difference
of two counts, or a state at a tick, so a query costs the same however many events there were.
Events at a tick's instant that follow the query, such as a start decided on then, count into the
next tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Job

FeatureArray = NDArray[np.float32]
FeatureCounts = NDArray[np.int32]

HOUR, DAY, WEEK = 3600.0, 86400.0, 604800.0

REACHES = (1, 10, 100)
"""Numbers of windows over which Table 9 looks back."""

SHORT = (1, 3, 12)
"""Ticks of look-back independent of the window: 5 minutes, 15 minutes, an hour."""

HALF_LIVES = (900.0, 3600.0, 14400.0, DAY, WEEK)
"""Half-lives of arrival rates in seconds, from the length of a burst to a week."""

PAUSES = 128
"""Number of pauses without arrivals remembered for each pool: days of a busy pool, months of a
quiet one, and few enough to compare all of them at every tick."""

# Rows of a pool's state. The first `REMEMBERED` are stored for every tick, the others only now.
ARRIVED, FINISHED, ASKED, BUSY, STARTED, STARTED_GPUS, FINISHED_GPUS, LAST, LAST_END = range(9)
REMEMBERED = 4
RATES = 9
GPU_RATES = RATES + len(HALF_LIVES)
DUE = GPU_RATES + len(HALF_LIVES)


class _Span(NamedTuple):
    """The growth of a count between two times, given as seconds before now."""

    name: str
    row: int
    since: float
    until: float = 0.0


def _table_9(k: float) -> list[_Span]:
    """Return the spans of Table 9 for a window of k seconds; every span ends by now."""
    periodic = [
        _Span(f"new in (-{x}{unit}, -{x}{unit}+k]", ARRIVED, x * p, max(0.0, x * p - k))
        for unit, p in (("h", HOUR), ("d", DAY))
        for x in (1, 2, 3)
    ]
    arrivals = [_Span(f"new in [-{x}k, 0]", ARRIVED, x * k) for x in REACHES]
    completions = [_Span(f"finished in [-{x}k, 0]", FINISHED, x * k) for x in REACHES]
    return [*periodic, *arrivals, *completions]


FUTURE = ("will finish in [0, k]", "will finish after k")


def _more(k: float, tick: float) -> list[_Span]:
    """Return spans in addition to Table 9."""
    return [
        *(_Span(f"new in [-{x}k, 0]", ARRIVED, x * k) for x in (3, 30)),
        *(_Span(f"GPUs in [-{x}k, 0]", ASKED, x * k) for x in REACHES),
        *(_Span(f"busy ticks in [-{x}k, 0]", BUSY, x * k) for x in REACHES[1:]),
        *(_Span(f"new in {x} ticks", ARRIVED, x * tick) for x in SHORT),
        *(_Span(f"finished in {x} ticks", FINISHED, x * tick) for x in SHORT),
        *(_Span(f"busy ticks in {x / HOUR:g}h", BUSY, x) for x in (6 * HOUR, DAY, WEEK)),
        _Span("new in (-1w, -1w+k]", ARRIVED, WEEK, max(0.0, WEEK - k)),
    ]


PAUSE = "pauses like this that ended within k"

NOW = (
    *("running", "waiting", "running GPUs", "waiting GPUs"),
    *("ticks since an arrival", "ticks since an end"),
    *(f"arrivals, half-life {life / HOUR:g}h" for life in HALF_LIVES),
    *(f"GPUs, half-life {life / HOUR:g}h" for life in HALF_LIVES),
    *(f"arrivals in all pools, half-life {life / HOUR:g}h" for life in HALF_LIVES),
    "ticks since an arrival in any pool",
)
"""Features that are the same for every window."""


_FIRST = [span.name for span in _table_9(1.0)]
_OWN = [span.name for span in _more(1.0, 1.0)]

NAMES = (*_FIRST, *FUTURE, *_OWN, PAUSE, *NOW)
"""All features in order; k stands for the window."""

GROUPS = {
    "periodic": 6,
    "recent arrivals": 9,
    "recent completions": 12,
    "future completions": 14,
    "more": len(NAMES),
}
"""Nested sets of features as in Table 23: the name of the set, and how many of `NAMES` it includes.
The last set is our own; the others form Table 9."""

_SPANS = [*range(len(_FIRST)), *range(len(_FIRST) + 2, len(_FIRST) + 2 + len(_OWN))]
"""Indexes of the spans in `NAMES`."""


class Features:
    """The features of every pool and window at a tick: O(pools · windows · features).

    Memory: 16 bytes for each pool and tick, for 100 times the longest window.
    """

    def __init__(
        self, pools: Sequence[str], windows: Sequence[float], start: float, tick: float = TICK
    ) -> None:
        """Start to observe at `start`. Start, windows and tick are in seconds."""
        self._pool = {pool: i for i, pool in enumerate(pools)}
        self._tick = tick
        self._lengths = np.array([ceil(window / tick) for window in windows])
        self._plan(windows)
        self._first = self._open = ceil(start / tick)
        self._past = np.zeros((int(self._since.max()) + 2, REMEMBERED, len(pools)), np.int32)
        self._state = np.zeros((len(pools), DUE + len(windows)))
        self._state[:, [LAST, LAST_END]] = self._first - 1
        self._closed = self._state.copy()
        self._fade = np.tile([0.5 ** (tick / life) for life in HALF_LIVES], 2)
        self._pauses = np.zeros((len(pools), PAUSES), np.int32)
        self._paused = np.zeros(len(pools), np.int64)
        self._ends: dict[str, float] = {}  # tick of each running job's estimated end
        self._due: list[tuple[float, int, int, int]] = []  # tick, window, pool, change

    def _plan(self, windows: Sequence[float]) -> None:
        """Compute the spans in ticks: (windows, spans)."""
        spans = [_table_9(k) + _more(k, self._tick) for k in windows]
        self._rows = np.array([span.row for span in spans[0]])
        self._since = np.array([[ceil(span.since / self._tick) for span in row] for row in spans])
        self._until = np.array([[ceil(span.until / self._tick) for span in row] for row in spans])

    def submitted(self, now: float, job: Job) -> None:
        """Count an arrival."""
        of = self._state_of(now, job)
        of[ARRIVED] += 1
        of[ASKED] += job.width
        of[RATES:GPU_RATES] += 1
        of[GPU_RATES:DUE] += job.width

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Count a start, with the run-time estimate in seconds."""
        of = self._state_of(now, job)
        of[STARTED] += 1
        of[STARTED_GPUS] += job.width
        known = run_time < UNKNOWN_RUN_TIME
        end = self._ends[job.id] = ceil((now + run_time) / self._tick) if known else inf
        self._expect(end, self._pool[job.pool], 1)

    def finished(self, now: float, job: Job) -> None:
        """Count an end."""
        of = self._state_of(now, job)
        of[FINISHED] += 1
        of[FINISHED_GPUS] += job.width
        self._expect(self._ends.pop(job.id, inf), self._pool[job.pool], -1)

    def withdrawn(self, now: float, job: Job) -> None:
        """Count a cancelled job as an end, because its user may submit the next one."""
        if job.id not in self._ends:
            self.started(now, job, UNKNOWN_RUN_TIME)
        self.finished(now, job)

    def _state_of(self, now: float, job: Job) -> NDArray[np.float64]:
        """Return a pool's state, open for events at this time."""
        self._open_tick(ceil(now / self._tick))
        state: NDArray[np.float64] = self._state[self._pool[job.pool]]
        return state

    def _expect(self, end: float, pool: int, change: int) -> None:
        """Count a job as ending soon, once its estimated end is within a window.

        A job that outlives its estimate stays counted. An end subtracts exactly what its start has
        added or will add.
        """
        for window, length in enumerate(self._lengths):
            if end - length <= self._open:
                self._state[pool, DUE + window] += change
            elif end < inf:
                heappush(self._due, (end - int(length), window, pool, change))

    def _open_tick(self, tick: int) -> None:
        """Close all earlier ticks."""
        if tick - self._open > len(self._past):
            self._close()
            self._past[:] = self._state[:, :REMEMBERED].T
            self._state[:, RATES:DUE] *= self._fade ** (tick - 1 - self._open)
            self._open = tick - 1
        while self._open < tick:
            self._close()

    def _close(self) -> None:
        state, before = self._state, self._closed
        arrived = np.flatnonzero(state[:, ARRIVED] > before[:, ARRIVED])
        if len(arrived):
            self._note_pauses(arrived)
            state[arrived, BUSY] += 1
            state[arrived, LAST] = self._open
        state[state[:, FINISHED] > before[:, FINISHED], LAST_END] = self._open
        self._closed = state.copy()
        self._past[self._open % len(self._past)] = state[:, :REMEMBERED].T
        state[:, RATES:DUE] *= self._fade
        self._open += 1
        while self._due and self._due[0][0] <= self._open:
            _, window, pool, change = heappop(self._due)
            state[pool, DUE + window] += change

    def _note_pauses(self, arrived: NDArray[np.int64]) -> None:
        """Record the ticks between the last two arrivals."""
        again = arrived[self._state[arrived, LAST] >= self._first]
        pause = self._open - self._state[again, LAST]
        self._pauses[again, self._paused[again] % PAUSES] = np.minimum(pause, 2**30)
        self._paused[again] += 1

    def at(self, now: float) -> FeatureArray:
        """Return the features at the newest tick up to `now`: (pools, windows, `NAMES`).

        Later events are not included, so that a late query returns the values of that tick. Ticks
        before the latest event cannot be queried.
        """
        tick = int(now // self._tick)
        self._open_tick(tick + 1)
        assert self._open == tick + 1, "query for a past tick"
        out = np.empty((len(self._pool), len(self._lengths), len(NAMES)), np.float32)
        out[:, :, _SPANS] = self._grown(tick).transpose(2, 0, 1)
        due, future = self._closed[:, DUE:], len(_FIRST)
        out[:, :, future] = due
        running = self._closed[:, STARTED] - self._closed[:, FINISHED]
        out[:, :, future + 1] = running[:, None] - due
        out[:, :, -len(NOW) - 1] = self._ended(tick)
        out[:, :, -len(NOW) :] = self._now(tick).T[:, None]
        return out

    def _grown(self, tick: int) -> FeatureCounts:
        """Return the growth of the counts: (windows, spans, pools)."""
        begin = self._first - 1
        since, until = (np.maximum(tick - back, begin) for back in (self._since, self._until))
        size = len(self._past)
        grown: FeatureCounts = (
            self._past[until % size, self._rows] - self._past[since % size, self._rows]
        )
        return grown

    def _ended(self, tick: int) -> FeatureArray:
        """Return the share of longer pauses that ended within each window: (pools, windows).

        Half a pause of each kind is added, which gives 0.5 without data.
        """
        age = (tick - self._closed[:, LAST])[:, None]
        longer = np.count_nonzero(self._pauses > age, axis=1)[:, None]
        still = np.count_nonzero(
            self._pauses[:, None, :] > (age + self._lengths)[:, :, None], axis=2
        )
        share: FeatureArray = ((longer - still + 0.5) / (longer + 1)).astype(np.float32)
        return share

    def _now(self, tick: int) -> NDArray[np.float64]:
        """Return the features of `NOW`: (names, pools)."""
        s = self._closed.T
        now = np.empty((len(NOW), s.shape[1]))
        np.subtract(s[STARTED], s[FINISHED], out=now[0])
        np.subtract(s[ARRIVED], s[STARTED], out=now[1])
        np.subtract(s[STARTED_GPUS], s[FINISHED_GPUS], out=now[2])
        np.subtract(s[ASKED], s[STARTED_GPUS], out=now[3])
        np.subtract(tick, s[LAST], out=now[4])
        np.subtract(tick, s[LAST_END], out=now[5])
        rates = 6 + DUE - RATES
        now[6:rates] = s[RATES:DUE]
        now[rates:-1] = s[RATES:GPU_RATES].sum(axis=1)[:, None]
        now[-1] = tick - s[LAST].max(initial=self._first - 1)
        return now
