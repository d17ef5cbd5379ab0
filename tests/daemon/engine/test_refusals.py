"""Refused proposals: each reason is told once, and a failure of a policy costs itself alone."""

from daemon.engine.engine import Engine
from daemon.model.inputs import Answered, Cancel, Ended, Tick
from daemon.model.job import JobPhase
from sia import policies as installed
from sia.contract.policy import Needs, Policy
from sia.contract.proposals import Solve, Start, Wake
from sia.model import Stream
from tests.support.daemons.daemons import setup, submit
from tests.support.programs import request

TICK = 300.0


class Hopeless(Policy):
    """Proposes at each tick to start the head of each pool, whether or not it fits."""

    def propose(self, now, changes):
        for pool in changes.pools:
            if pool.head is not None:
                yield Start(pool.head, Stream.DEDICATED, "at any price")
        yield Wake(now + TICK)


class Fails(Policy):
    """Asks for a program once, and fails to take the answer."""

    needs = Needs(solver=True)
    asked = False

    def propose(self, now, changes):
        if not self.asked:
            self.asked = True
            yield Solve(request().program, request().limit)
        for pool in changes.pools:
            if pool.head is not None and pool.head.width <= pool.idle:
                yield Start(pool.head, Stream.DEDICATED, "fits")

    def solved(self, answer):
        raise KeyError("plan")


def engine_under(monkeypatch, policy, **quotas):
    monkeypatch.setattr(installed, "load_plugin", lambda group, name: policy)
    return Engine.new(setup(**quotas))


def refusals(step):
    return [(n.job, n.data["why"]) for n in step.notices if n.kind == "refused"]


def test_a_refusal_is_reported_once_and_again_when_its_reason_changes(monkeypatch):
    engine = engine_under(monkeypatch, Hopeless, a=4)
    engine.step(0.0, [submit("first", gpus=3)])
    assert refusals(engine.step(1.0, [submit("next", gpus=4)])) == [
        ("next", "needs 4 GPUs, 1 idle")
    ]
    for tick in range(1, 5):
        step = engine.step(tick * TICK, [Tick()])
        assert any(type(each).__name__ == "ProposalRefused" for each in step.decisions)
        assert refusals(step) == []
        engine = Engine.restore(engine.dump())
    engine.step(2000.0, [Cancel("next")])
    assert engine.book.refused == {}
    assert refusals(engine.step(2001.0, [submit("last", gpus=2)])) == [
        ("last", "needs 2 GPUs, 1 idle")
    ]


def test_a_policy_that_raises_on_an_answer_continues_without_it(monkeypatch):
    engine = engine_under(monkeypatch, Fails, a=4)
    engine.step(0.0, [submit("first", gpus=3)])
    assert engine.book.solving.request == 1
    step = engine.step(1.0, [Answered(1, "optimal", [1.0]), submit("next", gpus=1)])
    assert refusals(step) == [("", "the policy failed to take the answer: KeyError: plan")]
    assert [type(answer).__name__ for answer in step.answers] == ["Accepted", "Accepted"]
    assert engine.book.jobs["next"].phase is JobPhase.STARTING
    assert engine.book.solving is None
    engine.check()


def test_a_refusal_is_forgotten_when_the_job_starts(monkeypatch):
    engine = engine_under(monkeypatch, Hopeless, a=4)
    engine.step(0.0, [submit("first", gpus=3)])
    engine.step(1.0, [submit("next", gpus=4)])
    engine.step(2.0, [Ended("first", 1, 0)])
    assert engine.book.jobs["next"].phase is JobPhase.STARTING
    assert engine.book.refused == {}


class Breaks(Policy):
    """Starts whatever fits in order, and fails at each job that is called a bomb."""

    heeds = frozenset()
    armed = True

    def propose(self, now, changes):
        for pool in changes.pools:
            for job in [*pool.waiting()]:
                if Breaks.armed and job.job.width == 3:
                    raise KeyError(job, f"no plan for {job}")
                if job.width <= pool.idle:
                    yield Start(job, Stream.DEDICATED, "fits")


def test_a_pass_in_which_the_policy_raises_is_repeated(monkeypatch):
    monkeypatch.setattr(Breaks, "armed", True)
    engine = engine_under(monkeypatch, Breaks, a=4)
    step = engine.step(0.0, [submit("first", gpus=1), submit("bomb", gpus=3)])
    assert [type(answer).__name__ for answer in step.answers] == ["Accepted", "Accepted"]
    assert engine.book.jobs["first"].phase is JobPhase.STARTING  # what was proposed before, counts
    (refused,) = refusals(step)
    assert refused[0] == ""
    assert refused[1].startswith("the policy failed: KeyError: no plan for <")
    assert "0x" not in refused[1]
    later = engine.core.wake
    assert later == engine.core.state.options.tick
    again = Engine.restore(engine.dump())
    assert again.step(1.0, [Ended("first", 1, 0)]) == engine.step(1.0, [Ended("first", 1, 0)])
    assert again.dump() == engine.dump()
    assert engine.book.jobs["bomb"].phase is JobPhase.PENDING
    monkeypatch.setattr(Breaks, "armed", False)
    for one in (again, engine):
        one.step(later, [Tick()])
        assert one.book.jobs["bomb"].phase is JobPhase.STARTING
        one.check()
