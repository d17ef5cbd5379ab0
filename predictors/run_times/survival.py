"""JobDuration (§5.4.2) by survival analysis, with running jobs as evidence.

Each group of similar jobs has a life table. It counts, for each window, how many jobs ran up to it
and how many ran longer, once that time has passed since their start. Running jobs count for the
windows they have outlasted. An early end counts at the end of its window and not before; otherwise
the first jobs of a batch to fail would bias the estimate. A group with little evidence is shrunk
towards the wider group that contains it: all jobs, the pool, the pool and width, the user, the name
(the paper's experiment tag), the batch. Estimates of pending jobs are updated as others end or
continue.

The estimate that a user states for a job is used until enough jobs of the same user, pool and width
have been seen. After that the life table decides in which window the job ends. If the stated
estimate falls into the same window, it is returned, because it is more exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Self

from predictors.run_times.window_ends import WindowEnds
from sia.forecasts import PredictorContext, RunTimes
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Estimate, Job

QUANTILE = 0.88
"""The share of jobs that should have ended by the end of their estimated window. On pieces of
Philly's days 14 to 62, 0.85 to 0.9 slow almost no job (docs/results/forecasts.md)."""

PRIOR = 4.0
"""Weight of the wider group, in jobs. For the group of all jobs it is the weight of the assumption
that no job ends."""

LEAST = 10.0
"""Minimum number of jobs seen before any estimate, and of jobs of the same user, pool and width
before the user's own estimate gives way. With fewer, a share of one in ten is unknown."""

KEPT = 0.5 ** (1 / 150)
"""Factor on the weight of a group's earlier jobs with each new one. The weight halves after 150
jobs: enough to distinguish one in ten from one in twenty, and to forget old behaviour."""

BATCH = 300.0
"""Maximum seconds between similar jobs of one batch. On Philly their run times are correlated (0.7
to 0.85 in logarithms within a minute)."""

MOST_GROUPS = 2**12
"""Minimum number of recently used groups that are kept; at most twice as many are (17 MB with nine
windows, including the newest batch of each; 56 MB with the 33 ages of estimates). A log of Philly
or Helios has at most 550 groups in all; a log with unique job names would grow without limit."""

_Kind = tuple[str | int, ...]

USERS_OWN = 3
"""Length of the narrowest kind without the name: pool, width and user. It is needed because a user
may give each job another name, so that no two jobs share a name."""


