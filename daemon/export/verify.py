"""Whether a journal is whole: every check that can be made while nobody serves it."""

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
"""Findings of SQLite's own check that are shown: the first say where the damage is."""


class Report(Struct):
    """What was found; `wrong` is empty for a journal that is whole."""

    database: str
    ok: bool = True
    wrong: list[str] = []
    steps: int = 0
    """The number of the last step."""
    checked: int = 0
    """Steps whose digests were checked; older ones may be pruned."""
    acknowledged: int | None = None
    """The step that the high-water mark names; None where there is no mark."""
    audit_records: int = 0
    audit_head: str = GENESIS
    losses: list[str] = []
    """Losses that an operator accepted."""

    def add(self, problem: str) -> None:
        """Note a problem."""
        self.wrong.append(problem)
        self.ok = False


def verify(database: Path | DatabaseUrl) -> Report:
    """Check a journal, whether a daemon runs or not; nothing of it is changed.

    Raises UserError where there is none, or where it cannot be read for another reason than damage.
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
            raise UserError(f"{database}: there is no such database; name the daemon's --state")
        report.add("the database is gone, and its high-water mark is there")
        return report
    try:
        with TemporaryDirectory(prefix=".verify-", dir=database.parent) as folder:
            copy = Path(folder) / "sia.db"
            copied(database, copy)
            _check_copy(copy, report, mark)
    except OSError as error:
        raise UserError(f"{database}: cannot be copied ({error.strerror or error})") from None
    return report


def _mark(database: Path, report: Report) -> HighWater | None:
    """Read the high-water mark, before the copy, which is at least as new."""
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
    """Check the steps by their digests, the snapshots, and the audit."""
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
                report.add(f"the steps end at {last} and not at {journal.last}")


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
