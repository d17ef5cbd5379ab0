"""Count free cells: cells without jobs, on nodes that are in service."""

from __future__ import annotations

from collections.abc import Sequence

from cells.layout.shape import Shape
from daemon.model.book import Book
from daemon.wire.cells import CellChain, CellLevel
from replay.cluster.gpu_names import CellGpus, Chain


def vacancies(book: Book) -> list[CellChain]:
    """Return the free cells of each chain; empty without cells. O(GPUs + live jobs)."""
    if book.setup.cells is None:
        return []
    taken: dict[str, set[int]] = {}
    for record in book.jobs.values():
        for node, gpus in record.nodes:
            taken.setdefault(node, set()).update(gpus)
    return [_chain(chain, book, taken) for chain in CellGpus(book.setup.cells).chains]


def _chain(chain: Chain, book: Book, taken: dict[str, set[int]]) -> CellChain:
    free: list[bool] = []
    used = out = 0
    for each in chain.nodes:
        node = book.nodes[each.name]
        busy = taken.get(node.name, set())
        used += len(busy)
        out += len(node.gpus) - len(busy) if node.reasons else 0
        free += [not node.reasons and gpu not in busy for gpu in node.gpus]
    shape = chain.shape
    levels = [
        CellLevel(name, size, len(free) // size, count)
        for name, size, count in zip(shape.names, shape.size, merged(shape, free), strict=True)
    ]
    return CellChain(chain.name, len(free), used, out, levels[::-1])


def merged(shape: Shape, free: Sequence[bool]) -> list[int]:
    """Count, per level from the leaf up, free cells that are not part of a larger free cell.

    O(GPUs).

    `free` has one flag for each GPU, in the order of the chain.
    """
    counts = [sum(free)]
    for fan in shape.fan[1:]:
        free = [all(free[i : i + fan]) for i in range(0, len(free), fan)]
        whole = sum(free)
        counts[-1] -= fan * whole
        counts.append(whole)
    return counts
