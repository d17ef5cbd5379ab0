"""A daemon whose policy plans with a solver: restarts, deaths and nonsense in mid-solve."""

import asyncio
import sys

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.engine.reconfigure import adapted
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.inputs import Answered
from daemon.model.job import JobPhase
from daemon.service.service import Service
from replay.run.solving import ReplaySolver
from sia import Core
from sia import policies as installed
from sia.core.playout import Arrival, play
from sia.decisions import SolveProgram, StartJob
from sia.model import Job, Pool
from tests.support.daemons.daemons import (
    FakeBackend,
    StillClock,
    forget_snapshots,
    serving,
    setup,
    submit,
    until,
)
from tests.support.knapsack import Knapsack

PLANNED = replace(setup(a=5), policy="knapsack")
SUBMITTED = [submit("one", gpus=1), submit("two", gpus=2), submit("three", gpus=3)]

HANGS = [sys.executable, "-c", "import time; time.sleep(600)"]
NONSENSE = [
    sys.executable, "-c", "import sys; sys.stdin.buffer.read(8); print('nonsense, and more of it')"
]  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    real = installed.load_plugin

    def load(group, name):
        return Knapsack if name == "knapsack" else real(group, name)

    monkeypatch.setattr(installed, "load_plugin", load)


@pytest.fixture
def solver(monkeypatch):
    """Replace the solver process of services that are made from now on, until it is set to None."""
    chosen = [None]
    made = Service.__init__

    def init(self, *given, **more):
        made(self, *given, **more)
        if chosen[0] is not None:
            self._solver.command = chosen[0]

    monkeypatch.setattr(Service, "__init__", init)
    return chosen


def running(backend):
    return [job for _, job, _ in backend.told]


def trouble(service):
    return [part.why for part in service.parts.all() if part.name == "solver" and not part.ok]


def stored(path):
    """All inputs of the journal in order, and its requests to a solver."""
    journal = Journal(path)
    try:
        steps = list(journal.records(0))
    finally:
        journal.close()
    inputs = [each for step in steps for each in step.inputs]
    decisions = [each for step in steps for each in json.decode(step.decisions)]
    return inputs, [each for each in decisions if each["type"] == "SolveProgram"]


async def plays(path, clock):
    """Run the three jobs to their ends; return the starts in order."""
    backend = FakeBackend()
    async with serving(path, PLANNED, backend, clock) as service:
        await service.submit(SUBMITTED)
        await until(lambda: len(backend.told) == 2)
        clock.time += 100.0
        for job in ("two", "three"):
            backend.end(job)
        await until(lambda: len(backend.told) == 3)
        service.engine.check()
    return running(backend)


def test_daemon_and_replay_decide_alike(tmp_path):
    arrivals = [Arrival(Job(s.spec.id, "a", 0.0, s.spec.gpus), 100.0) for s in SUBMITTED]
    core = Core([Pool("a", 5)], Knapsack())
    replayed = [
        decision.job_id
        for _, _, decisions in play(core, arrivals, solve=ReplaySolver(None, 0.0))
        for decision in decisions
        if isinstance(decision, StartJob)
    ]
    assert asyncio.run(plays(tmp_path / "db", StillClock())) == replayed == ["two", "three", "one"]


def test_a_restart_does_not_repeat_solves(tmp_path):
    asyncio.run(plays(tmp_path / "db", StillClock()))
    inputs, requests = stored(tmp_path / "db")
    answers = [each for each in inputs if isinstance(each, Answered)]
    assert [each.request for each in answers] == [each["request"] for each in requests] == [1, 2]
    assert all(len(each["digest"]) == 64 for each in requests)
    assert not any("program" in each for each in requests)
    forget_snapshots(tmp_path / "db")
    journal = Journal(tmp_path / "db")
    again = recover(journal, PLANNED)
    journal.close()
    assert again.book.solving is None
    assert [job.phase for job in again.book.jobs.values()] == [JobPhase.RUNNING]


