"""A daemon on PostgreSQL whose database is away: it says so, keeps what it has, and goes on."""

import signal
import time
from contextlib import closing

import pytest

from tests.support.budget import budget
from tests.support.daemons.pair import LONG, Client, Member, Turns, check, led_by, pair, until

AWAY = budget(ci=8.0, soak=60.0)
"""Seconds: longer than a lease."""

WAYS = budget(ci=["SIGQUIT", "cut"], soak=["SIGQUIT", "cut", "SIGINT"])

BACK_WITHIN = 20.0
"""Seconds: what is promised."""


@pytest.fixture
def members(tmp_path, postgres):
    with pair(tmp_path, postgres, "outage") as both:
        yield both
    if postgres.process is None:
        postgres.start()


def epoch(postgres):
    return int(postgres.run("SELECT epoch FROM sia.lease", "outage").stdout)


def goes(postgres, members, how):
    """The database goes away, by `how`; what brings it back."""
    if how == "cut":
        for each in members:
            each.between.cut()
        return lambda: [each.between.heal() for each in members]
    postgres.stop(getattr(signal, how))
    return postgres.start


@pytest.mark.parametrize("how", WAYS)
def test_a_database_outage_changes_no_leader_and_loses_nothing(members, postgres, how):
    """Shut down in order, crashed, or not to be heard of."""
    leader, other = led_by(members)
    before, client = epoch(postgres), Client([leader])
    try:
        until(lambda: len(client.taken) > 20, LONG, "jobs are taken")
        comes_back = goes(postgres, members, how)
        gone = time.monotonic()
        until(lambda: leader.ask("/readyz")[0] == 503, LONG, "the leader says so")
        until(lambda: leader.ask("/healthz")[0] == 200, LONG, "it lives")
        assert not other.leads()
        time.sleep(max(0.0, gone + AWAY - time.monotonic()))
        taken = len(client.taken)
        comes_back()
        until(lambda: leader.leads() and len(client.taken) > taken, BACK_WITHIN, "it goes on")
    finally:
        client.stop()
    assert epoch(postgres) == before
    until(other.stands_by, LONG, "the other one stands by")
    assert set(check(leader, client.taken)) == {before}


def test_a_leader_that_stops_releases_the_lease_at_once(members, postgres):
    leader, other = led_by(members)
    status, said = other.ask("/v1/jobs", within=LONG)
    assert (status, said["title"]) == (503, "stand-by")
    assert f"127.0.0.1:{leader.port} leads" in said["detail"]
    assert f"ask http://127.0.0.1:{leader.port}" == said["mend"]
    assert other.ask("/healthz", within=LONG)[0] == 200
    with closing(Turns(postgres.url("outage"))) as turns:
        leader.process.terminate()
        assert leader.process.wait(LONG) == 0
        until(other.leads, LONG, "the other one leads")
        assert turns.newest()[1], "it waited until the lease had run out"
    other.process.terminate()
    assert other.process.wait(LONG) == 0
    assert postgres.run("SELECT holder FROM sia.lease", "outage").stdout.strip() == ""


def test_a_leader_stops_cleanly_during_a_database_outage(members, postgres):
    leader, other = led_by(members)
    assert leader.ask("/v1/jobs", {"id": "one", "pool": "a", "gpus": 1}, within=LONG)[0] == 201
    for each in members:
        each.between.cut()
    for each in (leader, other):
        each.process.terminate()
    for each in (leader, other):
        assert each.process.wait(LONG) == 0
    assert int(postgres.run("SELECT count(*) FROM sia.records", "outage").stdout) > 0


def test_a_daemon_does_not_start_without_its_database(tmp_path, postgres):
    url = postgres.database("outage").replace("postgres@", "nobody:s3cret@")
    refused = Member(tmp_path, "A", tmp_path, url, None)
    assert refused.run() == 2
    said = (refused.folder / "log").read_text()
    assert 'role "nobody" does not exist; check that PostgreSQL runs' in said
    assert "s3cret" not in said
    assert "Traceback" not in said
