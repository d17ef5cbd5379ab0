"""Workloads to search on: sources of jobs with a rate of arrival, and samples of them (§3.3).

A workload consists of the jobs of a log with their rate of arrival, or of the distributions of a
workload file. The jobs of a sample are drawn one by one, with arrivals of a Poisson process. No job
of a log is drawn both for training and for testing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import fsum
from random import Random
from typing import Literal, NamedTuple

from msgspec.structs import replace

from replay.logs.importers.workload import JobMix, draw_job
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import NEVER_STOPPED
from sia.policies.shared.elastic import least_width, size_of
from sia.wording import counted, did_you_mean, some

MIN_JOBS = 20
"""Smallest number of jobs of a log: with fewer than ten for training and ten for testing, a sample
would repeat the same few jobs, and queue limits would depend on chance."""

SIZES_DRAWN = 2000
"""Number of jobs drawn from distributions to estimate the sizes: twenty for every percent."""

Side = Literal["train", "test"]


class Sample(NamedTuple):
    """Jobs in order of submission; the first is submitted at second 0 or later."""

    name: str
    arrivals: Sequence[Arrival]


class JobSource(ABC):
    """Jobs that arrive at `rate` a second, to be run on `gpus` GPUs."""

    def __init__(self, gpus: int, rate: float, sizes: Sequence[float]) -> None:
        """`sizes` are the sizes of its jobs, in GPU-seconds on their least widths."""
        self.gpus, self.rate = gpus, rate
        self.capped = False
        """Whether the speed of some jobs is not proportional to their GPUs."""
        self.sizes = sorted(sizes)

    @property
    def load(self) -> float:
        """GPU-time that jobs request, on least widths, as a share of the available GPU-time."""
        return self.rate * fsum(self.sizes) / len(self.sizes) / self.gpus

    def at_load(self, load: float) -> None:
        """Set the rate of arrival that gives this load."""
        self.rate *= load / self.load

    @abstractmethod
    def draw(self, side: Side, random: Random) -> Arrival:
        """Draw a job for training or testing (`side`), without a submission time."""

    def sample(self, side: Side, number: int, arrivals: int, seed: int) -> Sample:
        """Return sample `number` of a side; equal arguments give equal samples. O(arrivals)."""
        random = Random(f"{seed} {side} {number}")  # noqa: S311  a simulation, no secret
        now, found = 0.0, []
        for i in range(arrivals):
            now += random.expovariate(self.rate)
            job, duration = self.draw(side, random)
            found.append(Arrival(replace(job.submitted_at(now), id=str(i)), duration))
        return Sample(f"{side}-{number}", found)


class LogSource(JobSource):
    """The jobs of one pool of a log. A random half, which the seed selects, is for training."""

    def __init__(self, arrivals: Sequence[Arrival], gpus: int, seed: int) -> None:
        """Take the jobs of a pool. Raises UserError for too few, or if all arrive at once."""
        never = sum(job.preemptible == NEVER_STOPPED for job, _ in arrivals)
        if never:
            raise UserError(
                f"{counted(never, 'job')} of the history must never be stopped (column "
                "preemptible), and the search simulates only jobs that may be; write seconds or "
                "restart, or leave these jobs out"
            )
        arrivals = [each for each in arrivals if least_width(each.job) <= gpus]
        if len(arrivals) < MIN_JOBS:
            raise UserError(
                f"the history has {counted(len(arrivals), 'job')} to draw from; give a log with at "
                f"least {MIN_JOBS}"
            )
        span = arrivals[-1].job.submit - arrivals[0].job.submit
        if span <= 0:
            raise UserError(
                "all jobs of the history were submitted at once, so that they have no rate; give "
                "a log of a longer time"
            )
        super().__init__(gpus, (len(arrivals) - 1) / span, [size_of(*each) for each in arrivals])
        self.capped = any(job.demand for job, _ in arrivals)
        order = list(range(len(arrivals)))
        Random(f"{seed} halves").shuffle(order)  # noqa: S311  a simulation, no secret
        half = len(order) // 2
        self._sides: dict[Side, Sequence[Arrival]] = {
            "train": [arrivals[i] for i in sorted(order[:half])],
            "test": [arrivals[i] for i in sorted(order[half:])],
        }

    def draw(self, side: Side, random: Random) -> Arrival:
        """Draw a job from the half of the log that belongs to a side."""
        return random.choice(self._sides[side])


def jobs_of_pool(trace: Trace, pool: str | None) -> Sequence[Arrival]:
    """Return the jobs of a pool; without a name, of the only pool. Raises UserError."""
    pools = list(dict.fromkeys(arrival.job.pool for arrival in trace.arrivals))
    if pool is None:
        if len(pools) > 1:
            raise UserError(
                f"the log has {counted(len(pools), 'pool')}; choose one with --pool: "
                f"{some(sorted(pools))}"
            )
        return trace.arrivals
    if pool not in pools:
        raise UserError(
            f"--pool {pool}: no job of the log is of this pool.{did_you_mean(pool, pools)}"
            f" Choose one of: {some(sorted(pools))}"
        )
    return [arrival for arrival in trace.arrivals if arrival.job.pool == pool]


class WorkloadSource(JobSource):
    """A workload of distributions, whose jobs arrive at a given load."""

    def __init__(self, workload: JobMix, gpus: int, load: float) -> None:
        """Draw some jobs to estimate their sizes."""
        self._workload = workload
        random = Random("sizes")  # noqa: S311  a simulation, no secret
        drawn = (self.draw("train", random) for _ in range(SIZES_DRAWN))
        sizes = [size_of(job, duration) for job, duration in drawn]
        super().__init__(gpus, load * gpus / workload.service.mean, sizes)

    @property
    def load(self) -> float:
        """Expected GPU-time that jobs request, as a share of the available GPU-time."""
        return self.rate * self._workload.service.mean / self.gpus

    def draw(self, side: Side, random: Random) -> Arrival:
        """Draw a new job; the two sides have different random numbers."""
        return draw_job(self._workload, random)
