"""Workloads as distributions: PCS's workload-1 (Themis) and workload-3 (Gavel), and others.

The file has one row per point of a distribution: workload, quantity, value, cdf. Between two points
a quantity is uniform. `service` is the work of a job, in GPU-seconds or, for workload-3, in
GPU-minutes. A job has `trials`, each on `gpus_per_trial`: it runs on one GPU up to all of them
together, and its speed is in proportion to them. Jobs arrive as a Poisson process, at the rate that
gives the load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import ceil, fsum
from pathlib import Path
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from replay.logs.read import BadCellError, columns_of, number, open_table, take_rows
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_QUOTA
from sia.model import Job, Pool

COLUMNS = ("workload", "quantity", "value", "cdf")
QUANTITIES = ("service", "trials", "gpus_per_trial")
IN_MINUTES = ("workload-3",)
"""Workloads whose service is in GPU-minutes."""
POOL = "all"


class Distribution(NamedTuple):
    """The distribution of a quantity: ascending values, and the probability up to each."""

    values: tuple[float, ...]
    cdf: tuple[float, ...]

    def draw(self, random: Random) -> float:
        """Return a value."""
        chance = random.random()
        i = min(max(1, bisect_right(self.cdf, chance)), len(self.values) - 1)
        (low, high), (below, upto) = self.values[i - 1 : i + 1], self.cdf[i - 1 : i + 1]
        part = (chance - below) / (upto - below) if upto > below else 0.0
        return low + part * (high - low)

    @property
    def mean(self) -> float:
        """The expected value."""
        steps = zip(pairwise(self.values), pairwise(self.cdf), strict=True)
        return fsum((low + high) / 2 * (upto - below) for (low, high), (below, upto) in steps)


class JobMix(NamedTuple):
    """The distributions from which the jobs of a workload are drawn."""

    name: str
    service: Distribution
    """The work of a job in GPU-seconds."""
    trials: Distribution
    gpus_per_trial: Distribution


def read_workload(path: Path, name: str) -> JobMix:
    """Read the distributions of a workload. Raises UserError."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with open_table(path, COLUMNS) as table:
        at = columns_of(path, table.header, COLUMNS)

        def take(cells: Sequence[str]) -> None:
            quantity = cells[at["quantity"]]
            if quantity not in QUANTITIES:
                raise BadCellError(
                    "quantity", f"{quantity!r} is unknown", f"write {', '.join(QUANTITIES)}", ""
                )
            own = points.setdefault(cells[at["workload"]], {}).setdefault(quantity, [])
            value = number(cells, "value", at["value"], zero=False, unit="a number")
            cdf = number(cells, "cdf", at["cdf"], zero=True, unit="a number")
            if cdf > 1 or (own and (value < own[-1][0] or cdf < own[-1][1])):
                raise BadCellError(
                    "cdf",
                    "the values or the cdf do not ascend, or the cdf exceeds 1",
                    "sort the rows",
                    "",
                )
            own.append((value, cdf))

        take_rows(path, table, take)
    if name not in points:
        known = ", ".join(sorted(points))
        raise UserError(f"{path}: no workload {name!r}; it has {known or 'none'}")
    found = points[name]
    for quantity in QUANTITIES:
        own = found.get(quantity, [])
        if len(own) < 2 or own[0][1] != 0 or own[-1][1] != 1:
            raise UserError(
                f"{path}: {name}: the cdf of {quantity} must go from 0 to 1 in two rows or more; "
                "add rows"
            )
    unit = 60.0 if name in IN_MINUTES else 1.0
    service = [(value * unit, cdf) for value, cdf in found["service"]]
    return JobMix(name, *(_distribution(each) for each in (
        service, found["trials"], found["gpus_per_trial"]
    )))  # fmt: skip


def _distribution(points: Sequence[tuple[float, float]]) -> Distribution:
    return Distribution(tuple(v for v, _ in points), tuple(c for _, c in points))


def draw_jobs(
    workload: JobMix, count: int, gpus: int, load: float, seed: int
) -> tuple[Trace, PoolTable]:
    """Draw jobs for one pool. On average they use the share `load` of the GPUs.

    The same arguments give the same jobs.
    """
    random = Random(f"{workload.name} {seed}")  # noqa: S311  an experiment, no secret
    mean_gap = workload.service.mean / (load * gpus)
    arrivals, now = [], 0.0
    for i in range(count):
        now += random.expovariate(1 / mean_gap)
        job, duration = draw_job(workload, random)
        arrivals.append(Arrival(replace(job, id=f"{workload.name}-{i}", submit=now), duration))
    return Trace(arrivals), PoolTable([Pool(POOL, gpus)])


def draw_job(workload: JobMix, random: Random) -> Arrival:
    """Draw a job without ID and submission time."""
    service = workload.service.draw(random)
    trials = ceil(workload.trials.draw(random))
    most = min(MAX_QUOTA, trials * ceil(workload.gpus_per_trial.draw(random)))
    return Arrival(Job("", POOL, 0.0, most, min_width=1, max_width=most), service / most)
