"""The figures of an experiment's report: which there are, how to read them, what they show here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from replay.experiment.figures import MeasurePanel, draw_boxes, draw_cdfs, draw_hours, draw_sizes
from replay.experiment.frontier import TARGET, Frontier, FrontierPoint, draw_frontier
from replay.experiment.measures import (
    GEOMEAN,
    LARGEST,
    MEAN,
    P90,
    P95,
    SLOWED,
    TOTAL,
    Experiment,
    Measure,
    RunRows,
    at,
    counted,
    entries,
    quantile,
    shown,
    values,
)
from replay.plotting.canvas import FloatArray, RenderedFigure
from replay.run.run import BASELINE
from sia.limits import MAX_SLOWED_PCT
from sia.policies import load
from sia.wording import decimal

VARIANTS = 2
"""Variants of SIA from which on an ablation compares anything."""

ZERO = (
    "Axes of speed-ups and slowdowns are logarithmic; left of the dotted line is the place of 0, "
    "where nobody was slowed."
)

BOXES = (
    "Each row is a policy's runs with that many queues. The black stroke is the median run; the "
    "thickest box holds the middle half of the runs, the next one three quarters, and so on, each "
    "leaving out half as many; single runs beyond the boxes are dots (with under 8 runs there are "
    "only dots)."
)


class SectionTable(NamedTuple):
    """A table beside a picture: the first cell of each row is its heading."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class ReportSection(NamedTuple):
    """A picture of the report: its title, how to read it, what it shows of these runs."""

    title: str
    picture: RenderedFigure
    reading: str
    showing: Sequence[str]
    table: SectionTable | None = None


def sections(experiment: Experiment, compared: Frontier | None) -> list[ReportSection]:
    """All that these runs, and their frontier, can show.

    Pieces are distributions, one log at several sizes is not.
    """
    if not experiment.rivals:
        found = []
    elif experiment.whole:
        found = _sizes(experiment)
    else:
        found = [_distributions(experiment), _queues(experiment), *_ablation(experiment)]
    return [*found, *_frontier(experiment, compared), *_hours(experiment)]


def _by_policy(runs: RunRows, policies: Sequence[str], measure: Measure) -> dict[str, FloatArray]:
    return {name: values(runs, name, measure.key) for name in policies}


def _panels(
    groups: Mapping[str, RunRows], policies: Sequence[str], measures: Sequence[Measure]
) -> list[MeasurePanel]:
    return [
        MeasurePanel(m, {group: _by_policy(runs, policies, m) for group, runs in groups.items()})
        for m in measures
    ]


def _distributions(experiment: Experiment) -> ReportSection:
    """Fig. 13."""
    runs, rivals = experiment.runs, experiment.rivals
    measures = (MEAN, P95, SLOWED, TOTAL, LARGEST)
    spared = [name for name in rivals if not any(e["slowed"] for e in entries(runs, name))]
    showing = [f"Slowed nobody in any run: {', '.join(spared)}."] if spared else []
    hurt = [name for name in rivals if name not in spared]
    if hurt:
        words = (f"{name} in {_slowing(experiment, name)}" for name in hurt)
        showing.append(f"Jobs were slowed by {', '.join(words)}.")
    return ReportSection(
        "All runs, as distributions",
        draw_cdfs(_panels({"": runs}, rivals, measures), experiment.looks),
        "A curve's height at x is the share of the runs in which the measure was x or less. For "
        "speed-ups the further right a curve rises the better, for slowdowns the further left. "
        + ZERO,
        showing,
    )


def _slowing(experiment: Experiment, policy: str) -> str:
    """In how many runs a policy slowed anybody."""
    found = entries(experiment.runs, policy)
    return f"{sum(1 for e in found if e['slowed']):,} of {counted(len(found), 'run')}"


def _queues(experiment: Experiment) -> ReportSection:
    """Fig. 14; Fig. 16 where jobs have places."""
    measures = (MEAN, P90, P95, SLOWED, TOTAL, LARGEST)
    groups, rivals = experiment.by_queues, experiment.rivals
    showing = []
    for group, runs in groups.items():
        medians = {name: at(runs, name, MEAN.key) for name in rivals}
        found = {name: value for name, value in medians.items() if value is not None}
        if found:
            best = max(found, key=lambda name: found[name])
            showing.append(
                f"{group}: the median of the runs' mean speed-ups is highest under {best}, "
                f"{shown(found[best], 'speed')}."
            )
    return ReportSection(
        "By the number of queues that share",
        draw_boxes(
            "fig16" if experiment.in_cells else "fig14",
            _panels(groups, rivals, measures),
            experiment.looks,
        ),
        f"{BOXES} {ZERO}",
        showing,
    )


def _ablation(experiment: Experiment) -> list[ReportSection]:
    """Fig. 15a: SIA by what it foresees with, and max-min beside it."""
    names = {label: label.partition("@")[0] for label in experiment.rivals}
    variants = [label for label, name in names.items() if f"{name}-".startswith("sia-")]
    if len(variants) < VARIANTS:
        return []
    chosen = [label for label, name in names.items() if name == "mmfs"] + variants
    medians = [shown(at(experiment.runs, label, MEAN.key), "speed") for label in chosen]
    showing = [
        f"{label}{_unsaid(experiment, label)}: mean speed-up {median} in the median run; jobs "
        f"slowed in {_slowing(experiment, label)}."
        for label, median in zip(chosen, medians, strict=True)
    ]
    panels = _panels(experiment.by_queues, chosen, (MEAN, SLOWED, TOTAL))
    return [
        ReportSection(
            "SIA by what it foresees with",
            draw_boxes("fig15a", panels, experiment.looks),
            "Variants of SIA side by side: after @ a label says what arrivals and run times are "
            f"foreseen with. {BOXES} {ZERO}",
            showing,
        )
    ]


