"""Estimates and what-if answers under a policy that plans with a solver."""

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from daemon.answers.estimates.predict import EstimateContext
from daemon.answers.estimates.recent_arrivals import RecentArrivals
from daemon.answers.estimates.worlds import Outlook, outlook
from daemon.answers.simulate.forward import EnginePlayout
from daemon.answers.simulate.futures import estimated
from daemon.answers.simulate.solving import PlayoutSolvers
from daemon.answers.whatif.whatif import Question, play, play_changed
from daemon.engine.engine import Engine
from daemon.model.inputs import Answered, Tick
from daemon.model.job import LendingMode
from daemon.wire.whatif import JobWhatIf, WhatIf
from replay.run.solving import ReplaySolver
from sia import policies as installed
from sia.contract import solvers
from sia.contract.policy import stream_of
from sia.contract.proposals import Solve, Start
from sia.contract.solvers import Solver
from sia.program import ProgramBuilder
from tests.daemon.answers.test_estimates import Told
from tests.daemon.answers.test_eta import estimating, send, taught
from tests.support.daemons.daemons import FakeBackend, StillClock, serving, setup, submit, until
from tests.support.daemons.doors import asked, job_in, story
from tests.support.knapsack import Knapsack

SPAN = 1000.0


class Lender(Knapsack):
    """Plans for all pools together: a job may use whatever the group has idle."""

    shares = True

    def propose(self, now, changes):
        for job_id in self.chosen:
            job = self.state.jobs.get(job_id)
            if job is not None and job.stream is None:
                yield Start(job, stream_of(job.pool, job.width), "planned")
        self.chosen = []
        waiting = [job for job in self.state.jobs.values()
                   if job.stream is None and job.width <= job.pool.group.idle]  # fmt: skip
        if waiting and not self.is_open:
            self.asked, self.is_open = [job.job.id for job in waiting], True
            builder = ProgramBuilder()
            first = builder.binaries([-float(job.width) for job in waiting])
            terms = {first + i: float(job.width) for i, job in enumerate(waiting)}
            builder.at_most(terms, float(waiting[0].pool.group.idle))
            yield Solve(builder.build(), self.limit)


PLANNERS = {"knapsack": Knapsack, "lender": Lender}


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    real = installed.load_plugin
    monkeypatch.setattr(
        installed,
        "load_plugin",
        lambda group, name: PLANNERS.get(name) or real(group, name),
    )


@pytest.fixture
def told():
    """Three jobs that wait for the solver, which would start the two that fill the pool."""
    return waiting()


@pytest.fixture
def no_solver(told, monkeypatch):
    monkeypatch.setattr(solvers, "_loaded", dict)


class Planned(Told):
    """An engine whose programs are solved at once, until nobody solves them any more."""

    def __init__(self):
        super().__init__(policy="knapsack", a=5)
        self.solve = ReplaySolver(None, 0.0)
        self.ran(60, SPAN)
        self.heard.lately = RecentArrivals()  # nobody comes

    def step(self, now, *inputs):
        step = super().step(now, *inputs)
        asked = self.engine.book.solving
        if asked is not None and self.solve is not None:
            event = self.solve(now, asked)
            self.step(now, Answered(event.request, event.status, event.values, event.bound))
        return step


def waiting():
    told = Planned()
    told.solve = None
    told.step(
        told.now + 500,
        *(submit(name, gpus=gpus, run_time=SPAN)
          for name, gpus in (("one", 1), ("two", 2), ("three", 3))),
    )  # fmt: skip
    assert told.engine.book.solving is not None
    return told


def worlds(told, seconds=60.0):
    heard, engine = told.heard, told.engine
    heard.lasting.advance(told.now)
    makers = PlayoutSolvers(engine.core.policy, None, seconds)
    found = outlook(engine, heard.lasting, heard.lately, told.now, 5, makers)
    return Outlook.decode(found.encode())


def starts_at_once(told, found):
    return [name for name in ("one", "two", "three") if found.times(name).start.p50 == told.now]


def future(told, ask=play, seconds=None, **question):
    engine = Engine.restore(told.engine.dump())
    asked = Question(WhatIf(**question), (), lambda _now, _spec: SPAN,
                     EstimateContext(told.heard, None, 5))  # fmt: skip
    return ask(engine, told.now, asked)


