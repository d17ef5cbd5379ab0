"""HTTP bodies of the cell endpoint: the free cells of each type."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class CellLevel(Struct):
    """The cells of one type."""

    type: str
    gpus: Annotated[int, Meta(description="GPUs of one such cell.")]
    cells: int
    free: Annotated[int, Meta(description="Free cells that are not part of a larger free cell.")]


class CellChain(Struct):
    """The cell types of one chain, largest first."""

    chain: str
    gpus: int
    used: int
    out: Annotated[int, Meta(description="Unused GPUs of nodes that are drained, down or out.")]
    levels: list[CellLevel]


class CellsView(Struct):
    """All chains; empty if the cluster has no cells."""

    chains: list[CellChain]
