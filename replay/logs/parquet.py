"""Parquet needs duckdb, an extra that is loaded only where it is needed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from sia.console.errors import UserError


def duckdb_for(path: Path, doing: str) -> ModuleType:
    """The module, for `doing` (reading, writing) that file. Raises UserError where it lacks."""
    try:
        import duckdb  # noqa: PLC0415  an extra
    except ImportError:
        raise UserError(
            f"{path}: {doing} Parquet needs duckdb; install it with: pip install 'duckdb>=1.1'"
        ) from None
    module: ModuleType = duckdb
    return module