def order(outcome):
    return [(start.job, start.start) for start in outcome.played.starts]


def test_estimates_follow_the_plan_that_a_solver_would_make(told):
    before = told.engine.dump()
    found = worlds(told)
    assert starts_at_once(told, found) == ["two", "three"]
    assert found.times("one").start.p50 > told.now + SPAN / 2
    assert found.notes == []
    assert told.engine.dump() == before


@pytest.mark.usefixtures("no_solver")
def test_without_a_solver_estimates_say_so(told):
    found = worlds(told)
    assert starts_at_once(told, found) == ["one", "two"]
    (note,) = found.notes
    assert note.startswith("no solver is installed")
    assert "without the policy's planner" in note


def test_what_if_solves_in_both_futures(told):
    now = told.now
    as_is = future(told, jobs=[JobWhatIf("one", priority=1)])
    assert order(as_is)[:2] == [("two", now), ("three", now)]
    ((name, later),) = order(as_is)[2:]
    assert name == "one"
    assert later == pytest.approx(now + SPAN, abs=SPAN / 5)  # the median of similar jobs
    changed = future(told, play_changed, jobs=[JobWhatIf("three", cancel=True)])
    assert sorted(order(changed)) == [("one", now), ("two", now)]
    assert as_is.notes == changed.notes == ()
    assert as_is.times["one"].times.start.p50 > now + SPAN / 2


@pytest.mark.usefixtures("no_solver")
def test_without_a_solver_what_if_says_so(told):
    outcome = future(told, jobs=[JobWhatIf("one", cancel=True)])
    assert [name for name, _ in order(outcome)] == ["one", "two", "three"]
    assert {note.partition(";")[0] for note in outcome.notes} == {"no solver is installed"}


def test_a_playout_without_time_to_solve_continues_without_a_plan_and_says_so(told):
    makers = PlayoutSolvers(told.engine.core.policy, None, 0.0)
    engine = Engine.restore(told.engine.dump())
    ahead = EnginePlayout(engine, told.now, estimated(told.now), solve=makers.share())
    assert [each.job for each in ahead.play(told.now + 10 * SPAN, 10).starts][:2] == ["one", "two"]
    (note,) = makers.notes()
    assert note.startswith("0 s of solving were too few for")


def test_a_solver_that_crashes_is_named(told, monkeypatch):
    class Broken(Solver):
        @classmethod
        def solve(cls, program, request):
            raise RuntimeError("no licence")

    monkeypatch.setattr(solvers, "_loaded", lambda: {"broken": Broken})
    found = worlds(told)
    assert found.notes == [
        f"the solver failed {n} of {n} programs: the solver crashed: RuntimeError('no licence')"
        for n in [found.notes[0].split()[3]]
    ]


def test_each_program_is_solved_once(told):
    asked = []

    def solve(now, request):
        asked.append(now)
        return ReplaySolver(None, 0.0)(now, request)

    engine = Engine.restore(told.engine.dump())
    ahead = EnginePlayout(engine, told.now, estimated(told.now), solve=solve)
    played = ahead.play(told.now + 10 * SPAN, 10)
    assert not played.cut
    assert len(asked) == 2  # for three jobs, and for the one that is left


async def three(client):
    """A job on all GPUs of the pool, and three that wait for it to end."""
    taught(client)
    await send(client, "runs", gpus=4, duration=1e6, run_time=1e6)
    await job_in(client, "runs", "running")
    for name, gpus in (("one", 1), ("two", 2), ("also", 2)):
        await send(client, name, gpus=gpus, duration=1e6, run_time=500.0)


@story
async def test_children_of_the_daemon_solve_for_estimates_and_what_if(folder):
    async with estimating(folder, policy="knapsack") as client:
        await three(client)
        what = {"jobs": [{"job": "runs", "cancel": True}]}
        said = await asked(client, "POST", "/v1/whatif", what)
        at_once = {move["job"] for move in said["earlier"] if move["then"] == said["time"]}
        assert at_once == {"two", "also"}
        assert not [note for note in said["notes"] if "solve" in note]
        await client.eta.look()
        eta = await asked(client, "GET", "/v1/jobs/one/eta")
        assert eta["estimate"]["by"] == "playout"
        assert "notes" not in eta


