"""The figure of a search: all points, the front, and the front on the test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.plotting.canvas import DPI, GREY, PALETTE, RenderedFigure, axes_in, picture
from replay.search.objectives import METRICS
from sia.wording import HOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 4.2
"""Height of a panel in inches."""

DOMINATED, TRAIN, TEST = "#c3cad0", PALETTE[0], PALETTE[1]

MEASURE_WORDS = {"avg": "mean", "max": "worst"}


def draw_front(
    front: Mapping[str, Any], everything: Sequence[Mapping[str, float]]
) -> RenderedFigure:
    """Draw each other objective against the first; a single one against the number of the point.

    `front` is the content of front.json, `everything` has the objectives of all points in order.
    """
    first, *others = front["objectives"]
    panels = [(first, other) for other in others] or [(None, first)]
    height = HEIGHT * len(panels)

    def draw(figure: Figure) -> None:
        for i, (x, y) in enumerate(panels):
            top = 1 - i / len(panels)
            axes = axes_in(
                figure,
                left=0.075,
                right=0.985,
                bottom=top - (HEIGHT - 0.55) / height,
                top=top - 0.25 / height,
            )
            _panel(axes, front, everything, x, y)
            if not i:
                axes.legend(loc="upper right", frameon=False)

    return picture("front", height, draw, DPI)


def _panel(
    axes: Axes,
    front: Mapping[str, Any],
    everything: Sequence[Mapping[str, float]],
    x: str | None,
    y: str,
) -> None:
    xs = [_scaled(x, each[x]) if x else i for i, each in enumerate(everything, 1)]
    ys = [_scaled(y, each[y]) for each in everything]
    axes.plot(xs, ys, "o", color=DOMINATED, markersize=4, label="points tried", linestyle="none")
    for side, colour, look in (("train", TRAIN, "o-"), ("test", TEST, "s")):
        _draw_side(axes, front["points"], side, (x, y), colour, look)
    axes.set_xlabel("points tried" if x is None else _axis(x))
    axes.set_ylabel(_axis(y))
    if _is_wide(ys):
        axes.set_yscale("symlog", linthresh=_threshold(ys))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_ylim(bottom=min(0.0, *axes.get_ylim()) if min(ys) < 0 else 0)
    axes.margins(x=0.04)


def _draw_side(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    side: str,
    over: tuple[str | None, str],
    colour: str,
    look: str,
) -> None:
    """Draw the front on the samples of one side; presets with their names and deviations."""
    x, y = over
    own = [_scaled(y, point["objectives"][y][side]["mean"]) for point in points]
    across = [
        point["number"] + 1.0 if x is None else _scaled(x, point["objectives"][x][side]["mean"])
        for point in points
    ]
    face = colour if side == "train" else "white"
    axes.plot(across, own, look, color=colour, markersize=5.5, linewidth=1.2,
              markerfacecolor=face, label=f"front on {side} samples")  # fmt: skip
    for point, a, b in zip(points, across, own, strict=True):
        if point["presets"]:
            wide, high = (
                None if each is None
                else _scaled(each, point["objectives"][each][side]["deviation"])
                for each in over
            )  # fmt: skip
            axes.errorbar(a, b, high, wide, color=colour, linewidth=0.8, alpha=0.6)
            if side == "train":
                axes.annotate(", ".join(point["presets"]), (a, b), (6, 5), color=GREY,
                              textcoords="offset points", fontsize=8)  # fmt: skip


def _is_wide(values: Sequence[float]) -> bool:
    """Return whether the range is so large that a linear axis would hide the small values."""
    above = [value for value in values if value > 0]
    return bool(above) and max(above) > 50 * float(np.median(above))


def _threshold(values: Sequence[float]) -> float:
    """Return the value up to which the axis is linear: a round one below most of them."""
    above = [value for value in values if value > 0]
    return float(10.0 ** np.floor(np.log10(np.quantile(above, 0.25))))


def _scaled(objective: str, value: float) -> float:
    return value / HOUR if objective.endswith(":jct") else value


def _axis(objective: str) -> str:
    measure, _, metric = objective.partition(":")
    unit = "hours" if metric == "jct" else "percent"
    return f"{MEASURE_WORDS.get(measure, measure)} {METRICS[metric]}, {unit}"
