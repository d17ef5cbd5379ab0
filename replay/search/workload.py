"""Workloads to search on: what jobs there are, how often one arrives, and samples of both (§3.3).

A workload is a list of jobs of a log with the rate at which they arrived, or the distributions of a
workload file. A sample draws jobs from it one by one, with arrivals of a Poisson process. Jobs for
training and for testing are apart: no job of a log is drawn for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil, fsum
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from msgspec.structs import replace

from replay.logs.read import BadCellError, columns_of, number, open_table, take_rows
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job
from sia.wording import counted, did_you_mean, some

MIN_JOBS = 20
"""Fewest jobs of a log to draw from: with less than ten for training and ten for testing, a sample
repeats the same few jobs, and no queue limit is more than an accident."""

SIZES_DRAWN = 2000
"""Jobs drawn from distributions to know their sizes, so that every percent has twenty."""

Side = Literal["train", "test"]


class Sample(NamedTuple):
    """Jobs in order of submission; the first is submitted at second 0 or later."""

    name: str
    arrivals: Sequence[Arrival]


class JobSource(ABC):
    """Jobs that arrive at `rate` a second, to be run on `gpus` GPUs."""

    def __init__(self, gpus: int, rate: float, sizes: Sequence[float]) -> None:
        """`sizes` are those of its jobs, in GPU-seconds on their least widths."""
        self.gpus, self.rate = gpus, rate
        self.sizes = sorted(sizes)

    @property
    def load(self) -> float:
        """GPU-time asked for, on least widths, as a part of what there is."""
        return self.rate * fsum(self.sizes) / len(self.sizes) / self.gpus

    def at_load(self, load: float) -> None:
        """Let jobs arrive as often as makes this load."""
        self.rate *= load / self.load

    @abstractmethod
    def draw(self, side: Side, random: Random) -> Arrival:
        """Return a job of a side, submitted at no particular time."""

    def sample(self, side: Side, number: int, arrivals: int, seed: int) -> Sample:
        """Return sample `number` of a side; equal arguments give an equal sample. O(arrivals)."""
        random = Random(f"{seed} {side} {number}")  # noqa: S311  a simulation, no secret
        now, found = 0.0, []
        for i in range(arrivals):
            now += random.expovariate(self.rate)
            job, duration = self.draw(side, random)
            found.append(Arrival(replace(job.submitted_at(now), id=str(i)), duration))
        return Sample(f"{side}-{number}", found)


def least_width(job: Job) -> int:
    """Return the fewest GPUs on which a job runs."""
    return job.min_width or 1


def most_width(job: Job) -> int:
    """Return the most GPUs that a job can use."""
    return job.max_width or job.width


def size_of(arrival: Arrival) -> float:
    """Return a job's size: GPU-seconds on its least width."""
    job, duration = arrival
    least = least_width(job)
    return least * duration / job.speed(least)


class LogSource(JobSource):
    """The jobs of one pool of a log. One half, drawn by the seed, is for training."""

    def __init__(self, arrivals: Sequence[Arrival], gpus: int, seed: int) -> None:
        """Take the jobs of a pool. Raises UserError for too few, or all at once."""
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
        super().__init__(gpus, (len(arrivals) - 1) / span, [size_of(each) for each in arrivals])
        order = list(range(len(arrivals)))
        Random(f"{seed} halves").shuffle(order)  # noqa: S311  a simulation, no secret
        half = len(order) // 2
        self._sides: dict[Side, Sequence[Arrival]] = {
            "train": [arrivals[i] for i in sorted(order[:half])],
            "test": [arrivals[i] for i in sorted(order[half:])],
        }

    def draw(self, side: Side, random: Random) -> Arrival:
        """Return a job of the half of the log that belongs to a side."""
        return random.choice(self._sides[side])


def jobs_of_pool(trace: Trace, pool: str | None) -> Sequence[Arrival]:
    """Return the jobs of a pool; without a name, of the only one. Raises UserError."""
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
        )
    return [arrival for arrival in trace.arrivals if arrival.job.pool == pool]


