"""Write an exported journal: a job log, a pools file, and the real schedule."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from daemon.export.job_log import Export
from replay.run.output import (
    SEGMENTS,
    TABLES,
    whole_folder,
    write_json,
    write_pools,
    write_rows,
    write_segments,
    write_trace,
)
from replay.run.schedule import nodes_text

TRACE, POOLS, REAL, REPORT = "trace.csv", "pools.csv", "real", "export.json"
"""Names in the folder; `real` has the format of a policy's folder of `sia replay`."""


class ExportReport(Struct, frozen=True):
    """Summary of an export. Times are seconds since the epoch; `jobs` counts rows of the log."""

    begin: float
    end: float
    jobs: int
    ended: int
    gpu_hours: float
    """GPU-hours of ended runs."""
    loans: int
    policy: str
    windows: tuple[float, ...]
    counted: dict[str, int]
    notes: list[str]


def report_of(made: Export) -> ExportReport:
    """Return the summary of an export."""
    runs = made.done if made.segments is None else made.segments
    hours = sum((run.end - run.start) * run.width for run in runs) / 3600
    return ExportReport(
        made.begin, made.end, len(made.trace.arrivals), len(made.done), hours, len(made.loans),
        made.setup.policy, made.setup.options.windows, dict(made.counted), made.notes,
    )  # fmt: skip


def write_export(made: Export, out: Path, inputs: list[Path]) -> ExportReport:
    """Write all files or none. Raises UserError if `out` cannot be written."""
    report = report_of(made)
    planned = [TRACE, POOLS, REPORT, f"{REAL}/"]
    with whole_folder(out, inputs, planned=planned) as folder:
        write_trace(folder / TRACE, made.trace)
        write_pools(folder / POOLS, made.table)
        real = folder / REAL
        real.mkdir()
        rows = [
            (*done[:6], "spare" if done.spare else "dedicated", nodes_text(done.nodes))
            for done in made.done
        ]
        header = ("job_id", "pool", "submit", "width", "start", "end", "stream", "nodes")
        write_rows(real / "jobs.csv", header, rows)
        if made.segments is not None:
            write_segments(real / SEGMENTS, made.segments)
        if made.trials:
            write_rows(real / "profiling.csv", TABLES["profiling"], made.trials)
        write_rows(real / "loans.csv", ("job_id", "donor", "gpus", "start", "end"), made.loans)
        write_json(folder / REPORT, report)
    return report
