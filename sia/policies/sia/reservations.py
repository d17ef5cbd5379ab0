"""How many GPUs SIA reserves for a pool in each window (Fig. 8)."""

from __future__ import annotations

from math import ceil

from sia.contract.views import PoolStateView
from sia.model import Options

ROUNDING = 1e-9
"""GPUs by which a slack factor's product may miss a whole number, as 10 · 1.1 does in floats."""


def no_lending_windows(pool: PoolStateView, options: Options) -> list[int]:
    """Windows in which a pool lends nothing, by option. O(windows)."""
    no = options.no_lending
    return [i for i, window in enumerate(options.windows) if (pool.name, window) in no]


def reservations(pool: PoolStateView, options: Options) -> list[int]:
    """GPUs that are reserved for a pool in each window. O(windows).

    They are its pending jobs and its forecast, times the slack factor, but no more than its unused
    quota.
    """
    unused = max(0, pool.quota - pool.dedicated)
    waiting, slack = pool.pending_width, options.slack
    if slack == 1.0:
        found = [min(waiting + load, unused) for load in pool.load]
    else:
        found = [min(ceil((waiting + load) * slack - ROUNDING), unused) for load in pool.load]
    for window in no_lending_windows(pool, options) if options.no_lending else ():
        found[window] = unused
    return found
