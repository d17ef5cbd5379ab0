"""`sia replay`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from predictors.catalog import loads_class
from replay.cli.options import (
    QUEUES,
    check_solver,
    chosen,
    foreseen_by,
    policy_options,
)
from replay.cluster.cells_file import cells_for, checked_places
from replay.cluster.cells_write import CELLS, write_cells
from replay.cluster.shortages import shortages
from replay.deadlines.leases import check_leases
from replay.experiment.folder import holds_experiment
from replay.logs.limits import LEAST_HISTORY, MAX_PARTS
from replay.logs.nodes import NOWHERE, TOO_WIDE, checked_nodes, on_nodes
from replay.logs.preemptible import PreemptibleShare, mark, note_unstoppable, recalls, refuse_idle
from replay.logs.progress_file import with_progress
from replay.logs.read import read_pools, read_trace
from replay.logs.speeds import read_speeds
from replay.logs.trace import PoolTable, Trace, playable
from replay.report.terminal import (
    progress_bars,
    show_aims,
    show_foresight,
    show_policies,
    show_pools,
    show_verdict,
)
from replay.run.output import whole_folder, write_json, write_schedule, write_trace
from replay.run.parts import in_parts
from replay.run.predictors import trained_until
from replay.run.run import BASELINE, Settings, replay_all
from replay.run.schedule import in_gpus
from replay.run.summary import summarize
from replay.verdict.build import add_verdict, can_share
from replay.verdict.kinds import in_order
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.text import BoundedFloatType, Seconds
from sia.contract.labels import folder_of, name_of
from sia.limits import LAS_PROMOTE, LAS_THRESHOLDS, LEAST_PROMOTE
from sia.model import GpuNode, Options
from sia.policies import load, names
from sia.policies.shared.elastic import size_of
from sia.state.speeds import SpeedRow
from sia.wording import as_typed, counted, did_you_mean, duration, parse_seconds, some

if TYPE_CHECKING:
    from predictors.learning.model import Model

SUMMARY, REPORT = "summary.json", "report.html"


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option(
    "--pools", type=Path, required=True, help="Pools file: pool,quota[,from,group,share]."
)
@policy_options
@click.option(
    "--warmup",
    type=Seconds(),
    default="0",
    show_default=True,
    help="Leave jobs out of all measures that were submitted before this time of the log, like 2d.",
)
@click.option(
    "--spare-priority",
    "priorities",
    metavar="POOL=N",
    multiple=True,
    help="Offer spare GPUs first to the pool with the highest number; others have 0.",
)
@click.option(
    "--no-lending",
    metavar="POOL[:WINDOW]",
    multiple=True,
    help="Stop a pool from lending, in one window or in all.",
)
@click.option(
    "--las-queues",
    "las_thresholds",
    type=QUEUES,
    default=",".join(f"{threshold:g}s" for threshold in LAS_THRESHOLDS),
    show_default=True,
    help="GPU-time after which a job moves to the next of the LAS queues.",
)
@click.option(
    "--las-promote",
    type=BoundedFloatType(LEAST_PROMOTE, 1e6),
    default=LAS_PROMOTE,
    show_default=True,
    metavar="FACTOR",
    help="Move a job back to the first LAS queue once it has waited FACTOR times its run time.",
)
@click.option(
    "--closed-loop",
    is_flag=True,
    help="Submit the next job of a user earlier or later, as the one before it ends.",
)
@click.option(
    "--progress",
    "reports",
    type=Path,
    metavar="FILE",
    help="What jobs report while they run: job_id,done,speed[,regime][,gpus], a row for each "
    "report. Without it, column progress of the log, if any.",
)
@click.option(
    "--nodes",
    "nodes_file",
    type=Path,
    metavar="FILE",
    help="Nodes that differ: node,gpus,attributes, a row for each node (docs/reference/jvu.md).",
)
@click.option(
    "--speeds",
    "speeds_file",
    type=Path,
    metavar="FILE",
    help="With --nodes: model,gpus,nodes,speed, how fast each model runs by the nodes that it "
    "spreads over (docs/reference/chronus.md).",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of random forecasts and of --preemptible.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, MAX_PARTS),
    default=1,
    show_default=True,
    help="Cut each GPU into so many parts, on which elastic jobs run.",
)
@click.option(
    "--history",
    type=Path,
    metavar="FILE",
    help="Job log whose sizes make the queues of wfq.  [default: the log itself]",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Tell each job at its submission when it will end, under every policy. Elastic policies "
    "always do.",
)
@click.option(
    "--owners",
    is_flag=True,
    help="Under chronus and jvu each pool's own jobs come first on what the pool owns, as in a "
    "daemon. Without it they plan over all GPUs of a sharing group, as their papers do.",
)
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@json_option("Print summary.json instead of tables.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def replay(
    log: Path, pools: Path, policies: list[str] | None, cells_file: Path | None,
    forecast: str, durations: str,
    load_quantile: float | None, run_time_quantile: float | None, max_slowed_pct: float | None,
    windows: tuple[float, ...], recent: int, warmup: float, slack: float,
    preemptible: PreemptibleShare | None, recall: float,
    priorities: tuple[str, ...], no_lending: tuple[str, ...], resume_cost: float,
    las_thresholds: tuple[float, ...], las_promote: float, closed_loop: bool, reports: Path | None,
    nodes_file: Path | None, speeds_file: Path | None, seed: int, solver: str | None,
    solver_latency: float, predict: bool,
    parts: int, history: Path | None, owners: bool, skip_invalid: bool, no_report: bool,
    as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Replay a job log under one or more policies.

    Shows which jobs sharing speeds up and which it slows. Writes OUT/summary.json, OUT/report.html,
    and for each policy OUT/POLICY/jobs.csv and loans.csv; also segments.csv if jobs are preempted
    or resized, trace.csv with --closed-loop, and OUT/cells.toml with --cells.
    """
    if holds_experiment(out):
        raise UserError(f"{out}: holds results of sia experiment; choose another --out")
    table = _table(log, pools)
    policies = chosen(policies, cells_file, nodes_file)
    refuse_idle(policies, preemptible, recall)
    check_solver(policies, solver, solver_latency)
    spec, places = None, None
    if cells_file is not None:
        spec = cells_for(cells_file, table)
        places = checked_places(cells_file, spec, pools, table)
    whole = read_trace(log, skip_invalid=skip_invalid)
    nodes = checked_nodes(nodes_file, table)
    speeds = _speeds(speeds_file, nodes)
    narrow = not closed_loop and any(load(label).narrows for label in policies)
    trace = mark(
        on_nodes(playable(whole, table, places, narrow=narrow), nodes, policies), preemptible, seed
    )
    _refuse_empty(log, pools, trace)
    check_leases(policies, trace, table, resume_cost, durations, nodes)
    if reports is not None:
        trace = with_progress(trace, reports)
    whole_gpus = Log(trace, table)
    if parts > 1:
        if spec is not None or closed_loop or nodes:
            other = "--closed-loop" if closed_loop else "--nodes" if nodes else "--cells"
            raise UserError(f"--parts does not work with {other}; leave one out")
        trace, table = in_parts(trace, table, parts)
    options = Options(
        windows=windows,
        slack=slack,
        spare_priority=_priorities(priorities, table),
        no_lending=_no_lending(no_lending, table, windows),
        resume_cost=resume_cost,
        owners=owners,
    )
    params: dict[str, dict[str, Any]] = {
        "sia-recall": {"recall": recall},
        "las": {"thresholds": las_thresholds, "promote": las_promote},
    }
    quantiles = load_quantile, run_time_quantile
    forecast, model = foreseen_by(policies, forecast, durations, quantiles, max_slowed_pct, windows)
    settings = Settings(
        policies, forecast, durations, options, warmup, seed, recent, closed_loop,
        load_quantile, run_time_quantile, max_slowed_pct, model, spec,
        preemptible, params, solver, solver_latency, predict,
        None if history is None else sizes_of(history), parts, nodes, speeds,
    )  # fmt: skip
    if closed_loop:
        _refuse_foresight(settings)
    if model is not None:
        _note_training_data(model, whole, trace, warmup)
    _note_warmup(trace, warmup)
    _note_no_sharing(trace, table)
    trace.notes.extend(shortages(spec) if spec else [])
    note_unstoppable(trace, policies)
    planned = [SUMMARY, *(f"{folder_of(label)}/" for label in policies)]
    planned += [CELLS] if spec else []
    planned += [] if no_report else [REPORT]
    own = _foreign(out)
    inputs = _given(log, pools, cells_file, reports, history, nodes_file, speeds_file, *own)
    with whole_folder(out, inputs, _stale(out), planned) as folder:
        summary = _run(
            trace, table, settings, folder, report=not no_report, parts=parts, gpus=whole_gpus
        )
    if as_json:
        print_json(summary)
        return
    _show(trace, settings, summary)
    click.echo(f"results: {out / (SUMMARY if no_report else REPORT)}")


