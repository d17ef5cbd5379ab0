"""The paper's synthetic workloads (§4.1, appendices A.1 and C)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from random import Random
from typing import NamedTuple

from replay.logs.limits import MAX_JOBS_MADE
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job, Pool
from sia.wording import DAY, MINUTE

WIDTHS = (1, 2, 4, 8)

Mixture = tuple[tuple[float, float, float], ...]
"""Durations: (probability, minimum, maximum) in minutes, uniform in between."""


class Preset(NamedTuple):
    """A workload; each variation differs from the base in one aspect."""

    queues: int = 4
    queue_size: int = 8
    load_factor: float = 1.0
    durations: Mixture = ((0.8, sqrt(10), 1e2), (0.2, 1e2, 1e3))
    widths: tuple[float, ...] = (0.7, 0.1, 0.15, 0.05)
    """Probabilities of `WIDTHS`."""


LOAD = (0.6, 0.95)
"""Bounds of each queue's load, drawn uniformly before the preset's factor is applied."""

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


def synthesize(
    preset: Preset, seed: int, days: float = 3.0, *, past: bool = False
) -> tuple[Trace, PoolTable]:
    """Generate a workload; the same preset, seed and days always give the same one.

    Jobs come in bursts; the total width of a burst is drawn from 1 to the queue's size. The number
    of bursts is the one whose load is nearest to the load drawn for the queue. Bursts are uniform
    in time: a Poisson process with a given number of events. With `past`, the jobs are others of
    the same queues with the same loads. Raises UserError for more jobs than fit.
    """
    end = days * DAY
    expected = preset.queues * preset.queue_size * end / (MINUTE * mean_minutes(preset.durations))
    if not 0 < expected <= MAX_JOBS_MADE:
        some = "fewer" if expected > 1 else "more"
        raise UserError(
            f"--days {days:g}: about {expected:.0f} jobs; give {some} days, which make 1 to "
            f"{MAX_JOBS_MADE} jobs"
        )
    arrivals: list[Arrival] = []
    pools = [Pool(f"q{i}", preset.queue_size) for i in range(preset.queues)]
    for pool in pools:
        random = Random(f"{seed} {pool.name}")  # noqa: S311
        load = random.uniform(*LOAD) * preset.load_factor
        if past:
            random = Random(f"{seed} {pool.name} past")  # noqa: S311
        ids = f"{pool.name}-past" if past else pool.name
        arrivals += _queue(preset, pool.name, ids, random, load, end)
    arrivals.sort(key=lambda arrival: (arrival.job.submit, arrival.job.pool))
    if not arrivals:
        raise UserError(f"--days {days:g}: no job was submitted in that time; make it longer")
    return Trace(arrivals), PoolTable(pools)


def mean_minutes(spread: Mixture) -> float:
    """Return the expected duration."""
    return sum(p * (least + most) / 2 for p, least, most in spread)


def _queue(
    preset: Preset, pool: str, ids: str, random: Random, load: float, end: float
) -> list[Arrival]:
    """Generate the jobs of a pool, numbered."""
    missing = load * preset.queue_size * end
    jobs: list[tuple[float, int, float]] = []
    for widths in _bursts(random, preset.widths, preset.queue_size):
        submit = float(round(random.uniform(0, end)))
        burst = [
            (submit, w, float(round(_minutes(random, preset.durations) * MINUTE))) for w in widths
        ]
        more = sum(width * duration for _, width, duration in burst)
        if more - missing > missing:
            break
        jobs += burst
        missing -= more
    jobs.sort(key=lambda job: job[0])
    return [
        Arrival(Job(f"{ids}-{i}", pool, submit, width), duration)
        for i, (submit, width, duration) in enumerate(jobs)
    ]


def _bursts(random: Random, weights: Sequence[float], size: int) -> Iterator[list[int]]:
    """Return the widths of the jobs of each burst.

    Widths are drawn independently, so that they are as frequent as the weights say. A job that no
    longer fits into the total of a burst opens the next burst, and raises its total if necessary.
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


def _minutes(random: Random, spread: Mixture) -> float:
    _, least, most = random.choices(spread, [part[0] for part in spread])[0]
    return random.uniform(least, most)
