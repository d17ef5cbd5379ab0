"""`sia oracle study`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from oracle.problem.problem import Goal
from oracle.run.console import ProgressReporter, end_interrupted
from oracle.run.folder import refuse_others
from oracle.study.study import POLICIES, Case, StudySettings, cases_of, refuse, study
from oracle.study.table import HEADER, rows_of, show
from replay.experiment.folder import (
    RUNS,
    SETTINGS,
    opened,
    read_runs,
    replace_results,
    run_folder,
    whole_run,
    writable,
)
from replay.logs.limits import MAX_RUNS
from replay.run.output import write_rows
from replay.synthetic.paper import PRESETS
from sia import __version__
from sia.console.as_json import json_option, print_json
from sia.console.text import Seconds
from sia.wording import as_typed, counted, duration

COMMAND = "sia oracle study"

PICTURES = tuple(
    f"{name}{form}" for name in ("fig05", "fig15b", "fig24") for form in (".svg", ".png")
)
"""Names of all figures that a study can write to OUT/figures."""

TABLE = "study.csv"


@click.command("study")
@click.option(
    "--preset",
    "presets",
    type=click.Choice([*PRESETS]),
    multiple=True,
    default=[*PRESETS],
    help="Preset of sia trace synth; repeatable.  [default: all]",
)
@click.option(
    "--repetitions",
    type=click.IntRange(1, MAX_RUNS),
    default=3,
    show_default=True,
    help="Runs of each preset, with seeds from 1.",
)
@click.option(
    "--slot", type=Seconds(), default="5m", show_default=True, help="Length of a time slot."
)
@click.option(
    "--window", type=Seconds(), default="3d", show_default=True, help="Length of a workload."
)
@click.option(
    "--time-limit", "seconds", type=Seconds(), default="5m", show_default=True,
    help="Time limit of the oracle for each run.",
)  # fmt: skip
@json_option("Print the rows of study.csv as JSON.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def study_command(
    presets: tuple[str, ...], repetitions: int, slot: float, window: float, seconds: float,
    as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Compare the oracle with other policies on synthetic workloads (Figs. 5, 15b and 24).

    Writes OUT/study.csv, OUT/report.html, OUT/figures and OUT/runs. To continue an interrupted
    study, repeat its command.
    """
    settings, cases = StudySettings(slot, window, seconds), cases_of(presets, repetitions)
    refuse(cases, settings)
    facts = {
        "command": COMMAND,
        "version": __version__,
        "slot": as_typed(slot),
        "window": as_typed(window),
        "time-limit": as_typed(seconds),
        "policies": POLICIES,
    }
    refuse_others(out, (COMMAND,), SETTINGS)
    with _resumable(out, cases), opened(out, facts):
        with writable(out):
            _solve(cases, settings, out)
        found = read_runs(out, [case.run for case in cases])
        rows = [row for run in found for row in rows_of(run)]
        with writable(out):
            for name in PICTURES:  # remove those of an earlier, larger study
                (out / "figures" / name).unlink(missing_ok=True)
            shown = {**facts, "presets": presets, "repetitions": repetitions}
            replace_results(out, partial(_write_results, found, rows, shown))
    if as_json:
        print_json(rows)
        return
    show(found)
    if more := _more(out, cases):
        click.echo(f"note: {out / RUNS} keeps {counted(more, 'more workload')} of this study")
    click.echo(f"results: {out / 'report.html'}")


def _more(out: Path, cases: Sequence[Case]) -> int:
    """Return the number of finished workloads that this command does not include."""
    included = {run_folder(out, case.run) for case in cases}
    done = (path for path in (out / RUNS).iterdir() if path.name.isdecimal())
    return sum(path not in included for path in done)


def _unfinished(out: Path, cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if not run_folder(out, case.run).exists()]


@contextmanager
def _resumable(out: Path, cases: Sequence[Case]) -> Iterator[None]:
    """On Ctrl-C, print how many workloads are done, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        done = len(cases) - len(_unfinished(out, cases))
        end_interrupted(
            f"{done} of {len(cases)} workloads are done, repeat the command to continue"
        )


def _solve(cases: Sequence[Case], settings: StudySettings, out: Path) -> None:
    """Solve the unfinished workloads one at a time, because time limits assume an idle machine."""
    todo = _unfinished(out, cases)
    done = len(cases) - len(todo)
    if done:
        click.echo(f"{done} of {len(cases)} workloads were done before", err=True)
    for i, case in enumerate(todo, done + 1):
        name = f"{case.preset}, seed {case.seed} ({i} of {len(cases)})"
        click.echo(f"{name}: up to {duration(settings.seconds)}", err=True)
        began = perf_counter()
        with whole_run(out, case.run) as folder:
            outcome = study(case, settings, folder, ProgressReporter(settings.slot, Goal()))
            if outcome.status == "interrupted":
                raise KeyboardInterrupt
        click.echo(f"{name}: {outcome.status} after {duration(perf_counter() - began)}", err=True)


def _write_results(
    runs: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    folder: Path,
) -> None:
    from oracle.study.report import write_study_report  # noqa: PLC0415  matplotlib is slow

    click.echo("drawing the report", err=True)
    write_rows(folder / TABLE, HEADER, ([row[key] for key in HEADER] for row in rows))
    write_study_report(folder, runs, facts)
