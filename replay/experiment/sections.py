"""The sections of an experiment's report: a figure, how to read it, and what it shows."""

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
from sia.contract.labels import name_of
from sia.limits import MAX_SLOWED_PCT
from sia.policies import load
from sia.wording import decimal

VARIANTS = 2
"""Minimum number of SIA variants for an ablation."""

ZERO = (
    "Axes of speed-ups and slowdowns are logarithmic. Values left of the dotted line are 0: no job "
    "was slowed."
)

BOXES = (
    "Each row shows a policy's runs with that number of queues. The black line is the median run. "
    "The thickest box contains the middle half of the runs, the next one three quarters, and so "
    "on. Runs beyond the boxes are dots; with fewer than 8 runs there are only dots."
)


class SectionTable(NamedTuple):
    """A table below a figure; the first cell of each row is its heading."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class ReportSection(NamedTuple):
    """A figure of the report: its title, how to read it, and what it shows about these runs."""

    title: str
    picture: RenderedFigure
    reading: str
    showing: Sequence[str]
    table: SectionTable | None = None


def sections(experiment: Experiment, compared: Frontier | None) -> list[ReportSection]:
    """Return the sections for an experiment and its frontier, if there is one.

    Random pieces are shown as distributions, the whole log at several sizes as curves.
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
    """Return the section on distributions over runs (Fig. 13)."""
    runs, rivals = experiment.runs, experiment.rivals
    measures = (MEAN, P95, SLOWED, TOTAL, LARGEST)
    spared = [name for name in rivals if not any(e["slowed"] for e in entries(runs, name))]
    showing = [f"Slowed no job in any run: {', '.join(spared)}."] if spared else []
    hurt = [name for name in rivals if name not in spared]
    if hurt:
        words = (f"{name} in {_slowing(experiment, name)}" for name in hurt)
        showing.append(f"Jobs were slowed by {', '.join(words)}.")
    return ReportSection(
        "Distributions over all runs",
        draw_cdfs(_panels({"": runs}, rivals, measures), experiment.looks),
        "The height of a curve at x is the share of runs in which the measure was x or less. For "
        "speed-ups, further right is better; for slowdowns, further left. " + ZERO,
        showing,
    )


def _slowing(experiment: Experiment, policy: str) -> str:
    """Format the number of runs in which a policy slowed a job."""
    found = entries(experiment.runs, policy)
    return f"{sum(1 for e in found if e['slowed']):,} of {counted(len(found), 'run')}"


def _queues(experiment: Experiment) -> ReportSection:
    """Return the section by number of queues (Fig. 14; with cells Fig. 16)."""
    measures = (MEAN, P90, P95, SLOWED, TOTAL, LARGEST)
    groups, rivals = experiment.by_queues, experiment.rivals
    showing = []
    for group, runs in groups.items():
        medians = {name: at(runs, name, MEAN.key) for name in rivals}
        found = {name: value for name, value in medians.items() if value is not None}
        if found:
            best = max(found, key=lambda name: found[name])
            showing.append(
                f"{group}: {best} has the highest mean speed-up in the median run, "
                f"{shown(found[best], 'speed')}."
            )
    return ReportSection(
        "By number of queues",
        draw_boxes(
            "fig16" if experiment.in_cells else "fig14",
            _panels(groups, rivals, measures),
            experiment.looks,
        ),
        f"{BOXES} {ZERO}",
        showing,
    )


def _ablation(experiment: Experiment) -> list[ReportSection]:
    """Return the section on SIA's predictors, compared with max-min (Fig. 15a)."""
    names = {label: name_of(label) for label in experiment.rivals}
    variants = [label for label, name in names.items() if f"{name}-".startswith("sia-")]
    if len(variants) < VARIANTS:
        return []
    chosen = [label for label, name in names.items() if name == "mmfs"] + variants
    medians = [shown(at(experiment.runs, label, MEAN.key), "speed") for label in chosen]
    showing = [
        f"{label}{_default_predictors(experiment, label)}: mean speed-up {median} in the "
        f"median run; jobs slowed in {_slowing(experiment, label)}."
        for label, median in zip(chosen, medians, strict=True)
    ]
    panels = _panels(experiment.by_queues, chosen, (MEAN, SLOWED, TOTAL))
    return [
        ReportSection(
            "SIA by predictors",
            draw_boxes("fig15a", panels, experiment.looks),
            "Variants of SIA: the part of a label after @ names the predictors of load and run "
            f"times. {BOXES} {ZERO}",
            showing,
        )
    ]


