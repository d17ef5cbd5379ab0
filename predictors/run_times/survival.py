"""JobDuration (§5.4.2) with what still runs as evidence, and doubt where there is little of it.

Each group of jobs counts, for each window, how many got as far and how many lasted longer, once so
much time has gone by since their start: a life table, in which jobs that still run count for the
windows they have outlasted. That one ended after seconds is told at the end of the window and not
before, or the first of a batch to fail would speak for those that run on. A group that has seen
little believes the wider group it is part of: all jobs, the pool, the pool and width, the user, the
name (the paper's experiment tag), the batch. Jobs that wait are thought of anew as others end or
run on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Self

from sia.forecasts import PredictorContext, RunTimes
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Estimate, Job

QUANTILE = 0.88
"""The share of jobs that should be over by the end of the window they are said to fit. On pieces of
Philly's days 14 to 62 all of 0.85 to 0.9 slow next to nobody (docs/forecasts.md)."""

PRIOR = 4.0
"""Jobs of its own without which a group believes the wider one more than itself, and all jobs
together that none ever ends."""

LEAST = 10.0
"""Jobs that must have been seen at all: of fewer nobody can say what one in ten does."""

KEPT = 0.5 ** (1 / 150)
"""What is left of a job's weight in a group at each later one: after 150 of them a half, so that
one in ten is still told from one in twenty, and what was long ago is forgotten."""

BATCH = 300.0
"""Seconds after a job within which the next one alike is of the same batch: on Philly the run times
of such jobs go together (their logarithms correlate by 0.7 to 0.85 within a minute)."""

MOST_GROUPS = 2**16
"""Groups, of which those used last are kept: so many at least, and twice as many at most (270 MB
with nine windows, the newest batch of each among them). All of Philly makes 238; a log whose jobs
all have names of their own makes no end of them."""

_Kind = tuple[str | int, ...]


class _Group:
    """Jobs that are alike: for each window, how many got so far, and how many lasted longer."""

    __slots__ = ("_hazards", "_known", "_unseen", "batch", "lasted", "latest", "reached", "wider")

    def __init__(self, windows: int, wider: _Group | None, unseen: float = 1.0) -> None:
        self.wider, self._unseen = wider, unseen
        self.reached = [0.0] * windows
        self.lasted = [0.0] * windows
        self._known = -1
        self._hazards: list[float] = []
        self.batch: _Group | None = None  # its newest jobs, if they came shortly after each other
        self.latest = -inf  # when the last of them was submitted

    def add(self, window: int, *, lasted: bool) -> None:
        group: _Group | None = self
        while group is not None:
            group.reached[window] = group.reached[window] * KEPT + 1.0
            group.lasted[window] = group.lasted[window] * KEPT + lasted
            group = group.wider

    def hazards(self, known: int) -> list[float]:
        """The chances of those who got as far to last beyond each window; `unseen` while none has.

        `known` is how often anything was added to any group: until then they are what they were.
        """
        if self._known != known:
            self._known = known
            pairs = zip(self.lasted, self.reached, strict=True)
            if self.wider is None:
                self._hazards = [
                    (lasted + PRIOR * self._prior(reached)) / (reached + PRIOR)
                    for lasted, reached in pairs
                ]
            else:
                wider = self.wider.hazards(known)
                self._hazards = [
                    (lasted + PRIOR * hazard) / (reached + PRIOR)
                    for (lasted, reached), hazard in zip(pairs, wider, strict=True)
                ]
        return self._hazards

    def _prior(self, reached: float) -> float:
        """`unseen` where none got as far, and 1 where many have, of which some would have ended."""
        return 1.0 - (1.0 - self._unseen) * PRIOR / (PRIOR + reached)


class _Run:
    """A job that was started."""

    __slots__ = ("ended", "gone", "group", "start")

    def __init__(self, start: float, group: _Group) -> None:
        self.start = start
        self.group = group
        self.ended: float | None = None  # after so many seconds
        self.gone = False  # nothing is learned from it any more


