"""The tables of the journal, and the check of their version."""

from __future__ import annotations

from daemon.journal.store import Store
from sia.console.errors import UserError

TABLES = """
CREATE TABLE records (seq {key_number}, now {real} NOT NULL, boot TEXT NOT NULL,
    uptime {real} NOT NULL, inputs TEXT NOT NULL, decisions TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE snapshots (seq {key_number}, parts INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE parts (seq {big}, part INTEGER, body {blob} NOT NULL, PRIMARY KEY (seq, part));
CREATE TABLE notices (seq {key_number}, time {real} NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE history (number {number}, id {text} UNIQUE NOT NULL, ended {real} NOT NULL,
    pool {text} NOT NULL, body TEXT NOT NULL);
CREATE INDEX history_of_pool ON history (pool, number);
CREATE TABLE imported (number {key_number}, ended {real} NOT NULL, body TEXT NOT NULL);
CREATE TABLE probe (number {number}, body {blob} NOT NULL);
CREATE TABLE marks (key {text} PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE audit (number {key_number}, body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE dead_letters (number {number}, hook {text} NOT NULL, seq {big} NOT NULL,
    time {real} NOT NULL, why TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX dead_letters_of_hook ON dead_letters (hook, number);
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
CREATE TABLE series (step INTEGER NOT NULL, pool {text} NOT NULL, member {text} NOT NULL,
    time {big} NOT NULL, body TEXT NOT NULL, PRIMARY KEY (step, member, pool, time));
CREATE INDEX series_of_time ON series (step, time);
"""

VERSION = 1
"""Version of the tables. It grows with each change after a release; none has been made yet."""


def create_tables(store: Store) -> None:
    """Create the tables of an empty database in one transaction.

    Raises UserError if another release wrote the tables, and JournalError.
    """
    version = store.version()
    check_version(store.where, version)
    if version == VERSION:
        return
    with store.transaction():
        for statement in TABLES.split(";")[:-1]:
            store.run(statement.format_map(store.types))
        store.set_version(VERSION)


def check_version(where: str, version: int) -> None:
    """Raise UserError unless the database is empty (version 0) or of this release."""
    if version not in (0, VERSION):
        raise UserError(
            f"{where}: the database has version {version}, this release supports {VERSION}; "
            "use the release that wrote the database, or name another database"
        )
