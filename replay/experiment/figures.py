"""The pictures of an experiment's report: distributions over runs, one look a policy (§6).

Speed-ups and slowdowns span orders of magnitude, and that a slowdown is 0 is what matters most:
their axes are logarithmic and have, where a value may be 0, a place for it before the first power.
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
    TIMES,
    WIDTH,
    FloatArray,
    PolicyStyle,
    RenderedFigure,
    curve,
    picture,
    plain,
    round_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_DPI = 200
"""Of the PNG files: 2,000 pixels across, for two columns of print."""

INK = "#333c44"
NAME = 44
"""Characters of a policy's label: the longest are a name, a forecast, a predictor, their quantiles
and a guard's budget."""

LETTER = 0.063
"""Inches of a letter of a label of 8 points, about."""

TAILS = tuple(0.5**power for power in range(2, 7))
"""What is cut off at each end by the boxes: a quarter, an eighth, and so on."""

FEW = 8
"""Runs below which there is no box: single runs say more than quartiles of so few."""

BEYOND = 2
"""Runs that must lie beyond each end of a box: further out they are shown one by one."""

Values = Mapping[str, FloatArray]
"""A value a run, by policy."""

NOTHING: FloatArray = np.empty(0)

SIZES_NAMED = 6
"""Sizes named below an axis: more would run into each other."""


class MeasurePanel(NamedTuple):
    """One measure's values, under the name of each group of runs."""

    measure: Measure
    groups: Mapping[str, Values]


class LogAxis(NamedTuple):
    """A logarithmic axis from `least` to `most`, with a place for 0 unless `zero` is 0."""

    unit: str
    least: float
    most: float
    zero: float

    @property
    def begin(self) -> float:
        """Where the axis begins."""
        return self.zero * (self.zero / self.least) ** 0.4 if self.zero else self.least

    def place(self, values: FloatArray) -> FloatArray:
        """Where values stand on the axis."""
        placed: FloatArray = np.maximum(values, self.zero or self.least)
        return placed

    def ticks(self, inches: float) -> list[tuple[float, str]]:
        """Round values and their words, with room between them; that of 0 comes first."""
        decades = log10(self.most / self.begin) / inches  # in an inch
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
    """An axis on which all of these values have a place, 0 one of its own.

    What is drawn must be among them: values between 0 and the least would stand in 0's place.
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
    """The distribution of each measure over runs, a curve a policy (Fig. 13)."""

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
                axes.set_ylabel("% of runs with at most this")
        _legend(cells.last, _drawn_policies(panels), style, cells.down)

    return picture("fig13", _Cells.height(len(panels) + 1, 1.65), draw, PAPER_DPI)


def draw_hours(hours: Values, style: Mapping[str, PolicyStyle]) -> RenderedFigure:
    """The distribution over hours of the share of all GPU-time in use (Fig. 2)."""

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.062, 0.15, 0.66, 0.81))
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 102)
        for i, (name, shares) in enumerate(hours.items()):
            _cumulative(axes, shares, 100.0, style[name], i)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")
        axes.set_xlabel("GPU-time in use, of all that the pools own, in an hour")
        axes.set_ylabel("% of hours with at most this")
        _legend(figure.add_axes((0.745, 0.15, 0.25, 0.81)), list(hours), style, 3.2 * 0.81)

    return picture("fig02", 3.2, draw, PAPER_DPI)


def draw_boxes(
    name: str, panels: Sequence[MeasurePanel], style: Mapping[str, PolicyStyle]
) -> RenderedFigure:
    """Letter-value boxes over runs, a group a number of queues, a box a policy (Figs. 14, 15a)."""
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
    """Each measure against the size of the pools, a line a policy (Fig. 18).

    The groups of a panel are the sizes, as text.
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
    """Panels side by side, three in a row; sizes are in inches."""

    TOP, BELOW, GAP = 0.3, 0.36, 0.42

    def __init__(
        self, figure: Figure, count: int, down: float, *, left: float, shared: bool = False
    ) -> None:
        """Room for `count` panels `down` high; with `shared`, only a row's first has labels."""
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
        """Inches of a picture with so many panels."""
        return ceil(count / 3) * (cls.TOP + down + cls.BELOW)

    def __iter__(self) -> Iterator[Axes]:
        return iter(self._axes)

    def first_in_row(self, axes: Axes) -> bool:
        """Whether labels stand to the left of it."""
        return self._axes.index(axes) % 3 == 0


def logarithmic(axes: Axes, along: str, scale: LogAxis, inches: float) -> None:
    """Give an axis (`x` or `y`), so long, its scale, ticks and, at 1 and after 0, its lines."""
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
    """The share of values (%) that are at most x."""
    ordered = np.sort(values)
    ranks = np.arange(len(ordered))
    if len(ordered) > POINTS_DRAWN:
        last_of_first = np.searchsorted(ordered, ordered[0], "right") - 1  # the share at 0, exact
        even = np.linspace(0, len(ordered) - 1, POINTS_DRAWN).round().astype(np.int64)
        ranks = np.unique(np.append(even, last_of_first))
    x = np.concatenate([ordered[:1], ordered[ranks], [most]])
    y = np.concatenate([[0.0], (ranks + 1) * (100 / len(ordered)), [100.0]])
    curve(axes, x, y, look, over)


def _rows(panels: Sequence[MeasurePanel]) -> list[tuple[str, str]]:
    """(group, policy) from top to bottom; a group's heading has no policy."""
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
    """The ends of each box, the thickest first; they may fall between 0 and the least slowdown."""
    tails = [tail for tail in TAILS if len(runs) >= FEW and len(runs) * tail >= BEYOND]
    return [np.quantile(runs, [tail, 1 - tail]) for tail in tails]


def _median(runs: FloatArray) -> FloatArray:
    """The median, which may fall there too; nothing of no runs."""
    return np.quantile(runs, [0.5]) if len(runs) else NOTHING


def _box(axes: Axes, y: float, scale: LogAxis, runs: FloatArray, colour: str) -> None:
    """One policy's runs: ever wider boxes, the median, and single runs beyond the boxes."""
    ends = _ends(runs)
    hair = (scale.most / scale.begin) ** 0.004  # so that boxes without width are seen
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
    """A colour mixed with white, the more the further out the box reaches."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(1 - (1 - part) * (0.85 * 0.66**depth) for part in parts)


def _drawn_policies(panels: Sequence[MeasurePanel]) -> list[str]:
    return list(dict.fromkeys(n for p in panels for values in p.groups.values() for n in values))


def _legend(
    axes: Axes, names: Sequence[str], style: Mapping[str, PolicyStyle], inches: float
) -> None:
    """Which line is which policy, in axes of its own so many inches high."""
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