class PiecewiseUniform:
    """A piecewise uniform distribution, given by values and their cumulative probabilities."""

    def __init__(self, values: Sequence[float], cdf: Sequence[float]) -> None:
        """Take ascending values with ascending probabilities; the last is 1."""
        self._values, self._cdf = values, cdf

    def draw(self, random: Random) -> float:
        """Return a value: uniform between the two points around a probability drawn."""
        part = random.random()
        i = bisect_left(self._cdf, part)
        if i == 0:
            return self._values[0]
        before, after = self._values[i - 1 : i + 1]
        low, high = self._cdf[i - 1 : i + 1]
        return before + (after - before) * (part - low) / (high - low)


QUANTITIES = ("service", "trials", "gpus_per_trial")
SERVICE_SECONDS = {"workload-3": 60.0}
"""Seconds in the unit of `service`, for the workload that gives GPU-minutes."""


class WorkloadSource(JobSource):
    """A workload of distributions: a job runs on 1 GPU up to its trials times the GPUs of each.

    Its speed is in proportion to its GPUs.
    """

    def __init__(
        self, name: str, distributions: Mapping[str, PiecewiseUniform], gpus: int, load: float
    ) -> None:
        """Let jobs arrive at a load of so many GPUs."""
        self.name, self._distributions = name, distributions
        self._unit = SERVICE_SECONDS.get(name, 1.0)
        self._most = gpus
        random = Random("sizes")  # noqa: S311  a simulation, no secret
        sizes = [self._drawn(random)[1] for _ in range(SIZES_DRAWN)]
        super().__init__(gpus, 1.0, sizes)
        self.at_load(load)

    def _drawn(self, random: Random) -> tuple[int, float]:
        """Return the most GPUs of a job, and its GPU-seconds."""
        service, trials, each = (self._distributions[name].draw(random) for name in QUANTITIES)
        return max(1, ceil(trials)) * max(1, ceil(each)), service * self._unit

    def draw(self, side: Side, random: Random) -> Arrival:
        """Return a new job; the two sides have different randomness."""
        most, seconds = self._drawn(random)
        width = min(most, self._most)
        return Arrival(Job("", "pool", 0.0, width, min_width=1, max_width=width), seconds / width)


def read_workload(path: Path, name: str | None, gpus: int, load: float) -> WorkloadSource:
    """Read a workload of a file with the columns workload, quantity, value and cdf.

    Raises UserError.
    """
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, ("workload", "quantity", "value", "cdf"))

        def take(cells: Sequence[str]) -> None:
            value = number(cells, "value", at["value"], zero=True, unit="a value")
            part = number(cells, "cdf", at["cdf"], zero=True, unit="a probability")
            values, cdf = found.setdefault(cells[at["workload"]], {}).setdefault(
                cells[at["quantity"]], ([], [])
            )
            if part > 1 or (cdf and (part < cdf[-1] or value < values[-1])):
                raise BadCellError(
                    "cdf", "does not ascend up to 1", "write points by value and cdf, ascending", ""
                )
            values.append(value)
            cdf.append(part)

        take_rows(path, table, take)
    if not found:
        raise UserError(f"{path}: the file has no workload; add rows")
    if name is None and len(found) > 1:
        raise UserError(
            f"{path}: has {counted(len(found), 'workload')}; choose one with --workload "
            f"{path}:NAME: {some([*found])}"
        )
    name = name or next(iter(found))
    if name not in found:
        raise UserError(f"{path}: has no workload {name!r}.{did_you_mean(name, [*found])}")
    distributions = {}
    for quantity in QUANTITIES:
        values, cdf = found[name].get(quantity, ([], []))
        if not cdf or cdf[-1] != 1:
            raise UserError(
                f"{path}: {name} has no {quantity} up to a cdf of 1; add rows of this quantity"
            )
        distributions[quantity] = PiecewiseUniform(values, cdf)
    return WorkloadSource(name, distributions, gpus, load)
