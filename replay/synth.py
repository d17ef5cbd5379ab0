"""The paper's synthetic workloads (§4.1, appendices A.1 and C)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import NamedTuple

from replay.errors import UserError
from replay.limits import MAX_JOBS_MADE
from replay.trace import PoolTable, Trace
from sia.model import Job, Pool
from sia.playout import Arrival

MINUTE, DAY = 60.0, 86400.0
WIDTHS = (1, 2, 4, 8)

Spread = tuple[tuple[float, float, float], ...]
"""Durations: (probability, least, most) in minutes, uniform between the two."""


class Preset(NamedTuple):
    """A workload; each variation differs from the base in one aspect."""

    queues: int = 4
    queue_size: int = 8
    load_factor: float = 1.0
    durations: Spread = ((0.8, sqrt(10), 1e2), (0.2, 1e2, 1e3))
    widths: tuple[float, ...] = (0.7, 0.1, 0.15, 0.05)
    """Probabilities of `WIDTHS`."""


LOAD = (0.6, 0.95)
"""Bounds of each queue's load, drawn uniformly before the preset's factor."""

PRESETS = {
    "base": Preset(),
    "higher-load": Preset(load_factor=1.05),
    "lower-load": Preset(load_factor=0.75),
    "more-queues": Preset(queues=8),
    "fewer-queues": Preset(queues=2),
    "more-skewed": Preset(durations=((0.9, sqrt(10), 1e2), (0.1, 1e2, 2e3))),
    "less-skewed": Preset(durations=((1.0, sqrt(10), 3e2),)),
    "more-wide": Preset(widths=(0.25, 0.25, 0.25, 0.25)),
    "fewer-wide": Preset(widths=(0.9, 0.033, 0.05, 0.017)),
}


def synthesize(preset: Preset, seed: int, days: float = 3.0) -> tuple[Trace, PoolTable]:
    """Make a workload; the same preset, seed and days always give the same one.

    Jobs come in bursts of a total width drawn from 1 to the queue's size; bursts are a Poisson
    process as dense as the queue's load asks for. Raises UserError for more jobs than fit.
    """
    end = days * DAY
    expected = preset.queues * preset.queue_size * end / (MINUTE * mean_minutes(preset.durations))
    if not 0 < expected <= MAX_JOBS_MADE:
        raise UserError(f"--days {days:g}: about {expected:.0f} jobs; make 1 to {MAX_JOBS_MADE}")
    arrivals: list[Arrival] = []
    pools = [Pool(f"q{i}", preset.queue_size) for i in range(preset.queues)]
    for pool in pools:
        arrivals += _queue(preset, pool, Random(f"{seed} {pool.name}"), end)  # noqa: S311
    arrivals.sort(key=lambda arrival: (arrival.job.submit, arrival.job.pool))
    if not arrivals:
        raise UserError(f"--days {days:g}: no job came in that time; make it longer")
    return Trace(arrivals), PoolTable(pools)


def mean_minutes(spread: Spread) -> float:
    """The expected duration."""
    return sum(p * (least + most) / 2 for p, least, most in spread)


def _queue(preset: Preset, pool: Pool, random: Random, end: float) -> list[Arrival]:
    load = random.uniform(*LOAD) * preset.load_factor
    width = (1 + preset.queue_size) / 2
    gap = width * MINUTE * mean_minutes(preset.durations) / (load * preset.queue_size)
    arrivals: list[Arrival] = []
    now = random.expovariate(1 / gap)
    while now < end:
        for gpus in _burst(random, preset.widths, random.randint(1, preset.queue_size)):
            job = Job(f"{pool.name}-{len(arrivals)}", pool.name, float(round(now)), gpus)
            arrivals.append(Arrival(job, float(round(_minutes(random, preset.durations) * MINUTE))))
        now += random.expovariate(1 / gap)
    return arrivals


def _burst(random: Random, weights: Sequence[float], total: int) -> list[int]:
    """Widths that add up to `total`, each drawn from those that still fit."""
    widths: list[int] = []
    while total:
        fitting = [w for w in WIDTHS if w <= total]
        widths += random.choices(fitting, weights[: len(fitting)])
        total -= widths[-1]
    return widths


def _minutes(random: Random, spread: Spread) -> float:
    _, least, most = random.choices(spread, [part[0] for part in spread])[0]
    return random.uniform(least, most)
