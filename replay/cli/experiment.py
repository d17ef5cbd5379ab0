"""`sia experiment`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cells.layout.spec import only_chain
from replay.cli.options import (
    check_solver,
    chosen,
    foreseen_by,
    planners,
    policy_options,
)
from replay.cli.trace import load_bounds
from replay.cluster.cells_file import node_size, types_of
from replay.cluster.text_map import described
from replay.deadlines.leases import refuse_costs
from replay.experiment.design import Piece, PieceDesign, Sizes, plan_pieces, plan_sizes
from replay.experiment.folder import (
    COMMAND,
    TABLE,
    VERDICT,
    opened,
    read_runs,
    replace_results,
    writable,
)
from replay.experiment.run import RunContext, checksum, run_all, unfinished
from replay.experiment.table import HEADER, rows_of, show_medians
from replay.logs.limits import MAX_RUNS
from replay.logs.preemptible import PreemptibleShare, mark, note_unstoppable, refuse_idle
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace
from replay.report.terminal import PRINT_EVERY, progress_bars, show_foresight, show_verdict
from replay.run.output import write_rows
from replay.run.predictors import trained_until
from replay.run.run import BASELINE, Settings
from replay.verdict.kinds import in_order
from sia import __version__
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.text import BoundedFloatType, Seconds
from sia.limits import MAX_QUOTA
from sia.model import Options
from sia.wording import DAY, WEEK, as_typed, counted, duration

if TYPE_CHECKING:
    from cells.layout.spec import Spec
    from predictors.learning.model import Model

QUEUES, WEEKS, RUNS, LOAD = [4], 2.0, 20, "0.6-1.1"
WARMUP = 2 * DAY
"""Default warm-up of a piece of the log in seconds (§6.1); a whole log has none."""

INTERRUPTED = 130
"""Exit code, as `sia` has it after Ctrl-C or SIGTERM."""


class Numbers(click.ParamType[list[Any]]):
    """Numbers separated by commas, each once, between two bounds."""

    name = "numbers"

    def __init__(self, kind: type[int | float], least: float, most: float) -> None:
        """Parse whole numbers with `int`, others with `float`."""
        self._kind, self._least, self._most = kind, least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Return the numbers in the order given."""
        try:
            numbers = [self._kind(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value}: write numbers separated by commas", param, ctx)
        if not all(self._least <= number <= self._most for number in numbers):
            self.fail(f"{value}: write numbers from {self._least:g} to {self._most:g}", param, ctx)
        return list(dict.fromkeys(numbers))


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option(
    "--pools", type=Path, help="Pools file: the pools to draw from; with --size, their quotas."
)
@click.option(
    "--queues",
    type=Numbers(int, 1, 10_000),
    help=f"Numbers of pools in a run, separated by commas.  [default: {QUEUES[0]}]",
)
@click.option(
    "--weeks",
    type=BoundedFloatType(0.01, 520),
    help=f"Length of the piece of a run, in weeks.  [default: {WEEKS:g}]",
)
@click.option(
    "--runs",
    type=click.IntRange(1, MAX_RUNS),
    help=f"Runs for each number of pools.  [default: {RUNS}]",
)
@click.option(
    "--load",
    metavar="L|L-H",
    help=f"Scale each pool's quota to a load drawn from L to H.  [default: {LOAD}]",
)
@click.option(
    "--size",
    "sizes",
    type=Numbers(float, 0.001, 1000),
    help="Replay the whole log instead, with all quotas multiplied by each of these factors.",
)
@click.option(
    "--withdraw",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --size: replay each size again without the N most idle pools sharing.",
)
@policy_options
@click.option(
    "--from",
    "since",
    type=Seconds(),
    help="Draw only pieces that begin at this time of the log or later, like 62d.",
)
@click.option(
    "--warmup",
    type=Seconds(),
    help="Leave jobs submitted before this time out of all measures.  [default: 2d; with --size: "
    "0]",
)
@click.option(
    "--quota-step",
    type=click.IntRange(1, MAX_QUOTA),
    help="Round quotas up to a multiple of this.  [default: 1; with --cells: GPUs of a node]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Number of processes.  [default: one for each CPU]"
)
@click.option("--keep", is_flag=True, help="Keep the log, pools and schedules of each run.")
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them.")
@json_option("Print the rows of experiments.csv as JSON.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def experiment(
    log: Path, pools: Path | None, queues: list[int] | None, weeks: float | None,
    runs: int | None, load: str | None, sizes: list[float] | None, withdraw: int,
    policies: list[str] | None, cells_file: Path | None, forecast: str,
    durations: str, load_quantile: float | None, run_time_quantile: float | None,
    max_slowed_pct: float | None, windows: tuple[float, ...], recent: int, slack: float,
    preemptible: PreemptibleShare | None, recall: float,
    solver: str | None, solver_latency: float,
    since: float | None, warmup: float | None, resume_cost: float, quota_step: int | None,
    seed: int, jobs: int | None, keep: bool, skip_invalid: bool, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Compare policies over many pieces or sizes of a job log.

    Follows §6.1. Writes OUT/experiments.csv, OUT/report.html, OUT/figures and OUT/runs. To continue
    an interrupted experiment, repeat its command.
    """
    policies = chosen(policies, cells_file)
    refuse_idle(policies, preemptible, recall)
    check_solver(policies, solver, solver_latency)
    types = None if cells_file is None else types_of(cells_file)
    step = _step(quota_step, types)
    design = _design(pools, queues, weeks, runs, load, sizes, withdraw, seed, since, step)
    options = Options(windows=windows, slack=slack, resume_cost=resume_cost)
    if warmup is None:
        warmup = WARMUP if isinstance(design, PieceDesign) else 0.0
    policies = list(dict.fromkeys([BASELINE, *policies]))  # runs anyway, and is what "before" means
    quantiles = load_quantile, run_time_quantile
    forecast, model = foreseen_by(policies, forecast, durations, quantiles, max_slowed_pct, windows)
    settings = Settings(
        policies, forecast, durations, options, warmup, seed, recent,
        load_quantile=load_quantile, run_time_quantile=run_time_quantile,
        max_slowed_pct=max_slowed_pct, model=model, cells=types,
        preemptible=preemptible, params={"sia-recall": {"recall": recall}},
        solver=solver, solver_latency=solver_latency,
    )  # fmt: skip
    table = None if pools is None else read_pools(pools)
    work = RunContext(out, log, checksum(log), settings, keep, skip_invalid, table)
    facts = _facts(work, design, pools, cells_file)
    trace = read_trace(log, skip_invalid=skip_invalid)
    refuse_costs(policies, trace, resume_cost)
    note_unstoppable(mark(trace, preemptible, seed), policies)
    _refuse_warmup(trace, design, warmup)
    if model is not None:
        _refuse_known(model, trace, design, warmup)
    pieces = _plan(trace, table, design, in_cells=types is not None)
    with _resumable(out, pieces), opened(out, facts):
        _run(pieces, work, trace, jobs or len(os.sched_getaffinity(0)))
        found = read_runs(out, [piece.run for piece in pieces])
        rows = [row for run in found for row in rows_of(run)]
        with writable(out):
            shown = facts if types is None else {**facts, "cells": _cells(types)}
            replace_results(out, partial(_write_results, found, rows, shown))
    if as_json:
        print_json(rows)
        return
    show_verdict(msgspec.json.decode((out / VERDICT).read_bytes()))
    for reason, count in sorted(trace.dropped.items()):
        click.echo(f"dropped: {counted(count, 'job')} {reason}")
    for note in trace.notes:
        click.echo(f"note: {note}")
    show_foresight(settings)
    show_medians(rows, in_order(settings, policies), by_size=isinstance(design, Sizes))
    click.echo(f"results: {out / 'report.html'}")


def _design(
    pools: Path | None, queues: list[int] | None, weeks: float | None,
    runs: int | None, load: str | None, sizes: list[float] | None, withdraw: int, seed: int,
    since: float | None, step: int,
) -> PieceDesign | Sizes:  # fmt: skip
    """Return the design that the options describe. Raises UserError for a mix of both kinds."""
    given = {
        "--queues": queues, "--weeks": weeks, "--runs": runs, "--load": load, "--from": since,
    }  # fmt: skip
    conflicting = [option for option, value in given.items() if value is not None]
    if sizes is None:
        if withdraw:
            raise UserError("--withdraw needs --size; give both")
        length = (weeks or WEEKS) * WEEK
        loads = load_bounds(load or LOAD)
        return PieceDesign(queues or QUEUES, runs or RUNS, length, loads, seed, since, step)
    if conflicting:
        raise UserError(
            f"{conflicting[0]} does not work with --size, which replays the whole log; omit one"
        )
    if pools is None:
        raise UserError("--size needs --pools, whose quotas it multiplies; give both")
    return Sizes(sizes, withdraw, step)


def _step(step: int | None, types: Spec | None) -> int:
    """Return the multiple to which quotas are rounded; with cells by default the GPUs of a node."""
    if types is None:
        return step or 1
    node = node_size(types)
    if step is not None and step % node:
        raise UserError(
            f"--quota-step {step}: must be a multiple of {node}, the GPUs of a node; use one, or "
            "leave it out"
        )
    return step or node


def _facts(
    work: RunContext, design: PieceDesign | Sizes, pools: Path | None, cells: Path | None
) -> dict[str, Any]:
    """Return the settings that results depend on.

    The number of runs is not among them, so that a later command can add runs.
    """
    if isinstance(design, PieceDesign):
        kind = {
            "queues": design.queues,
            "length_s": design.length,
            "load": design.loads,
            "since_s": design.since,
        }
    else:
        kind = {"sizes": design.sizes, "withdraw": design.withdraw}
    settings = work.settings
    solves = {"solver": settings.solver, "solver_latency_s": settings.solver_latency}
    return {
        "command": COMMAND,
        "version": __version__,
        "trace_sha256": work.checksum,
        "pools_sha256": None if pools is None else checksum(pools),
        "cells_sha256": None if cells is None else checksum(cells),
        **kind,
        "policies": settings.policies,
        "forecast": settings.forecast,
        "durations": settings.durations,
        "windows_s": settings.options.windows,
        "recent_windows": settings.recent,
        "load_quantile": settings.load_quantile,
        "run_time_quantile": settings.run_time_quantile,
        "max_slowed_pct": settings.max_slowed_pct,
        "model": None if settings.model is None else settings.model.checksum,
        "slack": settings.options.slack,
        "resume_cost_s": settings.options.resume_cost,
        "warmup_s": settings.warmup,
        "quota_step": design.step,
        "preemptible": settings.preemptible,
        "recall": settings.policy("sia-recall").params.recall,
        **(solves if planners(settings.policies) else {}),
        "seed": settings.seed,
        "keep": work.keep,
        "skip_invalid": work.skip_invalid,
    }


def _cells(types: Spec) -> str:
    """Describe cells, like `rack of 2 node of 8 gpu, 8 GPUs a node`."""
    return f"{described(only_chain(types.types))}, {counted(node_size(types), 'GPU')} a node"


def _refuse_warmup(trace: Trace, design: PieceDesign | Sizes, warmup: float) -> None:
    """Raise UserError for a warm-up that excludes all jobs or none."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    end = design.length if isinstance(design, PieceDesign) else last
    if warmup > 0 and warmup >= end:
        default = " (the default)" if isinstance(design, PieceDesign) and warmup == WARMUP else ""
        raise UserError(
            f"--warmup {as_typed(warmup)}{default} leaves no job to measure: the last is "
            f"submitted by {duration(end)}; give a shorter one"
        )
    if isinstance(design, Sizes) and 0 < warmup <= first:
        raise UserError(
            f"--warmup {as_typed(warmup)} has no effect: it counts from second 0, and the first "
            f"job was submitted at {first:,.0f} s; add this time"
        )


def _refuse_known(model: Model, trace: Trace, design: PieceDesign | Sizes, warmup: float) -> None:
    """Raise UserError if a model would be measured on its own training data."""
    until = trained_until(model, trace)
    if until is None:
        return
    measured = design.since or 0.0 if isinstance(design, PieceDesign) else warmup
    if measured < until:
        option = "--from" if isinstance(design, PieceDesign) else "--warmup"
        raise UserError(
            f"--forecast: the model was trained on this log until second {ceil(until)}; measure "
            f"only later jobs, with {option} {ceil(until)}s"
        )


def _plan(
    trace: Trace, table: PoolTable | None, design: PieceDesign | Sizes, *, in_cells: bool
) -> list[Piece]:
    if isinstance(design, PieceDesign):
        return plan_pieces(trace, table, design)
    assert table is not None, "--size without --pools is refused"
    if in_cells and table.changes:
        raise UserError(
            f"--cells: pool {table.changes[0].pool}'s quota changes over time, its cells do not; "
            "give a pools file with one row for each pool"
        )
    return plan_sizes(trace, table, design)


@contextmanager
def _resumable(out: Path, pieces: Sequence[Piece]) -> Iterator[None]:
    """On Ctrl-C, print how many runs are done, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        done = len(pieces) - len(unfinished(out, pieces))
        click.echo(
            f"sia: interrupted; {done} of {len(pieces)} runs are done, repeat the command to "
            "continue",
            err=True,
        )
        raise click.exceptions.Exit(INTERRUPTED) from None


def _run(pieces: Sequence[Piece], work: RunContext, trace: Trace, jobs: int) -> None:
    """Do the unfinished runs and show the progress."""
    todo = unfinished(work.folder, pieces)
    done = len(pieces) - len(todo)
    if done:
        click.echo(f"{done} of {len(pieces)} runs were done before", err=True)
    with progress_bars(_ProgressLines(done)) as progress:

        def run_done() -> None:
            nonlocal done
            done += 1
            progress("runs", done, len(pieces))

        progress("runs", done, len(pieces))
        with writable(work.folder):
            run_all(todo, work, trace, jobs, run_done)


class _ProgressLines:
    """Progress without a terminal: a line every PRINT_EVERY seconds."""

    def __init__(self, before: int) -> None:
        self._before = before
        self._began = self._printed = monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        if done == self._before or (done < total and now - self._printed < PRINT_EVERY):
            return
        self._printed = now
        to_go = (now - self._began) / (done - self._before) * (total - done)
        rest = f", about {duration(to_go)} to go" if done < total else ""
        click.echo(f"{done} of {total} {what} done{rest}", err=True)


def _write_results(
    runs: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    folder: Path,
) -> None:
    from replay.experiment.report import write_experiment_report  # noqa: PLC0415  matplotlib is slow

    write_rows(folder / TABLE, HEADER, ([row[key] for key in HEADER] for row in rows))
    click.echo("drawing the report", err=True)
    write_experiment_report(folder, runs, facts)
