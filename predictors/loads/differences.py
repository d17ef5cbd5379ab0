"""Differences between two forecasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sia.model import Load


def differences(
    pools: Sequence[str], last: NDArray[np.int64], loads: NDArray[np.int64]
) -> list[Load]:
    """Return the loads that changed, by pool and window.

    Both arrays are GPUs (pools, windows); `last` are those last returned. O(pools · windows), in
    numpy.
    """
    rows, windows = np.nonzero(loads != last)
    gpus = loads[rows, windows]
    return [
        Load(pools[row], window, count)
        for row, window, count in zip(rows.tolist(), windows.tolist(), gpus.tolist(), strict=True)
    ]
