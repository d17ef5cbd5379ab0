"""Whether unused quota still finds its cells (HiveD's safety check)."""

from __future__ import annotations

from cells.ground import Ground


def spread(ground: Ground) -> tuple[list[int], list[int]]:
    """For each level: open common cells left when unused quota has its own, and cells missing.

    Spare jobs do not count: this is what would be, were they gone. O(levels).
    """
    shape = ground.shape
    left, missing = [0] * len(shape.levels), [0] * len(shape.levels)
    carry = 0
    for level in reversed(shape.levels):
        cells = carry + len(ground.common.open.free[level]) - ground.unbound[level]
        left[level], missing[level] = max(0, cells), max(0, -cells)
        carry = left[level] * shape.fan[level]
    return left, missing


def splittable(ground: Ground, level: int) -> list[int]:
    """Levels of open common cells that a cell of this level may be taken from. O(levels).

    Taking it from such a cell leaves no level with more quota cells missing than now.
    """
    left, _ = spread(ground)
    safe = [level]
    for above in range(level + 1, len(ground.shape.levels)):
        if not left[above]:
            break
        safe.append(above)
    return safe
