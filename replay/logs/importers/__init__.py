"""Importers for published job logs, one module per format.

An importer takes the path of a log and an optional second file. It returns the trace and, if the
format contains them, the pools. It drops jobs that cannot be replayed, counts them by reason, and
raises UserError if the log violates the format.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import OtherFormatError, UserError

Importer = Callable[[Path, Path | None], tuple[Trace, PoolTable | None]]

FORMATS = ("alibaba", "gavel", "google", "helios", "pcs", "philly", "slurm", "swf")
"""The formats, each with a module of its name."""


def importer(form: str) -> Importer:
    """Return the importer of one of `FORMATS`. Most commands import none, which saves time."""
    read: Importer = import_module(f"{__name__}.{form}").read
    return read


def read_log(
    log: Path, second: Path | None, form: str, *, skip_invalid: bool = False
) -> tuple[Trace, PoolTable | None]:
    """Read a log of one of `FORMATS`, or a canonical one. Raises UserError."""
    if form == "canonical":
        table = None if second is None else read_pools(second)
        return read_trace(log, skip_invalid=skip_invalid), table
    try:
        return importer(form)(log, second)
    except OtherFormatError as error:
        raise UserError(
            f"{error.message}; if it has another format, choose it with --format"
        ) from None
