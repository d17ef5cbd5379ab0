"""The journal on a real PostgreSQL: who may write, what a broken connection has done."""

import asyncio
import time
from contextlib import closing

import pytest

from daemon.config.database import DatabaseUrl
from daemon.journal.journal import Journal
from daemon.journal.postgres import PostgresStore
from daemon.journal.recovery import recover
from daemon.journal.schema import VERSION
from daemon.model.errors import DeposedError, JournalError, RowError, UnavailableError
from daemon.model.outputs import Accepted
from daemon.process.lease import LeaseConnection
from sia.console.errors import UserError
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until
from tests.support.servers.databases import OnServer, step
from tests.support.servers.proxies import proxy

CLUSTER = setup(a=3, b=2)


@pytest.fixture
def base(postgres):
    """An empty database."""
    return OnServer(postgres, "store")


@pytest.fixture
def between(postgres):
    with proxy(postgres.port) as way:
        yield way


def by_way_of(base, between):
    """A journal whose connection can be cut."""
    return Journal(PostgresStore(through(base, between), base.take()))


def through(base, between):
    return DatabaseUrl(base.url.reveal().replace(f":{base.server.port}/", f":{between.port}/"))


def rows(base):
    return int(base.ask("SELECT count(*) FROM records"))


def test_a_former_leader_writes_nothing(base):
    old = base.journal()
    engine = recover(old, CLUSTER)
    step(old, engine, 1.0, submit("one"))
    new = base.journal()
    assert new.epoch == old.epoch + 1
    with pytest.raises(DeposedError, match="another daemon has taken over"):
        step(old, engine, 2.0, submit("lost"))
    assert rows(base) == 1
    step(new, recover(new, CLUSTER), 2.0, submit("two"))
    for write in (  # rows that are there already, and others
        lambda: step(old, engine, 2.0, submit("lost")),
        lambda: old.mark({"key": "value"}),
        old.probe,
        old.reopen,
    ):
        with pytest.raises(JournalError, match="another daemon has taken over"):
            write()
    assert rows(base) == 2
    assert new.marks("") == {}
    old.close()
    new.close()


def test_a_connection_that_the_server_ended_between_two_steps_is_opened_again(base):
    with closing(base.journal()) as journal:
        engine = recover(journal, CLUSTER)
        step(journal, engine, 1.0, submit("one"))
        base.ask(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            " WHERE application_name LIKE 'sia journal%'"
        )  # fmt: skip  until it is gone
        step(journal, engine, 2.0, submit("two"))
        assert rows(base) == 2


def test_a_new_connection_sends_only_after_the_earlier_one_has_ended(base, monkeypatch):
    """What it had sent could still be done, after a look that did not find it."""
    with closing(base.journal()) as journal:
        monkeypatch.setattr("daemon.journal.postgres.LOCK_PATIENCE", 0.0)
        with monkeypatch.context() as it:
            it.setattr(
                "daemon.journal.postgres.END_OTHERS", "SELECT 1 WHERE %s::text[] IS NOT NULL"
            )
            with pytest.raises(JournalError, match="an earlier connection is still open"):
                journal.reopen()
            with pytest.raises(JournalError, match="an earlier connection is still open"):
                journal.marks("")
        assert journal.marks("") == {}


def test_a_step_interrupted_by_a_broken_connection_is_not_stored(base, between):
    with closing(by_way_of(base, between)) as journal:
        engine = recover(journal, CLUSTER)
        step(journal, engine, 1.0, submit("one"))
        journal._store._db.patience = 0.5
        between.cut()
        with pytest.raises(JournalError, match="the server does not answer"):
            step(journal, engine, 2.0, submit("two"))
        between.heal()  # what was sent arrives now
        journal.reopen()
        assert (journal.last, rows(base)) == (1, 1)
        step(journal, recover(journal, CLUSTER), 3.0, submit("three"))
        assert [record.now for record in journal.records(0)] == [1.0, 3.0]


def test_a_step_whose_confirmation_was_lost_is_stored(base, between):
    with closing(by_way_of(base, between)) as journal:
        engine = recover(journal, CLUSTER)
        step(journal, engine, 1.0, submit("one"))
        journal._store._db.patience = 0.5
        db = journal._store._db
        execute = db.execute

        def last_word(sql, *values):
            if sql == "COMMIT":
                between.cut_answers()
            return execute(sql, *values)

        db.execute = last_word
        with pytest.raises(JournalError, match="the server does not answer"):
            step(journal, engine, 2.0, submit("two"))
        assert journal.last == 1
        between.heal()
        journal.reopen()
        assert journal.last == rows(base) == 2
        step(journal, recover(journal, CLUSTER), 3.0, submit("three"))


def test_a_takeover_does_not_wait_for_a_transaction_of_a_paused_daemon(base):
    old = base.journal()
    engine = recover(old, CLUSTER)
    began = time.monotonic()
    with pytest.raises(JournalError), old._store.transaction():  # noqa: PT012
        old._store.run("INSERT INTO probe (body) VALUES (?)", (b"x",))
        assert old._store.all("SELECT 1") == [(1,)]  # all of it has arrived
        new = base.journal()
        assert time.monotonic() - began < 10
    step(new, recover(new, CLUSTER), 1.0, submit("one"))
    assert base.ask("SELECT count(*) FROM probe") == "0"
    with pytest.raises(DeposedError):
        step(old, engine, 1.0, submit("one"))
    new.close()
    old.close()