class SurvivalRunTimes(RunTimes):
    """The first window that jobs alike seldom outlast; beyond all of them if there is none."""

    summary = "the first window that jobs alike seldom outlast, of ended and running ones"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet."""
        return cls(context.windows, context.quantile or QUANTILE)

    def __init__(
        self, windows: Sequence[float], quantile: float = QUANTILE, unseen: float = 1.0
    ) -> None:
        """Windows are seconds, ascending. Raises ValueError for a quantile not between 0 and 1.

        `unseen` is the chance to last beyond a window of which nothing was seen.
        """
        if not 0 < quantile < 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        self._windows = windows
        self._quantile = quantile
        self._all = _Group(len(windows), None, unseen)
        self._groups: dict[_Kind, _Group] = {}  # used since the last time there were too many
        self._older: dict[_Kind, _Group] = {}  # used before
        self._known = 0  # how often anything was added to a group
        self._waiting: dict[str, tuple[_Group, float]] = {}  # job: group, what was said
        self._said: dict[_Group, dict[float, dict[str, None]]] = {}  # the same the other way round
        self._running: dict[str, _Run] = {}
        # Jobs that have outlasted no window, one, ...: in the order of their starts.
        self._young: list[deque[_Run]] = [deque() for _ in windows]
        self._crossed = inf  # until when none of them comes to the end of a window
        self._looked = -inf  # the tick at which all that wait were last looked at

    def run_time(self, job: Job) -> float:
        """The end of a window in seconds, or `UNKNOWN_RUN_TIME`."""
        self._cross(job.submit)  # not everyone asks for changes
        group = self._group(job)
        said = self._fit(group)
        self._waiting[job.id] = group, said
        self._said.setdefault(group, {}).setdefault(said, {})[job.id] = None
        return said

    def started(self, now: float, job: Job) -> None:
        """It waits no longer, and comes to the end of the first window in a while."""
        run = self._running[job.id] = _Run(now, self._leave_queue(job))
        self._young[0].append(run)
        self._crossed = min(self._crossed, now + self._windows[0])

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """It counts as one that lasted no longer at the end of the window that it ended in."""
        run = self._running.pop(job.id, None)
        if run is not None:
            run.ended = run_time
            return
        group = self._leave_queue(job)  # of its start nobody was told
        for window, length in enumerate(self._windows):
            lasted = run_time > length
            self._add(group, window, lasted=lasted)
            if not lasted:
                return

    def withdrawn(self, now: float, job: Job) -> None:
        """What it has outlasted until now counts, and nothing more is learned from it."""
        self._cross(now)
        run = self._running.pop(job.id, None)
        if run is not None:
            run.gone = True
        else:
            self._leave_queue(job)

    def changes(self, now: float) -> list[Estimate]:
        """At a tick: jobs that wait and, by what has come to light, fit another window.

        O(batches that have jobs waiting · windows), and what is changed.
        """
        self._cross(now)
        if now // TICK == self._looked:
            return []
        self._looked = now // TICK
        changed = []
        for group, told in self._said.items():
            fit = self._fit(group)
            for before in [before for before in told if before != fit]:
                jobs = told.pop(before)
                told.setdefault(fit, {}).update(jobs)
                self._waiting.update(dict.fromkeys(jobs, (group, fit)))
                changed += [Estimate(job_id, fit) for job_id in jobs]
        return changed

    def _cross(self, now: float) -> None:
        """Count those for whom the end of a window has come, whether they run on or not."""
        if now <= self._crossed:
            return
        self._crossed = inf
        for window, length in enumerate(self._windows):
            young = self._young[window]
            while young:
                run = young[0]
                if run.start + length >= now:
                    self._crossed = min(self._crossed, run.start + length)
                    break
                young.popleft()
                if not run.gone:
                    lasted = run.ended is None or run.ended > length
                    self._add(run.group, window, lasted=lasted)
                    if lasted and window + 1 < len(self._young):
                        self._young[window + 1].append(run)

    def _add(self, group: _Group, window: int, *, lasted: bool) -> None:
        self._known += 1
        group.add(window, lasted=lasted)

    def _leave_queue(self, job: Job) -> _Group:
        """Its group."""
        if job.id not in self._waiting:
            return self._group(job)
        group, said = self._waiting.pop(job.id)
        told = self._said[group]
        del told[said][job.id]
        if not told[said]:
            del told[said]
        if not told:
            del self._said[group]
        return group

    def _fit(self, group: _Group) -> float:
        """The first window that such jobs seldom outlast."""
        if self._all.reached[0] < LEAST:
            return UNKNOWN_RUN_TIME
        chance = 1.0
        for window, hazard in zip(self._windows, group.hazards(self._known), strict=True):
            chance *= hazard
            if chance <= 1.0 - self._quantile:
                return window
        return UNKNOWN_RUN_TIME

    def _group(self, job: Job) -> _Group:
        """The batch of a job; jobs that wait or run go on in theirs if its group is dropped.

        A wider group is used whenever a narrower one is, so it is not dropped before it.
        """
        group = self._all
        for kind in _kinds(job):
            known = self._groups.get(kind)
            if known is None:
                known = self._older.pop(kind, None) or _Group(len(self._windows), group)
                self._groups[kind] = known
            group = known
        if len(self._groups) > MOST_GROUPS:
            self._groups, self._older = {}, self._groups
        if group.batch is None or job.submit > group.latest + BATCH:
            group.batch = _Group(len(self._windows), group)
        group.latest = max(group.latest, job.submit)
        return group.batch


def _kinds(job: Job) -> list[_Kind]:
    """What a job may be compared by, least telling first."""
    size = (job.width - 1).bit_length()  # 1, 2, 3 to 4, 5 to 8 GPUs, ...
    kinds: list[_Kind] = [(job.pool,), (job.pool, size)]
    if job.user:
        kinds.append((job.pool, size, job.user))
    if job.name:
        kinds.append((job.pool, size, job.user, job.name))
    return kinds
