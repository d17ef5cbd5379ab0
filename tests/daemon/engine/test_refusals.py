"""Refused proposals: each reason is told once, and a failure of a policy costs itself alone."""

from contextlib import closing

import pytest
from msgspec import Struct
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.inputs import (
    Answered,
    Cancel,
    Configured,
    Ended,
    Lending,
    Reported,
    SetPolicy,
    Started,
    Stopped,
    Tick,
)
from daemon.model.job import JobPhase
from daemon.model.outputs import Accepted, Refused, StartEffect
from sia import policies as installed
from sia.console.errors import UserError
from sia.contract.policy import Needs, Policy
from sia.contract.proposals import Solve, Start, Wake
from sia.core.guard import HOOKS
from sia.model import Stream
from sia.policies.preemptive.emmfs import ElasticMaxMin
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
    assert refusals(step) == [("", "the policy failed in solved: KeyError: plan")]
    assert [type(answer).__name__ for answer in step.answers] == ["Accepted", "Accepted"]
    assert engine.book.jobs["next"].phase is JobPhase.STARTING
    assert engine.book.solving.request == 2  # the policy that replaces it asks anew
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
    assert refused[1].startswith("the policy failed in propose: KeyError: no plan for <")
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


def failing_once(hook):
    """Return elastic max-min sharing that raises the first time that this method is called."""
    left = [KeyError("lost")]
    real = getattr(ElasticMaxMin, hook)

    def fails(self, *news):
        if left:
            raise left.pop()
        return real(self, *news)

    return type("Fragile", (ElasticMaxMin,), {hook: fails})


NOT_HERE = {"solved", "revealed"}
"""Elastic max-min sharing needs neither a solver nor the future."""


@pytest.mark.parametrize("hook", ["propose", "turn", *sorted({*HOOKS} - NOT_HERE)])
def test_a_policy_that_fails_in_any_method_is_replaced_and_jobs_go_on(monkeypatch, hook):
    engine = engine_under(monkeypatch, failing_once(hook), a=4)

    def attempt(job):
        return engine.book.jobs[job].attempt

    told = []
    for tick, given in enumerate(
        [
            lambda: submit("first", gpus=4, min_width=1),
            Tick,
            lambda: submit("second", gpus=4, min_width=1),
            Tick,
            lambda: Reported("second", attempt("second"), 0.1),
            lambda: submit("third", gpus=4, preemptible="never"),
            lambda: Cancel("third"),
            lambda: Ended("first", attempt("first"), 0),
            Tick,
        ]
    ):
        inputs = [given()]
        while inputs:
            step = engine.step(TICK * tick, inputs)
            inputs = [*map(obey, step.effects)]
            assert [each for each in step.answers if isinstance(each, Refused)] == []
            told += [why for job, why in refusals(step) if not job]
            engine.check()
            assert Engine.restore(engine.dump()).dump() == engine.dump()
    assert told == [f"the policy failed in {hook}: KeyError: lost"]
    assert {job: each.phase for job, each in engine.book.jobs.items()} == {
        "second": JobPhase.RUNNING
    }


class Forgetful(Breaks):
    """Cannot say what it remembers."""

    def memory(self):
        raise KeyError("lost")


def test_a_policy_that_cannot_say_what_it_remembers_can_be_left_for_another(monkeypatch):
    monkeypatch.setattr(Breaks, "armed", False)
    real = installed.load_plugin
    engine = engine_under(monkeypatch, Forgetful, a=4)
    engine.step(0.0, [submit("first", gpus=3)])
    settings = engine.book.setup
    (answer,) = engine.step(1.0, [Configured(replace(settings, grace=7.0))]).answers
    assert answer.detail == "the policy failed in memory: KeyError: lost"
    monkeypatch.setattr(installed, "load_plugin", real)
    (answer,) = engine.step(2.0, [Configured(replace(settings, policy="fcfs"))]).answers
    assert answer == Accepted()
    assert engine.book.jobs["first"].phase is JobPhase.STARTING
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    engine.check()


