"""The paper's synthetic workloads (§4.1, appendices A.1 and C)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from random import Random
from typing import NamedTuple

from replay.errors import UserError
from replay.limits import MAX_JOBS_MADE
from replay.text import DAY, MINUTE
from replay.trace import PoolTable, Trace
from sia.model import Job, Pool
from sia.playout import Arrival

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


SETTLED = 200
"""Steps after which the chain of opening widths has long stopped changing."""

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

    Jobs come in bursts of a total width of up to one drawn from 1 to the queue's size; bursts are a
    Poisson process as dense as the queue's load asks for. Raises UserError for more jobs than fit.
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
    burst = mean_burst(preset.widths, preset.queue_size)
    gap = burst * MINUTE * mean_minutes(preset.durations) / (load * preset.queue_size)
    arrivals: list[Arrival] = []
    bursts = _bursts(random, preset.widths, preset.queue_size)
    now = random.expovariate(1 / gap)
    while now < end:
        for gpus in next(bursts):
            job = Job(f"{pool.name}-{len(arrivals)}", pool.name, float(round(now)), gpus)
            arrivals.append(Arrival(job, float(round(_minutes(random, preset.durations) * MINUTE))))
        now += random.expovariate(1 / gap)
    return arrivals


def _bursts(random: Random, weights: Sequence[float], size: int) -> Iterator[list[int]]:
    """Widths of the jobs of each burst.

    Widths are drawn independently, so that they are as frequent as the weights say; a job that no
    longer fits in the total drawn for a burst opens the next one, whose total it raises if need be.
    """
    width = random.choices(WIDTHS, weights)[0]
    while True:
        left = max(random.randint(1, size), width)
        burst = []
        while width <= left:
            burst.append(width)
            left -= width
            width = random.choices(WIDTHS, weights)[0]
        yield burst


def mean_burst(weights: Sequence[float], size: int) -> float:
    """The expected total of a burst, in GPUs: that of the chain of opening widths, once settled."""
    odds = dict(zip(WIDTHS, weights, strict=True))
    # What is the width that no longer fits, and how much has gone before, where so much was left?
    after: list[tuple[dict[int, float], float]] = []
    for left in range(size + 1):
        opens, gone = dict.fromkeys(WIDTHS, 0.0), 0.0
        for width, chance in odds.items():
            if width > left:
                opens[width] += chance
                continue
            later, more = after[left - width]
            gone += chance * (width + more)
            for w in WIDTHS:
                opens[w] += chance * later[w]
        after.append((opens, gone))
    chance_of, mean = odds, 0.0
    for _ in range(SETTLED):
        following, mean = dict.fromkeys(WIDTHS, 0.0), 0.0
        for opening, chance in chance_of.items():
            for drawn in range(1, size + 1):
                opens, gone = after[max(drawn, opening) - opening]
                mean += chance / size * (opening + gone)
                for w in WIDTHS:
                    following[w] += chance / size * opens[w]
        chance_of = following
    return mean


def _minutes(random: Random, spread: Spread) -> float:
    _, least, most = random.choices(spread, [part[0] for part in spread])[0]
    return random.uniform(least, most)
