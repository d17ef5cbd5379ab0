"""The figures of the report: inline SVG by matplotlib; equal numbers give equal bytes.

matplotlib is imported for the first figure, as the import takes longer than many replays.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay.logs.limits import POINTS_DRAWN
from replay.plotting.numbers import TIMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

WIDTH = 10.0
"""Width of a figure in inches; the page scales it."""

DPI = 150
"""Resolution of a PNG: 1,500 pixels wide, enough for pages and slides."""

SVG_METADATA: Any = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Metadata without anything that changes between runs."""

INLINE: Any = {"format": "svg", "metadata": SVG_METADATA, "transparent": True}
"""Settings for a figure inside a page: its background is transparent."""

WHITE = '<rect width="100%" height="100%" fill="#ffffff"/>'

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa3ab",
    "axes.grid": True,
    "axes.labelcolor": "#333c44",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8.5,
    "grid.color": "#e3e7ea",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "xtick.color": "#9aa3ab",
    "xtick.labelcolor": "#333c44",
    "ytick.color": "#9aa3ab",
    "ytick.labelcolor": "#333c44",
}
"""Names are untrusted. Without math text, a `$` in a name is drawn and causes no parse error."""

GREY = "#6b7680"
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9"),
    *("#5b2a86", "#a3b018", "#8c1c2b", "#1d2d44"),
)
"""The colours of Okabe and Ito, which colour-blind readers can distinguish, with a darker yellow.
More policies get four further colours of other lightness."""

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (5, 1.6),
    (1.4, 1.4),
    (7, 1.6, 1.4, 1.6),
    (9, 3.5),
    (3, 1.2, 1, 1.2, 1, 1.2),
)
"""Dashes show the lower of two overlapping curves. There are fewer dash styles than colours, so
that 30 policies all look different."""


COLOURS = {
    "dedicated": "#3d5a73",
    "own_spare": "#9dbfd8",
    "lent": "#f0a92b",
    "idle": "#e9edf0",
    "owned": "#111111",
    "waiting": "#c98a9d",
    "borrowed": "#4b2e83",
}
"""The layers of the time line, which differ in lightness too."""

DURATION_TICKS = (
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "0.1 s"),
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (10_800, "3 h"),
    (36_000, "10 h"),
    (86_400, "1 d"),
    (864_000, "10 d"),
    (8_640_000, "100 d"),
    (86_400_000, "1,000 d"),
    (864_000_000, "10,000 d"),
    (8_640_000_000, "100,000 d"),
    (86_400_000_000, "1,000,000 d"),
)


class PolicyStyle(NamedTuple):
    """How one policy is drawn in all figures."""

    colour: str
    dash: tuple[float, ...] = ()


class Steps(NamedTuple):
    """A step function of time, as changes and their times in any order; 0 at first."""

    times: FloatArray
    changes: FloatArray


class TimeLine(NamedTuple):
    """GPUs of one pool, averaged over each bin between two `edges` (seconds)."""

    edges: FloatArray
    owned: FloatArray
    dedicated: FloatArray
    own_spare: FloatArray
    lent: FloatArray
    idle: FloatArray
    borrowed: FloatArray
    waiting: FloatArray


class SlowedBars(NamedTuple):
    """Slowed jobs of one policy, and their share (%) of its measured jobs, by pool."""

    policy: str
    counts: Sequence[int]
    shares: Sequence[float]


def looks(policies: Iterable[str], baseline: str) -> dict[str, PolicyStyle]:
    """Return a style for each policy, by position; the baseline is grey."""
    others = [name for name in policies if name != baseline]
    chosen = {
        name: PolicyStyle(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])
        for i, name in enumerate(others)
    }
    return {baseline: PolicyStyle(GREY), **chosen}


def during(begin: ArrayLike, end: ArrayLike, amount: ArrayLike) -> Steps:
    """Return the sum of `amount`s, each from its `begin` to its `end`."""
    up = np.asarray(amount, dtype=np.float64)
    return Steps(np.concatenate([begin, end]).astype(np.float64), np.concatenate([up, -up]))


def bins(begin: float, end: float) -> FloatArray:
    """Return the edges of the time line's bins: `POINTS_DRAWN` + 1."""
    return np.linspace(begin, end, POINTS_DRAWN + 1, dtype=np.float64)


def averages(parts: Sequence[Steps], edges: FloatArray) -> FloatArray:
    """Return the mean of the sum of step functions in each bin, at least 0 at any time.

    It is exact, because the integral is linear between two steps. No burst is lost between two
    samples.
    """
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([part.changes for part in parts])[order])
    # Steps before the range move to its begin, so that they keep their effect on the level.
    at = np.clip(times[order], edges[0], edges[-1])
    last = np.append(at[1:] > at[:-1], True)[: len(at)]  # the last of several steps at one time
    at = np.concatenate([edges[:1], at[last], edges[-1:]])
    level = np.maximum(np.concatenate([[0.0], level[last]]), 0.0)
    area = np.concatenate([[0.0], np.cumsum(level * np.diff(at))])
    kept = np.append(np.diff(at) > 0, True)
    total = np.interp(edges, at[kept], area[kept])
    means: FloatArray = np.maximum(np.diff(total), 0.0) / np.diff(edges)
    return means


