"""`sia oracle`."""

from __future__ import annotations

from time import perf_counter

BEGAN = perf_counter()  # before numpy and the solver are loaded: limits are for the whole command

# ruff: noqa: E402
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from oracle.cutoffs import read_cutoffs
from oracle.forms import FORMS
from oracle.inputs import read_inputs
from oracle.problem import Goal
from oracle.run import Task, instance_of, lp_bound, run, waiting
from oracle.size import refuse_too_large
from oracle.study_commands import study_command
from oracle.sweep_commands import sweep_command
from oracle.tell import Teller
from oracle.write import PLANNED, write_outcome
from replay.options import Number
from replay.output import whole_folder, write_json
from replay.text import Seconds, decimal, duration

Command = TypeVar("Command", bound=Callable[..., Any])

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
    default=1.0,
    show_default=True,
    help="What a slot of that costs, besides the waiting.",
)
@click.option("--cutoffs", type=Path, help="jobs.csv of a schedule whose starts are the latest.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the search.")
def solve(
    log: Path, pools: Path, slot: float, window: float | None, form: str, seconds: float,
    out: Path, beta: float, weighted: bool, slowdown_pct: float, slowdown_price: float,
    cutoffs: Path | None, seed: int,
) -> None:  # fmt: skip
    """Find the schedule with the least waiting in which no job starts later than alone.

    Writes OUT/trace.csv (the jobs on the grid), pools.csv, jobs.csv, loans.csv, oracle.json, and
    the same starts with durations as they are in OUT/real. Ctrl-C keeps the best so far.
    """
    trace, table = read_inputs(log, pools, window)
    goal = Goal(beta, weighted, slowdown_pct, slowdown_price)
    latest = None if cutoffs is None else read_cutoffs(cutoffs)
    task = Task(slot, seconds, form, goal, seed)
    inputs = [log, pools, *([cutoffs] if cutoffs else [])]
    with whole_folder(out, inputs, (), PLANNED) as folder:
        outcome = run(trace, table, task, BEGAN, latest, Teller(slot, goal))
        write_outcome(folder, outcome)
    click.echo(
        f"{outcome.status}: total waiting {duration(outcome.wait)}, no schedule has less than "
        f"{duration(outcome.wait_bound)}, gap {decimal(100 * outcome.gap)} %; "
        f"alone {duration(outcome.alone)}"
    )
    click.echo(f"results: {out / 'oracle.json'}")


@oracle.command("bound")
@_common
def bound(
    log: Path, pools: Path, slot: float, window: float | None, form: str, seconds: float, out: Path
) -> None:  # fmt: skip
    """Prove a bound on the waiting by the program's LP alone: seconds, where solving takes hours.

    Writes OUT/oracle.json.
    """
    trace, table = read_inputs(log, pools, window)
    instance = instance_of(trace, table, slot, Goal())
    size = refuse_too_large(instance.problems, form)
    with whole_folder(out, [log, pools], (), ("oracle.json",)) as folder:
        until = BEGAN + seconds
        total = lp_bound(instance, form, until)
        alone = waiting(instance.trace, instance.baseline)
        found = {
            "status": "bound only", "total_wait_s": None, "bound_wait_s": total, "gap": None,
            "baseline_wait_s": alone, "seconds": perf_counter() - BEGAN, "slot_s": slot,
            "form": form, "variables": size.variables, "nonzeros": size.nonzeros,
        }  # fmt: skip
        write_json(folder / "oracle.json", found)
    click.echo(f"no schedule waits less than {duration(total)}; alone {duration(alone)}")
    click.echo(f"results: {out / 'oracle.json'}")


oracle.add_command(study_command)
oracle.add_command(sweep_command)
