"""Figures of a cluster over time: the nodes in use, and the sizes of the free cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay.cluster.gpu_names import CellGpus
from replay.cluster.occupancy import Occupancy
from replay.plotting.canvas import COLOURS, GREY, area, axes_in, drawn, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 400
"""Maximum of rows in the figure of nodes. With more nodes than pixels, several nodes share a
row."""

PARTS = {
    "dedicated": COLOURS["dedicated"],
    "spare": COLOURS["lent"],
    "free": COLOURS["idle"],
    "bad, unused": COLOURS["waiting"],
}
"""The states of GPUs and their colours; a row of several nodes has a mixture."""

RAMP = ("#7a1026", "#c8471a", "#eda64a", "#ecd9a8", "#d3dde4")
"""Colours from single GPUs to the largest cells: the smaller the cells, the stronger the colour."""

NAMED = 8
"""Maximum of nodes whose names are shown at the axis."""

NAME = 18
"""Maximum characters of a node's or type's name."""


class NodeGrid(NamedTuple):
    """`nodes` nodes in each row but the last, and the colours of rows: (rows, moments, 3)."""

    colours: NDArray[np.uint8]
    nodes: int


def rows_of(found: Occupancy) -> NodeGrid:
    """Mix the colours of each row by the states of its GPUs. O(nodes · moments)."""
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
    """Draw the use of each node over time, a row per node (§5.5); `number` is unique in a page."""
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
    """Return where the picture ends: below the last node, as the last row may have fewer nodes."""
    left, right, _, top = extent
    return left, right, float(len(rows.colours) * rows.nodes), top


def _name_nodes(axes: Axes, gpus: CellGpus) -> None:
    """Draw names at some nodes, and lines between chains."""
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
    """Draw the sizes of a chain's free cells over time (§5.5).

    Each type has an area on top of those of larger types: the share of the chain's GPUs that are in
    free cells of exactly this type. `number` is unique in the page.
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
            area(axes, shares[level], edges, colour, words)
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
    """Return `count` evenly spaced colours of `RAMP`."""
    ends = np.array([_rgb(colour) for colour in RAMP], dtype=np.float64)
    at = np.linspace(0.0, len(RAMP) - 1.0, max(2, count))[:count]
    mixed = [np.interp(at, range(len(RAMP)), column) for column in ends.T]
    rgb = np.stack(mixed, axis=1).round().astype(int).tolist()
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in rgb]


def _type_words(name: str, size: int) -> str:
    return plain(name, NAME) if size == 1 else f"{plain(name, NAME)} ({size:,} GPUs)"
