"""What goes over HTTP of cells: how large the pieces are that are free."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class CellLevel(Struct):
    """Cells of one type."""

    type: str
    gpus: Annotated[int, Meta(description="Of one of them.")]
    cells: int
    free: Annotated[int, Meta(description="Of them, free ones that lie in no larger free cell.")]


class CellChain(Struct):
    """The cells of one chain, the largest first."""

    chain: str
    gpus: int
    used: int
    out: Annotated[int, Meta(description="GPUs that nobody uses, of nodes that are out.")]
    levels: list[CellLevel]


class CellsView(Struct):
    """All chains; none where there are no cells."""

    chains: list[CellChain]
