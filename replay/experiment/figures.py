"""The figures of an experiment's report: distributions over runs, one line style per policy (§6).

Speed-ups and slowdowns span orders of magnitude, and the most important slowdown is 0. Their axes
are logarithmic, with a separate position for 0 below the smallest value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, log10
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.experiment.measures import Measure, quantile
from replay.logs.limits import POINTS_DRAWN
from replay.plotting.canvas import (
    DURATION_TICKS,
    GREY,
    WIDTH,
    FloatArray,
    PolicyStyle,
    RenderedFigure,
    curve,
    picture,
    plain,
    round_ticks,
)
from replay.plotting.numbers import TIMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_DPI = 200
"""Resolution of the PNG files: 2,000 pixels wide, for two columns of print."""

INK = "#333c44"
NAME = 44
"""Characters of a policy's label before truncation. The longest labels consist of a name, a
forecast, a predictor, their quantiles and a guard's budget."""

LETTER = 0.063
"""Approximate width of a letter of an 8-point label, in inches."""

TAILS = tuple(0.5**power for power in range(2, 7))
"""Shares of the runs beyond each end of the boxes: a quarter, an eighth, and so on."""

FEW = 8
"""Minimum number of runs for a box; fewer runs are shown as dots."""

BEYOND = 2
"""Minimum number of runs beyond each end of a box; fewer runs are shown as dots."""

Values = Mapping[str, FloatArray]
"""One value per run, by policy."""

NOTHING: FloatArray = np.empty(0)

SIZES_NAMED = 6
"""Sizes labelled on an axis: more labels would overlap."""


class MeasurePanel(NamedTuple):
    """The values of one measure, by the name of a group of runs."""

    measure: Measure
    groups: Mapping[str, Values]


class LogAxis(NamedTuple):
    """A logarithmic axis from `least` to `most`. `zero` is the position of 0, or 0 if not shown."""

    unit: str
    least: float
    most: float
    zero: float

    @property
    def begin(self) -> float:
        """The lower limit of the axis."""
        return self.zero * (self.zero / self.least) ** 0.4 if self.zero else self.least

    def place(self, values: FloatArray) -> FloatArray:
        """Return the positions of values on the axis."""
        placed: FloatArray = np.maximum(values, self.zero or self.least)
        return placed

    def ticks(self, inches: float) -> list[tuple[float, str]]:
        """Return (position, label) of ticks that do not overlap; the tick of 0 comes first."""
        decades = log10(self.most / self.begin) / inches  # per inch
        found = [(self.zero, "0")] if self.zero else []
        last = log10(self.zero) if self.zero else -np.inf
        for value, words in self._candidates():
            half = 0.5 * LETTER * (len(words) + 1) * decades
            if last <= log10(value) - half and log10(value) + 0.6 * half <= log10(self.most):
                found.append((value, words))
                last = log10(value) + half
        return found

    def _candidates(self) -> list[tuple[float, str]]:
        if self.unit == "minutes":
            every = [(s / 60, w) for s, w in DURATION_TICKS if self.least <= s / 60 <= self.most]
            coarse = [(x, w) for x, w in every if w.startswith("1 ") or w.endswith("d")]
            return coarse if len(coarse) > 2 else every
        sign = TIMES if self.unit == "speed" else " %"
        return [(x, f"{x:,.10g}{sign}") for x in round_ticks(self.least, self.most)]


def scale_of(unit: str, values: Iterable[FloatArray]) -> LogAxis:
    """Return an axis that covers all of these values.

    Include every value that is drawn: a value between 0 and the smallest one would be drawn at 0.
    """
    everything = np.concatenate([NOTHING, *values])
    some = everything[everything > 0]
    least, most = {"speed": (0.9, 2.0), "percent": (0.1, 10.0), "minutes": (1.0, 60.0)}[unit]
    if unit != "speed" and len(some):
        least, most = np.inf, 0.0
    least = min(least, float(some.min(initial=np.inf)) / 1.25)
    most = max(most, float(some.max(initial=0.0)) * 1.25, least * 30)
    zero = 0.0 if unit == "speed" else least / (most / least) ** 0.1
    return LogAxis(unit, least, most, zero)


def draw_cdfs(panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle]) -> RenderedFigure:
    """Draw the distribution of each measure over runs, one curve per policy (Fig. 13)."""

    def draw(figure: Figure) -> None:
        cells = _Cells(figure, len(panels) + 1, 1.65, left=0.62)
        for axes, (measure, groups) in zip(cells, panels, strict=False):
            [values] = groups.values()
            scale = scale_of(measure.unit, values.values())
            logarithmic(axes, "x", scale, cells.across)
            axes.set_ylim(0, 104)
            for i, (name, runs) in enumerate(values.items()):
                if len(runs):
                    _cumulative(axes, scale.place(runs), scale.most, style[name], i)
            axes.set_title(measure.words, loc="left", fontsize=9, color=INK)
            if cells.first_in_row(axes):
                axes.set_ylabel("% of runs at or below x")
        _legend(cells.last, _drawn_policies(panels), style, cells.down)

    return picture("fig13", _Cells.height(len(panels) + 1, 1.65), draw, PAPER_DPI)


