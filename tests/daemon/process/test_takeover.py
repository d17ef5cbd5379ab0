"""Two daemons on one PostgreSQL: the leader is killed, stopped or cut off, and the other leads."""

import signal
import sys

import pytest

from tests.support.budget import budget
from tests.support.daemons.pair import LONG, Client, Turns, Watch, check, led_by, pair, until

ROUNDS = budget(ci=3, soak=50)
FAULTS = ("kill", "stop", "cut")

WITHOUT_LEADER = 10.0
"""Seconds, by the database's clock, until another has the lease: what is promised."""


@pytest.fixture
def members(tmp_path, postgres):
    """Two daemons of one database, each with a way to it that can be cut."""
    with pair(tmp_path, postgres, "takeover") as both:
        yield both


def break_and_mend(fault, leader, other, turns):
    """Seconds until the other one took commands."""
    before = turns.now()
    if fault == "kill":
        leader.process.kill()
        leader.process.wait()
    elif fault == "stop":
        leader.process.send_signal(signal.SIGSTOP)
    else:
        leader.between.cut()
    took = until(other.leads, LONG, f"taken over after a {fault}")
    assert (turns.newest()[0] - before).total_seconds() < WITHOUT_LEADER
    if fault == "kill":
        leader.start()
    elif fault == "stop":
        leader.process.send_signal(signal.SIGCONT)
    else:
        assert not leader.leads(), "two daemons say that they lead"
        leader.between.heal()
    until(leader.stands_by, LONG, "the old leader stands by")
    return took


def test_no_job_is_lost_or_repeated_when_the_leader_is_killed_stopped_or_cut_off(
    members, postgres, capsys
):
    led_by(members)
    client, took = Client(members), {fault: [] for fault in FAULTS}
    turns, watch = Turns(postgres.url("takeover")), Watch(members, postgres.url("takeover"))
    try:
        until(lambda: watch.epochs == [1], LONG, "the first was seen to lead")
        client.goes_on()
        for number in range(ROUNDS):
            fault = FAULTS[number % len(FAULTS)]
            took[fault].append(break_and_mend(fault, *led_by(members), turns))
            client.goes_on()
            wanted = list(range(1, number + 3))
            until(lambda wanted=wanted: watch.epochs == wanted, LONG, "it was seen to lead")
    finally:
        client.stop()
        turns.close()
        watch.stop()
    with capsys.disabled():
        if len(FAULTS) < ROUNDS:
            worst = {fault: round(max(seconds), 1) for fault, seconds in took.items() if seconds}
            jobs = len(client.taken)
            sys.stdout.write(f"\n{ROUNDS} rounds, {jobs} jobs, without a leader at most {worst}\n")
    leader, _ = led_by(members)
    each_once = list(range(1, ROUNDS + 2))
    assert watch.epochs == each_once
    assert sorted(set(check(leader, client.taken))) == each_once
