"""Figures of run-time estimates (JamaisVu, Figs. 11 to 13; calibration; bins)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.forecast.run_times import CHOSEN, ERRORS, PairScores, RunTimeScores
from replay.plotting.canvas import (
    DASHES,
    GREY,
    PALETTE,
    FloatArray,
    PolicyStyle,
    RenderedFigure,
    axes_in,
    curve,
    picture,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = 30
"""Maximum characters of a predictor's or a pair's name."""

PITCH = 0.17
"""Height of a row of bars in inches."""

INK = "#333c44"


def draw_errors(scores: Mapping[str, RunTimeScores]) -> RenderedFigure:
    """Draw jobs by the error of their estimate, a curve per predictor (Fig. 11)."""
    middles = np.array(ERRORS) + 2.5

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.07, right=0.985, bottom=0.15, top=0.96)
        for i, (name, score) in enumerate(scores.items()):
            shares = 100 * np.array(score.errors)
            _line(axes, middles, shares, name, i)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_ylim(bottom=0)
        ticks = [-100, -50, 0, 50, 100]
        axes.set_xticks(ticks, [*(f"{tick} %" for tick in ticks[:-1]), "100 % or more"])
        axes.set_xlabel("error of the estimate, (predicted − actual) / actual")
        axes.set_ylabel("% of jobs in 5 points of error")
        axes.legend(loc="upper left", frameon=False, handlelength=3.2)

    return picture("run-times-errors", 3.4, draw)


def draw_reliability(scores: Mapping[str, RunTimeScores]) -> RenderedFigure:
    """Draw stated quantiles against the share of jobs that they cover, a curve per predictor."""
    some = {name: score.reliability for name, score in scores.items() if score.reliability}

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.07, right=0.47, bottom=0.13, top=0.97)
        axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9)
        for i, (name, covered) in enumerate(some.items()):
            x, y = (100 * np.array(list(side)) for side in (covered.keys(), covered.values()))
            _line(axes, x, y, name, i)
            axes.lines[-1].set(marker="o", markersize=3)
        axes.set_xlim(0, 102)
        axes.set_ylim(0, 102)
        axes.set_xlabel("probability stated (%)")
        axes.set_ylabel("% of jobs that ran no longer")
        if some:
            axes.legend(loc="upper left", frameon=False, handlelength=3.2)

    return picture("run-times-reliability", 4.2, draw)


def draw_outside(pairs: PairScores) -> RenderedFigure:
    """Draw how often each pair, and the choice, are off by factors of 2 and 10 (Fig. 12)."""
    alone = [name for name in pairs.outside_2x if name != CHOSEN]
    names = [name for name in pairs.outside_2x if name == CHOSEN]
    names += sorted(alone, key=pairs.outside_2x.__getitem__)

    def draw(figure: Figure) -> None:
        axes = _rows(figure, names)
        places = np.arange(len(names))
        for shift, factor, shares, colour in (
            (-0.2, 2, pairs.outside_2x, PALETTE[0]),
            (0.2, 10, pairs.outside_10x, PALETTE[1]),
        ):
            values = [100 * shares[name] for name in names]
            axes.barh(places + shift, values, height=0.38, color=colour, label=f"{factor} times")
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of jobs off by more than")
        axes.legend(loc="upper right", frameon=False)

    return picture("run-times-outside", _height(names), draw)


def draw_chosen(pairs: PairScores) -> RenderedFigure:
    """Draw how often each pair is chosen (Fig. 13)."""
    names = list(pairs.chosen)

    def draw(figure: Figure) -> None:
        axes = _rows(figure, names)
        values = [100 * pairs.chosen[name] for name in names]
        axes.barh(range(len(names)), values, height=0.7, color=PALETTE[0])
        axes.set_xlabel("% of jobs")

    return picture("run-times-chosen", _height(names), draw)


def _line(axes: Axes, x: FloatArray, y: FloatArray, name: str, i: int) -> None:
    curve(axes, x, y, PolicyStyle(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)]), i)
    axes.lines[-1].set(drawstyle="default", label=plain(name, NAME))


def _height(names: Sequence[str]) -> float:
    return 0.6 + PITCH * max(3, len(names))


def _rows(figure: Figure, names: Sequence[str]) -> Axes:
    """Return axes with a row for each name, the first on top."""
    height = _height(names)
    axes = axes_in(figure, left=0.24, right=0.98, bottom=0.48 / height, top=1 - 0.08 / height)
    axes.set_yticks(range(len(names)), [plain(name, NAME) for name in names])
    axes.set_ylim(max(3, len(names)) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return axes
