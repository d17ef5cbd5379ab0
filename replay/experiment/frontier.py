"""The frontier: the gain that forecasts capture, against the share of jobs that they slow.

The captured gain of a policy is log(geometric mean speed-up) divided by the same for SIA with
perfect forecasts: 1 is the full gain, 0 is no sharing. Over several runs it is the ratio of the
sums of the logarithms, which weights runs by their possible gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import fsum, log, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from predictors.catalog import GUARD, Choice, replay_only
from replay.experiment.figures import INK, NAME, PAPER_DPI, LogAxis, logarithmic, scale_of
from replay.experiment.measures import GEOMEAN, Experiment, Measure
from replay.plotting.canvas import GREY, PALETTE, WIDTH, FloatArray, RenderedFigure, picture, plain
from replay.report.provenance import quantiles
from sia.limits import MAX_SLOWED_PCT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TARGET = 0.5
"""Captured gain that justifies lending, with at most `MAX_SLOWED_PCT` of the jobs slowed."""

LENDER = "sia"
"""The policy whose forecasts are compared."""

MEAN_SLOWED = Measure("slowed_pct_mean", "Jobs slowed, mean over the runs", "percent")

HEIGHT, PITCH = 4.0, 0.19
"""Height of the figure and line pitch of its legend, in inches."""

LEVELS = (0, 1)
"""Reference lines: the captured gain of no sharing and of perfect forecasts."""

LABEL = 7.5
"""Font size of labels, in points."""

REACH = (0.0, 1.1)
"""Smallest range of captured gain that is drawn. Points of other policies beyond the range are
drawn at its edge, labelled with their value."""


class FrontierPoint(NamedTuple):
    """Gain and cost of a policy over the runs that include perfect forecasts.

    `captured` is a ratio and `slowed_pct_*` are percentages of a run's jobs. `slowdown_min_mean` is
    the total slowdown of a run's jobs in minutes, `slowdown_min_most` the largest of one job.
    """

    label: str
    captured: float
    slowed_pct_mean: float
    slowed_pct_most: float
    slowdown_min_mean: float
    slowdown_min_most: float
    runs_nobody_slowed: int
    runs: int

    @property
    def on_target(self) -> bool:
        """Whether the policy captures enough gain and slows few enough jobs."""
        return self.captured >= TARGET and self.slowed_pct_mean <= MAX_SLOWED_PCT


class FrontierCurve(NamedTuple):
    """Points that differ only in quantiles and guard budget, the most cautious first.

    `quantiles` has a text for each point.
    """

    name: str
    marker: str
    points: Sequence[FrontierPoint]
    quantiles: Sequence[str] = ()
    guarded: bool = False

    @property
    def pair(self) -> str:
        """The forecasts without the guard."""
        return self.name.removesuffix(f"+{GUARD}") if self.guarded else self.name


class Frontier(NamedTuple):
    """Curves of SIA's forecasts, and single points of all other policies."""

    reference: str
    rivals: Sequence[FrontierCurve]
    curves: Sequence[FrontierCurve]
    honest: Sequence[FrontierPoint]
    """SIA with forecasts that a live system could make, without the random ones."""

    @property
    def points(self) -> list[FrontierPoint]:
        """All points in the order of the table."""
        return [point for curve in (*self.rivals, *self.curves) for point in curve.points]

    @property
    def best(self) -> FrontierPoint:
        """The honest point on target with the largest gain, else the one that slows fewest jobs."""
        good = [point for point in self.honest if point.on_target]
        if good:
            return max(good, key=lambda point: point.captured)
        return min(self.honest, key=lambda point: (point.slowed_pct_mean, -point.captured))