def _given(*paths: Path | None) -> list[Path]:
    """Return the paths that are not None."""
    return [path for path in paths if path is not None]


def _speeds(path: Path | None, nodes: Sequence[GpuNode]) -> tuple[SpeedRow, ...]:
    """Return the rows of the speeds file. Raises UserError without nodes."""
    if path is None:
        return ()
    if not nodes:
        raise UserError(
            "--speeds: how fast a job runs depends on its nodes; give --nodes, or leave it out"
        )
    return read_speeds(path).rows


def _table(log: Path, pools: Path) -> PoolTable:
    """Read the pools file. If the log is missing too, one error names both."""
    if not (log.exists() or pools.exists()):
        raise UserError(f"{log} and {pools}: no such files; check the paths")
    return read_pools(pools)


def _refuse_empty(log: Path, pools: Path, trace: Trace) -> None:
    """Raise UserError if no job can run."""
    if not trace.arrivals:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(trace.dropped.items()))
        named = "".join(f"; {note}" for note in trace.notes)
        fix = (
            "give a pools file with a row for each pool that the log's column pool names"
            if not trace.dropped.keys() & {NOWHERE, TOO_WIDE}
            else "give --nodes a file with the nodes and attributes that the log's columns prefers "
            "and strl name, with as many GPUs"
        )
        raise UserError(f"{log}: no job can run in the pools of {pools} ({reasons}{named}); {fix}")


