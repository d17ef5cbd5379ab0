"""`sia oracle`."""

from __future__ import annotations

from time import perf_counter

BEGAN = perf_counter()  # before numpy and the solver are loaded: time limits include this

# ruff: noqa: E402
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from oracle.bounds.size import refuse_too_large
from oracle.cli.study import study_command
from oracle.cli.sweep import sweep_command
from oracle.problem.cutoffs import read_cutoffs
from oracle.problem.forms import FORMS
from oracle.problem.inputs import read_inputs
from oracle.problem.problem import Goal
from oracle.run.bound import Bounding
from oracle.run.console import (
    NO_BOUND,
    BoundReporter,
    ProgressReporter,
    end_interrupted,
    show_outcome,
)
from oracle.run.folder import Results, own_folder
from oracle.run.output import write_outcome
from oracle.run.run import SolveSettings, instance_of, run, waiting
from replay.run.output import write_json
from sia import __version__
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.text import BoundedFloatType, Seconds
from sia.wording import counted, duration

_Command = TypeVar("_Command", bound=Callable[..., Any])

SOLVE, BOUND = "sia oracle solve", "sia oracle bound"

RESULTS = Results(
    (SOLVE, BOUND),
    "oracle.json",
    ("trace.csv", "pools.csv", "jobs.csv", "loans.csv", "deadlines.csv", "oracle.json", "real/"),
)
"""Files of both commands; a run of one command replaces those of the other."""

PRICE = 1.0
"""Default price of a slot after the cutoff, in slots of waiting, in addition to the slot itself."""

_COMMON = (
    click.option("--trace", "log", type=Path, required=True, help="Job log: CSV or Parquet."),
    click.option("--pools", type=Path, required=True, help="Pools file: pool,quota[,group,share]."),
    click.option(
        "--slot", type=Seconds(), default="5m", show_default=True, help="Length of a time slot."
    ),
    click.option("--window", type=Seconds(),
                 help="Use only jobs submitted in this time from the first job on."),
    click.option("--form", type=click.Choice(list(FORMS)), default="step", show_default=True,
                 help="Formulation of the integer program."),
    click.option("--time-limit", "seconds", type=Seconds(), default="5m", show_default=True,
                 help="Time limit of the whole command."),
    click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them."),
    json_option("Print oracle.json instead of text."),
    click.option("--out", type=Path, required=True, help="Folder for the results."),
)  # fmt: skip


def _common(command: _Command) -> _Command:
    for option in reversed(_COMMON):
        command = option(command)
    return command


@click.group(cls=Group)
def oracle() -> None:
    """Compute the best schedule possible with full knowledge of the future.

    It has the least total waiting of all schedules that delay no job.
    """


