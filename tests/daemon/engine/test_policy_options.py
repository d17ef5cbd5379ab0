"""Options of a policy that change while jobs run: at once, after a restart, and back again."""

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.journal.audit import WORDS
from daemon.model.inputs import Configured, Ended, SetPolicy, Started, Tick
from daemon.model.outputs import Accepted, Refused
from tests.support.daemons.daemons import setup, submit

FIFO = "wfq:weights=1:zeta=0"
APART = "wfq:sizes=100:weights=3+1:zeta=0"


def fifo(policy=FIFO):
    """Under FIFO a long job has all GPUs, and a short one waits."""
    engine = Engine.new(replace(setup([4], a=4), policy=policy, resizes=True))
    engine.step(1.0, [elastic("long", 1000.0), elastic("short", 10.0)])
    engine.step(2.0, [Started("long", 1)])
    return engine


def elastic(job_id, run_time):
    return submit(job_id, "a", 4, run_time, min_width=1)


def widths(engine):
    jobs = engine.core.state.jobs.values()
    return {each.job.id: 0 if each.stream is None else each.width for each in jobs}


def set_to(engine, policy, now):
    step = engine.step(now, [SetPolicy(policy, "olga")])
    engine.check()
    return step


def test_changed_queues_apply_at_once():
    engine = fifo()
    assert widths(engine) == {"long": 4, "short": 0}
    step = set_to(engine, APART, 3.0)
    assert step.answers == [Accepted()]
    assert widths(engine) == {"long": 1, "short": 3}
    assert engine.book.setup.policy == APART
    assert engine.book.setup.tuned == 3.0
    [told] = [notice for notice in step.notices if notice.kind == "policy"]
    assert told.data == {"policy": APART, "before": FIFO, "by": "olga"}


def test_a_job_may_be_wider_than_its_pool_if_its_least_width_fits():
    engine = Engine.new(replace(setup([4], a=4), policy=FIFO, resizes=True))
    assert engine.step(1.0, [submit("wide", "a", 16, 10.0, min_width=1)]).answers == [Accepted()]
    assert widths(engine) == {"wide": 4}
    for policy, fewest in ((FIFO, 5), ("fcfs", 1)):
        engine = Engine.new(replace(setup([4], a=4), policy=policy, resizes=True))
        [refused] = engine.step(1.0, [submit("gang", "a", 16, 10.0, min_width=fewest)]).answers
        shown = fewest if policy == FIFO else 16
        assert refused.detail == f"{shown} GPUs exceed the quota of pool a: 4"


def test_an_undo_returns_to_the_options_before_and_a_second_one_forward():
    engine = fifo()
    set_to(engine, APART, 3.0)
    set_to(engine, "", 4.0)
    assert engine.book.setup.policy == FIFO
    assert widths(engine)["short"] == 0
    set_to(engine, "", 5.0)
    assert engine.book.setup.policy == APART


def test_a_restart_decides_the_same():
    engine = fifo()
    set_to(engine, APART, 3.0)
    again = Engine.restore(engine.dump())
    for each in (engine, again):
        step = each.step(4.0, [elastic("next", 20.0), Ended("long", 1), Tick()])
        assert step.answers
    assert again.dump() == engine.dump()


def test_the_options_last_until_the_configuration_has_another_policy():
    engine = fifo()
    set_to(engine, APART, 3.0)
    file = replace(setup([4], a=4), policy=FIFO, resizes=True)
    kept = file.continuing(engine.book.setup)
    assert kept == engine.book.setup
    other = replace(file, policy="wfq:weights=1:zeta=0.5")
    assert other.continuing(engine.book.setup) == other
    assert engine.step(4.0, [Configured(other)]).answers == [Accepted()]
    assert engine.book.setup.policy == "wfq:weights=1:zeta=0.5"


@pytest.mark.parametrize(
    ("policy", "label", "said"),
    [
        (FIFO, "fcfs", "the policy in force is wfq, not fcfs"),
        (FIFO, "wfq:zeta=2", "zeta must be 0 to 1"),
        (FIFO, "wfq:no=2", "has no option"),
        (FIFO, "wfq:sizes=1+2+3+4:weights=1+1+1+1+1", "5 queues, but the largest pool has 4 GPUs"),
        (FIFO, "", "has not been changed"),
        ("fcfs", "fcfs:x=1", "fcfs has no options"),
        ("sia", "sia:risk=2", "risk must be at most 1"),
        ("sia", "sia:risk=0.5", "the options of sia cannot change while it runs"),
    ],
)
def test_an_option_that_cannot_be_set_is_refused_with_the_fix(policy, label, said):
    engine = fifo(policy)
    [answer] = set_to(engine, label, 3.0).answers
    assert isinstance(answer, Refused)
    assert said in answer.detail
    assert answer.mend
    assert engine.book.setup.policy == policy


def test_the_same_options_change_nothing():
    engine = fifo()
    [answer] = set_to(engine, FIFO, 3.0).answers
    assert answer == Accepted(new=False)
    assert not engine.book.setup.configured


def test_the_change_is_audited():
    assert WORDS["SetPolicy"] == "policy"