def _default_predictors(experiment: Experiment, label: str) -> str:
    """Return a policy's predictors in brackets if its label does not name them, else ""."""
    choice = experiment.choice(label)
    if choice is None or "@" in label:
        return ""
    needs = load(choice.policy).needs
    return f" ({choice.forecast}+{choice.durations})" if needs.loads else ""


def _frontier(experiment: Experiment, found: Frontier | None) -> list[ReportSection]:
    """Return the section on the frontier."""
    if found is None:
        return []
    return [
        ReportSection(
            "Value of forecasts",
            draw_frontier(found, experiment),
            "Higher and further left is better. The captured gain is the logarithm of the "
            f"geometric mean speed-up divided by that of {found.reference}, which knows the "
            "future, over all runs. A line joins forecasts that differ only in their quantiles q "
            "of load and run time, which are given at its ends. Hollow and dashed lines have a "
            "share controller. Values left of the dotted line are 0: no job was slowed. Points "
            "beyond the frame are drawn at its edge, with their captured gain.",
            [*_on_target(found), *_versus_max_min(found)],
            SectionTable(
                ("policy", "captured gain", "jobs slowed, mean", "maximum",
                 "slowdown per run, mean", "largest slowdown", "runs without slowed jobs"),
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
    """Return a sentence on the forecasts on target."""
    target = (
        f"on target (a captured gain of at least {TARGET:g}, with at most {MAX_SLOWED_PCT:g} % of "
        "the jobs slowed on average)"
    )
    good = [point for point in found.honest if point.on_target]
    if not good:
        return [f"No forecast that a live system could make is {target}."]
    good.sort(key=lambda point: -point.captured)
    words = (
        f"{point.label} ({decimal(point.captured)} at {shown(point.slowed_pct_mean, 'percent')})"
        for point in good
    )
    who = ", ".join(words)
    return [f"Forecasts that a live system could make and that are {target}: {who}."]


def _versus_max_min(found: Frontier) -> list[str]:
    """Return a sentence on the total slowdown of the best forecast and of max-min."""
    rivals = [point for point in found.points if point.label == "mmfs"]
    lost = (
        f"{shown(point.slowdown_min_mean, 'minutes')} under {point.label}"
        for point in (found.best, *rivals)
    )
    return [f"Mean total slowdown of a run: {', '.join(lost)}."] if rivals else []


def _hours(experiment: Experiment) -> list[ReportSection]:
    """Return the section on utilisation with and without sharing (Fig. 2)."""
    policies = [name for name in (BASELINE, *experiment.sharing()) if name in experiment.policies]
    policies = list(dict.fromkeys(policies))
    found = {
        name: np.array([x for e in entries(experiment.runs, name) for x in e["hourly_pct"]])
        for name in policies
    }
    found = {name: shares for name, shares in found.items() if len(shares)}
    if not found:
        return []
    before = (
        f"{BASELINE} is without sharing; the area to the right of its curve is the utilisation "
        "that sharing adds. "
        if BASELINE in found
        else ""
    )
    medians = ", ".join(
        f"{name} {decimal(quantile(shares, 0.5), 1)} %" for name, shares in found.items()
    )
    return [
        ReportSection(
            "GPU utilisation without and with sharing",
            draw_hours(found, experiment.looks),
            "The height of a curve at x is the share of hours of all runs with a utilisation of at "
            f"most x. {before}The hours span the time from the end of the warm-up to the last "
            "submission.",
            [f"Median hour: {medians}."],
        )
    ]


def _sizes(experiment: Experiment) -> list[ReportSection]:
    """Return the sections by size of the pools (Fig. 18), without and with withdrawn pools."""
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
        away = ", with some pools withdrawn" if withdrawn else ""
        found.append(
            ReportSection(
                f"By size of the pools{away}",
                draw_sizes(name, panels, experiment.looks),
                "Further right, every pool has more GPUs for the same jobs. Each point is compared "
                "with a baseline of the same size. The vertical axes are logarithmic; values below "
                "the dotted line are 0: no job was slowed.",
                showing,
            )
        )
    return found