def _unsaid(experiment: Experiment, label: str) -> str:
    """What a policy foresees with, if it does and its label does not say."""
    choice = experiment.choice(label)
    if choice is None or "@" in label:
        return ""
    needs = load(choice.policy).needs
    return f" ({choice.forecast}+{choice.durations})" if needs.loads else ""


def _frontier(experiment: Experiment, found: Frontier | None) -> list[ReportSection]:
    """What forecasts capture, and whom they slow for it."""
    if found is None:
        return []
    return [
        ReportSection(
            "What forecasts are worth",
            draw_frontier(found, experiment),
            "The higher the better, and the further left. Captured gain is the logarithm of the "
            f"geometric mean speed-up, divided by that of {found.reference}, which knows the "
            "future, over all runs. A line joins forecasts of one kind, q standing for the "
            "quantiles of load and run time; they stand at its ends. Hollow and dashed: a share "
            "controller watches. Left of the dotted line is the place of 0, where nobody was "
            "slowed; whatever lies beyond the frame stands at its edge, with its captured gain.",
            [*_on_target(found), *_beside_max_min(found)],
            SectionTable(
                ("policy", "captured", "jobs slowed, mean", "most", "slowdown a run, mean",
                 "worst delay", "runs with nobody slowed"),
                [_frontier_row(point) for point in found.points],
            ),
        )
    ]  # fmt: skip


def _frontier_row(point: FrontierPoint) -> list[str]:
    slowed = (point.slowed_pct_mean, point.slowed_pct_most)
    minutes = (point.slowdown_min_mean, point.slowdown_min_most)
    return [
        point.label,
        decimal(point.captured),
        *(shown(value, "percent") for value in slowed),
        *(shown(value, "minutes") for value in minutes),
        f"{point.runs_nobody_slowed:,} of {point.runs:,}",
    ]


def _on_target(found: Frontier) -> list[str]:
    """Which forecasts are good enough to lend by."""
    target = (
        f"on target, which is a captured gain of {TARGET:g} or more with at most "
        f"{MAX_SLOWED_PCT:g} % of the jobs slowed in the mean run"
    )
    good = [point for point in found.honest if point.on_target]
    if not good:
        return [f"No forecast that could have been made at the time is {target}."]
    good.sort(key=lambda point: -point.captured)
    words = (
        f"{point.label} ({decimal(point.captured)} at {shown(point.slowed_pct_mean, 'percent')})"
        for point in good
    )
    who = ", ".join(words)
    return [f"Forecasts that could have been made at the time and are {target}: {who}."]


def _beside_max_min(found: Frontier) -> list[str]:
    """What the best forecast and max-min cost others."""
    rivals = [point for point in found.points if point.label == "mmfs"]
    lost = (
        f"{shown(point.slowdown_min_mean, 'minutes')} under {point.label}"
        for point in (found.best, *rivals)
    )
    return [f"In the mean run all jobs together lost {', and '.join(lost)}."] if rivals else []


def _hours(experiment: Experiment) -> list[ReportSection]:
    """Fig. 2, before and after."""
    kept = [name for name in (BASELINE, *experiment.sharing()) if name in experiment.policies]
    kept = list(dict.fromkeys(kept))
    found = {
        name: np.array([x for e in entries(experiment.runs, name) for x in e["hourly_pct"]])
        for name in kept
    }
    found = {name: shares for name, shares in found.items() if len(shares)}
    if not found:
        return []
    before = (
        f"{BASELINE} is before, with nothing shared; what lies to the right of its curve is use "
        "that sharing adds. "
        if BASELINE in found
        else ""
    )
    medians = ", ".join(
        f"{name} {decimal(quantile(shares, 0.5), 1)} %" for name, shares in found.items()
    )
    return [
        ReportSection(
            "GPUs in use, before and after",
            draw_hours(found, experiment.looks),
            "A curve's height at x is the share of hours, of all runs together, in which at most x "
            f"of all GPU-time was in use. {before}Hours count from the end of the warm-up to the "
            "last submission.",
            [f"In the median hour: {medians}."],
        )
    ]


def _sizes(experiment: Experiment) -> list[ReportSection]:
    """Fig. 18, and once more with pools that keep to themselves."""
    found = []
    for withdrawn, name in ((False, "fig18"), (True, "fig18-withdrawn")):
        groups = {
            f"{size:g}": runs
            for size in experiment.sizes
            if (runs := experiment.at_size(size, withdrawn=withdrawn))
        }
        if len(groups) < 2:
            continue
        panels = _panels(groups, experiment.rivals, (MEAN, GEOMEAN, SLOWED, TOTAL, LARGEST))
        first, *_, last = groups
        showing = [
            f"{label}: mean speed-up {ends[0]} at size {first}, {ends[1]} at size {last}."
            for label in experiment.rivals
            for ends in [
                [shown(at(groups[size], label, MEAN.key), "speed") for size in (first, last)]
            ]
        ]
        away = " with some pools keeping to themselves" if withdrawn else ""
        found.append(
            ReportSection(
                f"By the size of the pools{away}",
                draw_sizes(name, panels, experiment.looks),
                "To the right, every pool has more GPUs for the same jobs; the baseline that each "
                "point is compared with has pools of the same size. The vertical axes are "
                "logarithmic; below the dotted line is the place of 0, where nobody was slowed.",
                showing,
            )
        )
    return found