def time_line(
    edges: FloatArray,
    *,
    owned: Steps,
    dedicated: Steps,
    own_spare: Steps,
    lent: Steps,
    borrowed: Steps,
    waiting: Steps,
) -> TimeLine:
    """Average all of a pool's step functions; idle GPUs are owned and unused."""
    used = [Steps(part.times, -part.changes) for part in (dedicated, own_spare, lent)]
    return TimeLine(
        edges,
        owned=averages([owned], edges),
        dedicated=averages([dedicated], edges),
        own_spare=averages([own_spare], edges),
        lent=averages([lent], edges),
        idle=averages([owned, *used], edges),
        borrowed=averages([borrowed], edges),
        waiting=averages([waiting], edges),
    )


def draw_speedups(speedups: Mapping[str, FloatArray], style: Mapping[str, PolicyStyle]) -> str:
    """Draw the distribution of the jobs' speed-ups under each policy (Fig. 11)."""
    some = {name: np.sort(values[values > 0]) for name, values in speedups.items()}
    some = {name: values for name, values in some.items() if len(values)}
    least = min([0.5, *(values[0] / 1.3 for values in some.values())])
    most = max([2.0, *(values[-1] * 1.3 for values in some.values())])

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.075, right=0.98, bottom=0.135, top=0.965)
        axes.set_xscale("log")
        axes.set_xlim(least, most)
        axes.set_ylim(0, 102)
        axes.axvline(1, color="#333c44", linewidth=0.8)
        if least < 0.2:  # else there is no room for the words
            axes.text(0.88, 97, "slower than alone", ha="right", va="top", color=GREY)
        axes.text(1.14, 3, "faster than alone", ha="left", va="bottom", color=GREY)
        for i, (name, values) in enumerate(some.items()):
            spots = _spots(values)
            x = np.concatenate([values[:1], values[spots], [most]])
            y = np.concatenate([[0.0], (spots + 1) * (100 / len(values)), [100.0]])
            curve(axes, x, y, style[name], i)
        ticks = round_ticks(least, most)
        axes.set_xticks(ticks, [f"{tick:,.10g}{TIMES}" for tick in ticks], minor=False)
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.set_xlabel("speed-up: completion time alone / with the policy (log scale)")
        axes.set_ylabel("% of jobs with at most this speed-up")

    return drawn("speedups", 4.1, draw)


def draw_slowdowns(
    slowdowns: Mapping[str, FloatArray],
    measured: Mapping[str, int],
    style: Mapping[str, PolicyStyle],
) -> str:
    """Draw how many jobs were slowed by how much (seconds), under each policy that slowed any."""
    some = {name: np.sort(values) for name, values in slowdowns.items() if len(values)}
    least = min([1.0, *(values[0] / 1.2 for values in some.values())])
    most = max([600.0, *(values[-1] * 1.3 for values in some.values())])
    floor_pct = min(100 / measured[name] for name in some) / 1.5
    top_pct = max(100 * len(values) / measured[name] for name, values in some.items())

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.09, right=0.98, bottom=0.155, top=0.965)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(least, most)
        axes.set_ylim(floor_pct, min(130.0, top_pct * 2))
        for i, (name, values) in enumerate(some.items()):
            spots = _spots(values)
            share = (len(values) - spots) * (100 / measured[name])
            x = np.concatenate([[least], values[spots], values[-1:]])
            y = np.concatenate([[share[0]], share, [floor_pct / 2]])
            curve(axes, x, y, style[name], i, falling=True)
        times = [(x, label) for x, label in DURATION_TICKS if least <= x <= most]
        axes.set_xticks([x for x, _ in times], [label for _, label in times], minor=False)
        ticks = round_ticks(*axes.get_ylim())
        axes.set_yticks(ticks, [f"{tick:.10g} %" for tick in ticks], minor=False)
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
        axes.set_xlabel("later than in the baseline by at least … (log scale)")
        axes.set_ylabel("% of measured jobs (log scale)")

    return drawn("slowdowns", 3.4, draw)