def test_a_takeover_in_a_copy_leaves_the_journal_of_the_first_alone(base, monkeypatch):
    """Tables of a database that was copied bear the same numbers."""
    monkeypatch.setattr(
        "daemon.journal.pg_connection.IDLE_PATIENCE", 60.0
    )  # it is idle while the copy opens
    base.journal().close()
    copy = OnServer(base.server, "copy")
    base.server.run("DROP DATABASE copy")
    base.server.run("CREATE DATABASE copy TEMPLATE store")
    oid = "SELECT 'lease'::regclass::oid"
    assert base.ask(oid) == copy.ask(oid)
    first, stopped = base.journal(), copy.journal()
    with first._store.transaction():
        assert first._store.all("SELECT 1") == [(1,)]  # it holds its lease's row
        with pytest.raises(JournalError), stopped._store.transaction():  # noqa: PT012
            assert stopped._store.all("SELECT 1") == [(1,)]
            copy.journal().close()
        assert first._store.all("SELECT 1") == [(1,)]
    first.close()
    stopped.close()


def test_a_service_keeps_its_state_while_the_database_is_unreachable(base, between):
    """A job ends meanwhile; nobody is told of it before it is durable, and then it is."""

    async def story():
        backend = FakeBackend()
        store = PostgresStore(through(base, between), base.take())
        async with serving(store, CLUSTER, backend) as service:
            assert await service.submit([submit("one")]) == [Accepted()]
            await until(lambda: "one" in backend.running)
            store._db.patience = 0.5
            between.cut()
            backend.end("one")
            with pytest.raises(UnavailableError, match="the server does not answer"):
                await service.submit([submit("two")])
            (state,) = [part for part in service.parts.all() if part.name == "database"]
            assert (state.ok, "check that PostgreSQL runs" in state.mend) == (False, True)
            assert not service.ready
            between.heal()
            await until(lambda: service.ready, 20.0)
            await service.submit([submit("two")])
            await until(lambda: "two" in backend.running)
            assert await service.past_job("one") is not None
            assert backend.told == [("start", "one", 1), ("start", "two", 1)]
            assert all(part.ok for part in service.parts.all())

    asyncio.run(story())


def test_a_former_leader_refuses_commands_and_stops(base):
    async def story():
        backend = FakeBackend()
        async with serving(PostgresStore(base.url, base.take()), CLUSTER, backend) as service:
            await service.submit([submit("one")])
            base.take()
            for _ in range(2):
                with pytest.raises(UnavailableError, match="another daemon has taken over"):
                    await service.submit([submit("two")])
            assert backend.told == [("start", "one", 1)]

    asyncio.run(story())
    assert rows(base) == 1


def test_any_text_of_a_job_can_be_stored(base):
    odd = {"NUL": "a\x00b", "Z": "\U0001f9ea é \\u0000 ' \" ? %s {0}"}
    with closing(base.journal()) as journal:
        step(journal, recover(journal, CLUSTER), 1.0, submit("one", env=odd))
        (record,) = journal.records(0)
        assert record.inputs[0].spec.env == odd
        journal.mark({"k%s?": "v"})
        assert journal.marks("k%") == {"k%s?": "v"}
        with pytest.raises(RowError):  # no column holds a NUL: a defect, and not a bad disk
            journal.mark({"NUL": "a\x00b"})
        assert journal.marks("N") == {}


def test_a_step_that_cannot_be_written_down_leaves_nothing_behind(base):
    with closing(base.journal()) as journal:
        engine = recover(journal, CLUSTER)
        step(journal, engine, 1.0, submit("one"))
        with pytest.raises(UnicodeEncodeError):
            journal.mark({"a": "b", "half a letter": "\ud800"})
        assert journal.marks("") == {}
        assert rows(base) == 1
        step(journal, engine, 2.0, submit("two"))


def test_numbers_are_read_back_unchanged(base):
    times = [0.1 + 0.2, 1e-300, 1e300, 2.0**53 + 2, 1000.0000000000001]
    with closing(base.journal()) as journal:
        engine = recover(journal, CLUSTER)
        for now in sorted(times):
            step(journal, engine, now, submit(f"at{now}", hold=True))
        assert [record.now for record in journal.records(0)] == sorted(times)


def test_tables_of_other_applications_are_not_touched(base):
    base.ask("CREATE SCHEMA sia")
    base.ask("CREATE TABLE records (name TEXT)")
    with pytest.raises(UserError, match=r"tables of another program.*name another database"):
        base.journal()
    assert base.ask("SELECT count(*) FROM records") == "0"


def test_a_database_of_a_newer_release_is_refused(base):
    base.journal().close()
    base.change(f"UPDATE about SET version = {VERSION + 1}")
    with pytest.raises(UserError, match=f"has version {VERSION + 1}, this release supports"):
        LeaseConnection(base.url)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda url: url.replace("/store", "/none"),
            '"none" does not exist; check that PostgreSQL',
        ),
        (lambda url: url.replace("postgres@", "nobody:s3cret@"), '"nobody" does not exist'),
        (lambda _: "postgresql://u:s3cret@127.0.0.1:1/x", "Connection refused.*; check that"),
        (lambda _: "postgresql://u:s3cret@127.0.0.1:1/x?sslmode=s3cret", "invalid sslmode"),
    ],
)
def test_errors_do_not_contain_the_password(base, change, says):
    with pytest.raises(JournalError, match=says) as error:
        LeaseConnection(DatabaseUrl(change(base.url.reveal())))
    assert "://u:" not in str(error.value)
    assert error.value.__cause__ is None
    if "sslmode" not in says:
        assert "s3cret" not in str(error.value)


def test_only_the_host_and_database_of_a_url_are_shown():
    url = DatabaseUrl("postgresql://me:p%40ss@h:5/db?sslpassword=other&application_name=x")
    for shown in (str(url), repr(url), f"{url}"):
        assert shown == "postgresql://me@h:5/db"
    assert {"p%40ss", "p@ss", "other"} <= set(url.secrets())
