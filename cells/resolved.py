"""Resolved requests and allocations, shared by all jobs with the same request."""

from __future__ import annotations

from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.cluster import NodeNames
from cells.layout.requests import CellPlacement, OnNode, Request
from cells.layout.shape import Cell


class ResolvedRequest:
    """A request with its chain, zone and levels looked up.

    Attributes:
        request: The request.
        state: The state of its chain.
        nodes: The names of the chain's nodes.
        zone: The zone whose quota a dedicated job with this request uses.
        gpus: Total GPUs of all its cells.
        level: The level of its cell if it needs exactly one, else -1.
        allocations: For requests of one cell: allocations by cell number, None where no job had the
            cell yet. Requests of the same chain and width share the list, because most jobs get a
            cell that an earlier job had.
    """

    __slots__ = ("allocations", "gpus", "level", "nodes", "request", "state", "zone")

    def __init__(
        self,
        request: Request,
        state: ChainState,
        nodes: NodeNames,
        zone: CellZone,
        shared: dict[tuple[ChainState, int], list[Allocation | None]],
    ) -> None:
        """Look up levels and GPUs. `shared` holds the `allocations` lists by chain and width."""
        self.request = request
        self.state = state
        self.nodes = nodes
        self.zone = zone
        cells = self.levels()
        self.gpus = sum(state.shape.size[level] for level in cells)
        self.level = cells[0] if len(cells) == 1 else -1
        self.allocations: list[Allocation | None] = []
        if self.level >= 0:
            self.allocations += [None] * len(state.given[self.level])
            self.allocations = shared.setdefault((state, self.widths[0]), self.allocations)

    @property
    def widths(self) -> tuple[int, ...]:
        """GPUs of each member."""
        return self.request.widths

    def levels(self) -> list[int]:
        """Return the levels of its cells. O(cells requested)."""
        return [level for width in self.widths for level in self.state.shape.members(width)]


class Allocation:
    """The cells of one job, in the order of its members. Immutable.

    Attributes:
        state: The state of their chain.
        widths: GPUs of each member.
        cells: The cells.
        nodes: Node names and GPU numbers, as in `CellPlacement`.
        spare: Whether the job is a spare job.
        reserved: Whether this is a reservation without a job.
    """

    __slots__ = ("cells", "nodes", "reserved", "spare", "state", "widths")

    def __init__(
        self,
        resolved: ResolvedRequest,
        cells: Sequence[Cell],
        *,
        spare: bool = False,
        reserved: bool = False,
    ) -> None:
        """Look up the node names and GPU numbers of the cells."""
        self.state = resolved.state
        self.widths = resolved.widths
        self.cells = tuple(cells)
        self.nodes: tuple[OnNode, ...] = resolved.nodes.all_of(resolved.widths, cells)
        self.spare = spare
        self.reserved = reserved

    @property
    def placement(self) -> CellPlacement:
        """The nodes and GPUs of the job."""
        return CellPlacement(self.nodes)
