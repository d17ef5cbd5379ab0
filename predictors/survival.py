"""JobDuration (§5.4.2) with what still runs as evidence, and doubt where there is little of it.

Each group of jobs counts, for each window, how many got as far and how many lasted longer: a
discrete Kaplan-Meier estimate, in which jobs that still run count for the windows they have
outlasted. A group that has seen little believes the wider group it is part of: all jobs, the pool,
the pool and width, the user, the name (the paper's experiment tag). Jobs that wait are thought of
anew as others end or run on.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from sia.forecasts import RunTimes
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Estimate, Job

QUANTILE = 0.9
"""The share of jobs that should be over by the end of the window they are said to fit."""

PRIOR = 4.0
"""Jobs of its own without which a group believes the wider one more than itself."""

KEPT = 0.5 ** (1 / 150)
"""What is left of a job's weight in a group at each later one: after 150 of them a half."""


class _Group:
    """Jobs that are alike: for each window, how many got so far, and how many lasted longer."""

    __slots__ = ("lasted", "reached", "wider")

    def __init__(self, windows: int, wider: _Group | None) -> None:
        self.wider = wider
        self.reached = [0.0] * windows
        self.lasted = [0.0] * windows

    def add(self, window: int, *, lasted: bool) -> None:
        group: _Group | None = self
        while group is not None:
            group.reached[window] = group.reached[window] * KEPT + 1.0
            group.lasted[window] = group.lasted[window] * KEPT + lasted
            group = group.wider

    def hazards(self) -> list[float]:
        """The chances of those who got as far to last beyond each window; 1 while none has."""
        if self.wider is None:
            pairs = zip(self.lasted, self.reached, strict=True)
            return [(lasted + 1.0) / (reached + 1.0) for lasted, reached in pairs]
        triples = zip(self.lasted, self.reached, self.wider.hazards(), strict=True)
        return [(lasted + PRIOR * wider) / (reached + PRIOR) for lasted, reached, wider in triples]


class SurvivalRunTimes(RunTimes):
    """The first window that jobs alike seldom outlast; beyond all of them if there is none."""

    def __init__(self, windows: Sequence[float], quantile: float = QUANTILE) -> None:
        """Windows are seconds, ascending. Raises ValueError for a quantile not between 0 and 1."""
        if not 0 < quantile < 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        self._windows = windows
        self._quantile = quantile
        self._all = _Group(len(windows), None)
        self._groups: dict[tuple[str | int, ...], _Group] = {}
        self._waiting: dict[_Group, dict[str, float]] = {}  # group, job: what was said
        self._running: dict[str, int] = {}  # job: windows it has outlasted
        self._crossings: list[tuple[float, str, Job]] = []  # when a window will be outlasted
        self._looked = float("-inf")  # the tick at which all that wait were last looked at

    def run_time(self, job: Job) -> float:
        """The end of a window in seconds, or `UNKNOWN_RUN_TIME`."""
        group = self._group(job)
        said = self._said(group)
        self._waiting.setdefault(group, {})[job.id] = said
        return said

    def started(self, now: float, job: Job) -> None:
        """It waits no longer, and will soon have outlasted the first window."""
        self._forget(job)
        self._running[job.id] = 0
        heappush(self._crossings, (now + self._windows[0], job.id, job))

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Count it for every window that it got to and is not counted for."""
        self._forget(job)
        group = self._group(job)
        for window in range(self._running.pop(job.id, 0), len(self._windows)):
            lasted = run_time > self._windows[window]
            group.add(window, lasted=lasted)
            if not lasted:
                return

    def withdrawn(self, now: float, job: Job) -> None:
        """Nothing more is learned from it."""
        self._forget(job)
        self._running.pop(job.id, None)

    def changes(self, now: float) -> list[Estimate]:
        """At a tick: jobs that wait and, by what has come to light, fit another window."""
        self._cross(now)
        if now // TICK == self._looked:
            return []
        self._looked = now // TICK
        changed = []
        for group, jobs in self._waiting.items():
            said = self._said(group)
            changed += [Estimate(job_id, said) for job_id, before in jobs.items() if before != said]
            jobs.update(dict.fromkeys(jobs, said))
        return changed

    def _cross(self, now: float) -> None:
        """Count those that have run on past a window."""
        while self._crossings and self._crossings[0][0] < now:
            when, job_id, job = heappop(self._crossings)
            window = self._running.get(job_id)
            if window is None:
                continue
            self._group(job).add(window, lasted=True)
            self._running[job_id] = window + 1
            if window + 1 < len(self._windows):
                when += self._windows[window + 1] - self._windows[window]
                heappush(self._crossings, (when, job_id, job))

    def _forget(self, job: Job) -> None:
        group = self._group(job)
        jobs = self._waiting.get(group)
        if jobs is not None and jobs.pop(job.id, None) is not None and not jobs:
            del self._waiting[group]

    def _said(self, group: _Group) -> float:
        chance = 1.0
        for window, hazard in zip(self._windows, group.hazards(), strict=True):
            chance *= hazard
            if chance <= 1.0 - self._quantile:
                return window
        return UNKNOWN_RUN_TIME

    def _group(self, job: Job) -> _Group:
        """The narrowest group of a job."""
        size = (job.width - 1).bit_length()  # 1, 2, 3 to 4, 5 to 8 GPUs, ...
        narrower: list[tuple[str | int, ...]] = [(job.pool,), (job.pool, size)]
        if job.user:
            narrower.append((job.pool, size, job.user))
        if job.name:
            narrower.append((job.pool, size, job.user, job.name))
        group = self._all
        for kind in narrower:
            known = self._groups.get(kind)
            if known is None:
                known = self._groups[kind] = _Group(len(self._windows), group)
            group = known
        return group
