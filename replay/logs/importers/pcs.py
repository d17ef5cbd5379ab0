"""The logs of PCS: Philly's virtual clusters with the model of each job, and measured speed-ups.

The log has one row per job: job_id, pool, submit, service, max_width, model. `service` is in
GPU-seconds on one GPU; a job runs on 1 to `max_width` GPUs. The second file has the speed-up of
each model: model, gpus, speedup. Past the end of a model's table its speed-up stays the same.

Under policies that do not change widths, a job runs on `max_width` GPUs. PCS simulates each virtual
cluster separately on 64 GPUs, with times of its own, so the pools do not share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replay.logs.read import BadCellError, columns_of, number, open_table, shown, take_rows, whole
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_POINTS
from sia.model import Job, Pool

JOBS = ("job_id", "pool", "submit", "service", "max_width", "model")
SPEEDUPS = ("model", "gpus", "speedup")
GPUS = 64
"""The GPUs on which PCS simulates each virtual cluster (§5.1)."""

Speedups = dict[str, list[tuple[int, float]]]
"""Points (GPUs, speed-up) of each model, ascending, beginning at one GPU."""


def read(log: Path, second: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the jobs, elastic from one GPU up, and a pool of 64 GPUs for each virtual cluster.

    Raises UserError.
    """
    with open_table(log, JOBS) as table:
        at = columns_of(log, table.header, JOBS)
        if second is None:
            raise UserError(
                f"{log}: the speed-ups of models are in dnn_speedups.csv; give it as the second "
                "file"
            )
        jobs = _Jobs(at, _read_speedups(second))
        take_rows(log, table, jobs.take)
    if not jobs.arrivals:
        raise UserError(f"{log}: the log has no job; give a log with rows")
    jobs.arrivals.sort(key=lambda arrival: arrival.job.submit)
    names = sorted({arrival.job.pool for arrival in jobs.arrivals})
    pools = PoolTable([Pool(name, GPUS, share=False) for name in names])
    notes = [f"each pool has {GPUS} GPUs, as PCS simulates them, and does not share"]
    return Trace(jobs.arrivals, notes=notes), pools


def _read_speedups(path: Path) -> Speedups:
    """Return the speed-ups by model; a decrease is ignored. Raises UserError."""
    found: Speedups = {}
    with open_table(path, SPEEDUPS) as table:
        at = columns_of(path, table.header, SPEEDUPS)

        def take(cells: Sequence[str]) -> None:
            points = found.setdefault(cells[at["model"]], [])
            gpus = whole(cells, "gpus", at["gpus"], least=1)
            speedup = number(cells, "speedup", at["speedup"], zero=False, unit="a speed-up")
            expected = points[-1][0] + 1 if points else 1
            if gpus != expected:
                raise BadCellError(
                    "gpus",
                    f"{gpus} GPUs where {expected} would be next",
                    "list each model's GPUs from 1 up, without gaps",
                    "gpus have gaps",
                )
            points.append((gpus, max(speedup, points[-1][1] if points else 0.0)))

        take_rows(path, table, take)
    return found


class _Jobs:
    """Turns rows into arrivals."""

    def __init__(self, at: dict[str, int], speedups: Speedups) -> None:
        self._at, self._speedups = at, speedups
        self._seen: set[str] = set()
        self.arrivals: list[Arrival] = []

    def take(self, cells: Sequence[str]) -> None:
        at = self._at
        job_id, pool, model = cells[at["job_id"]], cells[at["pool"]], cells[at["model"]]
        if not job_id or job_id in self._seen:
            raise BadCellError(
                "job_id",
                f"{shown(job_id)} is empty or a duplicate",
                "give every job a unique ID",
                "job_id stands twice",
            )
        if model not in self._speedups:
            raise BadCellError(
                "model",
                f"{shown(model)} has no speed-ups",
                f"add its rows to the second file, which has {', '.join(sorted(self._speedups))}",
                "model is unknown",
            )
        self._seen.add(job_id)
        submit = number(cells, "submit", at["submit"], zero=True)
        service = number(cells, "service", at["service"], zero=False)
        most = whole(cells, "max_width", at["max_width"], least=1)
        points = [
            (gpus, service / speedup)
            for gpus, speedup in self._speedups[model][:MAX_POINTS]
            if gpus <= most
        ]
        demand = tuple(points) if most > 1 else ()
        job = Job(
            job_id, pool, submit, most, name=model, min_width=1, max_width=most, demand=demand
        )
        self.arrivals.append(Arrival(job, points[-1][1]))