def test_a_new_journal_under_a_policy_that_fails_at_once_is_refused_in_one_line(
    tmp_path, monkeypatch
):
    def lost(self, *_):
        raise KeyError("lost")

    monkeypatch.setattr(Breaks, "armed", False)
    for method in ("memory", "attach"):
        policy = type("Lost", (Breaks,), {method: lost})
        monkeypatch.setattr(installed, "load_plugin", lambda *_, policy=policy: policy)
        with (
            closing(Journal(tmp_path / method)) as journal,
            pytest.raises(UserError) as refused,
        ):
            recover(journal, setup(a=4))
        assert str(refused.value) == (
            f"daemon.policy sia: the policy failed in {method}: KeyError: lost; name another policy"
        )


@pytest.mark.parametrize("method", ["memory", "attach"])
def test_a_configuration_with_a_policy_that_fails_at_once_is_refused(monkeypatch, method):
    engine = Engine.new(setup(a=4))
    engine.step(0.0, [submit("first", gpus=3)])
    monkeypatch.setattr(Breaks, "armed", False)

    def lost(self, *_):
        raise KeyError("lost")

    policy = type("Lost", (Breaks,), {method: lost})
    monkeypatch.setattr(installed, "load_plugin", lambda *_: policy)
    (answer,) = engine.step(1.0, [Configured(replace(engine.book.setup, policy="mmfs"))]).answers
    assert answer.detail == f"the policy failed in {method}: KeyError: lost"
    assert engine.book.setup.policy == "sia"
    engine.check()


class Depth(Struct, frozen=True):
    depth: int = 0


class Tunable(Breaks):
    """Fails when it is attached with a certain option."""

    tunable = True
    Params = Depth

    def attach(self, state):
        if self.params.depth == 1 or (self.params.depth == 2 and state.now >= 3.0):
            raise KeyError("too deep")
        super().attach(state)


def test_options_under_which_the_policy_cannot_begin_are_refused_and_the_old_stay(monkeypatch):
    monkeypatch.setattr(Breaks, "armed", False)
    engine = engine_under(monkeypatch, Tunable, a=4)
    engine.step(0.0, [submit("first", gpus=3)])
    (answer,) = engine.step(1.0, [SetPolicy("sia:depth=1")]).answers
    assert (answer.status, answer.mend) == (409, "give other options")
    assert answer.detail == "the policy failed in attach: KeyError: too deep"
    assert engine.book.setup.policy == "sia"
    (answer,) = engine.step(2.0, [SetPolicy("sia:depth=2")]).answers
    assert answer == Accepted()
    step = engine.step(4.0, [submit("second", gpus=1)])
    assert step.effects
    assert engine.book.setup.policy == "sia:depth=2"
    engine.check()


def test_a_policy_that_cannot_begin_once_its_options_are_accepted_breaks_no_step(monkeypatch):
    """As when an event of the same step is what it fails at; the next pass tries again."""
    monkeypatch.setattr(Breaks, "armed", False)
    left = []

    class Late(Tunable):
        def attach(self, state):
            if left and left.pop():
                raise KeyError("not now")
            super().attach(state)

    engine = engine_under(monkeypatch, Late, a=4)
    left += [True, False]  # the second time, when the change takes effect
    step = engine.step(1.0, [SetPolicy("sia:depth=3"), submit("first", gpus=3)])
    assert [*map(type, step.answers)] == [Accepted, Accepted]
    assert refusals(step) == [("", "the policy failed in attach: KeyError: not now")]
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    engine.step(engine.core.wake, [Tick()])
    assert engine.book.jobs["first"].phase is JobPhase.STARTING
    engine.check()


def test_a_policy_that_cannot_be_copied_has_no_shadow_and_breaks_no_step(monkeypatch):
    monkeypatch.setattr(Breaks, "armed", False)
    engine = engine_under(monkeypatch, Forgetful, a=4)
    for now, given in enumerate([submit("first", gpus=3), Lending(on=False, shadow=True), Tick()]):
        (answer,) = engine.step(float(now), [given]).answers
        assert answer == Accepted()
        engine.check()
    assert engine.book.jobs["first"].phase is JobPhase.STARTING
    assert engine.book.shadow.since
    monkeypatch.setattr(Forgetful, "memory", Breaks.memory)
    engine.step(3.0, [Tick()])
    assert Engine.restore(engine.dump()).dump() == engine.dump()


def obey(effect):
    """Return what a backend reports that carries out an effect at once."""
    done = Started if isinstance(effect, StartEffect) else Stopped
    return done(effect.job, effect.attempt)