def frontier(experiment: Experiment) -> Frontier | None:
    """Return the frontier of an experiment.

    Return None if SIA was not run with both perfect and other forecasts, or if perfect forecasts
    gain nothing.
    """
    reference = next(filter(partial(_perfect, experiment), experiment.rivals), None)
    if reference is None:
        return None
    points = {label: _point(experiment, label, reference) for label in experiment.rivals}
    found = {label: point for label, point in points.items() if point is not None}
    lenders: dict[str, Choice] = {}
    for label in found:
        choice = experiment.choice(label)
        if choice is not None and choice.policy == LENDER and label != reference:
            lenders[label] = choice
    honest = [
        found[label]
        for label, choice in lenders.items()
        if not (replay_only(choice) or experiment.foresees(label))
    ]
    if not honest:
        return None
    rivals = [
        FrontierCurve(label, "*" if label == reference else "D", [point])
        for label, point in found.items()
        if label not in lenders
    ]
    return Frontier(reference, rivals, _curves(lenders, found), honest)


def _perfect(experiment: Experiment, label: str) -> bool:
    """Return whether a label is SIA with perfect forecasts and without a guard."""
    choice = experiment.choice(label)
    return choice is not None and (*choice[:3], choice.guard) == (
        LENDER,
        "perfect",
        "perfect",
        None,
    )


def _point(experiment: Experiment, label: str, reference: str) -> FrontierPoint | None:
    """Return a policy's point; None if nothing was measured or nothing could be gained."""
    both = [
        (run["policies"][label], run["policies"][reference])
        for run in experiment.runs
        if label in run["policies"] and reference in run["policies"]
    ]
    both = [(own, best) for own, best in both if own["measured"] and best["measured"]]
    gain, most = (fsum(log(pair[i][GEOMEAN.key]) for pair in both) for i in (0, 1))
    if most <= 0:
        return None
    slowed = [own["slowed_pct"] for own, _ in both]
    return FrontierPoint(
        label,
        gain / most,
        fsum(slowed) / len(both),
        max(slowed),
        fsum(own["slowdown_total_min"] for own, _ in both) / len(both),
        max(own["slowdown_max_min"] for own, _ in both),
        sum(1 for own, _ in both if not own["slowed"]),
        len(both),
    )


def _curves(lenders: dict[str, Choice], points: dict[str, FrontierPoint]) -> list[FrontierCurve]:
    """Join labels that differ only in quantiles and guard budget into curves."""
    curves: dict[str, list[str]] = {}
    for label, choice in lenders.items():
        curves.setdefault(_name(choice), []).append(label)
    found = []
    for name, labels in curves.items():
        labels.sort(key=lambda label: _boldness(lenders[label]))
        guarded = lenders[labels[0]].guard is not None
        words = [_words(lenders[label]) for label in labels]
        marker = "^" if guarded else "o"
        found.append(
            FrontierCurve(name, marker, [points[label] for label in labels], words, guarded)
        )
    return found


def _name(choice: Choice) -> str:
    """Return the name of a curve, like `peaks:q+survival:q+guard`; q stands for quantiles."""
    pairs = zip(choice[1:3], quantiles(choice), strict=True)
    names = [name if quantile is None else f"{name}:q" for name, quantile in pairs]
    return "+".join([*names, GUARD] if choice.guard is not None else names)


def _boldness(choice: Choice) -> tuple[float, float, tuple[float, ...]]:
    """Return a sort key: larger for lower quantiles, then for a larger guard budget."""
    asked = [quantile or 1.0 for quantile in quantiles(choice)]
    return -prod(asked), choice.guard or 0.0, (-asked[0], -asked[1])


def _words(choice: Choice) -> str:
    """Format a choice's quantiles, like `0.95, 0.9`."""
    return ", ".join(f"{quantile:g}" for quantile in quantiles(choice) if quantile is not None)


