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
from sia.wording import some

Importer = Callable[..., tuple[Trace, PoolTable | None]]

FORMATS = ("alibaba", "gavel", "google", "helios", "pcs", "philly", "slurm", "swf")
"""The formats, each with a module of its name."""

SKIPPING = ("slurm",)
"""Those of which invalid rows can be skipped. The others are logs that somebody published whole."""


def importer(form: str) -> Importer:
    """Return the importer of one of `FORMATS`. Most commands import none, which saves time."""
    read: Importer = import_module(f"{__name__}.{form}").read
    return read


def read_log(
    log: Path, second: Path | None, form: str, *, skip_invalid: bool = False
) -> tuple[Trace, PoolTable | None]:
    """Read a log of one of `FORMATS`, or a canonical one. Raises UserError.

    Invalid rows can be skipped in canonical logs and in those of `SKIPPING`.
    """
    if form == "canonical":
        table = None if second is None else read_pools(second)
        return read_trace(log, skip_invalid=skip_invalid), table
    more = {}
    if skip_invalid:
        if form not in SKIPPING:
            raise UserError(
                f"--skip-invalid: rows of {form} cannot be skipped, only those of canonical and "
                f"{some(SKIPPING)}; omit the option"
            )
        more = {"skip_invalid": True}
    try:
        return importer(form)(log, second, **more)
    except OtherFormatError as error:
        raise UserError(
            f"{error.message}; if it has another format, choose it with --format"
        ) from None
