"""The report of a study: one page, and its figures as files, from the run.json files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from oracle.study.figures import draw_captured, draw_ranges
from oracle.study.study import LEARNED, ORACLE, POLICIES
from oracle.study.table import StudyRun, by_preset, captured, captured_words, cells_of, proof
from replay.experiment.figures import MeasurePanel, Values
from replay.experiment.measures import LARGEST, MEAN, TOTAL, Measure, brief, counted, values
from replay.experiment.sections import ReportSection
from replay.plotting.canvas import GREY, PolicyStyle, looks
from replay.plotting.numbers import inlined
from replay.report.report import page, styles
from replay.run.run import BASELINE
from sia.wording import decimal

WAITING = Measure("wait_min", "Waiting of all jobs together", "minutes")

BOUND = "bound"
"""Label of the lower bound in the figure on waiting."""

RIVALS = (*(name for name in POLICIES if name != BASELINE), ORACLE)

LOOKS = {
    **looks(("ssf", "gssf", ORACLE, "mmfs", *LEARNED, "sia", "sia-vc"), BASELINE),
    BOUND: PolicyStyle(GREY),
}
"""The oracle is green, as in the paper."""

FIGURE_5 = ("base", "more-queues", "higher-load")
"""The workloads of Fig. 5; Fig. 24 has all."""

VARIANTS = ("sia", "sia-vc", ORACLE)
"""The policies in Fig. 15b."""

INSTANCES = 8
"""Minimum number of optimally solved instances for Fig. 15b."""

READING = (
    "Each bar is the range of the repetitions of a workload, and the point their median. Axes are "
    "logarithmic; values below the dotted line are 0: no job was slowed."
)


class StudyRow(NamedTuple):
    """A row of a table: the name of a policy or workload, and the other cells."""

    name: str
    cells: Sequence[str]


def write_study_report(folder: Path, runs: Sequence[StudyRun], settings: Mapping[str, Any]) -> None:
    """Write report.html, and each figure as figures/NAME.svg and .png, into `folder`."""
    found = sections(runs)
    drawn = folder / "figures"
    drawn.mkdir()
    for section in found:
        (drawn / f"{section.picture.name}.svg").write_bytes(section.picture.svg)
        (drawn / f"{section.picture.name}.png").write_bytes(section.picture.png)
    groups = by_preset(runs)
    html = page(
        "study.html",
        workloads=counted(len(runs), "workload"),
        baseline=BASELINE,
        styles=styles(LOOKS),
        findings=findings(runs),
        groups=[
            (name, [StudyRow(policy, cells_of(some, policy)) for policy in (BASELINE, *RIVALS)])
            for name, some in groups.items()
        ],
        proofs=[
            StudyRow(cells[0], cells[1:]) for some in groups.values() for cells in map(proof, some)
        ],
        sections=[(section, inlined(section.picture.inline)) for section in found],
        options=[(key, _option(value)) for key, value in sorted(settings.items())],
    )
    (folder / "report.html").write_text(html, "utf-8", newline="\n")


def _option(value: Any) -> str:
    """Format a setting."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def findings(runs: Sequence[StudyRun]) -> list[str]:
    """Return the findings as sentences."""
    proven = [run for run in runs if run["status"] == "optimal"]
    gaps = [run["gap_pct"] for run in runs]
    summary = (
        f"The oracle slowed {_slowing(runs, ORACLE)}. Its schedule is proven optimal in "
        f"{len(proven):,} of {counted(len(runs), 'workload')}. The gap between its waiting and the "
        f"bound is at most {decimal(max(gaps), 1)} %, and its median "
        f"is {decimal(median(gaps), 1)} %."
    )
    words = [summary]
    words += [
        f"{name} avoids {captured_words(runs, name)} of the avoidable waiting, and slowed "
        f"{_slowing(runs, name)}."
        for name in RIVALS
        if name != ORACLE and captured(runs, name) is not None
    ]
    words += [
        _less(name, less)
        for name in RIVALS
        if (less := [r for r in runs if _of(r, name, "wait_min") < _of(r, ORACLE, "wait_min")])
    ]
    return words


def _less(name: str, runs: Sequence[StudyRun]) -> str:
    """Explain how a policy has less waiting than the oracle in these workloads."""
    words = (
        f"{name} has less waiting than the oracle in {counted(len(runs), 'workload')}, where it "
    )
    worst = max(_of(run, name, "slowdown_max_min") for run in runs)
    if not worst:
        return words + "slows no job either: a longer --time-limit may find such a schedule."
    total = median(_of(run, name, "slowdown_total_min") for run in runs)
    return (
        f"{words}slows a job by up to {brief(worst)}, and all jobs by {brief(total)} in total "
        "(median)."
    )


def _of(run: StudyRun, policy: str, key: str) -> float:
    return float(run["policies"][policy][key])


def _slowing(runs: Sequence[StudyRun], policy: str) -> str:
    hurt = sum(1 for run in runs if _of(run, policy, "slowed"))
    return f"jobs in {hurt:,} of {counted(len(runs), 'workload')}" if hurt else "no job"


def sections(runs: Sequence[StudyRun]) -> list[ReportSection]:
    """Return the sections with figures."""
    groups = by_preset(runs)
    first = {name: groups[name] for name in FIGURE_5 if name in groups}
    found = []
    if first:
        picture = draw_ranges("fig05", _panels(first)[:3], LOOKS, 3)
        found.append(ReportSection("Figure 5", picture, READING, []))
    if groups.keys() - set(FIGURE_5):
        picture = draw_ranges("fig24", _panels(groups), LOOKS, 1)
        found.append(ReportSection("Figure 24: all workloads", picture, READING, []))
    proven = [run for run in runs if run["status"] == "optimal"]
    if len(proven) >= INSTANCES:
        found.append(_small(proven))
    return found


def _panels(groups: Mapping[str, Sequence[StudyRun]]) -> list[MeasurePanel]:
    found = []
    for measure in (MEAN, LARGEST, TOTAL, WAITING):
        by_group: dict[str, Values] = {
            group: {name: values(runs, name, measure.key) for name in RIVALS}
            for group, runs in groups.items()
        }
        if measure is WAITING:
            for group, runs in groups.items():
                bounds = np.array([run["bound_wait_min"] for run in runs], dtype=np.float64)
                by_group[group] = {**by_group[group], BOUND: bounds}
        found.append(MeasurePanel(measure, by_group))
    return found


def _small(proven: Sequence[StudyRun]) -> ReportSection:
    """Return the section on captured gain in optimally solved instances (Fig. 15b)."""
    parts = {}
    for name in VARIANTS:
        found = (captured([run], name) for run in proven)
        parts[name] = np.array([part[1] for part in found if part is not None], dtype=np.float64)
    picture = draw_captured(
        {name: values(proven, name, MEAN.key) for name in VARIANTS},
        parts,
        LOOKS,
    )
    parts_of = ", ".join(f"{name} {captured_words(proven, name)}" for name in VARIANTS[:-1])
    words = (
        f"{counted(len(proven), 'instance')} solved to the optimum. Share of the avoidable waiting "
        f"that was avoided: {parts_of}."
    )
    return ReportSection(
        "Figure 15b: SIA compared with the optimum",
        picture,
        "The height of a curve at x is the share of the instances with x or less. Further right is "
        "better.",
        [words],
    )