def draw_hours(hours: Values, style: Mapping[str, PolicyStyle]) -> RenderedFigure:
    """Draw the distribution of the hourly GPU utilisation (Fig. 2)."""

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.062, 0.15, 0.66, 0.81))
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 102)
        for i, (name, shares) in enumerate(hours.items()):
            _cumulative(axes, shares, 100.0, style[name], i)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")
        axes.set_xlabel("GPU utilisation in an hour, all pools")
        axes.set_ylabel("% of hours at or below x")
        _legend(figure.add_axes((0.745, 0.15, 0.25, 0.81)), list(hours), style, 3.2 * 0.81)

    return picture("fig02", 3.2, draw, PAPER_DPI)


def draw_boxes(
    name: str, panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle]
) -> RenderedFigure:
    """Draw letter-value boxes over runs, by number of queues and policy (Figs. 14, 15a)."""
    rows = _rows(panels)
    down = 0.158 * len(rows)
    names = max((len(plain(label, NAME)) for _, label in rows), default=0)
    left = max(0.7, LETTER * names + 0.2)

    def draw(figure: Figure) -> None:
        cells = _Cells(figure, len(panels), down, left=left, shared=True)
        for axes, (measure, groups) in zip(cells, panels, strict=True):
            everything = [runs for values in groups.values() for runs in values.values()]
            between = [x for runs in everything for x in (_median(runs), *_ends(runs))]
            scale = scale_of(measure.unit, [*everything, *between])
            logarithmic(axes, "x", scale, cells.across)
            for y, (group, label) in enumerate(rows):
                if label in groups[group]:
                    _box(axes, y, scale, groups[group][label], style[label].colour)
            axes.set_title(measure.words, loc="left", fontsize=9, color=INK)
            _name_rows(axes, rows, named=cells.first_in_row(axes))

    return picture(name, _Cells.height(len(panels), down), draw, PAPER_DPI)


def draw_sizes(
    name: str, panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle]
) -> RenderedFigure:
    """Draw each measure against the size of the pools, one line per policy (Fig. 18).

    The groups of a panel are the sizes as text.
    """

    def draw(figure: Figure) -> None:
        cells = _Cells(figure, len(panels) + 1, 1.75, left=0.72)
        for axes, (measure, groups) in zip(cells, panels, strict=False):
            sizes = np.array([float(size) for size in groups])
            everything = [runs for values in groups.values() for runs in values.values()]
            scale = scale_of(measure.unit, [*everything, *map(_median, everything)])
            logarithmic(axes, "y", scale, 2 * cells.down)
            margin = 0.05 * float(np.ptp(sizes))
            axes.set_xlim(sizes.min() - margin, sizes.max() + margin)
            some = slice(None, None, ceil(len(sizes) / SIZES_NAMED))
            axes.set_xticks(sizes[some], [TIMES + size for size in [*groups][some]])
            for i, label in enumerate(dict.fromkeys(n for v in groups.values() for n in v)):
                medians = [quantile(values.get(label, NOTHING), 0.5) for values in groups.values()]
                placed = scale.place(np.array(medians, dtype=np.float64))
                curve(axes, sizes, placed, style[label], i)
                axes.lines[-1].set(drawstyle="default", marker="o", markersize=3.2)
            axes.set_title(measure.words, loc="left", fontsize=9, color=INK)
        _legend(cells.last, _drawn_policies(panels), style, cells.down)

    return picture(name, _Cells.height(len(panels) + 1, 1.75), draw, PAPER_DPI)


class _Cells:
    """A grid of panels, three per row. Sizes are in inches."""

    TOP, BELOW, GAP = 0.3, 0.36, 0.42

    def __init__(
        self, figure: Figure, count: int, down: float, *, left: float, shared: bool = False
    ) -> None:
        """Place `count` panels of height `down`; if `shared`, only a row's first has labels."""
        high, self.down = self.height(count, down), down
        gap = 0.16 if shared else self.GAP + (0.3 if left > 0.65 else 0.0)
        self.across = (WIDTH - 0.12 - left - 2 * gap) / 3
        self._axes = []
        for i in range(count):
            row, column = divmod(i, 3)
            x = left + column * (self.across + gap)
            y = high - (row + 1) * (self.TOP + down + self.BELOW) + self.BELOW
            place = (x / WIDTH, y / high, self.across / WIDTH, down / high)
            self._axes.append(figure.add_axes(place))
        self.last = self._axes[-1]

    @classmethod
    def height(cls, count: int, down: float) -> float:
        """Return the height of a figure with `count` panels, in inches."""
        return ceil(count / 3) * (cls.TOP + down + cls.BELOW)

    def __iter__(self) -> Iterator[Axes]:
        return iter(self._axes)

    def first_in_row(self, axes: Axes) -> bool:
        """Return whether a panel is the first of its row."""
        return self._axes.index(axes) % 3 == 0


