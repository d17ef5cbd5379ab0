"""Draw the pictures of `docs/results/reclaim.md` from stored results.

    python -m benchmarks.pictures

`lending.svg` has the cases of twenty pieces of Philly, captured against what they cost. The others
have a line for each policy, with what it captures on the left and what that costs on the right:
`lending-draws.svg` for other draws of Philly, `lending-logs.svg` for other logs, and
`lending-clouds.svg` for made-up clouds; `lending-pools.svg` shows two of these clouds by pool.
Equal results give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.common import RESULTS, ROOT
from benchmarks.lending.logs import LEARNED_CASES
from benchmarks.lending.pieces import CASES, Case, measures_of, sums_of
from replay.plotting.canvas import GREY, PALETTE, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ROOT / "docs" / "figures"

CAPTURED = "captured"
COSTS = {
    "later_pct": "jobs later than alone, %",
    "stops_for_100_jobs": "stops for 100 jobs",
    "gpu_time_wasted_pct": "GPU time wasted, %",
}
"""Measures of a case and the titles of their panels."""

TICKS = (0, 0.1, 1, 10, 100)

FAMILIES = {
    "sia-reclaim": PALETTE[0],
    "sia": PALETTE[2],
    "kueue-strict": PALETTE[1],
    "kueue-best-effort": PALETTE[4],
    "srtf": PALETTE[3],
}
"""Colours by name of the policy."""

DRAWS = {
    "whole": "Philly, twenty pieces",
    "whole/1": "Philly, a second draw of twenty",
    "whole/2": "Philly, a third draw of twenty",
    "apart": "Philly, each pool with a start of its own, twenty pieces",
    "apart/1": "the same, a second draw of twenty",
    "apart/2": "the same, a third draw of twenty",
}

NONE_STOPPED = {
    "apart": "sia@peaks+survival",
    "apart, 15 windows": "sia@joint+survival",
}
"""Draws and policies of `never.json` that have all twenty pieces of the draw `apart`."""

POOLS = {
    "speedup_geomean": "geometric mean\nspeed-up",
    "lent_gpu_h": "lent,\nGPU-hours",
    "borrowed_gpu_h": "borrowed,\nGPU-hours",
    "stops": "stops\nof its jobs",
    "lost_gpu_h": "lost by stops,\nGPU-hours",
    "later": "its jobs later\nthan alone",
}
"""Measures of a pool and the titles of their columns."""

BY_POOL = {
    "CloudML-like": ("sia-reclaim@peaks+survival", "kueue-strict", "srtf"),
    "PAI-like": ("sia-reclaim@peaks+survival", "kueue-strict", "srtf"),
}
"""Clouds and policies that are shown by pool."""

LINE = 0.165
"""Inches for a line of a panel."""

HEAD = 0.58
"""Inches for the title and the axis of a panel."""


class Line(NamedTuple):
    """A policy in a panel: its label, its measures, and those of its pieces, if there are any."""

    label: str
    row: Mapping[str, Any]
    points: Sequence[Mapping[str, float]] = ()


class Panel(NamedTuple):
    """The policies of one log or draw."""

    title: str
    lines: Sequence[Line]


def colour_of(label: str) -> str:
    return FAMILIES[label.partition("@")[0].partition(":")[0]]


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def line_of(case: Case, row: Mapping[str, Any]) -> Line:
    """Return the line of a case; jobs restart unless its label says otherwise."""
    name, percent, cost, policy = case
    share = "" if percent == 100 else f"{percent:g} % at "
    stop = f", {share}{cost / 60:g} min a stop" if isinstance(cost, float) else ""
    model = f", {words[1]}" if "model of" in (words := name.split(", "))[1] else ""
    return Line(policy + stop + model, row, row.get("by_piece", ()))


def draw_scatter(figure: Figure) -> None:
    """Draw what each case captures against what it costs; small points are pieces."""
    rows = stored("lending/pieces")
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (key, title) in zip(panels, COSTS.items(), strict=True):
        for colour, (name, *_) in zip(PALETTE, CASES, strict=False):
            row = rows[name]
            points = row["by_piece"]
            axes.plot(
                [point[key] for point in points], [point[CAPTURED] for point in points],
                ".", color=colour, markersize=3, alpha=0.5,
            )  # fmt: skip
            axes.errorbar(
                row[key], row[CAPTURED], around(row, CAPTURED), around(row, key), fmt="o",
                color=colour, capsize=3, label=name,
            )  # fmt: skip
        scale_cost(axes)
        axes.set_title(title, loc="left", fontsize=9)
    panels[0].set_ylabel(CAPTURED)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def around(row: Mapping[str, Any], key: str) -> list[list[float]]:
    """Return how far the ends of an interval are from the value."""
    return [[abs(row[key] - end)] for end in row[f"{key}_95"]]


def scale_cost(axes: Axes) -> None:
    """Make the axis of a cost logarithmic, with room for 0."""
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(-0.02, 200)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()


def draws_of_philly() -> Iterator[Panel]:
    found = stored("lending/draws") | {"whole": stored("lending/pieces")}
    for draw, title in DRAWS.items():
        rows = found[draw]
        lines = [line_of(case, rows[case[0]]) for case in CASES if case[0] in rows]
        yield Panel(title, [*lines, *(none_stopped() if draw == "apart" else ())])


def none_stopped() -> Iterator[Line]:
    for draw, policy in NONE_STOPPED.items():
        runs = [
            {
                "gain": row["captured"] * row["unit"], "unit": row["unit"],
                "late": row["slowed"], "measured": row["measured"], "jobs": row["measured"],
                "stops": 0, "wasted": 0, "used": 1,
            }
            for row in stored("lending/never")["draws"][draw][policy].values()
        ]  # fmt: skip
        points = [measures_of(sums_of([run])) for run in runs]
        windows = draw.partition(",")[2]
        yield Line(policy + (windows and f",{windows}"), measures_of(sums_of(runs)), points)


def other_logs() -> Iterator[Panel]:
    for log, rows in stored("lending/logs").items():
        if isinstance(rows, dict):
            lines = [
                line_of(case, rows[case[0]]) for case in (*CASES, *LEARNED_CASES) if case[0] in rows
            ]
            yield Panel(log, lines)


def made_up_clouds() -> Iterator[Panel]:
    for cloud, rows in stored("replays/clouds").items():
        if isinstance(rows, dict):
            lines = [Line(label, row) for label, row in rows.items() if label != "sia"]
            yield Panel(f"20 pools, four weeks, {cloud}" if "loop" in cloud else cloud, lines)


def draw_lines(panels: Sequence[Panel], figure: Figure) -> None:
    """Draw a row of axes for each panel: what policies capture, and what that costs."""
    figure.set_layout_engine("constrained", w_pad=0.08)
    grid = figure.subplots(
        len(panels), 1 + len(COSTS), squeeze=False, sharey="row",
        height_ratios=[len(panel.lines) for panel in panels],
    )  # fmt: skip
    for row, panel in zip(grid, panels, strict=True):
        for axes, key in zip(row, (CAPTURED, *COSTS), strict=True):
            for y, line in enumerate(panel.lines):
                at, value = [y] * len(line.points), line.row[key]
                axes.plot([point[key] for point in line.points], at, ".", color=GREY, markersize=2)
                axes.plot(line.row[f"{key}_95"], [y, y], color=colour_of(line.label), linewidth=1.6)
                axes.plot([value], [y], "o", color=colour_of(line.label), markersize=4)
            if key != CAPTURED:
                scale_cost(axes)
        row[0].axvline(1, color=GREY, linewidth=0.8)
        row[0].set_xlim(left=0)
        row[0].set_yticks(range(len(panel.lines)), [line.label for line in panel.lines])
        row[0].set_ylim(len(panel.lines) - 0.4, -0.6)
        row[0].set_title(panel.title, loc="left", fontsize=9, weight="bold")
    for axes, title in zip(grid[-1], ("captured", *COSTS.values()), strict=True):
        axes.set_xlabel(title)


def draw_pools(figure: Figure) -> None:
    """Draw what each pool of two clouds gains, lends, borrows and loses under some policies."""
    clouds = stored("replays/clouds")
    figure.set_layout_engine("constrained")
    grid = figure.subplots(len(BY_POOL), len(POOLS), sharey="row", sharex="col")
    for row, (cloud, policies) in zip(grid, BY_POOL.items(), strict=True):
        pools = clouds[cloud][policies[0]]["pools"]
        for axes, key in zip(row, POOLS, strict=True):
            for shift, policy in zip((-0.25, 0, 0.25), policies, strict=True):
                for y, own in enumerate(clouds[cloud][policy]["pools"].values()):
                    colour = colour_of(policy)
                    if f"{key}_95" in own:
                        axes.plot(own[f"{key}_95"], [y + shift] * 2, color=colour, linewidth=1.4)
                    label = policy if y == 0 else None
                    axes.plot(
                        [own[key]], [y + shift], "o", color=colour, markersize=3.5, label=label
                    )
            if key == "speedup_geomean":
                axes.axvline(1, color=GREY, linewidth=0.8)
            else:
                axes.set_xscale("symlog", linthresh=1)
                axes.set_xlim(-0.3, 6000)
                ticks = (0, 10, 1000)
                axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
                axes.minorticks_off()
        names = [f"{name}, {own['quota']} GPUs" for name, own in pools.items()]
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.4, -0.6)
        row[0].set_title(cloud, loc="left", fontsize=9, weight="bold")
    for axes, title in zip(grid[-1], POOLS.values(), strict=True):
        axes.set_xlabel(title)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def pictures() -> Iterator[tuple[Path, bytes]]:
    """Yield the file and the content of each picture."""
    drawings: dict[str, tuple[float, Callable[[Figure], None]]] = {
        "lending": (4.6, draw_scatter),
        "lending-pools": (5.2, draw_pools),
    }
    for name, panels in (
        ("lending-draws", [*draws_of_philly()]),
        ("lending-logs", [*other_logs()]),
        ("lending-clouds", [*made_up_clouds()]),
    ):
        height = sum(LINE * len(panel.lines) + HEAD for panel in panels)
        drawings[name] = height, partial(draw_lines, panels)
    for name, (height, draw) in drawings.items():
        yield FIGURES / f"{name}.svg", render(name, height, draw)


def main() -> None:
    for path, content in pictures():
        path.write_bytes(content)


if __name__ == "__main__":
    main()