def draw_frontier(found: Frontier, experiment: Experiment) -> RenderedFigure:
    """Draw the captured gain against the jobs slowed, one curve per pair of forecasts."""
    curves = [*found.rivals, *found.curves]
    colours = _colours(found, experiment)
    slowed = np.array([point.slowed_pct_mean for point in found.points])
    scale = scale_of(MEAN_SLOWED.unit, [slowed, np.array([MAX_SLOWED_PCT])])
    shown = [*REACH, *(p.captured for curve in found.curves for p in curve.points)]
    low, high = min(shown), max(shown)
    height = max(HEIGHT, PITCH * len(curves) + 0.7)

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.062, 0.5 / height, 0.61, 1 - 0.6 / height))
        axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        logarithmic(axes, "x", scale, 0.61 * WIDTH)
        axes.set_xlabel(MEAN_SLOWED.words)
        axes.set_ylabel("captured gain")
        _mark_target(axes, scale)
        names = figure.add_axes((0.69, 0.5 / height, 0.3, 1 - 0.6 / height))
        names.set_axis_off()
        names.set_xlim(0, 1)
        names.set_ylim(height - 0.6, 0)
        for i, curve in enumerate(curves):
            _draw_curve(axes, curve, scale, colours[curve.pair], (low, high))
            _draw_name(names, curve, colours[curve.pair], (i + 0.5) * PITCH)

    return picture("frontier", height, draw, PAPER_DPI)


def _colours(found: Frontier, experiment: Experiment) -> dict[str, str]:
    """Return the colour of each curve; other policies keep the colour of the other figures."""
    colours = {curve.pair: experiment.looks[curve.name].colour for curve in found.rivals}
    free = [colour for colour in PALETTE if colour not in colours.values()] or PALETTE
    pairs = dict.fromkeys(curve.pair for curve in found.curves)
    return colours | {pair: free[i % len(free)] for i, pair in enumerate(pairs)}


def _mark_target(axes: Axes, scale: LogAxis) -> None:
    """Shade the target area."""
    for level in LEVELS:
        axes.axhline(level, color=INK, linewidth=0.8)
    top = axes.get_ylim()[1]
    corners = [scale.begin, MAX_SLOWED_PCT]
    axes.fill_between(corners, TARGET, top, color="#dff0e6", zorder=0, linewidth=0)
    axes.annotate("target", (scale.begin, top), (4, -10), textcoords="offset points", color=GREY,
                  fontsize=8)  # fmt: skip


def _draw_curve(
    axes: Axes, curve: FrontierCurve, scale: LogAxis, colour: str, reach: tuple[float, float]
) -> None:
    """Draw a curve and label its two ends with quantiles."""
    x: FloatArray = scale.place(np.array([point.slowed_pct_mean for point in curve.points]))
    captured = np.array([point.captured for point in curve.points])
    y = captured.clip(*reach)
    axes.plot(x, y, curve.marker, **_look(curve, colour), clip_on=False)
    labels = [
        f"{value:.1f}" if beyond else ""
        for value, beyond in zip(captured, y != captured, strict=True)
    ]
    for i in sorted({0, len(labels) - 1}):
        words = curve.quantiles[i] if curve.quantiles else labels[i]
        below = _clear_of_levels(axes, float(y[i]), guarded=curve.guarded)
        axes.annotate(words, (x[i], y[i]), (6, below), textcoords="offset points",
                      fontsize=LABEL, color=GREY)  # fmt: skip


def _clear_of_levels(axes: Axes, y: float, *, guarded: bool) -> float:
    """Return the offset of a label's baseline from y, in points, clear of reference lines."""
    below = -11.0 if guarded else -3.0  # curves with and without guard often coincide
    for level in LEVELS:
        pixels = axes.transData.transform([(1, y), (1, level)])[:, 1]
        line = float(np.diff(pixels)[0]) * 72 / axes.figure.dpi
        if below - 2 < line < below + LABEL:
            return line - LABEL if guarded else line + 3
    return below


def _draw_name(axes: Axes, curve: FrontierCurve, colour: str, y: float) -> None:
    x = [0.03, 0.13] if curve.quantiles else [0.08]
    axes.plot(x, [y] * len(x), curve.marker, **_look(curve, colour))
    axes.text(0.18, y, plain(curve.name, NAME), va="center", color=INK, fontsize=8)


def _look(curve: FrontierCurve, colour: str) -> dict[str, Any]:
    """Return the line style of a curve: hollow and dashed with a guard."""
    return {
        "color": colour,
        "linestyle": (0, (4, 2)) if curve.guarded else "-",
        "linewidth": 1.3,
        "markersize": {"*": 12, "D": 5.5}.get(curve.marker, 6.5),
        "markerfacecolor": "white" if curve.guarded else colour,
    }
