"""The values of ends, and the costs of kills (§4.1.2, §4.3)."""

from __future__ import annotations

from sia.contract.views import JobStateView
from sia.model import RESTART, Job
from sia.policies.jvu.params import JvuParams
from sia.state.strl import asks_of, durations, wanted_of, worth_of
from sia.wording import HOUR


class JobWorth:
    """Value functions under given options. Times are in seconds."""

    def __init__(self, params: JvuParams) -> None:
        """Take the options."""
        self._params = params

    def end(self, job: Job, end: float, now: float) -> float:
        """Return the value of an end, as known at `now`."""
        if job.deadline is None:
            return self._best_effort(end - job.submit)
        full = self._params.slo if job.value is None else job.value
        return self._late(job, job.deadline, full, end, now)

    def choice(self, job: Job, begin: float, end: float, now: float, among: str = "") -> float:
        """Return the value of a run, as known at `now`.

        `among` is a set of the job's own STRL, whose value applies if the run ends by the job's
        deadline, or if it has none.
        """
        if not job.strl:
            return self.end(job, end, now)
        full = self.start(job, begin, among)
        if job.deadline is None:
            return full
        return min(full, self._late(job, job.deadline, full, end, now))

    def start(self, job: Job, begin: float, among: str = "") -> float:
        """Return the value of a start by the job's own STRL, on the set `among` or the best set.

        O(its `nck`).
        """
        asks, waited = asks_of(job.strl), begin - job.submit
        if among:
            return worth_of(asks, among, waited)
        return max(worth_of(asks, each, waited) for each in durations(asks))

    def _late(self, job: Job, deadline: float, full: float, end: float, now: float) -> float:
        value = self._by_deadline(job, deadline, full, end)
        if value <= 0.0 and (now >= deadline or self._params.early):
            return self._best_effort(end - deadline)
        return value

    def _by_deadline(self, job: Job, deadline: float, full: float, end: float) -> float:
        if end <= deadline:
            return full
        tail = deadline - job.submit
        if "o" not in self._params.letters or tail <= 0.0:
            return 0.0
        return max(0.0, full * (1.0 - (end - deadline) / tail))

    def _best_effort(self, took: float) -> float:
        params = self._params
        part = min(1.0, max(0.0, took / params.decay))
        return params.best - (params.best - params.least) * part

    def kill(self, job: JobStateView, end: float, now: float) -> float:
        """Return the cost of killing a running job that is expected to end at `end`."""
        params = self._params
        cost = params.stop * max(self.choice(job.job, job.start, end, now), params.best)
        if "l" in params.letters:
            cost += params.lost * lost_work(job, now) * job.width / HOUR
        return cost


def lost_work(job: JobStateView, now: float) -> float:
    """Return the work that a kill loses, in seconds at the job's own width."""
    work = job.work(now)
    cost = job.job.preemptible
    return work if cost is None or cost == RESTART else min(work, job.job.stop_seconds or 0.0)


def opens(job: Job, among: str = "") -> float:
    """Return when a start first has a value on the set `among`, or on any set, in seconds."""
    asks = wanted_of(asks_of(job.strl)) if job.strl else ()
    starts = (ask.start for ask in asks if among in ("", ask.among))
    return job.submit + min(starts, default=0.0)


def steps_of(job: Job) -> list[float]:
    """Return the times at which the values of starts change by the job's own STRL, in seconds."""
    return [job.submit + ask.start for ask in asks_of(job.strl)] if job.strl else []
