"""A request, looked up in the cluster once and for all jobs that are the same."""

from __future__ import annotations

from typing import NamedTuple

from cells.cluster import Nodes
from cells.ground import Ground
from cells.shape import Cell
from cells.zones import Root, Zone


class Asked(NamedTuple):
    """What a request comes to.

    Attributes:
        ground: Its chain.
        nodes: The chain's nodes.
        zone: Whose quota it uses, were it a dedicated one's.
        widths: GPUs of each member.
        level: Of its cell, if it is for just one; else -1.
    """

    ground: Ground
    nodes: Nodes
    zone: Zone
    widths: tuple[int, ...]
    level: int


class Taken(NamedTuple):
    """Cells of one job, in the order of its members.

    Attributes:
        asked: What it asked for.
        cells: Its cells.
        roots: The bound cells they lie in; none for a spare job.
        reserved: No job is in them.
    """

    asked: Asked
    cells: tuple[Cell, ...]
    roots: tuple[Root, ...] = ()
    reserved: bool = False