def draw_slowed_bars(
    pools: Sequence[str], bars: Sequence[SlowedBars], style: Mapping[str, PolicyStyle]
) -> str:
    """Draw slowed jobs by pool, one panel per policy."""
    down = ceil(len(bars) / 3)
    across = ceil(len(bars) / down)
    margin, head, foot, pitch = 0.1, 0.3, 0.42, 0.19 * len(pools) + 0.1
    height = margin + down * (head + pitch + foot)

    def draw(figure: Figure) -> None:
        left, gap = 0.17, 0.03
        wide = (0.985 - left - gap * (across - 1)) / across
        for i, bar in enumerate(bars):
            row, column = divmod(i, across)
            bottom = height - (row + 1) * (head + pitch + foot) + foot
            axes = figure.add_axes(
                (left + column * (wide + gap), bottom / height, wide, pitch / height)
            )
            _bars(axes, bar, style[bar.policy].colour, wide)
            axes.set_yticks(range(len(pools)), [plain(pool, 24) for pool in pools])
            axes.set_ylim(len(pools) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0, labelleft=column == 0)

    return drawn("slowed", height, draw)


def _bars(axes: Axes, bar: SlowedBars, colour: str, wide: float) -> None:
    axes.barh(range(len(bar.counts)), bar.counts, height=0.72, color=colour)
    most = max(1, *bar.counts)
    right = most / (1 - 0.11 / wide)  # room for the words
    axes.set_xlim(0, right)
    for y, (count, share) in enumerate(zip(bar.counts, bar.shares, strict=True)):
        words = f"{count:,} ({_short(share)} %)" if count else "0"
        axes.text(count + right * 0.006 / wide, y, words, va="center", fontsize=7.5)
    axes.set_title(plain(bar.policy, 30), loc="left", fontsize=9, color=colour, weight="bold")
    axes.set_xlabel("slowed jobs")
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=4, integer=True)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def draw_time_line(line: TimeLine, number: int, warmup: float) -> str:
    """Draw one pool over time: the use of its GPUs above, pending and borrowed GPUs below."""
    days = (line.edges - line.edges[0]) / 86400
    warm = (warmup - line.edges[0]) / 86400

    def draw(figure: Figure) -> None:
        upper = figure.add_axes((0.085, 0.44, 0.90, 0.54))
        lower = figure.add_axes((0.085, 0.155, 0.90, 0.235))
        # Each layer reaches down to 0 and the next covers it: half the points, and no seams.
        tops = np.cumsum([line.dedicated, line.own_spare, line.lent, line.idle], axis=0)
        for top, part in zip(tops[::-1], ("idle", "lent", "own_spare", "dedicated"), strict=True):
            area(upper, top, days, COLOURS[part])
        steps(upper, line.owned, days, COLOURS["owned"])
        area(lower, line.waiting, days, COLOURS["waiting"])
        steps(lower, line.borrowed, days, COLOURS["borrowed"])
        highest = max(tops[-1].max(), line.owned.max(), 1.0)
        below = max(line.waiting.max(), line.borrowed.max(), 1.0)
        for axes, most in ((upper, highest), (lower, below)):
            axes.set_xlim(days[0], days[-1])
            axes.set_ylim(0, most * 1.06)
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.10g}")
            if 0 < warm < days[-1]:
                axes.axvline(warm, color="#333c44", linewidth=0.9, linestyle=":")
        upper.locator_params(axis="y", nbins=5)
        lower.locator_params(axis="y", nbins=2)
        upper.tick_params(axis="x", length=0, labelbottom=False)
        lower.set_xlabel("days since the first submission")
        for y, words in ((0.71, "GPUs of the pool"), (0.2725, "GPUs waiting\nor borrowed")):
            figure.text(0.02, y, words, rotation=90, ha="center", va="center", color="#333c44")

    return drawn(f"time{number}", 3.0, draw)


def plain(text: str, most: int) -> str:
    """Return a name for a figure: on one line, short, without unprintable characters."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def axes_in(figure: Figure, *, left: float, right: float, bottom: float, top: float) -> Axes:
    """Return axes between these shares of the figure's width and height."""
    return figure.add_axes((left, bottom, right - left, top - bottom))


def curve(
    axes: Axes, x: FloatArray, y: FloatArray, look: PolicyStyle, over: int, *, falling: bool = False
) -> None:
    """Draw one of several curves: the more there are, the thinner they are."""
    (line,) = axes.plot(x, y, color=look.colour, linewidth=max(1.3, 2.8 - 0.3 * over))
    line.set_drawstyle("steps-pre" if falling else "steps-post")
    if look.dash:
        line.set_dashes(look.dash)


def steps(axes: Axes, values: ArrayLike, edges: ArrayLike, colour: str, width: float = 1.1) -> None:
    """Draw a line of steps: the values between the edges. The limits of the axes stay as they are.

    `Axes.stairs` looks at each step for these limits, which takes longer than to draw them.
    """
    from matplotlib.patches import StepPatch  # noqa: PLC0415

    none: Any = None  # the type stub of StepPatch does not allow a line without a baseline
    axes.add_artist(
        StepPatch(values, edges, baseline=none, fill=False, edgecolor=colour, linewidth=width)
    )


