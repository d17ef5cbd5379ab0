"""Pictures of a cluster over time: which nodes are in use, and how large the free cells are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay.cluster.gpu_names import CellGpus
from replay.cluster.occupancy import Occupancy
from replay.plotting.canvas import COLOURS, GREY, axes_in, drawn, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 400
"""Rows of the picture of nodes; there are no more pixels, so that more nodes share a row each."""

PARTS = {
    "dedicated": COLOURS["dedicated"],
    "spare": COLOURS["lent"],
    "free": COLOURS["idle"],
    "bad, unused": COLOURS["waiting"],
}
"""What GPUs of a node are, and its colour; a row of several is their mixture."""

RAMP = ("#7a1026", "#c8471a", "#eda64a", "#ecd9a8", "#d3dde4")
"""From single GPUs to the largest cells: the smaller what is free, the more it stands out."""

NAMED = 8
"""Nodes whose names stand beside the picture."""

NAME = 18
"""Characters of a name of a node or type."""


class NodeGrid(NamedTuple):
    """Nodes in so many rows, `nodes` together in each but the last; colours, (rows, moments, 3)."""

    colours: NDArray[np.uint8]
    nodes: int


def rows_of(found: Occupancy) -> NodeGrid:
    """Mix the colours of each row by how many of its GPUs are what. O(nodes · moments)."""
    together = max(1, -(-len(found.sizes) // ROWS))
    first = np.arange(0, len(found.sizes), together)
    dedicated, spare = (np.add.reduceat(part, first) for part in (found.dedicated, found.spare))
    sizes = np.add.reduceat(found.sizes, first)[:, None]
    unused = np.maximum(0, found.bad[:, None] - found.dedicated - found.spare)
    bad = np.add.reduceat(unused, first)
    parts = np.stack([dedicated, spare, sizes - dedicated - spare - bad, bad], axis=-1)
    colours = np.array([_rgb(colour) for colour in PARTS.values()])
    mixed = parts / sizes[..., None] @ colours
    return NodeGrid(mixed.round().astype(np.uint8), together)


def _rgb(colour: str) -> list[int]:
    return [*bytes.fromhex(colour[1:])]


def draw_occupancy(found: Occupancy, number: int = 0) -> str:
    """Who uses each node over time, a row a node (§5.5); `number` is unique in the page."""
    rows = rows_of(found)
    height = 1.15 + min(4.2, max(1.2, len(rows.colours) * 0.02))
    days = (found.end - found.begin) / 86400

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.115, right=0.985, bottom=0.5 / height, top=1 - 0.35 / height)
        extent = (0.0, days, len(found.sizes), 0.0)
        # Between exact pixels of the page: each is a moment of a node, and no mean of two.
        axes.imshow(rows.colours, extent=_whole(extent, rows), aspect="auto", interpolation="none")
        axes.set_xlim(0.0, days)
        axes.set_ylim(len(found.sizes), 0.0)
        axes.grid(visible=False)
        _name_nodes(axes, found.gpus)
        axes.set_xlabel("days since the first submission")
        _name_parts(figure, found)
        if rows.nodes > 1:
            words = f"{rows.nodes} nodes a row"
            figure.text(0.985, 1 - 0.2 / height, words, ha="right", va="center", color=GREY)

    return drawn(f"occupancy{number}", height, draw)


def _whole(
    extent: tuple[float, float, float, float], rows: NodeGrid
) -> tuple[float, float, float, float]:
    """Where the picture ends: below the last node, if the last row has fewer than the others."""
    left, right, _, top = extent
    return left, right, float(len(rows.colours) * rows.nodes), top


def _name_nodes(axes: Axes, gpus: CellGpus) -> None:
    """Names at some nodes, and a line between chains."""
    names = [node.name for chain in gpus.chains for node in chain.nodes]
    shown = np.unique(np.linspace(0, len(names) - 1, NAMED).round().astype(int)).tolist()
    axes.set_yticks([i + 0.5 for i in shown], [plain(names[i], NAME) for i in shown])
    for chain in gpus.chains[1:]:
        axes.axhline(chain.first_node, color="#ffffff", linewidth=1.5)


def _name_parts(figure: Figure, found: Occupancy) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415

    patches = [
        Patch(facecolor=colour, edgecolor="#c3cad0", linewidth=0.5, label=name)
        for name, colour in PARTS.items()
        if name != "bad, unused" or found.bad.any()
    ]
    figure.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(0.105, 1.0),
        ncols=len(patches),
        frameon=False,
        handlelength=1.2,
    )


def draw_fragmentation(found: Occupancy, chain: str, number: int = 0) -> str:
    """How large the free cells of a chain are over time, by GPUs in them (§5.5).

    An area a type, each with the larger ones below it: GPUs in free cells of just that type, of
    all GPUs of the chain. `number` is unique in the page.
    """
    cells = found.free[chain]
    shape, shares = cells.shape, 100 * cells.shares()
    edges = np.linspace(0.0, (found.end - found.begin) / 86400, len(found.times) + 1)
    # A type of one child has the very line of that child.
    levels = [level for level in shape.levels if not level or shape.fan[level] > 1]
    colours = _ramp(len(levels))

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.075, right=0.985, bottom=0.14, top=0.89)
        for level, colour in zip(levels, colours, strict=True):
            words = _type_words(shape.names[level], shape.size[level])
            axes.stairs(shares[level], edges, fill=True, color=colour, linewidth=0, label=words)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0.0, max(1.0, float(shares[0].max())) * 1.06)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.10g} %")
        axes.set_xlabel("days since the first submission")
        axes.set_ylabel("GPUs that are free, in cells of")
        figure.legend(
            loc="upper left",
            bbox_to_anchor=(0.065, 1.0),
            ncols=len(levels),
            frameon=False,
            handlelength=1.2,
        )

    return drawn(f"fragmentation{number}", 3.4, draw)


def _ramp(count: int) -> list[str]:
    """So many colours of `RAMP`, evenly spaced."""
    ends = np.array([_rgb(colour) for colour in RAMP], dtype=np.float64)
    at = np.linspace(0.0, len(RAMP) - 1.0, max(2, count))[:count]
    mixed = [np.interp(at, range(len(RAMP)), column) for column in ends.T]
    rgb = np.stack(mixed, axis=1).round().astype(int).tolist()
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in rgb]


def _type_words(name: str, size: int) -> str:
    return plain(name, NAME) if size == 1 else f"{plain(name, NAME)} ({size:,} GPUs)"
