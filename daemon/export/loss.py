"""Accept the loss of steps of a SQLite journal, and record this in the audit log."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

from daemon.journal.audit import ACCEPT_LOSS, AuditRecord, offline_user, trail_of
from daemon.journal.highwater import LossError, mark_path, refuse_loss
from daemon.journal.journal import Journal
from daemon.journal.sqlite import explained, lock
from daemon.runtime.clock import Clock
from sia.console.errors import UserError


class AcceptedLoss(NamedTuple):
    """The accepted loss, and the folder with copies of the damaged files."""

    lost: str
    evidence: Path
    last: int
    """Last step of the journal after the loss."""


def loss_in(database: Path, running: str | None = None) -> str:
    """Return what the database has lost, in the daemon's words; empty if nothing.

    Returns `running` if a daemon has the database open; if `running` is None, raises UserError.
    Also raises UserError if the database cannot be read at all.
    """
    if not mark_path(database).exists():
        return ""
    try:
        os.close(lock(database))
    except OSError as error:
        if running is not None and isinstance(error, BlockingIOError):
            return running
        raise UserError(f"{database}: {explained(error)}") from None
    try:
        refuse_loss(database)
    except LossError as error:
        return error.format_message()
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"{database}: {explained(error)}") from None
    return ""


def accept_loss(database: Path) -> AcceptedLoss | None:
    """Copy the damaged files to a new folder, and let the daemon continue with the remaining steps.

    Returns None if nothing is lost. Raises UserError.
    """
    lost = loss_in(database)
    if not lost:
        return None
    try:
        evidence = _evidence_of(database)
        mark_path(database).unlink()
    except OSError as error:
        raise UserError(f"{database}: {explained(error)}") from None
    with closing(Journal(database)) as journal:
        what = lost.removeprefix(f"{database}: ").rpartition("; ")[0]
        now = Clock(journal.anchor()).now()
        record = AuditRecord(
            0, 0.0, offline_user(), ACCEPT_LOSS, note=what, after={"step": journal.last}
        )
        journal.append_audit(trail_of(journal.last_audit()).rows(now, [record]))
        return AcceptedLoss(what, evidence, journal.last)


def _evidence_of(database: Path) -> Path:
    """Copy the files to a new folder next to them."""
    for number in count(1):
        folder = database.with_name(f"{database.name}.damaged-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        break
    log = database.with_name(f"{database.name}-wal")
    for path in (database, log, mark_path(database)):
        if path.exists():
            shutil.copy2(path, folder / path.name)
    return folder
