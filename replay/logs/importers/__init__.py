"""Importers for published job logs, one module per format.

An importer takes the path of a log and an optional second file. It returns the trace and, if the
format contains them, the pools. It drops jobs that cannot be replayed, counts them by reason, and
raises UserError if the log violates the format.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from replay.logs.importers import alibaba, google, helios, philly, swf
from replay.logs.trace import PoolTable, Trace

Importer = Callable[[Path, Path | None], tuple[Trace, PoolTable | None]]

FORMATS: dict[str, Importer] = {
    "alibaba": alibaba.read,
    "google": google.read,
    "helios": helios.read,
    "philly": philly.read,
    "swf": swf.read,
}
