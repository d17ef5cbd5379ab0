"""Whether unused quota still finds its cells (HiveD's safety check)."""

from __future__ import annotations

from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.layout.shape import Shape


def balance(shape: Shape, counts: Sequence[int], unbound: Sequence[int]) -> list[int]:
    """For each level: open cells left when unused quota has its own, or, below 0, cells missing.

    Spare jobs do not count: this is what would be, were they gone. O(levels).
    """
    found = [0] * len(shape.levels)
    carry = 0
    for level in reversed(shape.levels):
        found[level] = carry + counts[level] - unbound[level]
        carry = max(0, found[level]) * shape.fan[level]
    return found


def missing(shape: Shape, counts: Sequence[int], unbound: Sequence[int]) -> list[int]:
    """Quota cells of each level that find no open one. O(levels)."""
    return [max(0, -left) for left in balance(shape, counts, unbound)]


def splittable(ground: ChainState, level: int, counts: Sequence[int] = ()) -> list[int]:
    """Levels of common cells that a cell of this level may be taken from. O(levels).

    Taking it from such a cell leaves no level with more quota cells missing than now.

    Args:
        ground: The chain.
        level: Of the quota cell.
        counts: Common cells that there are, by level; all open ones if not given.
    """
    left = balance(ground.shape, counts or ground.common.open.counts(), ground.unbound)
    safe = [level]
    for above in ground.shape.levels[level + 1 :]:
        if left[above] <= 0:
            break
        safe.append(above)
    return safe