def test_a_request_that_is_open_at_a_restart_is_asked_again_under_its_number(tmp_path, solver):
    async def story():
        solver[0] = HANGS
        async with serving(tmp_path / "db", PLANNED, FakeBackend()) as service:
            await service.submit(SUBMITTED)
            await until(lambda: service.book.solving is not None)
            asked = service.book.solving
        solver[0] = None
        backend = FakeBackend()
        async with serving(tmp_path / "db", PLANNED, backend) as service:
            assert service.engine.restore(service.engine.dump()).book.solving == asked
            await until(lambda: len(backend.told) == 2)
        assert running(backend) == ["two", "three"]
        inputs, requests = stored(tmp_path / "db")
        assert [each.request for each in inputs if isinstance(each, Answered)] == [1]
        assert [each["request"] for each in requests] == [1]

    asyncio.run(story())


@pytest.mark.parametrize("command", [NONSENSE, ["/nowhere/solver"]])
def test_without_an_answer_jobs_start_without_a_plan_and_health_says_why(tmp_path, solver, command):
    async def story():
        solver[0] = command
        backend = FakeBackend()
        async with serving(tmp_path / "db", PLANNED, backend) as service:
            await service.submit(SUBMITTED)
            await until(lambda: len(backend.told) == 2)
            assert running(backend) == ["one", "two"]
            assert "solver" in trouble(service)[0]
            service.engine.check()

    asyncio.run(story())


def test_commands_are_answered_while_a_solver_hangs_and_when_it_is_killed_jobs_start(
    tmp_path, solver
):
    async def story():
        solver[0] = HANGS
        backend = FakeBackend()
        async with serving(tmp_path / "db", PLANNED, backend) as service:
            await service.submit(SUBMITTED[:1])
            await until(lambda: service._solver._process is not None)
            await service.submit(SUBMITTED[1:])
            assert backend.told == []
            service._solver.command = ["/nowhere/solver"]  # the next request need not hang as well
            service._solver._process.kill()
            await until(lambda: len(backend.told) == 2)
            assert running(backend)[0] == "one"

    asyncio.run(story())


def test_an_answer_to_another_request_is_ignored():
    engine = Engine.new(PLANNED)
    engine.step(1000.0, SUBMITTED)
    asked = engine.book.solving
    assert isinstance(asked, SolveProgram)
    before = engine.dump()
    for number in (0, 2):
        done = engine.step(1000.0, [Answered(number, "optimal", [1.0, 1.0, 1.0])])
        assert done.answers[0].title == "not this request"
        assert not done.decisions
    assert engine.dump() == before
    done = engine.step(1001.0, [Answered(1, "optimal", [0.0, 1.0, 1.0])])
    assert [each.job_id for each in done.decisions if isinstance(each, StartJob)] == [
        each.core for each in engine.book.jobs.values() if each.spec.id != "one"
    ]
    assert engine.step(1001.0, [Answered(1, "optimal", [1.0, 1.0, 1.0])]).answers[0].status == 409


def test_another_policy_asks_again(tmp_path):
    engine = Engine.new(PLANNED)
    engine.step(1000.0, SUBMITTED)
    same, _ = adapted(engine.book, engine.core, PLANNED)
    other, _ = adapted(engine.book, engine.core, replace(PLANNED, policy="ssf"))
    assert same.solving == engine.book.solving
    assert other.solving is None


def test_a_policy_that_asks_for_nonsense_is_refused_and_the_daemon_goes_on(monkeypatch):
    class Wrong(Knapsack):
        limit = replace(Knapsack.limit, nodes=0)

    monkeypatch.setattr(installed, "load_plugin", lambda group, name: Wrong)
    engine = Engine.new(PLANNED)
    done = engine.step(1000.0, SUBMITTED)
    assert engine.book.solving is None
    refused = [notice for notice in done.notices if notice.kind == "refused"]
    assert [notice.job for notice in refused] == [""]
    assert "not a program" in refused[0].data["why"]
