"""Training jobs that change their batch size while they run: the workload of Shockwave (§8.1).

Jobs arrive as a Poisson process. Width, class of GPU-time, mode and model are drawn by shares. The
GPU-time is that of the whole job, with its changes of speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from random import Random

from replay.logs.importers.gavel_models import SAMPLES, JobModel, batch_runs
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job, Pool, Regime
from sia.wording import HOUR, some

WIDTHS: Mapping[int, float] = {1: 0.6, 2: 0.3, 4: 0.09, 8: 0.01}
"""Shares of widths in GPUs."""

CLASSES = ((0.72, 0.2, 8.0), (0.2, 8.0, 16.0), (0.05, 16.0, 72.0), (0.03, 72.0, 144.0))
"""Share, minimum and maximum of GPU-hours. The paper has no maximum for the last class; here it is
twice the minimum."""

MODES: Mapping[str, float] = {"static": 1.0, "accordion": 1.0, "gns": 1.0}
"""Shares of modes unless others are given, relative to each other."""


def make_training(
    speeds: Mapping[JobModel, float],
    seed: int,
    *,
    jobs: int,
    gpus: int,
    every: float,
    modes: Mapping[str, float] = MODES,
) -> tuple[Trace, PoolTable]:
    """Return a log with a job each `every` seconds on average, and a pool of `gpus`.

    `speeds` are steps a second. A note states the contention: jobs / GPUs.
    """
    random = Random(seed)  # noqa: S311  an experiment, no secret
    kinds: dict[int, list[JobModel]] = {}
    for kind in sorted(speeds):
        if kind.model in SAMPLES and kind.width <= gpus:
            kinds.setdefault(kind.width, []).append(kind)
    widths = {width: share for width, share in WIDTHS.items() if width in kinds}
    models = {kind.model for kind in speeds}
    if models.isdisjoint(SAMPLES):
        raise UserError(
            f"the throughput table has {some(sorted(models))}, no model whose samples an epoch are "
            f"known; use {', '.join(SAMPLES)}"
        )
    if not widths:
        raise UserError(f"no job of the throughput table fits on {gpus} GPUs; use more GPUs")
    arrivals, now = [], 0.0
    for number in range(jobs):
        width = random.choices([*widths], [*widths.values()])[0]
        _, least, most = random.choices(CLASSES, [share for share, _, _ in CLASSES])[0]
        seconds = random.uniform(least, most) * HOUR / width
        mode = random.choices([*modes], [*modes.values()])[0]
        kind = random.choice(kinds[width])
        regimes = _regimes(speeds, kind, mode, seconds)
        job = Job(str(number), "all", now, width, mode=mode, model=kind.model, regimes=regimes)
        arrivals.append(Arrival(job, fsum(r.epochs * r.seconds for r in regimes)))
        now += random.expovariate(1.0 / every)
    trace = Trace(arrivals, notes=[f"contention: {jobs / gpus:.2f} jobs for each GPU"])
    return trace, PoolTable([Pool("all", gpus)])


def _regimes(
    speeds: Mapping[JobModel, float], kind: JobModel, mode: str, seconds: float
) -> tuple[Regime, ...]:
    """Return regimes of about this duration: the largest number of whole epochs, at least one."""

    def of(epochs: int) -> tuple[Regime, ...]:
        found = []
        for batch, count in batch_runs(mode, kind, epochs):
            speed = speeds.get(kind._replace(batch=batch), speeds[kind])
            each = SAMPLES[kind.model] / batch / speed
            found.append(Regime(str(batch), float(count), each, speed))
        return tuple(found)

    def takes(epochs: int) -> float:
        return fsum(regime.epochs * regime.seconds for regime in of(epochs))

    low, high = 1, 2
    while takes(high) <= seconds:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) <= seconds else (low, middle)
    return of(low)