def area(
    axes: Axes, values: ArrayLike, edges: ArrayLike, colour: str, label: str | None = None
) -> None:
    """Fill the area below values between the edges, as `steps`."""
    from matplotlib.patches import StepPatch  # noqa: PLC0415

    axes.add_artist(StepPatch(values, edges, facecolor=colour, linewidth=0, label=label))


def _spots(ordered: FloatArray) -> NDArray[np.int64]:
    """Return at most `POINTS_DRAWN` - 3 positions of ascending values that preserve their shape.

    Half are evenly spaced by rank, half by the logarithm, as ranks alone would omit the tails.
    """
    half = (POINTS_DRAWN - 3) // 2
    ranks = np.linspace(0, len(ordered) - 1, half).round().astype(np.int64)
    levels = np.geomspace(ordered[0], ordered[-1], half)
    found = np.searchsorted(ordered, levels).clip(0, len(ordered) - 1)
    return np.unique(np.concatenate([ranks, found]))


def round_ticks(least: float, most: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 10, 100, or 1, 2, 5, 10 if it is short."""
    first, last = floor(log10(least)), floor(log10(most))
    step = max(1, ceil((last - first) / 10))
    digits = (1, 2, 5) if last - first < 3 else (1,)
    ticks = (digit * 10.0**power for power in range(first, last + 1) for digit in digits)
    return [x for x in ticks if least <= x <= most and not round(log10(x) // 1) % step]


def _short(share: float) -> str:
    return f"{share:.1f}" if share >= 0.1 else f"{share:.1g}"


class RenderedFigure(NamedTuple):
    """A figure for a page, and as separate files; `png` is empty unless a resolution is given."""

    name: str
    inline: str
    svg: bytes
    png: bytes


def picture(
    name: str, height: float, draw: Callable[[Figure], None], dpi: int | None = None
) -> RenderedFigure:
    """Return a figure for a page and for publications; `name` is unique in the page.

    It has a PNG of `dpi` dots per inch if that is given; drawing one takes as long as the SVG.
    """
    forms = [INLINE] if dpi is None else [INLINE, _file("png", dpi)]
    saved, *pngs = _saved(name, height, draw, *forms)
    svg = saved.decode()
    return RenderedFigure(name, _inline(svg), _rounded(_on_white(svg)).encode(), b"".join(pngs))


def render(
    name: str, height: float, draw: Callable[[Figure], None], form: str = "svg", dpi: int = DPI
) -> bytes:
    """Return a figure as a file with a white background: `svg` or `png`; `height` is in inches."""
    [saved] = _saved(name, height, draw, _file(form, dpi))
    return _rounded(saved.decode()).encode() if form == "svg" else saved


def drawn(name: str, height: float, draw: Callable[[Figure], None]) -> str:
    """Return a figure as inline SVG; `name` is unique in the page."""
    [saved] = _saved(name, height, draw, INLINE)
    return _inline(saved.decode())


def _file(form: str, dpi: int = DPI) -> dict[str, Any]:
    unsaid = SVG_METADATA if form == "svg" else {"Software": None}
    return {"format": form, "metadata": unsaid, "dpi": dpi}


def _saved(
    name: str, height: float, draw: Callable[[Figure], None], *forms: Mapping[str, Any]
) -> list[bytes]:
    from matplotlib import rc_context, rcdefaults, rcParams  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    files = []
    with rc_context(), warnings.catch_warnings():
        # The browser's fonts have the letters that matplotlib's own, used to measure, may lack.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        rcdefaults()  # whatever the user's matplotlibrc says
        rcParams.update(STYLE)
        rcParams["svg.hashsalt"] = f"sia-{name}"
        figure = Figure(figsize=(WIDTH, height))
        draw(figure)
        for options in forms:
            file = BytesIO()
            figure.savefig(file, **options)
            files.append(file.getvalue())
    return files


def _inline(svg: str) -> str:
    """Turn an SVG file into a part of a page: without prologue, fixed size, style, repeated ids."""
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r'(<svg [^>]*?) (?:width|height)="[\d.]+pt"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[\d.]+pt"', r"\1", svg, count=1)
    svg = re.sub(r"<defs>\s*<style [^>]*>[^<]*</style>\s*</defs>", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return _rounded(svg)


def _on_white(svg: str) -> str:
    """Return a transparent SVG with a white background. To save it again would take far longer."""
    return re.sub(r"(<svg [^>]*>)", rf"\1\n {WHITE}", svg, count=1)


def _rounded(svg: str) -> str:
    """Shorten paths: hundredths of a point are invisible and half of the file."""

    def shorter(path: re.Match[str]) -> str:
        return re.sub(r"(\.\d\d)\d+", r"\1", path[0]).replace(" \n", "\n")

    return re.sub(r' d="[^"]*"', shorter, svg)
