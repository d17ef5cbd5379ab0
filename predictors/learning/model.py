"""A learned forecast of arrivals: decision trees for each window, with a manifest."""

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
"""Version of the manifest. Increase it when older manifests can no longer be read."""

QUANTILES = (0.0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Quantiles of the load that are learned together; the first is always 0 GPUs. If nine of ten
windows are empty, a forecast of 0 already covers 0.9; the low quantiles exist for such pools."""

BEYOND = 6.0
"""How far a calibration may go beyond the last of `QUANTILES`; each step doubles the GPUs. Trees
never predict more than they have seen, and load may grow 64-fold."""


ROUNDING = 0.02
"""Maximum error in GPUs of trees that have learned a whole number. Anything more is rounded up,
because rounding half a GPU down would predict no arrival where there is one."""


class Scores(Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of WillJobsArrive for the class 'some job arrives' (Table 10)."""

    precision: float
    recall: float
    f: float
    positives: int
    n: int


class WindowModel(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of training for one window, with its scores on the held-out days.

    Jobs are predicted to arrive from probability `threshold` on. `covered` is the share of loads
    that did not exceed each of `QUANTILES`. `pinball` is the mean pinball loss of log(1 + GPUs).
    """

    threshold: float
    scores: Scores
    covered: tuple[float, ...]
    pinball: float
    arrivals_sha256: str
    loads_sha256: str


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a model.

    Times, windows and tick are seconds of the trace `trace_sha256`.
    """

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
    """Decision trees for each window, as bytes (UBJ), with their manifest."""

    def __init__(
        self, manifest: Manifest, arrivals: Sequence[bytes], loads: Sequence[bytes]
    ) -> None:
        """Take, for each window, the trees for WillJobsArrive and for the load."""
        self.manifest = manifest
        self.arrivals = arrivals
        self.loads = loads

    @property
    def checksum(self) -> str:
        """The SHA-256 of the manifest, which contains the checksums of the trees."""
        return digest(encode(self.manifest))

    @cached_property
    def _arrivals(self) -> list[Booster]:
        return [booster(trees) for trees in self.arrivals]

    @cached_property
    def _loads(self) -> list[Booster]:
        return [booster(trees) for trees in self.loads]

    def arrives(self, features: FeatureArray, window: int) -> NDArray[np.bool_]:
        """Return WillJobsArrive for each row of features: (rows)."""
        chances = self._arrivals[window].inplace_predict(features)
        arrives: NDArray[np.bool_] = chances >= np.float32(self.manifest.learned[window].threshold)
        return arrives

    def quantiles(self, features: FeatureArray, window: int) -> NDArray[np.int64]:
        """Return the GPUs at `QUANTILES`: (rows, quantiles)."""
        return as_gpus(self._loads[window].inplace_predict(features))


def place(quantile: float, covered: Sequence[float]) -> float:
    """Return the fractional index among `QUANTILES` at which the coverage equals `quantile`."""
    if not 0 < quantile <= QUANTILES[-1]:
        raise ValueError(f"quantile must be at most {QUANTILES[-1]} (got {quantile})")
    rising = np.maximum.accumulate(covered)
    return float(np.interp(quantile, rising, np.arange(len(rising))))


def between(gpus: NDArray[np.int64], at: float) -> NDArray[np.int64]:
    """Return GPUs at a fractional index among the quantiles, or beyond: (rows)."""
    last = gpus.shape[1] - 1
    low = min(int(at), last - 1)
    part = min(at - low, 1.0)
    found = gpus[:, low] * (1.0 - part) + gpus[:, low + 1] * part
    times = 2.0 ** max(0.0, at - last)
    most = np.minimum(np.maximum(found * times, times - 1.0), MAX_GROUP)  # so that 0 GPUs grow too
    whole: NDArray[np.int64] = np.ceil(most).astype(np.int64)
    return whole


def as_gpus(logs: NDArray[Any]) -> NDArray[np.int64]:
    """Convert log(1 + GPUs) at all but the first of `QUANTILES` to GPUs: (rows, quantiles)."""
    rising = np.maximum.accumulate(np.maximum(logs.astype(np.float64), 0.0), axis=1)
    gpus = np.zeros((len(rising), rising.shape[1] + 1))
    np.expm1(rising, out=gpus[:, 1:])
    whole: NDArray[np.int64] = np.ceil(np.maximum(gpus - ROUNDING, 0.0)).astype(np.int64)
    return whole


def booster(trees: bytes) -> Booster:
    """Load trees from bytes, for one thread; more threads cost more than they save at a tick."""
    from xgboost import Booster  # noqa: PLC0415  an extra, and slow to load

    return Booster({"nthread": 1}, model_file=bytearray(trees))


def digest(content: bytes) -> str:
    """Return the SHA-256."""
    return sha256(content).hexdigest()