def logarithmic(axes: Axes, along: str, scale: LogAxis, inches: float) -> None:
    """Set the scale, ticks and reference lines of an axis (`x` or `y`) of a length in inches."""
    getattr(axes, f"set_{along}scale")("log")
    getattr(axes, f"set_{along}lim")(scale.begin, scale.most)
    ticks = scale.ticks(inches)
    values, words = [value for value, _ in ticks], [label for _, label in ticks]
    getattr(axes, f"set_{along}ticks")(values, words, minor=False)
    getattr(axes, f"set_{along}ticks")([], minor=True)
    across = axes.axvline if along == "x" else axes.axhline
    if scale.unit == "speed":
        across(1, color=INK, linewidth=0.8)
    if scale.zero:
        across(scale.least, color=GREY, linewidth=0.7, linestyle=(0, (1, 2)))


def _cumulative(axes: Axes, values: FloatArray, most: float, look: PolicyStyle, over: int) -> None:
    """Draw the empirical distribution of values, in percent."""
    ordered = np.sort(values)
    ranks = np.arange(len(ordered))
    if len(ordered) > POINTS_DRAWN:
        last_of_first = np.searchsorted(ordered, ordered[0], "right") - 1  # keeps the share at 0
        even = np.linspace(0, len(ordered) - 1, POINTS_DRAWN).round().astype(np.int64)
        ranks = np.unique(np.append(even, last_of_first))
    x = np.concatenate([ordered[:1], ordered[ranks], [most]])
    y = np.concatenate([[0.0], (ranks + 1) * (100 / len(ordered)), [100.0]])
    curve(axes, x, y, look, over)


def _rows(panels: Sequence[MeasurePanel]) -> list[tuple[str, str]]:
    """Return (group, policy) from top to bottom; the policy of a group's heading is empty."""
    rows = []
    for group, values in panels[0].groups.items():
        rows += [(group, ""), *((group, label) for label in values)]
    return rows


def _name_rows(axes: Axes, rows: Sequence[tuple[str, str]], *, named: bool) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    for y, (group, label) in enumerate(rows):
        if not label and y:
            axes.axhline(y - 0.5, color="#c9d0d5", linewidth=0.6)
        if named:
            words, weight = plain(label or group, NAME), "normal" if label else "bold"
            spot = axes.get_yaxis_transform()
            axes.text(-0.02, y, words, transform=spot, ha="right", va="center", color=INK,
                      weight=weight, fontsize=8)  # fmt: skip


def _ends(runs: FloatArray) -> list[FloatArray]:
    """Return (low, high) of each box, thickest first."""
    tails = [tail for tail in TAILS if len(runs) >= FEW and len(runs) * tail >= BEYOND]
    return [np.quantile(runs, [tail, 1 - tail]) for tail in tails]


def _median(runs: FloatArray) -> FloatArray:
    """Return the median as an array of one value; an empty array if there are no runs."""
    return np.quantile(runs, [0.5]) if len(runs) else NOTHING


def _box(axes: Axes, y: float, scale: LogAxis, runs: FloatArray, colour: str) -> None:
    """Draw the runs of one policy: boxes, the median, and dots for runs beyond the boxes."""
    ends = _ends(runs)
    hair = (scale.most / scale.begin) ** 0.004  # keeps boxes of zero width visible
    for depth, (low, high) in reversed([*enumerate(ends)]):
        left, right = scale.place(np.array([low, high])) * [1 / hair, hair]
        thick = 0.86 * 0.68**depth
        axes.barh(y, right - left, left=left, height=thick, color=_tint(colour, depth), linewidth=0)
    beyond = (
        (runs < ends[-1][0]) | (runs > ends[-1][1]) if ends else np.full(len(runs), fill_value=True)
    )
    spots = scale.place(runs[beyond])
    axes.plot(spots, np.full(len(spots), y), "o", color=colour, markersize=2.2, linewidth=0)
    if len(runs):
        middle = scale.place(_median(runs))
        axes.plot([*middle, *middle], [y - 0.43, y + 0.43], color="#111111", linewidth=1.3)


def _tint(colour: str, depth: int) -> tuple[float, ...]:
    """Return a colour mixed with white; outer boxes are lighter."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(1 - (1 - part) * (0.85 * 0.66**depth) for part in parts)


def _drawn_policies(panels: Sequence[MeasurePanel]) -> list[str]:
    return list(dict.fromkeys(n for p in panels for values in p.groups.values() for n in values))


def _legend(
    axes: Axes, names: Sequence[str], style: Mapping[str, PolicyStyle], inches: float
) -> None:
    """Draw the legend into its own axes, which are `inches` high."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(inches, 0)
    pitch = min(0.21, inches / max(1, len(names)))
    longest = max((len(plain(name, NAME)) for name in names), default=1)
    fits = 8 * 0.8 * WIDTH * axes.get_position().width / (LETTER * longest)
    for i, name in enumerate(names):
        y = (i + 0.5) * pitch
        curve(axes, np.array([0.0, 0.17]), np.array([y, y]), style[name], 2)
        axes.text(0.2, y, plain(name, NAME), va="center", color=INK,
                  fontsize=min(8.5, pitch * 48, fits))  # fmt: skip
