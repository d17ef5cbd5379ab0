"""The shapes of several logs in one figure, like Figs. 2 and 3 (§2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.logs.limits import POINTS_DRAWN
from replay.plotting.canvas import DASHES, GREY, PALETTE, PolicyStyle, plain, render
from replay.profile.profile import ProfileRow, over_pools

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 6.2
"""Size in inches: two rows of three panels, and the names of the logs above."""

MOST_NAMED = 6
"""Maximum of log names in one row above the panels."""


class CurvePanel(NamedTuple):
    """One measure: its curve over the pools of each log; `control` is drawn thin and dotted."""

    title: str
    label: str
    key: str
    log: bool = False
    mark: float | None = None
    control: str = ""


PANELS = (
    CurvePanel("GPUs in use, by hour (Fig. 2)", "% of all pools' GPUs", "hourly_pct"),
    CurvePanel("GPUs in use, by pool", "% of a pool's GPU-time", "utilisation_pct"),
    CurvePanel(
        "Times between arrivals (Fig. 3a)", "coefficient of variation", "gap_cv", log=True, mark=1
    ),
    CurvePanel(
        "Largest load in 5 minutes (Fig. 3b)", "% of the pool", "burst_pct", log=True, mark=100
    ),
    CurvePanel(
        "Durations (Fig. 3c)", "99th percentile / median", "duration_ratio", log=True, mark=10
    ),
    CurvePanel(
        "Submitted soon after an end",
        "% of submissions within 30 min (thin: control)",
        "soon_pct",
        control="soon_control_pct",
    ),
)


def draw_shapes(shapes: Mapping[str, ProfileRow], form: str) -> bytes:
    """Draw CDFs over the pools, and over the hours of all GPUs; `form` is `svg` or `png`."""
    styles = {
        name: PolicyStyle(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)])
        for i, name in enumerate(shapes)
    }
    rows = -(-len(shapes) // MOST_NAMED)
    height = HEIGHT + 0.2 * (rows - 1)

    def draw(figure: Figure) -> None:
        top = 1 - (0.42 + 0.2 * rows) / height
        grid = figure.add_gridspec(
            2, 3, left=0.06, right=0.985, bottom=0.08, top=top, wspace=0.2, hspace=0.42
        )
        for i, panel in enumerate(PANELS):
            axes = figure.add_subplot(grid[divmod(i, 3)])
            _draw_panel(axes, panel, shapes, styles)
            if i % 3 == 0:
                axes.set_ylabel("% of the hours" if i == 0 else "% of the pools")
        _name(figure, shapes, styles)

    return render("shapes", height, draw, form)


def _draw_panel(
    axes: Axes,
    panel: CurvePanel,
    shapes: Mapping[str, ProfileRow],
    styles: Mapping[str, PolicyStyle],
) -> None:
    from matplotlib.ticker import LogLocator  # noqa: PLC0415

    axes.set_title(panel.title, loc="left", fontsize=9, weight="bold", color="#333c44")
    axes.set_xlabel(panel.label)
    axes.set_ylim(0, 102)
    if panel.mark is not None:
        axes.axvline(panel.mark, color=GREY, linewidth=0.9)
    drawn = False
    for name, facts in shapes.items():
        values = sorted(facts["hourly_pct"]) if panel.key == "hourly_pct" else []
        values = values or over_pools(facts, panel.key)
        drawn |= _draw_curve(axes, values, styles[name], 1.7)
        if panel.control:
            look = PolicyStyle(styles[name].colour, (1, 1.2))
            _draw_curve(axes, over_pools(facts, panel.control), look, 0.9)
    if panel.log and drawn:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
        axes.tick_params(axis="x", which="minor", labelbottom=False)
    elif not panel.log:
        axes.set_xlim(-2, 102)
    if not drawn:
        axes.text(
            0.5, 50, "not known", ha="center", color=GREY, transform=axes.get_xaxis_transform()
        )


def _draw_curve(axes: Axes, values: Sequence[float], look: PolicyStyle, width: float) -> bool:
    """Draw the share of values up to each value (ascending); return False without values."""
    if not values:
        return False
    ranks = np.unique(np.linspace(0, len(values) - 1, POINTS_DRAWN).round().astype(int))
    x = np.array(values)[ranks]
    y = (ranks + 1) * (100 / len(values))
    (line,) = axes.plot(
        np.concatenate([x[:1], x]),
        np.concatenate([[0.0], y]),
        color=look.colour,
        linewidth=width,
        drawstyle="steps-post",
    )
    if look.dash:
        line.set_dashes(look.dash)
    return True


def _name(
    figure: Figure, shapes: Mapping[str, ProfileRow], styles: Mapping[str, PolicyStyle]
) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    lines = []
    for name, facts in shapes.items():
        line = Line2D([], [], color=styles[name].colour, linewidth=1.7)
        if styles[name].dash:
            line.set_dashes(styles[name].dash)
        count = len(facts["pools"])
        line.set_label(f"{plain(name, 24)} ({count} pool{'s' * (count > 1)})")
        lines.append(line)
    figure.legend(
        handles=lines, loc="upper left", ncols=MOST_NAMED, frameon=False, handlelength=3.2
    )
