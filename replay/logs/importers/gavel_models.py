"""The models of Gavel's logs: their data sets, and when each mode changes their batch size.

The changes are those that Shockwave's artifact imposes on its jobs (uw-mad-dash/shockwave, MIT), as
measured there in real training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, pairwise
from math import floor
from typing import NamedTuple

SAMPLES: Mapping[str, int] = {
    "ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675,
    "Recommendation": 117_907,
}  # fmt: skip
"""Number of samples in an epoch, by model."""

LARGEST: Mapping[str, int] = {"LM": 80, "ResNet-18": 256, "ResNet-50": 128, "Recommendation": 8192}
"""The largest batch size of models that change it; `Transformer` never does."""

GROWS: Mapping[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71), ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31), ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111), ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41), ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91), ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61), ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,), ("ResNet-50", 32, 2): (101, 111), ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221), ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71), ("LM", 10, 1): (11, 21, 41), ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,), ("LM", 5, 2): (31, 51, 61, 71), ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41), ("LM", 40, 2): (11,), ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61), ("LM", 20, 4): (11, 61), ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91), ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41), ("Recommendation", 4096, 1): (41,),
}  # fmt: skip
"""The epochs (from 0) at which GNS doubles the batch size, by model, first batch size and width."""


class JobModel(NamedTuple):
    """A model with its first batch size, on a number of GPUs."""

    model: str
    batch: int
    width: int


class BatchRun(NamedTuple):
    """A number of epochs at one batch size."""

    batch: int
    epochs: int


class _Sizes(NamedTuple):
    """The batch size of each epoch."""

    of: Callable[[int], int]
    changes: Iterable[int]
    """Epochs at which it may change."""


def _static(_: JobModel, __: int) -> _Sizes | None:
    return None


def _gns(job: JobModel, epochs: int) -> _Sizes | None:
    """Double the batch size; after two doublings the last epoch has the first size, as there."""
    grows = GROWS.get((job.model, job.batch, job.width), ())

    def batch(epoch: int) -> int:
        doublings = sum(epoch >= begin for begin in grows)
        if doublings > 1 and epoch == epochs - 1:
            doublings = 0
        return min(job.batch << doublings, LARGEST[job.model])

    return _Sizes(batch, (*grows, epochs - 1)) if grows else None


def _accordion(job: JobModel, epochs: int) -> _Sizes | None:
    """Take the large batch size outside of critical phases, and after 30 % of all epochs."""
    critical = _CRITICAL.get(job.model)
    if critical is None:
        return None
    large = LARGEST[job.model]

    def batch(epoch: int) -> int:
        return large if epoch > epochs * 0.3 and not critical(job.batch, epoch) else job.batch

    return _Sizes(batch, (floor(epochs * 0.3) + 1, *CRITICAL_EDGES))


CRITICAL_EDGES = range(10, 601, 10)
"""Epochs at which critical phases may begin or end."""

_CRITICAL: Mapping[str, Callable[[int, int], bool]] = {
    "ResNet-18": lambda batch, epoch: (
        epoch < (20 if batch == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    ),
    "ResNet-50": lambda _, epoch: epoch % 30 < 10 and epoch < 600,
    "LM": lambda _, epoch: epoch < 10,
    "Recommendation": lambda batch, epoch: (
        epoch < {512: 30, 1024: 30, 2048: 40}.get(batch, 10) or 60 <= epoch < 70 or 80 <= epoch < 90
    ),
}

_MODES = {"static": _static, "accordion": _accordion, "gns": _gns}


def batch_runs(mode: str, job: JobModel, epochs: int) -> list[BatchRun]:
    """Return the batch sizes of a job's epochs, in order. O(changes), whatever the epochs.

    For the mode of a plugin no changes are known, so the batch size stays the same.
    """
    sizes = _MODES.get(mode, _static)(job, epochs)
    if sizes is None:
        return [BatchRun(job.batch, epochs)]
    begins = sorted({0, *(epoch for epoch in sizes.changes if 0 < epoch < epochs)})
    runs = [BatchRun(sizes.of(begin), end - begin) for begin, end in pairwise((*begins, epochs))]
    return [
        BatchRun(batch, sum(run.epochs for run in same))
        for batch, same in groupby(runs, key=lambda run: run.batch)
    ]
