"""The runs of an experiment: each on its own, as many at once as there are processes.

A run depends on its piece alone, so the results are the same however many processes there are, and
whichever of them was killed and when.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import msgspec

from predictors.catalog import learns
from replay.cluster.cells_file import places_of, whole_spec
from replay.cluster.cells_write import CELLS, write_cells
from replay.experiment.design import Piece
from replay.experiment.folder import run_folder, whole_run
from replay.logs.preemptible import mark
from replay.logs.read import read_trace, reading
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.hourly_use import hourly_use
from replay.run.output import write_json, write_pools, write_schedule, write_trace
from replay.run.run import BASELINE, Settings, replay_all, replay_one
from replay.run.schedule import Result
from replay.run.starts import starts_of
from replay.run.summary import owned_seconds, span, summarize
from sia.console.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunContext(NamedTuple):
    """What the runs of an experiment have in common; `keep` says to write schedules too.

    In the pools of `table`, unless the log says when, the jobs ran that forecasts learn from.
    """

    folder: Path
    log: Path
    checksum: str
    settings: Settings
    keep: bool = False
    skip_invalid: bool = False
    table: PoolTable | None = None


class WholeLog(NamedTuple):
    """The whole log, and when its jobs started, if forecasts are to learn from that."""

    trace: Trace
    starts: Mapping[str, float]


def as_it_ran(trace: Trace, work: RunContext) -> WholeLog:
    """The log and its starts, if anybody learns from them. Raises UserError as `starts_of` does."""
    settings = work.settings
    if not any(learns(settings.choice(label)) for label in settings.policies):
        return WholeLog(trace, {})
    runnable = trace if work.table is None else playable(trace, work.table)
    pairs = zip(runnable.arrivals, starts_of(runnable, work.table), strict=True)
    return WholeLog(trace, {a.job.id: start for a, start in pairs if start is not None})


def checksum(path: Path) -> str:
    """SHA-256 of a file. Raises UserError."""
    with reading(path):
        return sha256(path.read_bytes()).hexdigest()


def left(folder: Path, pieces: Sequence[Piece]) -> list[Piece]:
    """The runs that are not finished."""
    return [piece for piece in pieces if not run_folder(folder, piece.run).exists()]


def run_all(
    pieces: Sequence[Piece], work: RunContext, trace: Trace, jobs: int, tell: Callable[[], None]
) -> None:
    """Do these runs in so many processes, and tell of each that is finished.

    Raises UserError or OSError for what keeps one from being written; those finished stay.
    """
    if min(jobs, len(pieces)) < 2:
        log = as_it_ran(trace, work)
        for piece in pieces:
            run_piece(log, piece, work)
            tell()
        return
    executor = ProcessPoolExecutor(
        min(jobs, len(pieces)), get_context("spawn"), _begin_worker, (work,)
    )
    try:
        with _signals_held():  # processes begin with it, and leave signals to this one
            futures = [executor.submit(_run_in_worker, piece) for piece in pieces]
        for future in as_completed(futures):
            future.result()
            tell()
        executor.shutdown()
    except BrokenProcessPool:
        raise UserError(
            "a process of this experiment was killed, perhaps because memory ran out; repeat the "
            "command with fewer --jobs to continue"
        ) from None
    finally:
        for process in active_children():
            process.kill()
        executor.shutdown(cancel_futures=True)


@contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """What a process of its own keeps from run to run."""

    work: RunContext
    log: WholeLog | None = None


def _begin_worker(work: RunContext) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    Thread(target=_end_with_parent, daemon=True).start()
    _Worker.work = work


def _end_with_parent() -> None:
    """Write no more when the process that may be repeated is gone."""
    parent = parent_process()
    assert parent is not None, "a worker was started by some process"
    wait([parent.sentinel])
    os._exit(1)


def _run_in_worker(piece: Piece) -> None:
    work = _Worker.work
    if _Worker.log is None:
        if checksum(work.log) != work.checksum:
            raise UserError(f"{work.log}: changed while the experiment ran; repeat the command")
        _Worker.log = as_it_ran(read_trace(work.log, skip_invalid=work.skip_invalid), work)
    run_piece(_Worker.log, piece, work)


def run_piece(whole: WholeLog, piece: Piece, work: RunContext) -> None:
    """Replay one piece of the log through all policies, and write its folder whole."""
    settings = work.settings
    log = mark(piece.cut(whole.trace), settings.preemptible, settings.seed)
    table, withdrawn = piece.table, []
    past = piece.past(*whole) if whole.starts else None
    places = None
    if settings.cells is not None:
        spec = whole_spec(settings.cells, table)
        settings, places = settings._replace(cells=spec), places_of(spec, table)
    runnable = playable(log, table, places)
    if piece.withdraw:
        withdrawn = _most_idle(runnable, table, settings)[: piece.withdraw]
        table = _keeping(table, withdrawn)
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
                write_schedule(folder / result.schedule.policy, result.trace, result.schedule)


def _most_idle(trace: Trace, table: PoolTable, settings: Settings) -> list[str]:
    """Pools by unused GPU-time under FCFS, the most first."""
    begin, end = span(trace, settings)
    unused = owned_seconds(table, begin, end)
    for run in replay_one(trace, table, BASELINE, settings, None).runs(trace):
        pool = trace.arrivals[run.position].job.pool
        unused[pool] -= run.width * max(0.0, min(run.end, end) - max(run.start, begin))
    return sorted(unused, key=lambda pool: (-unused[pool], pool))


def _keeping(table: PoolTable, withdrawn: Sequence[str]) -> PoolTable:
    """The same pools, of which some keep to themselves."""
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
    """What stands in `run.json`."""
    summary = summarize(table, settings, results)
    pools = next(iter(summary["policies"].values()))["pools"]
    policies = {}
    for result in results:
        measures = summary["policies"][result.schedule.policy]
        del measures["pools"]
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
    }


def _ratio(percentage: float | None) -> float | None:
    return None if percentage is None else percentage / 100
