"""The figure of a sweep: waiting against unfairness, and the gain of each pool by price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.experiment.figures import INK, PAPER_DPI
from replay.plotting.canvas import (
    DASHES,
    GREY,
    PALETTE,
    PolicyStyle,
    RenderedFigure,
    curve,
    picture,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 3.3
"""Height in inches: three panels side by side, below the legend."""

POOLS_NAMED = 10
"""Maximum number of pools in the figure, those with the most jobs: more would be
indistinguishable."""

Points = Sequence[Mapping[str, Any]]


def draw_sweep(points: Points) -> RenderedFigure:
    """Draw waiting against unfairness, one point per price, and each pool's gain by price."""

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(1, 3, left=0.07, right=0.985, bottom=0.15, top=0.82, wspace=0.26)
        _trade(figure.add_subplot(grid[0, 0]), points)
        looks = _looks(points)
        for column, key, title in (
            (1, "sooner_pct", "Jobs that start earlier, % of the pool's"),
            (2, "gone_pct", "Waiting avoided, % of the pool's"),
        ):
            axes = figure.add_subplot(grid[0, column])
            _pools(axes, points, key, looks)
            axes.set_title(title, loc="left", fontsize=9, color=INK)
        names = [plain(name, 24) for name in looks]
        figure.legend(axes.lines, names, loc="upper center", ncols=len(names), frameon=False,
                      fontsize=8, handlelength=3.2)  # fmt: skip

    return picture("sweep", HEIGHT, draw, PAPER_DPI)


def _looks(points: Points) -> dict[str, PolicyStyle]:
    pools = points[0]["pools"]
    most = sorted(pools, key=lambda name: (-pools[name]["jobs"], name))[:POOLS_NAMED]
    return {
        name: PolicyStyle(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])
        for i, name in enumerate(sorted(most))
    }


def _trade(axes: Axes, points: Points) -> None:
    x = [point["unfairness_slots"] for point in points]
    y = [point["wait_s"] / 3600 for point in points]
    axes.plot(x, y, color=GREY, linewidth=1.2, marker="o", markersize=4, markerfacecolor=INK)
    for spot, names in names_of(points).items():
        right = spot[0] > (min(x) + max(x)) / 2  # the curve falls from the upper left
        side, shift = ("right", (-4, -10)) if right else ("left", (4, 4))
        axes.annotate(names, spot, shift, textcoords="offset points", ha=side, fontsize=7.5,
                      color=INK)  # fmt: skip
    axes.margins(0.12)
    axes.set_title("Efficiency against fairness (β)", loc="left", fontsize=9, color=INK)
    axes.set_xlabel("unfairness: Σ largest quota utilisation, slots")
    axes.set_ylabel("total waiting, hours")


def names_of(points: Points) -> dict[tuple[float, float], str]:
    """Return the label of each point (unfairness in slots, waiting in hours), like `0, 0.3`.

    Points that coincide in the figure share a label.
    """
    spots: dict[tuple[float, float], list[str]] = {}
    for point in points:
        spot = point["unfairness_slots"], point["wait_s"] / 3600
        near = next(
            (s for s in spots if isclose(s[0], spot[0], rel_tol=1e-6) and s[1] == spot[1]), spot
        )
        spots.setdefault(near, []).append(f"{point['beta']:g}")
    return {spot: ", ".join(names) for spot, names in spots.items()}


def _pools(axes: Axes, points: Points, key: str, looks: Mapping[str, PolicyStyle]) -> None:
    places = np.arange(len(points), dtype=np.float64)
    for i, (name, look) in enumerate(looks.items()):
        found = [point["pools"][name][key] for point in points]
        values = np.array([np.nan if v is None else v for v in found], dtype=np.float64)
        curve(axes, places, values, look, i)
        axes.lines[-1].set(drawstyle="default", marker="o", markersize=3.2)
    axes.set_ylim(0, 104)
    axes.set_xticks(places, [f"{point['beta']:g}" for point in points])
    axes.set_xlabel("β")
