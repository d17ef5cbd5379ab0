"""The journal's tables, version by version: each is made out of the one before."""

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
"""What makes version 1 out of nothing, 2 out of 1, and so on. One that was released never changes:
databases that went by it are there."""

VERSION = len(STEPS)
"""Of the tables: another number for each change that older code would misread."""


def migrate(store: Store) -> None:
    """Make the tables of this release. Whatever ends it half-way leaves one of the versions whole.

    Raises UserError for tables of a newer release, JournalError.
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
            f"{where}: is of version {version}, this release reads {VERSION}; "
            "use the release that wrote it, or name another database"
        )