def _earlier(out: Path) -> list[str]:
    """Return which of the report and the cells file an earlier replay wrote into the folder.

    Files with these names that no replay wrote are someone's own.
    """
    try:
        configuration = msgspec.json.decode((out / SUMMARY).read_bytes())["configuration"]
        return [REPORT, CELLS] if configuration["cells"] else [REPORT]
    except OSError:
        return []
    except (msgspec.DecodeError, KeyError, TypeError):
        return [REPORT]


def _stale(out: Path) -> list[str]:
    """Return the names of results of an earlier replay."""
    found = [path.name for path in out.iterdir()] if out.is_dir() else []
    return [name for name in found if name_of(name) in (*names(), *_earlier(out))]


def _foreign(out: Path) -> list[Path]:
    """Return the files that are not results, but that a result would replace."""
    return [out / name for name in (REPORT, CELLS) if name not in _earlier(out)]


class Log(NamedTuple):
    """A log and its pools, in whole GPUs."""

    trace: Trace
    table: PoolTable


def _run(
    trace: Trace,
    table: PoolTable,
    settings: Settings,
    folder: Path,
    *,
    report: bool,
    parts: int,
    gpus: Log,
) -> dict[str, Any]:
    """Replay all policies and write the results into `folder`. Return the summary."""
    with progress_bars() as progress:
        results = replay_all(trace, table, settings, progress)
    if parts > 1:
        results = [in_gpus(result, gpus.trace, parts) for result in results]
        table = gpus.table
    for result in results:
        own = folder / folder_of(result.schedule.policy)
        write_schedule(own, result.trace, result.schedule)
        if settings.closed_loop:
            write_trace(own / "trace.csv", result.trace)
    if settings.cells is not None:
        write_cells(folder / CELLS, settings.cells)
    summary = summarize(table, settings, results)
    add_verdict(table, settings, summary, results)
    write_json(folder / SUMMARY, summary)
    if report:
        from replay.report.report import write_report  # noqa: PLC0415  matplotlib takes its time

        click.echo("drawing the report", err=True)
        report_path = folder / REPORT
        write_report(report_path, table, settings, summary, results)
    return summary


