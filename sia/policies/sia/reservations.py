"""How many GPUs SIA reserves for a pool in each window (Fig. 8)."""

from __future__ import annotations

from sia.contract.views import PoolStateView
from sia.model import Options

ROUNDING = 1e-9
"""GPUs by which a product with the slack may differ from a whole number by rounding (10 · 1.1)."""


def no_lending_windows(pool: PoolStateView, options: Options) -> list[int]:
    """Windows in which a pool lends nothing, by option. O(windows)."""
    no = options.no_lending
    return [i for i, window in enumerate(options.windows) if (pool.name, window) in no]
