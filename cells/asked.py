"""A request, looked up in the cluster once and for all jobs that are the same."""

from __future__ import annotations

from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.cluster import NodeNames
from cells.layout.requests import CellPlacement, OnNode, Request
from cells.layout.shape import Cell


class ResolvedRequest:
    """What a request comes to.

    Attributes:
        request: What was asked.
        ground: Its chain.
        nodes: The chain's nodes.
        zone: Whose quota it uses, were it a dedicated one's.
        gpus: GPUs of all its cells.
        level: Of its cell, if it is for just one; else -1.
        taken: By the number of that cell, what a dedicated job has that got it: most jobs get what
            others had before. None where nobody had it yet. All that ask for such cells share it.
    """

    __slots__ = ("gpus", "ground", "level", "nodes", "request", "taken", "zone")

    def __init__(
        self,
        request: Request,
        ground: ChainState,
        nodes: NodeNames,
        zone: CellZone,
        same: dict[tuple[ChainState, int], list[Allocation | None]],
    ) -> None:
        """Nobody asked for it yet; `same` has `taken`, by chain and width."""
        self.request = request
        self.ground = ground
        self.nodes = nodes
        self.zone = zone
        cells = self.levels()
        self.gpus = sum(ground.shape.size[level] for level in cells)
        self.level = cells[0] if len(cells) == 1 else -1
        self.taken: list[Allocation | None] = []
        if self.level >= 0:
            self.taken += [None] * len(ground.given[self.level])
            self.taken = same.setdefault((ground, self.widths[0]), self.taken)

    @property
    def widths(self) -> tuple[int, ...]:
        """GPUs of each member."""
        return self.request.widths

    def levels(self) -> list[int]:
        """Levels of its cells. O(cells asked)."""
        return [level for width in self.widths for level in self.ground.shape.members(width)]


class Allocation:
    """Cells of one job, in the order of its members; it does not change.

    Attributes:
        ground: Their chain.
        widths: GPUs of each member.
        cells: Its cells.
        nodes: Their names, as in `CellPlacement`.
        spare: It is a spare job.
        reserved: No job is in them.
    """

    __slots__ = ("cells", "ground", "nodes", "reserved", "spare", "widths")

    def __init__(
        self,
        asked: ResolvedRequest,
        cells: Sequence[Cell],
        *,
        spare: bool = False,
        reserved: bool = False,
    ) -> None:
        """Name the cells."""
        self.ground = asked.ground
        self.widths = asked.widths
        self.cells = tuple(cells)
        self.nodes: tuple[OnNode, ...] = asked.nodes.all_of(asked.widths, cells)
        self.spare = spare
        self.reserved = reserved

    @property
    def placement(self) -> CellPlacement:
        """Where its job is."""
        return CellPlacement(self.nodes)
