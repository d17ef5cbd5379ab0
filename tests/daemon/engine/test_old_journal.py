"""What an earlier release has written is read by this one, with the same decisions.

`stored/journal_of_issue_8.sql.gz` is a whole journal of the release before there were accounts,
budgets and a shadow: every kind of input, jobs that run and wait at its end. `journal_of_budgets_…`
are of the first release with budgets, whose rules were others, of hours and of slowed jobs, and of
the one after it, by whose rules hours were those of the ledger and loans under way did not count.
"""

import gzip
import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace

from daemon.export.copy import opened
from daemon.export.job_log import export
from daemon.journal.journal import Journal
from daemon.journal.migrations import VERSION
from daemon.journal.recovery import recover
from daemon.model.inputs import Configured, Lending, SetPool
from daemon.model.setup import RAILS, Setup
from tests.support.daemons.daemons import forget_snapshots, submit
from tests.support.daemons.lives import Life
from tests.support.paths import TESTS

STORED = TESTS / "stored" / "journal_of_issue_8.sql.gz"


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(gzip.decompress(STORED.read_bytes()).decode())
    return path


def test_every_step_is_taken_again_with_the_decisions_that_are_recorded(old):
    forget_snapshots(old)
    with closing(Journal(old)) as journal:
        kinds = {type(each).__name__ for record in journal.records(0) for each in record.inputs}
        assert len(kinds) > 20
        engine = recover(journal, Setup(()))  # refuses decisions that differ
        assert journal.last > 150
        engine.check()
        told = [notice.kind for notice in journal.notices(0, 10_000)]
        assert engine.book.notices == len(told)


@pytest.mark.parametrize(("kind", "rails"), [("hours", 0), ("slowed", 0), ("ledger", 1)])
def test_budgets_of_earlier_releases_decide_as_they_did(tmp_path, kind, rails):
    path = tmp_path / "old.db"
    stored = STORED.with_name(f"journal_of_budgets_{kind}.sql.gz")
    with closing(sqlite3.connect(path)) as db:
        db.executescript(gzip.decompress(stored.read_bytes()).decode())
    forget_snapshots(path)
    with closing(Journal(path)) as journal:
        assert any(notice.kind == "lending_kept" for notice in journal.notices(0, 10_000))
        engine = recover(journal, Setup(()))  # refuses decisions that differ
        assert engine.book.setup.rails == rails
        life = Life(engine, lambda spec: 5.0, journal=journal)
        now = engine.core.state.now + 1.0
        life.step(now, [Configured(replace(engine.book.setup, rails=RAILS))])
        life.step(now + 1, [submit("new", "a", 1, 5.0)])
        engine.check()
        assert recover(journal, Setup(())).dump() == engine.dump()


def test_it_goes_on_from_there_with_what_is_new(old):
    with closing(Journal(old)) as journal:
        engine = recover(journal, Setup(()))
        assert engine.book.jobs
        life = Life(engine, lambda spec: 5.0, journal=journal)
        now = engine.core.state.now + 1.0
        life.step(now, [SetPool("a", slowed_budget_pct=1.0, lend_budget_hours=1.0)])
        life.step(now + 1, [Lending(on=False, shadow=True), submit("new", "a", 1, 5.0)])
        engine.check()
        again = recover(journal, Setup(()))
        assert again.dump() == engine.dump()


def test_it_is_exported(old, tmp_path):
    with opened(old, tmp_path) as journal:
        made = export(journal)
    assert len(made.done) > 10
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] < VERSION  # it was only copied