def _show(trace: Trace, settings: Settings, summary: dict[str, Any]) -> None:
    show_verdict(summary["verdict"])
    for reason, count in sorted(trace.dropped.items()):
        click.echo(f"dropped: {counted(count, 'job')} {reason}")
    for note in trace.notes:
        click.echo(f"note: {note}")
    show_foresight(settings)
    dropped = sum(trace.dropped.values())
    _show_unmeasured(settings, summary)
    policies = summary["policies"]
    ordered = {name: policies[name] for name in in_order(settings, policies)}
    for name, measures in ordered.items():
        _show_notes(name, measures, dropped)
    if settings.closed_loop and not any(arrival.job.user for arrival in trace.arrivals):
        click.echo("note: no job has a user, so --closed-loop has no effect")
    if settings.closed_loop:
        click.echo(
            "note: each speed-up below compares a policy with fcfs on that policy's submissions"
        )
    show_policies(ordered)
    show_aims(ordered)
    show_pools(ordered)


def _show_notes(name: str, measures: dict[str, Any], dropped: int) -> None:
    """Print notes that explain a policy's measures."""
    if measures["never_ended"] and name != BASELINE:
        lost = counted(measures["never_ended"], "job")
        click.echo(f"note: under {name} {lost} never ended")
    if reports := measures.get("progress_reports"):
        click.echo(f"note: under {name} jobs reported progress {counted(reports, 'time')}")
    if failed := measures.get("programs_failed"):
        why = measures["programs_failed_why"]
        click.echo(f"note: under {name} {failed:,} of {measures['programs']:,} programs were not "
                   f"solved: {why}")  # fmt: skip
    if too_wide := measures.get("too_wide", 0):
        click.echo(f"note: under {name} {counted(too_wide, 'job')} could not run, wider than "
                   "the pool")  # fmt: skip
    if unsubmitted := measures["skipped"] - dropped - too_wide:
        click.echo(f"note: under {name} {unsubmitted:,} jobs were never submitted, because an "
                   "earlier job of their user never ended")  # fmt: skip
    if recalls(name) and not measures["interruptions"]:
        click.echo(f"note: under {name} no job had to be stopped")
    if stops := measures["interruptions"]:
        hours = measures["gpu_hours_thrown_away"]
        click.echo(f"note: under {name} jobs were stopped or resized {counted(stops, 'time')}, "
                   f"which lost {hours:,.1f} GPU-hours of work")  # fmt: skip
    if name != BASELINE and (sooner := measures.get("ends_sooner_s")) is not None:
        when = "sooner" if sooner >= 0 else "later"
        click.echo(f"note: under {name} jobs end {duration(abs(sooner))} {when}, on average, "
                   f"than under {BASELINE} without --closed-loop")  # fmt: skip


def _show_unmeasured(settings: Settings, summary: dict[str, Any]) -> None:
    """Print how many jobs never ended in the baseline."""
    lost = {name: m["baseline_never_ended"] for name, m in summary["policies"].items()}
    for name, count in lost.items() if settings.closed_loop else [*lost.items()][:1]:
        where = f" on the log of {name}" if settings.closed_loop else ""
        if count:
            click.echo(f"note: {counted(count, 'job')} never ended under {BASELINE}{where} and "
                       f"{'is' if count == 1 else 'are'} in no measure")  # fmt: skip


