"""The report of an experiment: one page, and its figures as files, from the runs' measures.

Labels and names of pools are untrusted; the template escapes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from replay.experiment.folder import VERDICT
from replay.experiment.frontier import frontier
from replay.experiment.measures import (
    GEOMEAN,
    LARGEST,
    LENT,
    MEAN,
    P5,
    P95,
    SLOWED,
    TOTAL,
    USED,
    Experiment,
    Measure,
    RunRow,
    RunRows,
    at,
    brief,
    counted,
    entries,
    queues,
    shown,
    spread,
)
from replay.experiment.sections import ReportSection, sections
from replay.experiment.verdict import verdict_of
from replay.plotting.numbers import inlined
from replay.report.decision import evidence_over_runs
from replay.report.provenance import IN_CELLS, predictors_of, preemption_costs
from replay.report.report import page, styles
from replay.run.output import write_json
from replay.run.run import BASELINE
from sia.policies import load
from sia.wording import duration

FIGURES = ("fig02", "fig13", "fig14", "fig15a", "fig16", "fig18", "fig18-withdrawn", "frontier")
"""All figures that a report can have; stale files of an earlier report are removed."""

FRONTIER = "frontier.json"

WITHDRAWN = "♣"
"""Marks rows of runs with withdrawn pools, as in Table 17."""


class MedianRange(NamedTuple):
    """The median over runs, and their interquartile range if it is not a single value."""

    median: str
    spread: str = ""


class PolicyRow(NamedTuple):
    """A row of the table: the measures of a policy over some runs."""

    policy: str
    mark: str
    cells: Sequence[MedianRange]


def write_experiment_report(folder: Path, runs: RunRows, settings: Mapping[str, Any]) -> None:
    """Write report.html, and each figure as figures/NAME.svg and .png, into `folder`.

    If there is a frontier, its points are written into frontier.json as a list of objects. `runs`
    are the contents of the run.json files, at least one. `settings` are the contents of
    settings.json, plus a description of the cells under `cells`. The same input gives the same
    bytes. The verdict is written into verdict.json.
    """
    experiment = Experiment(runs, settings)
    verdict = verdict_of(experiment)
    write_json(folder / VERDICT, verdict)
    compared = frontier(experiment)
    found = sections(experiment, compared)
    drawn = folder / "figures"
    drawn.mkdir(exist_ok=True)
    for name in FIGURES:
        for suffix in (".svg", ".png"):
            (drawn / f"{name}{suffix}").unlink(missing_ok=True)
    for section in found:
        picture = section.picture
        (drawn / f"{picture.name}.svg").write_bytes(picture.svg)
        (drawn / f"{picture.name}.png").write_bytes(picture.png)
    (folder / FRONTIER).unlink(missing_ok=True)
    if compared is not None:
        write_json(folder / FRONTIER, [point._asdict() for point in compared.points])
    html = render(experiment, verdict, found)
    (folder / "report.html").write_text(html, "utf-8", errors="replace", newline="\n")


def render(
    experiment: Experiment, verdict: Mapping[str, Any], found: Sequence[ReportSection]
) -> str:
    """Return the report as HTML."""
    return page(
        "experiment.html",
        verdict=verdict,
        evidence=evidence_over_runs(verdict, experiment.looks),
        whole=experiment.whole,
        runs=counted(len(experiment.runs), "run"),
        baseline=BASELINE,
        styles=styles(experiment.looks),
        future_known=[name for name in experiment.rivals if experiment.foresees(name)],
        honest=any(_honest(experiment, name) for name in experiment.rivals),
        headlines=[_headline(experiment, name) for name in experiment.rivals],
        groups=_table(experiment),
        withdrawn=WITHDRAWN if experiment.withdrawn else "",
        sections=[(section, inlined(section.picture.inline)) for section in found],
        facts=_facts(experiment),
        options=_options(experiment.settings),
    )


def _honest(experiment: Experiment, label: str) -> bool:
    """Return whether a policy uses a load forecast that a live system could make."""
    choice = experiment.choice(label)
    needy = choice is not None and load(choice.policy).needs.loads
    return needy and not experiment.foresees(label)


def _headline(experiment: Experiment, policy: str) -> dict[str, Any]:
    """Return the card of a policy: slowed jobs and speed-ups over all runs."""
    runs = experiment.runs
    found = entries(runs, policy)
    hurt = sum(1 for entry in found if entry["slowed"])
    if not found:
        words = "no job was measured in any run"
        return {"policy": policy, "harmless": None, "words": words, "more": []}
    harm = f"slowed {'jobs' if hurt else 'no job'} in {hurt or len(found):,} of "
    harm += counted(len(found), "run")
    more = [f"Geometric mean speed-up {_over(experiment, policy, GEOMEAN)}."]
    if hurt:
        worst = max(runs, key=lambda run: _largest(run, policy))
        more += [
            f"Jobs slowed: {_over(experiment, policy, SLOWED)}, in total by",
            f"{_over(experiment, policy, TOTAL)}. The largest slowdown of a job,",
            f"{brief(_largest(worst, policy))}, occurred in run {worst['run']}",
            f"({_place(experiment, worst)}).",
        ]
    if lost := sum(entry["never_ended"] for entry in found):
        alone = [entry["never_ended"] for entry in entries(runs, BASELINE)]
        among = f", {sum(alone):,} in the baseline" if alone else ""
        more.append(f"{counted(lost, 'job')} never ended{among}.")
    return {
        "policy": policy,
        "harmless": not hurt,
        "words": f"{harm}; mean speed-up {_over(experiment, policy, MEAN)}",
        "more": more,
    }


def _largest(run: RunRow, policy: str) -> float:
    """Return the largest slowdown in minutes, or -1 if the run does not have the policy."""
    entry = run["policies"].get(policy)
    return float(entry["slowdown_max_min"]) if entry else -1.0


def _over(experiment: Experiment, policy: str, measure: Measure) -> str:
    """Format a measure over all runs: median and interquartile range of pieces, range of sizes."""
    runs = experiment.runs
    median = shown(at(runs, policy, measure.key), measure.unit)
    if experiment.whole:
        return spread(runs, policy, measure, tail=0.0) or median
    between = spread(runs, policy, measure)
    return f"{median} ({between})" if between else median


def _place(experiment: Experiment, run: RunRow) -> str:
    """Describe a run by its number of queues, or its size."""
    if not experiment.whole:
        return queues(run["queues"])
    away = len(run["withdrawn"])
    return f"size {run['size']:g}" + (f", {counted(away, 'pool')} withdrawn" if away else "")


def _table(experiment: Experiment) -> list[tuple[str, list[PolicyRow]]]:
    """Return a row per policy for each number of queues, or for each size (Table 17)."""
    if not experiment.whole:
        groups = experiment.by_queues.items()
        return [(name, _lines(experiment, runs, "")) for name, runs in groups]
    return [
        (
            f"size {size:g}",
            _lines(experiment, experiment.at_size(size, withdrawn=False), "")
            + _lines(experiment, experiment.at_size(size, withdrawn=True), WITHDRAWN),
        )
        for size in experiment.sizes
    ]


def _lines(experiment: Experiment, runs: RunRows, mark: str) -> list[PolicyRow]:
    names = experiment.rivals if mark else experiment.policies  # the baseline never shares
    return [PolicyRow(name, mark, _cells(runs, name)) for name in names] if runs else []


def _cells(runs: RunRows, policy: str) -> list[MedianRange]:
    found = entries(runs, policy)
    hurt = sum(1 for entry in found if entry["slowed"])
    measures = (MEAN, GEOMEAN, P5, P95, SLOWED, TOTAL, LARGEST, USED, LENT)
    cells = [
        MedianRange(shown(at(runs, policy, m.key), m.unit), spread(runs, policy, m))
        for m in measures
    ]
    return [*cells[:4], MedianRange(f"{hurt:,} of {len(found):,}"), *cells[4:]]


def _facts(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the facts about the runs as (title, text)."""
    runs = experiment.runs
    pools = [pool for run in runs for pool in run["pools"]]
    loads = [pool["load"] for pool in pools if pool["load"] is not None]
    each = ", ".join(f"{len(some):,} of {name}" for name, some in experiment.by_queues.items())
    facts = [
        ("Runs", f"{len(runs):,}" if experiment.whole else f"{len(runs):,}: {each}"),
        ("Pools", f"{len({pool['pool'] for pool in pools}):,} distinct"),
        ("Jobs a run", _range([run["jobs"] for run in runs])),
        ("GPUs a run", _range([sum(pool["quota"] for pool in run["pools"]) for run in runs])),
        ("Load of a pool", f"{min(loads):.2f} to {max(loads):.2f}" if loads else "unknown"),
        ("Length of a run", _times(run["length_s"] for run in runs)),
        ("Warm-up, not measured", _times(run["warmup_s"] for run in runs)),
        *predictors_of(experiment.settings_of_replay, experiment.rivals),
        *preemption_costs(
            experiment.settings_of_replay,
            [n for n in experiment.rivals if _preempts(experiment, n)],
        ),
    ]
    if experiment.in_cells:
        facts.append(
            ("Cells", f"{experiment.settings['cells']}; pools own whole nodes; {IN_CELLS}")
        )
    if experiment.withdrawn:
        names = Counter(name for run in experiment.withdrawn for name in run["withdrawn"])
        facts.append((f"Pools withdrawn ({WITHDRAWN})", ", ".join(sorted(names))))
    dropped: Counter[str] = Counter()
    for run in runs:
        dropped.update(run["dropped"])
    reasons = [f"{n:,} {reason}" for reason, n in sorted(dropped.items())]
    empty = [run["run"] for run in runs if not any(e["measured"] for e in run["policies"].values())]
    if empty:
        facts.append(("Runs omitted, no job measured", ", ".join(map(str, empty))))
    return [*facts, ("Jobs dropped, all runs", "; ".join(reasons) or "none")]


def _preempts(experiment: Experiment, label: str) -> bool:
    """Return whether a policy preempts or resizes jobs."""
    choice = experiment.choice(label)
    return choice is not None and load(choice.policy).needs.preemption


def _range(found: Sequence[float]) -> str:
    least, most = (f"{f(found):,}" for f in (min, max))
    return least if least == most else f"{least} to {most}"


def _times(seconds: Iterable[float]) -> str:
    return ", ".join(duration(value) if value else "none" for value in sorted(set(seconds)))


def _options(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the options as in settings.json."""
    return [
        (str(key), value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in sorted(settings.items())
    ]
