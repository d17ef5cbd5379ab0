"""Schema migrations of the journal: each step upgrades the tables by one version."""

from __future__ import annotations

from daemon.journal.store import Store
from sia.console.errors import UserError

STEPS = (
    """
CREATE TABLE records (seq {key_number}, now {real} NOT NULL, boot TEXT NOT NULL,
    uptime {real} NOT NULL, inputs TEXT NOT NULL, decisions TEXT NOT NULL);
CREATE TABLE snapshots (seq {key_number}, parts INTEGER NOT NULL);
CREATE TABLE parts (seq {big}, part INTEGER, body {blob} NOT NULL, PRIMARY KEY (seq, part));
CREATE TABLE notices (seq {key_number}, time {real} NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE history (number {number}, id {text} UNIQUE NOT NULL, ended {real} NOT NULL,
    pool {text} NOT NULL, body TEXT NOT NULL);
CREATE INDEX history_of_pool ON history (pool, number);
CREATE TABLE probe (number {number}, body {blob} NOT NULL);
""",
    """
CREATE TABLE marks (key {text} PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE audit (number {key_number}, body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE dead_letters (number {number}, hook {text} NOT NULL, seq {big} NOT NULL,
    time {real} NOT NULL, why TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX dead_letters_of_hook ON dead_letters (hook, number);
""",
    """
CREATE TABLE verdicts (number {number}, job {text} NOT NULL, pool {text} NOT NULL,
    time {real} NOT NULL, body TEXT NOT NULL);
CREATE INDEX verdicts_of_pool ON verdicts (pool, number);
CREATE INDEX verdicts_of_job ON verdicts (job);
CREATE TABLE lent (number {number}, lender {text} NOT NULL, borrower {text} NOT NULL,
    job {text} NOT NULL, time {real} NOT NULL, body TEXT NOT NULL);
CREATE INDEX lent_of_lender ON lent (lender, number);
CREATE INDEX lent_of_borrower ON lent (borrower, number);
CREATE TABLE estimates (number {number}, job {text} NOT NULL, pool {text} NOT NULL,
    made {real} NOT NULL, body TEXT NOT NULL);
CREATE INDEX estimates_of_job ON estimates (job);
CREATE INDEX estimates_of_pool ON estimates (pool, number);
""",
    """
ALTER TABLE records ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN digest TEXT NOT NULL DEFAULT '';
""",
)
"""Step n upgrades version n - 1 to n; version 0 is empty. A released step never changes, because
databases exist that have run it."""

VERSION = len(STEPS)
"""Version of the tables. It grows with each change that older code would misread."""


def migrate(store: Store) -> None:
    """Upgrade the tables to `VERSION`, one transaction per step.

    Raises UserError if a newer release wrote the tables, and JournalError.
    """
    version = store.version()
    check_version(store.where, version)
    for number, step in enumerate(STEPS[version:], version + 1):
        with store.transaction(long=True):
            for statement in step.split(";")[:-1]:
                store.run(statement.format_map(store.types))
            store.set_version(number)


def check_version(where: str, version: int) -> None:
    """Raise UserError for tables that this release cannot read."""
    if version > VERSION:
        raise UserError(
            f"{where}: the database has version {version}, this release supports {VERSION}; "
            "use the release that wrote the database, or name another database"
        )
