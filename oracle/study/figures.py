"""The figures of a study: ranges and distributions of measures (Figs. 5, 15b, 24)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from replay.experiment.figures import (
    INK,
    PAPER_DPI,
    LogAxis,
    MeasurePanel,
    Values,
    logarithmic,
    scale_of,
)
from replay.plotting.canvas import (
    WIDTH,
    FloatArray,
    PolicyStyle,
    RenderedFigure,
    curve,
    picture,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP, TITLE, DOWN, BELOW, LEFT = 0.5, 0.28, 1.65, 0.32, 0.62
"""Sizes in inches: legend, panel title, panel, and the space below and left of a panel."""

ENDS = "bar: range of the repetitions · point: median"

FILLED = 0.82
"""Share of a group's width that its bars fill."""

HAIR = 0.006
"""Smallest height of a bar as a share of the axis, so that ranges of one value are visible."""


def draw_ranges(
    name: str, panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle], across: int
) -> RenderedFigure:
    """Draw the range and the median of the repetitions for each policy (Figs. 5, 24).

    `across` is the number of panels per row; the groups of a panel are workloads.
    """
    down = ceil(len(panels) / across)
    height = TOP + down * (TITLE + DOWN + BELOW)

    def draw(figure: Figure) -> None:
        for axes, panel in zip(_places(figure, len(panels), across, height), panels, strict=True):
            _panel(axes, panel, style)
        _names(figure, panels, style)

    return picture(name, height, draw, PAPER_DPI)


def _places(figure: Figure, count: int, across: int, height: float) -> Iterator[Axes]:
    wide = (WIDTH - across * LEFT - 0.1) / across
    for i in range(count):
        row, column = divmod(i, across)
        x = LEFT + column * (wide + LEFT)
        y = height - TOP - (row + 1) * (TITLE + DOWN + BELOW) + BELOW
        yield figure.add_axes((x / WIDTH, y / height, wide / WIDTH, DOWN / height))


def _panel(axes: Axes, panel: MeasurePanel, style: Mapping[str, PolicyStyle]) -> None:
    everything = [values for group in panel.groups.values() for values in group.values()]
    scale = scale_of(panel.measure.unit, [*everything, *(_middle(v) for v in everything)])
    logarithmic(axes, "y", scale, 2 * DOWN)
    for place, group in enumerate(panel.groups.values()):
        _bars(axes, place, group, scale, style)
        if place:
            axes.axvline(place - 0.5, color="#c9d0d5", linewidth=0.6)
    axes.set_xlim(-0.5, len(panel.groups) - 0.5)
    axes.set_xticks(range(len(panel.groups)), [plain(group, 20) for group in panel.groups])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_title(panel.measure.words, loc="left", fontsize=9, color=INK)


def _bars(
    axes: Axes, place: int, group: Values, scale: LogAxis, style: Mapping[str, PolicyStyle]
) -> None:
    wide = FILLED / len(group)
    hair = (scale.most / scale.begin) ** HAIR
    for i, (label, values) in enumerate(group.items()):
        if not len(values):
            continue
        x = place - FILLED / 2 + (i + 0.5) * wide
        low, high = scale.place(np.array([values.min(), values.max()])) * [1 / hair, hair]
        axes.bar(x, high - low, 0.8 * wide, low, color=style[label].colour, linewidth=0)
        axes.plot([x], scale.place(_middle(values)), "o", color="#111111", markersize=2.2)


def _middle(values: FloatArray) -> FloatArray:
    return np.quantile(values, [0.5]) if len(values) else values


def _names(
    figure: Figure, panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle]
) -> None:
    """Draw the legend above the panels."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    labels = dict.fromkeys(n for p in panels for group in p.groups.values() for n in group)
    patches = [Patch(color=style[label].colour, label=plain(label, 30)) for label in labels]
    figure.legend(
        handles=patches, loc="upper center", ncols=len(patches), frameon=False, fontsize=8,
        handlelength=1.0, handletextpad=0.4, columnspacing=1.2,
    )  # fmt: skip
    below = 1 - 0.36 / figure.get_figheight()
    figure.text(0.5, below, ENDS, ha="center", va="center", fontsize=8, color=INK)


def draw_captured(
    speedups: Values, captured: Values, style: Mapping[str, PolicyStyle]
) -> RenderedFigure:
    """Draw distributions over instances: mean speed-up and captured gain (Fig. 15b)."""
    height = TITLE + DOWN + BELOW

    def draw(figure: Figure) -> None:
        left, right = _places(figure, 2, 2, TOP + height)
        scale = scale_of("speed", speedups.values())
        logarithmic(left, "x", scale, 4.0)
        least = min((float(values.min(initial=0.0)) for values in captured.values()), default=0.0)
        right.set_xlim(least - 2, 104)
        right.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")
        _rising(left, speedups, scale.most, style)
        _rising(right, captured, 104.0, style)
        left.set_title("Mean speed-up of an instance's jobs", loc="left", fontsize=9, color=INK)
        right.set_title("Avoidable waiting that was avoided", loc="left", fontsize=9, color=INK)
        left.set_ylabel("% of instances at or below x")
        names = [plain(label, 30) for label in speedups]
        figure.legend(left.lines[-len(names) :], names, loc="upper center", ncols=len(names),
                      frameon=False, fontsize=8, handlelength=3.2)  # fmt: skip

    return picture("fig15b", TOP + height, draw, PAPER_DPI)


def _rising(axes: Axes, curves: Values, most: float, style: Mapping[str, PolicyStyle]) -> None:
    """Draw the empirical distribution of each policy's values, in percent."""
    axes.set_ylim(0, 104)
    for i, (label, values) in enumerate(curves.items()):
        if len(values):
            ordered = np.sort(values)
            x = np.concatenate([ordered[:1], ordered, [most]])
            shares = np.arange(len(ordered) + 1) * (100 / len(ordered))
            curve(axes, x, np.append(shares, 100.0), style[label], i)
