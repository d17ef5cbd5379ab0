"""`sia oracle`."""

from __future__ import annotations

from time import perf_counter

BEGAN = perf_counter()  # before numpy and the solver are loaded: limits are for the whole command

# ruff: noqa: E402
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from oracle.bound import Bounding
from oracle.cutoffs import read_cutoffs
from oracle.folder import Results, own_folder
from oracle.forms import FORMS
from oracle.inputs import read_inputs
from oracle.problem import Goal
from oracle.run import Task, instance_of, run, waiting
from oracle.size import refuse_too_large
from oracle.study_commands import study_command
from oracle.sweep_commands import sweep_command
from oracle.tell import BoundTeller, Teller, end_interrupted, show_outcome
from oracle.write import write_outcome
from replay.options import Number
from replay.output import write_json
from sia import __version__
from sia.console.errors import UserError
from sia.console.text import Seconds
from sia.wording import counted, duration

Command = TypeVar("Command", bound=Callable[..., Any])

SOLVE, BOUND = "sia oracle solve", "sia oracle bound"

RESULTS = Results(
    (SOLVE, BOUND),
    "oracle.json",
    ("trace.csv", "pools.csv", "jobs.csv", "loans.csv", "oracle.json", "real/"),
)
"""One may be repeated over the other; what is left is the last one's alone."""

PRICE = 1.0
"""Of a slot beyond the cutoff, besides its waiting."""

_COMMON = (
    click.option("--trace", "log", type=Path, required=True, help="Job log: CSV or Parquet."),
    click.option("--pools", type=Path, required=True, help="Pools file: pool,quota[,group,share]."),
    click.option(
        "--slot", type=Seconds(), default="5m", show_default=True, help="Jobs start on such a grid."
    ),
    click.option("--window", type=Seconds(), help="Take the jobs of so long only, from the first."),
    click.option("--form", type=click.Choice(list(FORMS)), default="step", show_default=True),
    click.option("--time-limit", "seconds", type=Seconds(), default="5m", show_default=True,
                 help="For the whole command."),
    click.option("--skip-invalid", is_flag=True, help="Leave invalid rows out and count them."),
    click.option("--out", type=Path, required=True, help="Folder for the results."),
)  # fmt: skip


def _common(command: Command) -> Command:
    for option in reversed(_COMMON):
        command = option(command)
    return command


@click.group()
def oracle() -> None:
    """What anyone could gain who knew the future: the least waiting that slows nobody."""


@oracle.command("solve")
@_common
@click.option("--beta", type=Number(0, 1e6), default=0.0, help="Price of unequal shares (Fig. 19).")
@click.option("--weighted", is_flag=True, help="Divide each job's waiting by its JCT alone.")
@click.option(
    "--slowdown-pct",
    type=Number(0, 1000),
    default=0.0,
    help="Let a job start later than alone by so much of its JCT alone.",
)
@click.option(
    "--slowdown-price",
    type=Number(0, 1e6),
    help="With --slowdown-pct: what a slot of that costs, besides the waiting.  "
    f"[default: {PRICE:g}]",
)
@click.option("--cutoffs", type=Path, help="jobs.csv of a schedule whose starts are the latest.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the search.")
def solve(
    log: Path, pools: Path, slot: float, window: float | None, form: str, seconds: float,
    skip_invalid: bool, out: Path, beta: float, weighted: bool, slowdown_pct: float,
    slowdown_price: float | None, cutoffs: Path | None, seed: int,
) -> None:  # fmt: skip
    """Find the schedule with the least waiting in which no job starts later than alone.

    Writes OUT/trace.csv (the jobs on the grid), pools.csv, jobs.csv, loans.csv, oracle.json, and
    the same plan with times as they are in the log in OUT/real. Ctrl-C keeps the best so far.
    """
    if slowdown_price is not None and not slowdown_pct:
        raise UserError("--slowdown-price: nobody may be late without --slowdown-pct; give both")
    price = PRICE if slowdown_price is None else slowdown_price
    goal = Goal(beta, weighted, slowdown_pct, price)
    trace, table, known = read_inputs(log, pools, window, skip_invalid=skip_invalid)
    latest = None if cutoffs is None else read_cutoffs(cutoffs, trace, known)
    inputs = [log, pools, *([cutoffs] if cutoffs else [])]
    asked = {
        **_asked(SOLVE, log, pools, slot, window, form, seconds, skip_invalid=skip_invalid),
        "beta": beta,
        "weighted": weighted,
        "slowdown_allowed_pct": slowdown_pct,
        "slowdown_price": price if slowdown_pct else None,
        "cutoffs": None if cutoffs is None else cutoffs.name,
        "cutoffs_jobs": len(latest or ()),
        "seed": seed,
    }
    with own_folder(out, inputs, RESULTS) as folder:
        task = Task(slot, seconds, form, goal, seed)
        outcome = run(trace, table, task, BEGAN, latest, Teller(slot, goal))
        write_outcome(folder, outcome, asked)
    if latest is not None:
        click.echo(
            f"cutoffs of {cutoffs}: {len(latest):,} of {counted(len(trace.arrivals), 'job')}"
        )
    show_outcome(outcome, cutoffs=latest is not None)
    click.echo(f"results: {out / 'oracle.json'}")
    if outcome.status == "interrupted":
        end_interrupted("the best schedule so far is kept")


def _asked(
    command: str, log: Path, pools: Path, slot: float, window: float | None, form: str,
    seconds: float, *, skip_invalid: bool,
) -> dict[str, Any]:  # fmt: skip
    """What the results depend on: enough to repeat the command."""
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
    skip_invalid: bool, out: Path,
) -> None:  # fmt: skip
    """Prove a bound on the waiting by the program's LP alone: seconds, where solving takes hours.

    Writes OUT/oracle.json. Ctrl-C keeps what is proven so far.
    """
    trace, table, _ = read_inputs(log, pools, window, skip_invalid=skip_invalid)
    instance = instance_of(trace, table, slot, Goal())
    refuse_too_large(instance.problems, form)
    with own_folder(out, [log, pools], RESULTS) as folder:
        bounding = Bounding(instance, form, BEGAN + seconds)
        status = bounding.run(BoundTeller())
        alone = waiting(instance.trace, instance.baseline)
        found = {
            **_asked(BOUND, log, pools, slot, window, form, seconds, skip_invalid=skip_invalid),
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
    none = f"none that slows nobody waits less than {duration(bounding.bound)}"
    proven = none if bounding.bound or status == "bound only" else "nothing is proven yet"
    click.echo(f"{status}: {proven}; alone {duration(alone)}")
    click.echo(f"results: {out / 'oracle.json'}")
    if status == "interrupted":
        end_interrupted("the bound so far is kept")


oracle.add_command(study_command)
oracle.add_command(sweep_command)