@oracle.command("solve")
@_common
@click.option(
    "--beta",
    type=BoundedFloatType(0, 1e6),
    default=0.0,
    help="Price of unfairness between pools (Fig. 19).",
)
@click.option(
    "--weighted",
    is_flag=True,
    help="Divide the waiting of each job by its completion time without sharing.",
)
@click.option(
    "--slowdown-pct",
    type=BoundedFloatType(0, 1000),
    default=0.0,
    help="Allow jobs to be late by this percentage of their completion time without sharing.",
)
@click.option(
    "--slowdown-price",
    type=BoundedFloatType(0, 1e6),
    help="With --slowdown-pct: price of each late slot, besides its waiting.  "
    f"[default: {PRICE:g}]",
)
@click.option(
    "--cutoffs", type=Path, help="jobs.csv of a schedule; its starts are the latest allowed."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
def solve(
    log: Path, pools: Path, slot: float, window: float | None, form: str, seconds: float,
    skip_invalid: bool, out: Path, beta: float, weighted: bool, slowdown_pct: float,
    slowdown_price: float | None, cutoffs: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Find the schedule with the least waiting in which sharing delays no job.

    Writes OUT/trace.csv (the jobs in time slots), pools.csv, jobs.csv, loans.csv, oracle.json, and
    the same schedule with the times of the log in OUT/real. Ctrl-C keeps the best schedule so far.
    """
    if slowdown_price is not None and not slowdown_pct:
        raise UserError("--slowdown-price needs --slowdown-pct; give both")
    price = PRICE if slowdown_price is None else slowdown_price
    goal = Goal(beta, weighted, slowdown_pct, price)
    trace, table, known = read_inputs(log, pools, window, skip_invalid=skip_invalid)
    latest = None if cutoffs is None else read_cutoffs(cutoffs, trace, known)
    inputs = [log, pools, *([cutoffs] if cutoffs else [])]
    settings = {
        **_settings(SOLVE, log, pools, slot, window, form, seconds, skip_invalid=skip_invalid),
        "beta": beta,
        "weighted": weighted,
        "slowdown_allowed_pct": slowdown_pct,
        "slowdown_price": price if slowdown_pct else None,
        "cutoffs": None if cutoffs is None else cutoffs.name,
        "cutoffs_jobs": len(latest or ()),
        "seed": seed,
    }
    with own_folder(out, inputs, RESULTS) as folder:
        task = SolveSettings(slot, seconds, form, goal, seed)
        outcome = run(trace, table, task, BEGAN, latest, ProgressReporter(slot, goal))
        found = write_outcome(folder, outcome, settings)
    if as_json:
        print_json(found)
    else:
        if latest is not None:
            jobs = counted(len(trace.arrivals), "job")
            click.echo(f"cutoffs of {cutoffs}: {len(latest):,} of {jobs}")
        show_outcome(outcome, cutoffs=latest is not None)
        click.echo(f"results: {out / 'oracle.json'}")
    if outcome.status == "interrupted":
        end_interrupted("the best schedule so far is kept")


def _settings(
    command: str, log: Path, pools: Path, slot: float, window: float | None, form: str,
    seconds: float, *, skip_invalid: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that the results depend on."""
    return {
        "command": command,
        "version": __version__,
        "trace": log.name,
        "pools": pools.name,
        "slot_s": slot,
        "window_s": window,
        "form": form,
        "time_limit_s": seconds,
        "skip_invalid": skip_invalid,
    }


@oracle.command("bound")
@_common
def bound(
    log: Path, pools: Path, slot: float, window: float | None, form: str, seconds: float,
    skip_invalid: bool, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Prove a lower bound on the waiting with linear programs only, much faster than solve.

    Writes OUT/oracle.json. Ctrl-C keeps the bound so far.
    """
    trace, table, _ = read_inputs(log, pools, window, skip_invalid=skip_invalid)
    instance = instance_of(trace, table, slot, Goal())
    refuse_too_large(instance.problems, form)
    with own_folder(out, [log, pools], RESULTS) as folder:
        bounding = Bounding(instance, form, BEGAN + seconds)
        status = bounding.run(BoundReporter())
        alone = waiting(instance.trace, instance.baseline)
        found = {
            **_settings(BOUND, log, pools, slot, window, form, seconds, skip_invalid=skip_invalid),
            "jobs": len(instance.trace.arrivals),
            "dropped": dict(sorted(instance.trace.dropped.items())),
            "status": status,
            "total_wait_s": None,
            "bound_wait_s": bounding.bound,
            "baseline_wait_s": alone,
            "gap": None,
            "seconds": perf_counter() - BEGAN,
            "variables": bounding.proven.variables,
            "nonzeros": bounding.proven.nonzeros,
        }
        write_json(folder / "oracle.json", found)
    if as_json:
        print_json(found)
    else:
        _show_bound(found, proven=bool(bounding.bound) or status == "bound only")
        click.echo(f"results: {out / 'oracle.json'}")
    if status == "interrupted":
        end_interrupted("the bound so far is kept")


def _show_bound(found: dict[str, Any], *, proven: bool) -> None:
    bound, alone = duration(found["bound_wait_s"]), duration(found["baseline_wait_s"])
    none = f"no schedule that delays no job waits less than {bound}" if proven else NO_BOUND
    click.echo(f"{found['status']}: {none}; without sharing {alone}")


oracle.add_command(study_command)
oracle.add_command(sweep_command)
