"""Run an experiment: independent runs in parallel processes.

A run depends only on its piece, so the results do not depend on the number of processes or on
interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from predictors.catalog import learns
from replay.cluster.cells_file import places_of, whole_spec
from replay.cluster.cells_write import CELLS, write_cells
from replay.deadlines.leases import refuse_profilers
from replay.experiment.design import Piece
from replay.experiment.folder import run_folder, whole_run
from replay.experiment.verdict import sharing_of
from replay.logs.preemptible import mark
from replay.logs.read import read_trace, reading
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.hourly_use import hourly_use
from replay.run.output import write_json, write_pools, write_schedule, write_trace
from replay.run.run import BASELINE, Settings, replay_all, replay_one
from replay.run.schedule import Result
from replay.run.starts import starts_of
from replay.run.summary import owned_seconds, span, summarize
from replay.run.workers import signals_held, worker_processes
from sia.console.errors import UserError
from sia.contract.labels import folder_of
from sia.policies import load


class RunContext(NamedTuple):
    """The common inputs of all runs. `keep` also writes the log, pools and schedules of each run.

    If the log has no waits, the history for forecasts is replayed in the pools of `table`.
    """

    folder: Path
    log: Path
    checksum: str
    settings: Settings
    keep: bool = False
    skip_invalid: bool = False
    table: PoolTable | None = None


class WholeLog(NamedTuple):
    """The whole log, and the start times of its jobs if a forecast learns from history."""

    trace: Trace
    starts: Mapping[str, float]


def log_with_starts(trace: Trace, work: RunContext) -> WholeLog:
    """Return the log, with start times if a policy needs them. Raises UserError."""
    settings = work.settings
    if not any(learns(settings.choice(label)) for label in settings.policies):
        return WholeLog(trace, {})
    runnable = trace if work.table is None else playable(trace, work.table)
    pairs = zip(runnable.arrivals, starts_of(runnable, work.table), strict=True)
    return WholeLog(trace, {a.job.id: start for a, start in pairs if start is not None})


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file. Raises UserError."""
    with reading(path):
        return sha256(path.read_bytes()).hexdigest()


def unfinished(folder: Path, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces whose runs are not finished."""
    return [piece for piece in pieces if not run_folder(folder, piece.run).exists()]


def run_all(
    pieces: Sequence[Piece], work: RunContext, trace: Trace, jobs: int, run_done: Callable[[], None]
) -> None:
    """Do these runs in `jobs` processes, and call `run_done` after each.

    Raises UserError or OSError if a run cannot be written; finished runs stay.
    """
    if min(jobs, len(pieces)) < 2:
        log = log_with_starts(trace, work)
        for piece in pieces:
            run_piece(log, piece, work)
            run_done()
        return
    try:
        with worker_processes(min(jobs, len(pieces)), _begin_worker, work) as executor:
            with signals_held():
                futures = [executor.submit(_run_in_worker, piece) for piece in pieces]
            for future in as_completed(futures):
                future.result()
                run_done()
    except BrokenProcessPool:
        raise UserError(
            "a process of this experiment was killed, perhaps because memory ran out; repeat the "
            "command with fewer --jobs to continue"
        ) from None


class _Worker:
    """The state of a worker process between runs."""

    work: RunContext
    log: WholeLog | None = None


def _begin_worker(work: RunContext) -> None:
    _Worker.work = work


def _run_in_worker(piece: Piece) -> None:
    work = _Worker.work
    if _Worker.log is None:
        if checksum(work.log) != work.checksum:
            raise UserError(f"{work.log}: changed while the experiment ran; repeat the command")
        _Worker.log = log_with_starts(read_trace(work.log, skip_invalid=work.skip_invalid), work)
    run_piece(_Worker.log, piece, work)


def run_piece(whole: WholeLog, piece: Piece, work: RunContext) -> None:
    """Replay one piece under all policies, and write its folder atomically."""
    settings = work.settings
    log = mark(piece.cut(whole.trace), settings.preemptible, settings.seed)
    table, withdrawn = piece.table, []
    past = piece.past(*whole) if whole.starts else None
    places = None
    if settings.cells is not None:
        spec = whole_spec(settings.cells, table)
        settings, places = settings._replace(cells=spec), places_of(spec, table)
    labels = map(settings.choice, settings.policies)
    narrow = any(load(choice.policy).narrows for choice in labels)
    runnable = playable(log, table, places, narrow=narrow)
    if piece.withdraw:
        withdrawn = _most_idle(runnable, table, settings)[: piece.withdraw]
        table = _without_sharing(table, withdrawn)
    refuse_profilers(settings.policies, runnable, table)
    results = replay_all(runnable, table, settings, past=past)
    facts = _describe(piece, table, withdrawn, results, settings)
    with whole_run(work.folder, piece.run) as folder:
        write_json(folder / "run.json", facts)
        if work.keep:
            write_trace(folder / "trace.csv", log)
            write_pools(folder / "pools.csv", table)
            if settings.cells is not None:
                write_cells(folder / CELLS, settings.cells)
            for result in results:
                write_schedule(
                    folder / folder_of(result.schedule.policy), result.trace, result.schedule
                )


def _most_idle(trace: Trace, table: PoolTable, settings: Settings) -> list[str]:
    """Return the pools in descending order of unused GPU-time under FCFS."""
    begin, end = span(trace, settings)
    unused = owned_seconds(table, begin, end)
    for run in replay_one(trace, table, BASELINE, settings, None).runs(trace):
        pool = trace.arrivals[run.position].job.pool
        unused[pool] -= run.width * max(0.0, min(run.end, end) - max(run.start, begin))
    return sorted(unused, key=lambda pool: (-unused[pool], pool))


def _without_sharing(table: PoolTable, withdrawn: Sequence[str]) -> PoolTable:
    """Return the table with `withdrawn` pools not sharing."""
    pools = [
        msgspec.structs.replace(pool, share=pool.share and pool.name not in withdrawn)
        for pool in table.pools
    ]
    return PoolTable(pools, table.changes)


def _describe(
    piece: Piece,
    table: PoolTable,
    withdrawn: Sequence[str],
    results: Sequence[Result],
    settings: Settings,
) -> dict[str, Any]:
    """Return the contents of `run.json`."""
    summary = summarize(table, settings, results)
    pools = next(iter(summary["policies"].values()))["pools"]
    policies, by_pool = {}, {}
    for result in results:
        measures = summary["policies"][result.schedule.policy]
        by_pool[result.schedule.policy] = measures.pop("pools")
        measures["hourly_pct"] = hourly_use(result, table, settings)
        policies[result.schedule.policy] = measures
    return {
        "run": piece.run,
        "seed": settings.seed,
        "queues": len(table.pools),
        "size": piece.size,
        "withdrawn": list(withdrawn),
        "from_s": piece.begin,
        "length_s": piece.length,
        "warmup_s": settings.warmup,
        "pools": [
            {
                "pool": name,
                "quota": pool["quota"],
                "load": piece.loads.get(name, _ratio(pool["load_pct"])),
                "jobs": pool["jobs"],
            }
            for name, pool in pools.items()
        ],
        "jobs": summary["trace"]["jobs"],
        "dropped": summary["trace"]["dropped"],
        "policies": policies,
        "sharing": sharing_of(table, settings, results, by_pool),
    }


def _ratio(percentage: float | None) -> float | None:
    return None if percentage is None else percentage / 100
