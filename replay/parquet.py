"""Parquet needs duckdb, an extra that is loaded only where it is needed."""

from __future__ import annotations

import atexit
import gc
from pathlib import Path
from types import ModuleType

from replay.errors import UserError


def duckdb_for(path: Path, doing: str) -> ModuleType:
    """The module, for `doing` (reading, writing) that file. Raises UserError where it lacks."""
    try:
        import duckdb  # noqa: PLC0415  an extra
    except ImportError:
        raise UserError(
            f"{path}: {doing} Parquet needs duckdb; install it with: pip install 'duckdb>=1.1'"
        ) from None
    # `sia` freezes what it holds when it ends; duckdb then takes its own types for leaked, and
    # says so line by line. They form cycles, which the last search for garbage must be let find.
    atexit.register(gc.unfreeze)
    module: ModuleType = duckdb
    return module
