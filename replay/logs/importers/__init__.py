"""Job logs as their publishers give them, one file a format.

An importer takes the log's path and an optional second file, returns the trace and, where the
format tells them, the pools. It drops what cannot be replayed, counted by reason, and raises
UserError for what the format does not allow.
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
