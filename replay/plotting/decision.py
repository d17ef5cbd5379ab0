"""Figures for a decision: waits, lenders and borrowers, use over time, accuracy of forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.plotting.canvas import (
    COLOURS,
    GREY,
    FloatArray,
    PolicyStyle,
    area,
    axes_in,
    drawn,
    plain,
    steps,
)
from sia.wording import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = 24
"""Maximum number of letters of a pool's name in a figure."""

PITCH = 0.15
"""Height of a bar in inches."""

FRAME = 0.55
"""Inches above and below the bars, which the axis needs."""


class WaitBars(NamedTuple):
    """The mean wait of each group of jobs under one policy, in seconds; NaN without a job."""

    policy: str
    waits: FloatArray


class ForecastPanel(NamedTuple):
    """Forecasts for windows of one length, and the GPUs that were then needed."""

    title: str
    edges: FloatArray
    """Begins of the windows, and the end of the last one, in seconds."""
    forecast: FloatArray
    actual: FloatArray


def draw_waits(
    name: str,
    groups: Sequence[str],
    bars: Sequence[WaitBars],
    style: Mapping[str, PolicyStyle],
) -> str:
    """Draw the mean waits of groups of jobs as bars, one for each policy."""
    each = len(bars) + 0.7
    height = FRAME + PITCH * each * len(groups)

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.17, right=0.98, bottom=0.43 / height, top=1 - 0.1 / height)
        most = max(1.0, *(float(np.nanmax(bar.waits, initial=0.0)) for bar in bars))
        for i, bar in enumerate(bars):
            places = np.arange(len(groups)) * each + i
            waits = np.nan_to_num(bar.waits)
            axes.barh(places, waits / 3600, height=0.86, color=style[bar.policy].colour)
            for place, wait in zip(places, bar.waits, strict=True):
                words = "no job" if np.isnan(wait) else duration(float(wait))
                x = float(np.nan_to_num(wait)) / 3600 + most / 3600 * 0.006
                axes.text(x, place, words, va="center", fontsize=6.5)
        _rows(axes, groups, each, len(bars))
        axes.set_xlim(0, most / 3600 * 1.12)
        axes.set_xlabel("mean wait in hours")

    return drawn(name, height, draw)


def _rows(axes: Axes, names: Sequence[str], each: float, bars: int) -> None:
    """Label the groups of horizontal bars, the first one on top."""
    middle = (bars - 1) / 2
    places = [i * each + middle for i in range(len(names))]
    axes.set_yticks(places, [plain(name, NAME) for name in names])
    axes.set_ylim(len(names) * each - 0.7, -0.9)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def draw_exchange(pools: Sequence[str], lent: FloatArray, borrowed: FloatArray) -> str:
    """Draw the GPU-hours that each pool lends, to the left, and borrows, to the right."""
    height = FRAME + 0.24 * len(pools)

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.17, right=0.98, bottom=0.43 / height, top=1 - 0.1 / height)
        places = np.arange(len(pools))
        axes.barh(places, -lent, height=0.72, color=COLOURS["lent"])
        axes.barh(places, borrowed, height=0.72, color=COLOURS["borrowed"])
        axes.axvline(0, color="#333c44", linewidth=0.8)
        most = max(1e-9, float(lent.max(initial=0.0)), float(borrowed.max(initial=0.0)))
        axes.set_xlim(-most * 1.05, most * 1.05)
        _rows(axes, pools, 1.0, 1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{abs(x):,.10g}")
        axes.set_xlabel("GPU-hours lent (left) and borrowed (right)")

    return drawn("exchange", height, draw)


def draw_use(
    edges: FloatArray,
    owned: FloatArray,
    curves: Mapping[str, FloatArray],
    style: Mapping[str, PolicyStyle],
    warmup: float,
) -> str:
    """Draw the GPUs in use over time under some policies, averaged between the edges (seconds)."""
    days = (edges - edges[0]) / 86400
    warm = (warmup - edges[0]) / 86400

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.075, right=0.98, bottom=0.17, top=0.96)
        steps(axes, owned, days, COLOURS["owned"])
        for i, (name, used) in enumerate(curves.items()):
            steps(axes, used, days, style[name].colour, (1.4, 1.2, 0.9)[min(i, 2)])
        if 0 < warm < days[-1]:
            axes.axvline(warm, color="#333c44", linewidth=0.9, linestyle=":")
        axes.set_xlim(days[0], days[-1])
        axes.set_ylim(0, max(1.0, float(owned.max()), *(u.max() for u in curves.values())) * 1.06)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.10g}")
        axes.set_xlabel("days since the first submission")
        axes.set_ylabel("GPUs in use")

    return drawn("use", 2.9, draw)


def draw_accuracy(panels: Sequence[ForecastPanel], quota: int, start: float) -> str:
    """Draw forecasts as lines over the actual use, one panel for each length of windows."""
    head, pitch, foot = 0.25, 1.35, 0.45
    height = foot + len(panels) * (head + pitch)

    def draw(figure: Figure) -> None:
        for i, panel in enumerate(panels):
            bottom = height - (i + 1) * (head + pitch)
            axes = figure.add_axes((0.075, bottom / height, 0.905, pitch / height))
            days = (panel.edges - start) / 86400
            area(axes, panel.actual, days, COLOURS["own_spare"])
            steps(axes, panel.forecast, days, COLOURS["owned"], 1.2)
            axes.axhline(quota, color=GREY, linewidth=0.9, linestyle="--")
            axes.set_xlim(days[0], days[-1])
            axes.set_ylim(0, max(1.0, float(quota), float(panel.actual.max())) * 1.1)
            axes.set_title(panel.title, loc="left", fontsize=9)
            axes.set_ylabel("GPUs")
            axes.locator_params(axis="y", nbins=4)
            axes.tick_params(axis="x", labelbottom=i == len(panels) - 1)
        axes.set_xlabel("days since the first submission")

    return drawn("accuracy", height, draw)
