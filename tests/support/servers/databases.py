"""Databases for tests of the journal, which tests can change without the journal."""

import re
import sqlite3
from pathlib import Path

from daemon.config.database import DatabaseUrl
from daemon.journal.highwater import GENESIS, mark_path, step_digest
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.postgres import PostgresStore
from daemon.journal.sqlite import SqliteStore
from daemon.process.lease import LeaseConnection
from daemon.runtime.clock import Anchor


def step(journal, engine, now, *inputs):
    """Commit one step durably."""
    made = engine.step(now, inputs)
    anchor = Anchor("boot", now, now)
    entry = JournalEntry(journal.last + 1, anchor, inputs, made.decisions, made.notices, made.over)
    journal.commit(entry)
    return made


class InFile:
    """SQLite."""

    def __init__(self, folder):
        self.path = folder / "db"

    def journal(self, **more):
        return Journal(self.path, **more)

    def words(self):
        return str(self.path), "0"

    def version(self):
        with sqlite3.connect(f"file:{self.path}?mode=ro", uri=True) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
        db.close()
        return version

    def change(self, sql):
        with sqlite3.connect(self.path) as db:
            db.execute(sql)
        db.close()

    def reseal(self):
        """Make the digests fit the steps, so that a step which was changed seems to be original."""
        make_digests_fit(self.journal())
        mark_path(self.path).unlink()


class OnServer:
    """PostgreSQL. Each journal opened belongs to a new daemon that has taken over."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.url = DatabaseUrl(server.database(name))

    def journal(self, **more):
        return Journal(PostgresStore(self.url, self.take()), **more)

    def words(self):
        return self.url.reveal(), str(self.take())

    def version(self):
        return int(self.ask("SELECT version FROM about"))

    def take(self):
        """The epoch of a daemon that leads from now on."""
        desk = LeaseConnection(self.url)
        desk.give_back(desk.look().epoch)
        epoch = desk.take(desk.look(), "a test", "nowhere")
        desk.close()
        return epoch

    def change(self, sql):
        sql = re.sub(r"x'(\w+)'", r"decode('\1', 'hex')", sql)
        self.server.run(f"SET search_path = sia; {sql}", self.name)

    def reseal(self):
        make_digests_fit(self.journal())

    def ask(self, sql):
        return self.server.run(f"SET search_path = sia; {sql}", self.name).stdout.strip()


def make_digests_fit(journal):
    """Compute the digest of each step anew, and close the journal."""
    store, before = journal._store, GENESIS
    columns = "seq, now, boot, uptime, inputs, decisions"
    with store.transaction():
        for row in store.all(f"SELECT {columns} FROM records ORDER BY seq"):
            before = step_digest(before, row)
            store.run("UPDATE records SET digest = ? WHERE seq = ?", (before, row[0]))
    journal.close()


def store_of(where, epoch):
    """What `words` name."""
    return PostgresStore(DatabaseUrl(where), int(epoch)) if int(epoch) else SqliteStore(Path(where))
