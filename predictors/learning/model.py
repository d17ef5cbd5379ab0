"""A learned forecast of arrivals: trees for each window, and a manifest of what they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.json import encode
from numpy.typing import NDArray

from predictors.learning.features import FeatureArray
from sia.limits import MAX_GROUP

if TYPE_CHECKING:
    from xgboost import Booster

FORMAT = 1
"""Counts up when a manifest can no longer be read as before."""

QUANTILES = (0.0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Of the load, learned together; the first is nothing at all. Where nine windows in ten bring
nothing, who says so of all of them covers 0.9 already: that is what the low ones are for."""

BEYOND = 6.0
"""Places beyond the last of `QUANTILES` that can be asked for, each twice as many GPUs as the one
before: trees never say more than they have seen, and a log may grow 64 times."""


ROUNDING = 0.02
"""GPUs by which trees that have learned a whole number may be off it; anything more is another GPU:
who rounds half of one away promises that nothing comes where something does."""


class Scores(Struct, frozen=True, forbid_unknown_fields=True):
    """How well WillJobsArrive was foretold: of the class 'some job arrives' (Table 10)."""

    precision: float
    recall: float
    f: float
    positives: int
    n: int


class WindowModel(Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned for one window, and how it did on the days held out of the training span.

    Jobs are said to arrive from probability `threshold` on. `covered` is the share of the loads
    that were at most each of `QUANTILES`, `pinball` the mean loss of those, of log(1 + GPUs).
    """

    threshold: float
    scores: Scores
    covered: tuple[float, ...]
    pinball: float
    arrivals_sha256: str
    loads_sha256: str


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is; times, windows and the tick are seconds of the trace `trace_sha256`."""

    format: int
    features: tuple[str, ...]
    windows: tuple[float, ...]
    tick: float
    quantiles: tuple[float, ...]
    since: float
    until: float
    rows: int
    trace_sha256: str
    versions: dict[str, str]
    learned: tuple[WindowModel, ...]


class Model:
    """Trees for each window, as bytes (UBJ), and their manifest."""

    def __init__(
        self, manifest: Manifest, arrivals: Sequence[bytes], loads: Sequence[bytes]
    ) -> None:
        """Take the trees for WillJobsArrive and for the load, one of each a window."""
        self.manifest = manifest
        self.arrivals = arrivals
        self.loads = loads

    @property
    def checksum(self) -> str:
        """What this model is and no other: the SHA-256 of its manifest, which has the trees'."""
        return digest(encode(self.manifest))

    @cached_property
    def _arrivals(self) -> list[Booster]:
        return [booster(trees) for trees in self.arrivals]

    @cached_property
    def _loads(self) -> list[Booster]:
        return [booster(trees) for trees in self.loads]

    def arrives(self, features: FeatureArray, window: int) -> NDArray[np.bool_]:
        """WillJobsArrive of each row of features: (rows)."""
        chances = self._arrivals[window].inplace_predict(features)
        arrives: NDArray[np.bool_] = chances >= np.float32(self.manifest.learned[window].threshold)
        return arrives

    def quantiles(self, features: FeatureArray, window: int) -> NDArray[np.int64]:
        """GPUs that at most arrive with the chances `QUANTILES`: (rows, quantiles)."""
        return as_gpus(self._loads[window].inplace_predict(features))


def place(quantile: float, covered: Sequence[float]) -> float:
    """Between which two of the learned quantiles the one lies that covers so much."""
    if not 0 < quantile <= QUANTILES[-1]:
        raise ValueError(f"{quantile}: loads are learned up to quantile {QUANTILES[-1]}")
    rising = np.maximum.accumulate(covered)
    return float(np.interp(quantile, rising, np.arange(len(rising))))


def between(gpus: NDArray[np.int64], at: float) -> NDArray[np.int64]:
    """GPUs at a place between two of the learned quantiles, or beyond: (rows)."""
    last = gpus.shape[1] - 1
    low = min(int(at), last - 1)
    part = min(at - low, 1.0)
    found = gpus[:, low] * (1.0 - part) + gpus[:, low + 1] * part
    times = 2.0 ** max(0.0, at - last)
    most = np.minimum(np.maximum(found * times, times - 1.0), MAX_GROUP)  # nothing grows as well
    whole: NDArray[np.int64] = np.ceil(most).astype(np.int64)
    return whole


def as_gpus(logs: NDArray[Any]) -> NDArray[np.int64]:
    """GPUs at each of `QUANTILES` (rows, quantiles) from log(1 + GPUs) at all but the first."""
    rising = np.maximum.accumulate(np.maximum(logs.astype(np.float64), 0.0), axis=1)
    gpus = np.expm1(np.pad(rising, ((0, 0), (1, 0))))
    whole: NDArray[np.int64] = np.ceil(np.maximum(gpus - ROUNDING, 0.0)).astype(np.int64)
    return whole


def booster(trees: bytes) -> Booster:
    """XGBoost's trees from their bytes; one thread, as more cost more than they give at a tick."""
    from xgboost import Booster  # noqa: PLC0415  an extra, and slow to load

    return Booster({"nthread": 1}, model_file=bytearray(trees))


def digest(content: bytes) -> str:
    """Its SHA-256."""
    return sha256(content).hexdigest()
