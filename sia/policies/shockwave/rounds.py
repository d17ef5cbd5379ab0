"""Policies in rounds: the running jobs of each pool are chosen at each multiple of a round (§7).

A job that arrives within a round waits for the next round, and GPUs of a job that ends stay idle
until then. A job that is chosen again keeps its GPUs. So does a job that must not be stopped, or
that has not yet run for its `min_run_time` since its start.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from sia.contract.policy import Changes, Needs, Policy
from sia.contract.proposals import Preempt, Proposals, Resize, Start
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.limits import MAX_RESUME_COST
from sia.model import NEVER_STOPPED, RESTART, Stream
from sia.policies.shockwave.foresight import (
    ForeseenJob,
    PredictionRule,
    Reached,
    foreseen,
    reached_by,
)

MOMENT = 1e-3
"""Smallest remaining run time of a job that has not ended, and smallest run time, in seconds."""

RoundSeconds = Annotated[float, Meta(ge=1.0, le=MAX_RESUME_COST)]


class RoundParams(Struct, frozen=True):
    """The options of a policy in rounds."""

    round: RoundSeconds = 120.0
    """Seconds."""


class RoundPolicy(Policy):
    """Base of policies in rounds. A round costs O(jobs · log jobs) plus one call of `choose`."""

    Params: ClassVar[type[Struct]] = RoundParams
    needs = Needs(run_times=True, preemption=True)
    heeds = frozenset({"min_run_time", "mode", "regimes"})

    _decided: float = -1.0  # the latest round that was decided

    @property
    def round(self) -> float | None:
        """The seconds of a round."""
        seconds: float = self.params.round
        return seconds

    def memory(self) -> Any:
        """Return the latest round that was decided."""
        return self._decided

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Continue after that round."""
        self.attach(state)
        self._decided = memory

    def begins(self, now: float, changes: Changes) -> bool:
        """Return whether a round begins that is not decided yet, and mark it as decided."""
        if now == self._decided or not (changes.round or now % self.params.round == 0.0):
            return False
        self._decided = now
        return True

    def propose(self, now: float, changes: Changes) -> Proposals:
        """At the start of a round, stop the jobs that are not chosen and start those that are."""
        if self.begins(now, changes):
            for pool, jobs in self.present():
                yield from self.carry_out(pool, jobs, self.choose(pool, jobs, now))

    @abstractmethod
    def choose(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> Mapping[JobStateView, int]:
        """Return the jobs for the round that begins, with their GPUs, most important first.

        They may need more GPUs together than there are: jobs that do not fit are skipped.
        """

    def present(self) -> Iterator[tuple[PoolStateView, list[JobStateView]]]:
        """Yield the pools with jobs, and their jobs in order of arrival. O(jobs)."""
        jobs: dict[str, list[JobStateView]] = {}
        for job in self.state.jobs.values():
            jobs.setdefault(job.job.pool, []).append(job)
        for name, pool in self.state.pools.items():
            if name in jobs:
                yield pool, jobs[name]

    def carry_out(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], chosen: Mapping[JobStateView, int]
    ) -> Proposals:
        """Stop, resize and start jobs so that the chosen jobs run, as far as they fit."""
        runs: dict[JobStateView, int] = {
            job: job.width for job in jobs if job.stream is not None and self._goes_on(job)
        }
        idle = pool.quota - sum(runs.values())
        for job, gpus in chosen.items():
            if job not in runs and gpus <= idle:
                runs[job] = gpus
                idle -= gpus
        for job in jobs:
            if job.stream is not None and job not in runs:
                yield Preempt(job, "another job's round begins")
        grows = []
        for job, gpus in runs.items():
            if job.stream is not None and gpus < job.width:
                yield Resize(job, gpus, Stream.DEDICATED, "its share of this round")
            elif job.stream is None or gpus > job.width:
                grows.append(job)
        for job in grows:
            if job.stream is not None:
                yield Resize(job, runs[job], Stream.DEDICATED, "its share of this round")
            else:
                other = 0 if runs[job] == job.job.width else runs[job]
                yield Start(job, Stream.DEDICATED, self.reason(job), other)

    def _goes_on(self, job: JobStateView) -> bool:
        """Return whether a running job keeps its GPUs even if it is not chosen."""
        least = job.job.min_run_time
        return is_pinned(job) or (least is not None and self.state.now - job.start < least)

    def reason(self, job: JobStateView) -> str:
        """Return why a job starts."""
        return "its round begins"

    def foresee(self, job: JobStateView, now: float, rule: PredictionRule) -> ForeseenJob:
        """Predict a job; without regimes it is one epoch as long as its estimated run time."""
        work = job.work(now)
        if not job.job.regimes:
            seconds = max(job.run_time, MOMENT)
            return ForeseenJob([1.0], [seconds], work, Reached((0.0,), min(work, seconds)))
        begun = None if job.regime is None else job.begun
        return foreseen(rule, job.job.mode, job.job.regimes, work, begun)

    def regime(self, job: JobStateView, now: float) -> int:
        """Return the number of regimes that a job has reached."""
        regimes = job.job.regimes
        if job.regime is not None:
            return job.regime + 1
        return len(reached_by(regimes, job.work(now)).seen) if len(regimes) > 1 else 1


def is_pinned(job: JobStateView) -> bool:
    """Return whether a running job is not stopped, because a stop would cost all of its work."""
    return job.job.preemptible in (NEVER_STOPPED, RESTART)