@pytest.mark.usefixtures("no_solver")
@story
async def test_without_a_solver_answers_over_http_say_so(folder):
    async with estimating(folder, policy="knapsack") as client:
        await three(client)
        said = await asked(client, "POST", "/v1/whatif", {"jobs": [{"job": "one", "cancel": True}]})
        assert [note for note in said["notes"] if note.startswith("no solver is installed")]
        await client.eta.look()
        (note,) = (await asked(client, "GET", "/v1/jobs/one/eta"))["notes"]
        assert note.startswith("no solver is installed")


def shadowed(policy="lender"):
    cluster = replace(setup(a=2, b=2), policy=policy, lending=LendingMode.SHADOW)
    return Engine.new(cluster)


def answered(request, *values, shadow=False):
    return Answered(request, "optimal", [*map(float, values)], shadow=shadow)


def test_shadow_lending_asks_for_programs_of_its_own():
    engine = shadowed()
    engine.step(
        1.0, [submit("first", "a", 2, run_time=500.0), submit("guest", "a", 2, run_time=500.0)]
    )
    real, shadow = engine.book.solving, engine.shadow_request
    assert (real.request, shadow.request) == (1, 1)
    engine.step(2.0, [answered(1, 1, 1)])
    assert [record.phase.value for record in engine.book.jobs.values()] == ["starting", "pending"]
    restored = Engine.restore(engine.dump())
    assert restored.shadow_request == shadow
    for one in (engine, restored):
        one.step(3.0, [answered(1, 1, 1, shadow=True)])
        step = one.step(400.0, [Tick()])
        assert [n.data["gpus"] for n in step.notices if n.kind == "would_lend"] == [2]
        one.check()
    assert engine.dump() == restored.dump()


def test_an_answer_to_an_older_request_of_the_shadow_core_is_ignored():
    engine = shadowed()
    engine.step(1.0, [submit("first", "a", 2, run_time=500.0)])
    engine.step(2.0, [answered(7, 1, shadow=True)])
    assert engine.shadow_request.request == 1
    assert engine.book.solving.request == 1
    engine.check()


@pytest.mark.parametrize("restart", [False, True])
def test_a_daemon_solves_for_the_shadow_core_beside_the_loop(tmp_path, restart):
    async def tell():
        cluster, clock = shadowed().book.setup, StillClock()
        async with serving(tmp_path / "db", cluster, FakeBackend(), clock) as service:
            await service.submit([submit("first", "a", 2), submit("guest", "a", 2)])
            if not restart:
                await until(lambda: service.book.shadow.jobs)
        async with serving(tmp_path / "db", cluster, FakeBackend(), clock) as service:
            await until(lambda: service.engine.shadow_request is None and service.book.shadow.jobs)
            assert service.book.jobs["guest"].phase.value == "pending"
            service.engine.check()

    asyncio.run(tell())


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_a_policy_with_leases_is_simulated_with_its_solver(seed):
    """Chronus: what is open is solved first, then what the playout asks for, always alike."""
    rng, told = Random(seed), Told(policy="chronus:profile=0", a=8)
    jobs = [
        submit(f"j{i}", gpus=rng.choice((1, 2, 3, 4, 6)),
               run_time=rng.choice((600.0, 900.0, 1500.0, 3000.0)),
               deadline=told.now + rng.choice((1800.0, 3600.0, 5400.0)))
        for i in range(8)
    ]  # fmt: skip
    told.step(told.now, *jobs)
    assert told.engine.book.solving is not None
    futures = []
    for _ in range(2):
        engine = Engine.restore(told.engine.dump())
        makers = PlayoutSolvers(engine.core.policy, None, 60.0)
        solve = makers.share()
        ahead = EnginePlayout(engine, told.now, estimated(told.now), solve=solve)
        futures.append(ahead.play(told.now + 20 * SPAN, 100).starts)
        assert solve.solved
        assert makers.notes() == []
        engine.check()
    assert futures[0] == futures[1]
    assert {start.job for start in futures[0]} <= {f"j{i}" for i in range(8)}
