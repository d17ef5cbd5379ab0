"""Load duckdb, an optional dependency, only if a Parquet file is read or written."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from sia.console.errors import UserError
from sia.wording import install_extra


def duckdb_for(path: Path, doing: str) -> ModuleType:
    """Import and return duckdb. Raises UserError if it is not installed.

    `doing` is "reading" or "writing", for the message.
    """
    try:
        import duckdb  # noqa: PLC0415  an extra
    except ImportError:
        raise UserError(
            f"{path}: {doing} Parquet needs duckdb; {install_extra('parquet')}"
        ) from None
    module: ModuleType = duckdb
    return module
