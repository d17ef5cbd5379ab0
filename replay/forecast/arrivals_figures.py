"""Figures of `arrivals`: recall (Figs. 21 and 22), reliability, ageing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.forecast.arrivals import ArrivalScores, ScoreRow
from replay.plotting.canvas import (
    DASHES,
    GREY,
    PALETTE,
    PolicyStyle,
    RenderedFigure,
    axes_in,
    curve,
    picture,
)
from sia.wording import as_typed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEAST = 0.1
"""Lower left corner of the reliability diagram in percent; its axes are logarithmic."""


def _looks(windows: Sequence[float]) -> dict[float, PolicyStyle]:
    return {
        window: PolicyStyle(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])
        for i, window in enumerate(windows)
    }


def draw_recall(scores: ArrivalScores) -> RenderedFigure:
    """Draw CDFs of the recall in each hour of each pool, and in each pool, a curve per window."""

    def draw(figure: Figure) -> None:
        looks = _looks([*scores.pool_recall])
        hours = axes_in(figure, left=0.07, right=0.49, bottom=0.16, top=0.9)
        pools = axes_in(figure, left=0.56, right=0.98, bottom=0.16, top=0.9)
        _recalls(hours, scores.hour_recall, looks, "hours with arrivals, of each pool (Fig. 21)")
        _recalls(pools, scores.pool_recall, looks, "pools (Fig. 22)")
        if hours.lines:
            hours.legend(loc="upper left", frameon=False, handlelength=3.2)

    return picture("arrivals-recall", 3.2, draw)


def _recalls(
    axes: Axes,
    recalls: Mapping[float, Sequence[float]],
    looks: Mapping[float, PolicyStyle],
    what: str,
) -> None:
    axes.set_title(f"% of the {what}", loc="left", fontsize=9, weight="bold", color="#333c44")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(0, 102)
    axes.set_xlabel("recall of at most …")
    for i, (window, values) in enumerate(recalls.items()):
        if values:
            x = np.array([0.0, *values, 1.0])
            y = np.linspace(0, 100, len(values) + 1)
            curve(axes, x, np.append(y, 100.0), looks[window], i)
            axes.lines[-1].set_label(f"within {as_typed(window)}")


def draw_reliability(rows: Sequence[ScoreRow]) -> RenderedFigure:
    """Draw how often the load exceeded each stated quantile, a curve per window."""

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.08, right=0.68, bottom=0.13, top=0.96)
        axes.plot([LEAST, 100], [LEAST, 100], color=GREY, linewidth=0.9)
        windows = [*dict.fromkeys(row["window_s"] for row in rows)]
        for window, look in _looks(windows).items():
            own = [row for row in rows if row["window_s"] == window]
            x = [100 * (1 - row["stated"]) for row in own]
            for key, width, words in (
                ("covered", 1.9, "held to it online"),
                ("covered_as_learned", 0.9, "as learned"),
            ):
                y = [max(LEAST, 100 * (1 - row[key])) for row in own]
                (line,) = axes.plot(x, y, color=look.colour, linewidth=width, marker="o", ms=3)
                line.set_label(f"within {as_typed(window)}, {words}")
                if look.dash:
                    line.set_dashes(look.dash)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} %")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} %")
        axes.set_xlabel("stated: more comes in at most … of all windows")
        axes.set_ylabel("in truth")
        handles, _ = axes.get_legend_handles_labels()
        figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.7, 0.55), frameon=False)

    return picture("arrivals-reliability", 4.2, draw)


def draw_ageing(rows: Sequence[ScoreRow]) -> RenderedFigure:
    """Draw F in the weeks after the training span, with and without learning (dotted)."""

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.07, right=0.8, bottom=0.14, top=0.96)
        windows = [*dict.fromkeys(row["window_s"] for row in rows)]
        for window, look in _looks(windows).items():
            own = [row for row in rows if row["window_s"] == window]
            weeks = [row["week"] for row in own]
            f = [row["f"] for row in own]
            axes.plot(weeks, f, color=look.colour, linewidth=1.9, marker="o", ms=3)
            axes.lines[-1].set_label(f"within {as_typed(window)}")
            base = [row["f_persistence"] for row in own]
            axes.plot(weeks, base, color=look.colour, linewidth=1.1, linestyle=":")
        axes.set_ylim(0, 1.02)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("weeks since the newest that was learned from (dotted: persistence)")
        axes.set_ylabel("F of 'some job arrives'")
        handles, _ = axes.get_legend_handles_labels()
        figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.81, 0.5), frameon=False)

    return picture("arrivals-ageing", 3.2, draw)
