"""HiveD's safety check: whether every pool's unused quota still finds its cells."""

from __future__ import annotations

from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.layout.shape import Shape


def balance(shape: Shape, counts: Sequence[int], unbound: Sequence[int]) -> list[int]:
    """Return the open cells of each level that are left after unused quota has its own.

    A negative number counts missing cells. Spare jobs are ignored, as if they had ended. O(levels).

    Args:
        shape: The shape of the chain.
        counts: Open common cells of each level.
        unbound: Unbound quota cells of each level.
    """
    found = [0] * len(shape.levels)
    carry = 0
    for level in reversed(shape.levels):
        found[level] = carry + counts[level] - unbound[level]
        carry = max(0, found[level]) * shape.fan[level]
    return found


def missing(shape: Shape, counts: Sequence[int], unbound: Sequence[int]) -> list[int]:
    """Return the number of quota cells of each level without an open cell. O(levels)."""
    return [max(0, -left) for left in balance(shape, counts, unbound)]


def splittable(state: ChainState, level: int, counts: Sequence[int] = ()) -> list[int]:
    """Return the levels of common cells from which a cell of `level` may be taken. O(levels).

    Taking a cell from these levels leaves no level with more missing quota cells than now.

    Args:
        state: The state of the chain.
        level: The level of the quota cell.
        counts: Common cells by level; by default all open ones.
    """
    left = balance(state.shape, counts or state.common.open.counts(), state.unbound)
    safe = [level]
    for above in state.shape.levels[level + 1 :]:
        if left[above] <= 0:
            break
        safe.append(above)
    return safe
