"""A request, looked up in the cluster once and for all jobs that are the same."""

from __future__ import annotations

from collections.abc import Sequence

from cells.cluster import Nodes
from cells.ground import Ground
from cells.shape import Cell
from cells.zones import Zone


class Asked:
    """What a request comes to.

    Attributes:
        ground: Its chain.
        nodes: The chain's nodes.
        zone: Whose quota it uses, were it a dedicated one's.
        widths: GPUs of each member.
        level: Of its cell, if it is for just one; else -1.
        taken: By the number of that cell, what a dedicated job has that got it: most jobs get what
            others had before. All that ask for such cells share it.
    """

    __slots__ = ("ground", "level", "nodes", "taken", "widths", "zone")

    def __init__(
        self,
        ground: Ground,
        nodes: Nodes,
        zone: Zone,
        widths: tuple[int, ...],
        same: dict[tuple[Ground, int], dict[int, Taken]],
    ) -> None:
        """Nobody asked for it yet; `same` has `taken`, by chain and width."""
        self.ground = ground
        self.nodes = nodes
        self.zone = zone
        self.widths = widths
        cells = self.levels()
        self.level = cells[0] if len(cells) == 1 else -1
        self.taken = {} if self.level < 0 else same.setdefault((ground, widths[0]), {})

    def levels(self) -> list[int]:
        """Levels of its cells. O(cells asked)."""
        return [level for width in self.widths for level in self.ground.shape.members(width)]


class Taken:
    """Cells of one job, in the order of its members; it does not change.

    Attributes:
        ground: Their chain.
        widths: GPUs of each member.
        cells: Its cells.
        placement: Their names.
        spare: It is a spare job.
        reserved: No job is in them.
    """

    __slots__ = ("cells", "ground", "placement", "reserved", "spare", "widths")

    def __init__(
        self, asked: Asked, cells: Sequence[Cell], *, spare: bool = False, reserved: bool = False
    ) -> None:
        """Name the cells."""
        self.ground = asked.ground
        self.widths = asked.widths
        self.cells = tuple(cells)
        self.placement = asked.nodes.all_of(asked.widths, cells)
        self.spare = spare
        self.reserved = reserved
