"""Databases for tests of the journal, which can be changed behind its back."""

import re
import sqlite3

from daemon.config_database import DatabaseUrl
from daemon.journal import Journal
from daemon.lease import Desk
from daemon.postgres import Postgres


class InFile:
    """SQLite."""

    def __init__(self, folder):
        self.path = folder / "db"

    def journal(self, **more):
        return Journal(self.path, **more)

    def change(self, sql):
        with sqlite3.connect(self.path) as db:
            db.execute(sql)
        db.close()


class OnServer:
    """PostgreSQL. Each journal is that of another daemon, which has taken over."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.url = DatabaseUrl(server.database(name))

    def journal(self, **more):
        return Journal(Postgres(self.url, self.take()), **more)

    def take(self):
        """The epoch of a daemon that leads from now on."""
        desk = Desk(self.url)
        desk.give_back(desk.look().epoch)
        epoch = desk.take(desk.look(), "a test", "nowhere")
        desk.close()
        return epoch

    def change(self, sql):
        sql = re.sub(r"x'(\w+)'", r"decode('\1', 'hex')", sql)
        self.server.run(f"SET search_path = sia; {sql}", self.name)

    def ask(self, sql):
        return self.server.run(f"SET search_path = sia; {sql}", self.name).stdout.strip()
