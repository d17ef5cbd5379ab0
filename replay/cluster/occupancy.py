"""Computes which GPUs are in use over time, and the sizes of the free cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cells.layout.shape import Shape
from replay.cluster.gpu_names import CellGpus, Chain
from replay.logs.limits import POINTS_DRAWN
from replay.plotting.canvas import FloatArray

GpuCounts = NDArray[np.int32]

MOMENTS = POINTS_DRAWN
"""Number of evenly spaced moments that are evaluated, one per column of the picture."""


class PlacedSpan(NamedTuple):
    """A period in seconds in which a job had the same GPUs, written like `n3:0-3;n4:5,7`."""

    nodes: str
    start: float
    end: float
    spare: bool


class FreeCells(NamedTuple):
    """The free cells of one chain; `whole` has the shape (levels, moments).

    A cell is free if no job runs in it and its nodes are healthy. `whole` counts all free cells of
    a level, including those inside larger free cells.
    """

    shape: Shape
    cells: tuple[int, ...]
    """The number of cells of each level."""
    whole: GpuCounts

    def merged(self) -> GpuCounts:
        """Return the free cells of each level, merged where possible as in a buddy allocator."""
        fan = np.array(self.shape.fan[1:], dtype=np.int32)[:, None]
        merged = self.whole.copy()
        merged[:-1] -= fan * self.whole[1:]
        return merged

    def largest(self) -> GpuCounts:
        """Return the level of the largest free cell at each moment; -1 if none is free."""
        found: GpuCounts = np.count_nonzero(self.whole, axis=0).astype(np.int32) - 1
        return found

    def shares(self) -> FloatArray:
        """Return the share of all GPUs in free cells of each level or a larger one, 0 to 1."""
        total = max(1, self.cells[0])
        found: FloatArray = self.whole * np.array(self.shape.size)[:, None] / total
        return found


class Occupancy(NamedTuple):
    """GPUs in use; arrays of nodes have the shape (nodes, moments), in the order of the file.

    Attributes:
        gpus: The GPUs of the file.
        times: The moments in seconds: the middles of parts of equal length.
        begin: Begin of the first part, in seconds.
        end: End of the last part, in seconds.
        dedicated: GPUs of each node that dedicated jobs use.
        spare: GPUs of each node that spare jobs use.
        bad: GPUs of each node that the file marks as bad; of shape (nodes,).
        sizes: GPUs of each node; of shape (nodes,).
        free: Free cells, by chain.
    """

    gpus: CellGpus
    times: FloatArray
    begin: float
    end: float
    dedicated: GpuCounts
    spare: GpuCounts
    bad: GpuCounts
    sizes: GpuCounts
    free: dict[str, FreeCells]


def occupancy(gpus: CellGpus, stays: Iterable[PlacedSpan], begin: float, end: float) -> Occupancy:
    """Return what is in use from `begin` to `end` (seconds), at `MOMENTS` moments.

    Changes between two moments are not visible. A job that ends at a moment no longer runs then.
    GPUs that are unused because a job's width was rounded up count as free.

    O(GPUs of all periods + GPUs · moments); one byte per GPU, moment and stream. Raises ValueError
    for GPUs that do not exist.
    """
    edges = np.linspace(begin, end, MOMENTS + 1)
    times: FloatArray = (edges[:-1] + edges[1:]) / 2
    dedicated, spare = (_in_use(gpus, some, times) for some in _by_stream(stays))
    parts = [_of_chain(chain, dedicated, spare) for chain in gpus.chains]
    shape = (gpus.nodes, MOMENTS)
    nodes = [node for chain in gpus.chains for node in chain.nodes]
    sizes = [chain.shape.size[chain.shape.node] for chain in gpus.chains for _ in chain.nodes]
    bad = [size if node.bad else 0 for size, node in zip(sizes, nodes, strict=True)]
    return Occupancy(
        gpus,
        times,
        begin,
        end,
        dedicated=np.concatenate([part[0] for part in parts]).reshape(shape),
        spare=np.concatenate([part[1] for part in parts]).reshape(shape),
        bad=np.array(bad, dtype=np.int32),
        sizes=np.array(sizes, dtype=np.int32),
        free={chain.name: part[2] for chain, part in zip(gpus.chains, parts, strict=True)},
    )


def _by_stream(stays: Iterable[PlacedSpan]) -> tuple[list[PlacedSpan], list[PlacedSpan]]:
    kept = [*stays]
    return [stay for stay in kept if not stay.spare], [stay for stay in kept if stay.spare]


def _in_use(gpus: CellGpus, stays: list[PlacedSpan], times: FloatArray) -> NDArray[np.bool_]:
    """Return whether each GPU is in use at each moment: of shape (GPUs, moments)."""
    bounds = np.array([stay[1:3] for stay in stays], dtype=np.float64).reshape(-1, 2)
    first, last = np.searchsorted(times, bounds.T)  # of those at or after the start, the end
    where, begins, ends = list[int](), list[int](), list[int]()
    for stay, i, j in zip(stays, first.tolist(), last.tolist(), strict=True):
        places = gpus.places(stay.nodes)
        if j > i:
            where += places
            begins += [i] * len(places)
            ends += [j] * len(places)
    # No GPU has two jobs at a time, so that its changes of one moment add up to -1, 0 or 1.
    changes = np.zeros((gpus.count, len(times) + 1), dtype=np.int8)
    np.add.at(changes, (where, begins), np.int8(1))
    np.add.at(changes, (where, ends), np.int8(-1))
    return np.cumsum(changes[:, :-1], axis=1, dtype=np.int8) > 0


def _of_chain(
    chain: Chain, dedicated: NDArray[np.bool_], spare: NDArray[np.bool_]
) -> tuple[GpuCounts, GpuCounts, FreeCells]:
    """Return the GPUs of each node used by dedicated and by spare jobs, and the free cells."""
    mine = slice(chain.gpus.start, chain.gpus.stop)
    size = chain.shape.size[chain.shape.node]
    by_node = (len(chain.nodes), size, dedicated.shape[1])
    well = np.repeat([not node.bad for node in chain.nodes], size)
    free = ~(dedicated[mine] | spare[mine]) & well[:, None]
    return (
        dedicated[mine].reshape(by_node).sum(axis=1, dtype=np.int32),
        spare[mine].reshape(by_node).sum(axis=1, dtype=np.int32),
        _free_cells(chain.shape, free),
    )


def _free_cells(shape: Shape, free: NDArray[np.bool_]) -> FreeCells:
    """Merge free GPUs, an array of shape (GPUs, moments), level by level."""
    cells, whole = [], []
    for fan in shape.fan:
        free = np.logical_and.reduce(free.reshape(-1, fan, free.shape[1]), axis=1)
        cells.append(len(free))
        whole.append(np.count_nonzero(free, axis=0))
    return FreeCells(shape, tuple(cells), np.array(whole, dtype=np.int32))
