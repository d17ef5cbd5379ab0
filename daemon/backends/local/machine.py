"""Bind the database to the machine and folder where its jobs run."""

from __future__ import annotations

import platform
from pathlib import Path

from msgspec import json

from daemon.backends.interface import BackendContext
from daemon.model.errors import JournalError
from daemon.model.job import ON_GPUS
from sia.console.errors import UserError

MACHINE_ID = Path("/etc/machine-id")

KEY = "local.home"
"""Key of the note with machine and folder."""


async def settle(context: BackendContext, folder: Path) -> None:
    """Record that jobs run on this machine and in this folder from now on.

    Raises UserError if the database says that jobs run on another machine or in another folder:
    this daemon would not find them and would start them again.
    """
    here = json.encode([_machine(), platform.node(), str(folder)]).decode()
    try:
        there = (await context.notes.read(KEY)).get(KEY)
        if there == here:
            return
        if there is not None and _any_runs(context):
            _, name, where = json.decode(there)
            raise UserError(
                f"jobs of this database run on {name}, in {where}; start the daemon there with "
                "that folder, or use another database"
            )
        await context.notes.write({KEY: here})
    except JournalError as error:
        raise UserError(str(error)) from error


def _any_runs(context: BackendContext) -> bool:
    return any(job.placed and job.phase in ON_GPUS for job in context.book().jobs.values())


def _machine() -> str:
    """Return an id of this machine that does not depend on its host name."""
    try:
        return MACHINE_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
