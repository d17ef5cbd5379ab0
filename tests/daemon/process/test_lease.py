"""The lease: who has it believes in it no longer than the database does; others take it late."""

import asyncio
import time
from contextlib import contextmanager

import psycopg
import pytest

from daemon.config.database import DatabaseUrl
from daemon.model.errors import JournalError
from daemon.process.lease import (
    ANSWER_WITHIN,
    LEASE,
    MARGIN,
    RENEW_EVERY,
    LeaseConnection,
    PostgresLease,
)
from daemon.process.standby import Candidate
from tests.support.servers.databases import OnServer
from tests.support.servers.proxies import proxy


@pytest.fixture
def base(postgres):
    return OnServer(postgres, "lease")


@contextmanager
def held(url, deposed=lambda: None):
    """A lease that is taken and renewed."""
    candidate = Candidate(url, "http://here")
    desk, epoch, asked = candidate.look()
    lease = PostgresLease(url, desk, epoch, asked, deposed)
    try:
        yield lease
    finally:
        lease.close()


def until(happens, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.02)


LEFT = "SELECT extract(epoch FROM until - %s::timestamptz)::float8 FROM sia.lease"
"""Seconds that the database gives it from then on."""


def test_a_holder_renews_and_releases_the_lease(base):
    other = Candidate(base.url, "http://there")
    with held(base.url) as lease:
        assert (lease.epoch, lease.holds()) == (1, True)
        first = base.ask("SELECT until FROM lease")
        until(lambda: base.ask("SELECT until FROM lease") != first)
        assert other.look() is None
        assert (other.seen.place, other.seen.epoch) == ("http://here", 1)
    assert not lease.holds()
    desk, epoch, _ = other.look()
    assert epoch == 2
    desk.close()
    other.close()


def test_a_holder_that_is_cut_off_gives_up_the_lease_before_the_database_does(base):
    with (
        proxy(base.server.port) as between,
        psycopg.connect(base.url.reveal(), autocommit=True) as db,
    ):

        def now():
            return db.execute("SELECT clock_timestamp()").fetchone()[0]

        way = base.url.reveal().replace(f":{base.server.port}/", f":{between.port}/")
        with held(DatabaseUrl(way)) as lease:
            between.cut()
            asked = now()
            while lease.holds():  # asked after `asked`: it is no later than this
                assert db.execute(LEFT, (asked,)).fetchone()[0] > MARGIN - 0.1
                time.sleep(0.05)
                asked = now()
            until(lambda: lease.trouble)
            assert "does not answer" in lease.trouble or "timeout" in lease.trouble
            between.heal()
            until(lease.holds)  # nobody has taken it: it is ours again
            assert (lease.trouble, lease.epoch, lease.lost) == ("", 1, False)


def test_a_former_holder_learns_that_it_lost_the_lease(base):
    told = []
    with held(base.url, lambda: told.append(1)) as lease:
        base.ask("UPDATE lease SET epoch = 7, holder = 'another'")
        until(lambda: lease.lost)
        until(lambda: told)
        assert not lease.holds()
    assert base.ask("SELECT epoch, holder FROM lease") == "7|another"


def test_a_holder_that_hangs_loses_the_lease(base, monkeypatch):
    """Its thread goes on, but nobody in it says that the daemon does."""
    monkeypatch.setattr("daemon.process.lease.DEAF", 1.0)
    with held(base.url) as lease:
        lease.alive()
        until(lambda: not lease.holds())
        assert "does not respond" in lease.trouble
        until(lambda: lease.alive() or lease.holds())
        assert (lease.trouble, lease.epoch) == ("", 1)


def test_a_holder_that_never_begins_to_serve_loses_the_lease(base, monkeypatch):
    monkeypatch.setattr("daemon.process.lease.BEGIN", 1.0)
    with held(base.url) as lease:
        assert lease.holds()
        until(lambda: not lease.holds())
        assert "does not respond" in lease.trouble


def test_only_one_of_many_daemons_takes_the_lease(base):
    """All that look at once, at the very moment when it is free."""

    async def story():
        candidates = [Candidate(base.url, f"http://{i}") for i in range(8)]
        taken = await asyncio.gather(*(asyncio.to_thread(each.look) for each in candidates))
        for each in candidates:
            each.close()
        return [each for each in taken if each is not None]

    (one,) = asyncio.run(story())
    assert one[1] == 1
    assert base.ask("SELECT epoch FROM lease") == "1"
    one[0].close()


def test_after_a_database_outage_a_standby_waits_for_a_whole_lease(base, monkeypatch):
    """However long ago it ran out: the database's clock went on while it was away."""
    clock = [100.0]
    monkeypatch.setattr("daemon.process.standby.uptime", lambda: clock[0])
    desk = LeaseConnection(base.url)
    assert desk.take(desk.look(), "a holder", "http://here") == 1
    desk.close()
    base.ask("UPDATE lease SET until = clock_timestamp() - interval '1 hour'")
    other = Candidate(base.url, "http://there")
    assert other.look() is None
    base.server.stop()
    try:
        with pytest.raises(JournalError):
            other.look()
    finally:
        base.server.start()
    clock[0] += 3600.0
    assert other.look() is None
    clock[0] += LEASE - 0.1
    assert other.look() is None
    clock[0] += 0.2
    taken = other.look()
    assert taken[1] == 2
    taken[0].close()


def test_the_limits_of_the_lease_are_consistent():
    """A renewal may go unanswered, and the next is in time."""
    assert RENEW_EVERY + ANSWER_WITHIN < LEASE - 1