def _refuse_foresight(settings: Settings) -> None:
    """Raise UserError for policies that know arrivals, which depend on the policy here."""
    for label in settings.policies:
        needs = load(settings.choice(label).policy).needs
        if load(settings.choice(label).policy).fluid:
            raise UserError(f"--closed-loop: {label} is a fluid; leave it out of --policy")
        if needs.future:
            raise UserError(
                f"--closed-loop: {label} must know all jobs in advance; leave it out of --policy"
            )
        if needs.loads and loads_class(settings.choice(label).forecast).needs_log:
            raise UserError(
                f"--closed-loop: {label} cannot have a perfect forecast: arrivals depend on the "
                "policy; use another --forecast, like peaks"
            )


def _note_warmup(trace: Trace, warmup: float) -> None:
    """Add a note if the warm-up excludes no job or all jobs."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    if warmup > last:
        trace.notes.append(
            f"no job is measured: --warmup ends after the last submission, at {last:,.0f} s"
        )
    elif 0 < warmup <= first:
        trace.notes.append(
            f"--warmup {as_typed(warmup)} has no effect: it counts from second 0, and the first "
            f"job was submitted at {first:,.0f} s"
        )


def _note_training_data(model: Model, whole: Trace, trace: Trace, warmup: float) -> None:
    """Add a note if a model is measured on its own training data."""
    until = trained_until(model, whole)
    if until is not None and warmup < until:
        trace.notes.append(
            f"the model was trained on this log until second {ceil(until)}, and earlier jobs are "
            f"measured too; leave them out with --warmup {ceil(until)}s"
        )


def _note_no_sharing(trace: Trace, table: PoolTable) -> None:
    """Add a note if no pool has another pool to share with."""
    if not can_share(table):
        trace.notes.append(
            "every pool is alone in its sharing group, so that none can lend; sia trace split "
            "splits a pool"
        )


def _priorities(given: tuple[str, ...], table: PoolTable) -> dict[str, int]:
    priorities = {}
    for text in given:
        pool, equals, value = text.rpartition("=")
        try:
            priorities[_known(pool if equals else text, table, "--spare-priority")] = int(value)
        except ValueError:
            raise UserError(f"--spare-priority {text}: write POOL=N with a whole number") from None
    return priorities


def sizes_of(path: Path) -> list[float]:
    """Return the sizes of the jobs of a history, in GPU-seconds. Raises UserError."""
    sizes = [size_of(job, duration) for job, duration in read_trace(path).arrivals]
    if len(sizes) < LEAST_HISTORY:
        raise UserError(
            f"{path}: a history of {counted(len(sizes), 'job')} is too short; give one of at least "
            f"{LEAST_HISTORY} jobs"
        )
    if min(sizes) == max(sizes):
        raise UserError(
            f"{path}: all jobs have the same size, which gives no queues; give another history"
        )
    return sizes


def _no_lending(
    given: tuple[str, ...], table: PoolTable, windows: tuple[float, ...]
) -> frozenset[tuple[str, float]]:
    pairs = []
    pools = {pool.name for pool in table.pools}
    for text in given:
        pool, colon, window = text.rpartition(":")
        if text in pools or not colon:
            pairs += [(_known(text, table, "--no-lending"), w) for w in windows]
            continue
        try:
            seconds = parse_seconds(window)
        except ValueError as error:
            raise UserError(f"--no-lending {text}: {error}") from None
        if seconds not in windows:
            raise UserError(f"--no-lending {text}: {window} is not one of --windows")
        pairs.append((_known(pool, table, "--no-lending"), seconds))
    return frozenset(pairs)


def _known(pool: str, table: PoolTable, option: str) -> str:
    known = sorted(p.name for p in table.pools)
    if pool not in known:
        close = did_you_mean(pool, known) or f" The pools are {some(known)}."
        raise UserError(f"{option}: no pool {pool!r}.{close}")
    return pool
