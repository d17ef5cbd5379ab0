"""Jobs that run on one machine are found again there, and nowhere else."""

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
"""Under which a daemon notes where its jobs run."""


async def settle(house: BackendContext, folder: Path) -> None:
    """Note that jobs run here from now on.

    Raises UserError where some run elsewhere by what the database says: a daemon that does not find
    them would start them a second time.
    """
    here = json.encode([_machine(), platform.node(), str(folder)]).decode()
    try:
        there = (await house.notes.read(KEY)).get(KEY)
        if there == here:
            return
        if there is not None and _any_runs(house):
            _, name, where = json.decode(there)
            raise UserError(
                f"jobs of this database run on {name}, in {where}; start the daemon there with "
                "that folder, or give this one another database"
            )
        await house.notes.write({KEY: here})
    except JournalError as error:
        raise UserError(str(error)) from error


def _any_runs(house: BackendContext) -> bool:
    return any(job.placed and job.phase in ON_GPUS for job in house.book().jobs.values())


def _machine() -> str:
    """What tells this machine from others, under whatever name it is."""
    try:
        return MACHINE_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