class _Group:
    """Similar jobs: for each window, how many reached it and how many lasted longer."""

    __slots__ = (
        "_hazards", "_known", "_unseen", "batch", "ended", "lasted", "latest", "peers", "ratios",
        "reached", "wider",
    )  # fmt: skip

    def __init__(self, windows: int, wider: _Group | None, unseen: float = 1.0) -> None:
        self.wider, self._unseen = wider, unseen
        self.reached = [0.0] * windows
        self.lasted = [0.0] * windows
        self._known = -1
        self._hazards: list[float] = []
        self.ended = 0  # counted by `RunTimeDistributions`
        self.batch: _Group | None = None  # its newest batch
        self.latest = -inf  # submission of the latest job
        self.peers: _Group | None = None  # of a batch: the jobs of the same user, pool and width
        self.ratios: _Group | None = None  # run time by stated time, of `RunTimeDistributions`

    def add(self, window: int, *, lasted: bool) -> None:
        group: _Group | None = self
        while group is not None:
            group.reached[window] = group.reached[window] * KEPT + 1.0
            group.lasted[window] = group.lasted[window] * KEPT + lasted
            group = group.wider

    def hazards(self, known: int) -> list[float]:
        """Return the probability to run longer than each window, given that a job reached it.

        `known` counts additions to any group; the result is cached until it changes.
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
        """Return the prior probability for the group of all jobs.

        It is `unseen` without evidence and tends to 1, because with much evidence ends would have
        been seen.
        """
        return 1.0 - (1.0 - self._unseen) * PRIOR / (PRIOR + reached)


class _Alike(NamedTuple):
    """Jobs whose estimates are always equal: jobs of a batch with the same stated run time."""

    batch: _Group
    own: float | None
    """The stated run time in seconds, or None."""


class _Run:
    """A running job."""

    __slots__ = ("ended", "gone", "group", "start")

    def __init__(self, start: float, group: _Group) -> None:
        self.start = start
        self.group = group
        self.ended: float | None = None  # run time in seconds
        self.gone = False  # it was cancelled and no longer counts


class SurvivalRunTimes(RunTimes):
    """Estimates the first window that similar jobs rarely outlast.

    Without such a window the estimate is `UNKNOWN_RUN_TIME`.
    """

    summary = "the first window that similar jobs, ended and running, rarely outlast"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        return cls(context.windows, context.quantile or QUANTILE)

    def __init__(
        self, windows: Sequence[float], quantile: float = QUANTILE, unseen: float = 1.0
    ) -> None:
        """Take windows in seconds, ascending. Raises ValueError unless 0 < quantile < 1.

        `unseen` is the probability to run longer than a window without evidence.
        """
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1 (got {quantile})")
        self._windows = windows
        self._quantile = quantile
        self._all = _Group(len(windows), None, unseen)
        self._groups: dict[_Kind, _Group] = {}  # used since the last rotation
        self._older: dict[_Kind, _Group] = {}  # used before the last rotation
        self._known = 0  # number of additions to any group
        self._waiting: dict[str, tuple[_Alike, float]] = {}  # pending job: its kind, estimate
        self._last: dict[_Alike, dict[float, dict[str, None]]] = {}  # kind: estimate: jobs
        self._running: dict[str, _Run] = {}
        self._ends = WindowEnds[_Run](windows)
        self._looked = -inf  # the last tick at which estimates of pending jobs were updated

    def run_time(self, job: Job) -> float:
        """Return the end of a window in seconds, the job's own estimate, or `UNKNOWN_RUN_TIME`."""
        self._cross(job.submit)  # a caller need not call `changes`
        alike = _Alike(self._group(job), job.estimate)
        estimate = self._fit(alike)
        self._waiting[job.id] = alike, estimate
        self._last.setdefault(alike, {}).setdefault(estimate, {})[job.id] = None
        return estimate

    def guess(self, now: float, job: Job) -> float:
        """Return the estimate of `run_time` without adding the job to a batch. O(windows)."""
        return self._fit(_Alike(self._group(job, stays=False), job.estimate))

    def guessed_hazards(self, job: Job) -> Sequence[float]:
        """Return the result of `hazards` for a job that is not submitted."""
        return self._group(job, stays=False).hazards(self._known)

    def started(self, now: float, job: Job) -> None:
        """Record that a job has started; it will reach the end of the first window later."""
        run = self._running[job.id] = _Run(now, self._leave_queue(job))
        self._ends.add(run)

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record an end. It counts once the window in which the job ended is over."""
        run = self._running.pop(job.id, None)
        if run is not None:
            run.ended = run_time
            return
        group = self._leave_queue(job)  # its start was not reported
        for window, length in enumerate(self._windows):
            lasted = run_time > length
            self._add(group, window, lasted=lasted)
            if not lasted:
                return

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled. The windows that it has outlasted count."""
        self._cross(now)
        run = self._running.pop(job.id, None)
        if run is not None:
            run.gone = True
        else:
            self._leave_queue(job)

    def changes(self, now: float) -> list[Estimate]:
        """Return, at a tick, pending jobs whose estimate has changed.

        O(batches and estimates of pending jobs · windows), plus the changes.
        """
        self._cross(now)
        if now // TICK == self._looked:
            return []
        self._looked = now // TICK
        changed = []
        for alike, estimates in self._last.items():
            fit = self._fit(alike)
            for before in [before for before in estimates if before != fit]:
                jobs = estimates.pop(before)
                estimates.setdefault(fit, {}).update(jobs)
                self._waiting.update(dict.fromkeys(jobs, (alike, fit)))
                changed += [Estimate(job_id, fit) for job_id in jobs]
        return changed

    def hazards(self, now: float, job: Job) -> Sequence[float]:
        """Return the probability that a pending job runs longer than each window it reaches.

        O(windows) after a change of any group.
        """
        self._cross(now)
        return self._waiting[job.id][0].batch.hazards(self._known)

    def _cross(self, now: float) -> None:
        """Count jobs that have reached the end of a window, whether they still run or not."""
        self._ends.advance(now, self._reach)

    def _reach(self, run: _Run, window: int) -> bool:
        """Count a job whose window is over, and return whether it lasted longer."""
        if run.gone:
            return False
        lasted = run.ended is None or run.ended > self._windows[window]
        self._add(run.group, window, lasted=lasted)
        return lasted

    def _add(self, group: _Group, window: int, *, lasted: bool) -> None:
        self._known += 1
        group.add(window, lasted=lasted)

    def _leave_queue(self, job: Job) -> _Group:
        """Remove a job from the pending ones and return its batch."""
        if job.id not in self._waiting:
            return self._group(job)
        alike, estimate = self._waiting.pop(job.id)
        estimates = self._last[alike]
        del estimates[estimate][job.id]
        if not estimates[estimate]:
            del estimates[estimate]
        if not estimates:
            del self._last[alike]
        return alike.batch

    def _fit(self, alike: _Alike) -> float:
        """Return the estimate of such jobs: the stated one if too few similar jobs are known."""
        batch, own = alike
        if own is None:
            return self._usual(batch)
        if batch.peers is None or batch.peers.reached[0] < LEAST:
            return own
        usual, windows = self._usual(batch), self._windows
        return own if bisect_left(windows, own) == bisect_left(windows, usual) else usual

    def _usual(self, group: _Group) -> float:
        """Return the first window that jobs of a group rarely outlast."""
        if self._all.reached[0] < LEAST:
            return UNKNOWN_RUN_TIME
        chance = 1.0
        for window, hazard in zip(self._windows, group.hazards(self._known), strict=True):
            chance *= hazard
            if chance <= 1.0 - self._quantile:
                return window
        return UNKNOWN_RUN_TIME

    def _group(self, job: Job, *, stays: bool = True) -> _Group:
        """Return the batch of a job. Pending and running jobs keep a batch whose group is dropped.

        A wider group is used whenever a narrower one is, so it is not dropped first. If the job
        does not stay, no group remembers it.
        """
        group = peers = self._all
        for kind in _kinds(job):
            known = self._groups.get(kind)
            if known is None:
                known = self._older.get(kind) or _Group(len(self._windows), group)
                if stays:
                    self._older.pop(kind, None)
                    self._groups[kind] = known
            group = known
            if len(kind) <= USERS_OWN:
                peers = known
        if not stays:
            batch = group.batch
            if batch is None or job.submit > group.latest + BATCH:
                batch = _Group(len(self._windows), group)
                batch.peers = peers
            return batch
        if len(self._groups) > MOST_GROUPS:
            self._groups, self._older = {}, self._groups
        if group.batch is None or job.submit > group.latest + BATCH:
            group.batch = _Group(len(self._windows), group)
            group.batch.peers = peers
        group.latest = max(group.latest, job.submit)
        return group.batch


def _kinds(job: Job) -> list[_Kind]:
    """Return the groups of a job, widest first."""
    size = (job.width - 1).bit_length()  # 1, 2, 3 to 4, 5 to 8 GPUs, ...
    kinds: list[_Kind] = [(job.pool,), (job.pool, size)]
    if job.user:
        kinds.append((job.pool, size, job.user))
    if job.name:
        kinds.append((job.pool, size, job.user, job.name))
    return kinds
