"""Verify a journal offline: SQLite's own check, step digests, snapshots and the audit log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from daemon.config.database import DatabaseUrl, require_psycopg
from daemon.export.copy import FrozenDatabase, copied
from daemon.journal.audit import GENESIS, Verifier
from daemon.journal.highwater import HighWater, LossError, loss_of, mark_path, read_mark
from daemon.journal.journal import Journal
from daemon.model.errors import JournalError
from daemon.model.limits import AUDIT_AT_ONCE
from sia.console.errors import UserError

SHOWN = 5
"""Maximum number of findings of SQLite's own check to show: the first ones locate the damage."""


class Report(Struct):
    """Result of a verification; `wrong` is empty for an intact journal."""

    database: str
    ok: bool = True
    wrong: list[str] = []
    steps: int = 0
    """Number of the last step."""
    checked: int = 0
    """Number of steps whose digests were checked; older ones may have been pruned."""
    acknowledged: int | None = None
    """Step in the high-water mark; None if there is no mark."""
    audit_records: int = 0
    audit_head: str = GENESIS
    losses: list[str] = []
    """Losses that an operator has accepted."""

    def add(self, problem: str) -> None:
        """Add a problem to the report."""
        self.wrong.append(problem)
        self.ok = False


def verify(database: Path | DatabaseUrl) -> Report:
    """Verify a journal without changing it, also while a daemon runs.

    Raises UserError if there is no journal, or if reading fails for a reason other than damage.
    """
    report = Report(str(database))
    if isinstance(database, DatabaseUrl):
        require_psycopg()
        try:
            _check_steps(Journal(FrozenDatabase(database)), report, None)
        except JournalError as error:
            raise UserError(f"{database}: {error}") from None
        return report
    mark = _mark(database, report)
    if not database.is_file():
        if not mark_path(database).exists():
            raise UserError(f"{database}: no such database; use the --state of the daemon")
        report.add("the database file is missing, but its high-water mark exists")
        return report
    try:
        with TemporaryDirectory(prefix=".verify-", dir=database.parent) as folder:
            copy = Path(folder) / "sia.db"
            copied(database, copy)
            _check_copy(copy, report, mark)
    except OSError as error:
        raise UserError(
            f"{database}: cannot copy the database ({error.strerror or error})"
        ) from None
    return report


def _mark(database: Path, report: Report) -> HighWater | None:
    """Read the high-water mark. Call this before the copy, which is then at least as new."""
    try:
        mark = read_mark(database)
    except LossError as error:
        report.add(error.format_message())
        return None
    report.acknowledged = None if mark is None else mark.seq
    return mark


def _check_copy(copy: Path, report: Report, mark: HighWater | None) -> None:
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            for (found,) in db.execute(f"PRAGMA integrity_check({SHOWN})").fetchall():
                if found != "ok":
                    report.add(f"SQLite: {found}")
            if mark and (lost := loss_of(mark, lambda sql: db.execute(sql).fetchall())):
                report.add(lost)
    except sqlite3.Error as error:
        report.add(f"SQLite: {error}")
        return
    try:
        _check_steps(Journal(copy), report, mark)
    except (JournalError, UserError) as error:
        report.add(str(error).replace(f"{copy}: ", ""))


def _check_steps(journal: Journal, report: Report, mark: HighWater | None) -> None:
    """Verify the step digests, the snapshots and the audit log."""
    with closing(journal):
        report.steps = journal.last
        for seq in journal.snapshots():
            try:
                journal.snapshot(seq)
            except ValueError as error:
                report.add(str(error))
        _check_audit(journal, report, mark)
        try:
            for record in journal.records(0):
                report.checked += 1
                last = record.seq
        except UserError as error:
            report.add(error.format_message().removeprefix(f"{journal.where}: "))
        else:
            if report.checked and last != journal.last:
                report.add(f"the last readable step is {last}, expected {journal.last}")


def _check_audit(journal: Journal, report: Report, mark: HighWater | None) -> None:
    verifier, head, after = Verifier(), mark.head if mark else "", 0
    while rows := journal.audit(after, AUDIT_AT_ONCE):
        verifier.look(rows, head)
        after = rows[-1].number
    found = verifier.finding(head)
    report.audit_records, report.audit_head = found.trail
    report.losses = list(found.losses)
    if found.wrong:
        report.add(f"audit: {found.wrong}".replace("--head", "the high-water mark"))
