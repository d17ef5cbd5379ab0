"""Another policy takes the place of `jvu`, and `jvu` comes back, at restarts in mid-solve."""

import asyncio
import sys

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.inputs import Answered, Configured, Ended, Started
from daemon.model.job import JobPhase
from daemon.model.outputs import Accepted, StartEffect
from daemon.model.setup import Node
from daemon.service.service import Service
from tests.support.daemons.daemons import (
    FakeBackend,
    StillClock,
    forget_snapshots,
    serving,
    setup,
    submit,
    until,
)

RACKS = tuple(
    Node(f"m{i}", (0, 1), (f"rack:r{i // 2}", *(["gpu"] if i < 2 else []))) for i in range(4)
)
PLANS = replace(setup(a=8), policy="jvu:ahead=60", nodes=RACKS)
HANGS = [sys.executable, "-c", "import time; time.sleep(600)"]

BUSY = [submit(f"busy{i}", gpus=1, run_time=600.0, preemptible="never",
               strl=f"(nck (m{i}) 1 0 600 9)") for i in range(4)]  # fmt: skip
"""One GPU of each node remains free."""

WAITING = [
    submit("one-node", gpus=2, nodes=1, run_time=60.0, deadline=1300.0),
    submit("other-node", gpus=2, nodes=1, run_time=60.0),
    submit("planned", gpus=2, run_time=60.0,
           strl="(max (nck (m2 m3) 2 0 60 9) (nck gpu 2 40 90 7))"),
    submit("rack", gpus=2, run_time=30.0, prefers="same:rack", slowdown=2.0, deadline=1200.0),
    submit("gpu", gpus=2, run_time=30.0, prefers="gpu", deadline=1200.0),
]  # fmt: skip
NAMES = {each.spec.id for each in (*BUSY, *WAITING)}


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
    return {job for job in backend.running if backend.running[job]}


async def ends(service, backend, clock, jobs):
    """Let jobs end, and time go on to the next cycle."""
    for job in jobs:
        backend.end(job)
    await until(lambda: not service.book.jobs.keys() & set(jobs))
    clock.time += 5.0


@pytest.mark.parametrize("other", ["fcfs", "prio:kill", "sia"])
def test_jobs_outlive_a_change_to_another_policy_and_back_in_the_middle_of_a_solve(
    tmp_path, solver, other
):
    path, clock, backend = tmp_path / "db", StillClock(), FakeBackend()

    async def plans_until_the_solver_hangs():
        async with serving(path, PLANS, backend, clock) as service:
            await service.submit(BUSY)
            await until(lambda: len(running(backend)) == len(BUSY))
            service._solver.command = HANGS
            clock.time += 5.0
            await service.submit(WAITING)
            clock.time += 5.0
            await until(lambda: service.book.solving is not None)
            return service.book.solving

    async def goes_on_under(policy, jobs):
        cluster = replace(PLANS, policy=policy)
        async with serving(path, cluster, backend, clock) as service:
            service.engine.check()
            if policy == other:
                assert service.book.solving is None
                refused = await service.submit([Answered(1, "optimal", [1.0])])
                assert refused[0].status == 409, "nobody waits for the old answer any more"
            await ends(service, backend, clock, jobs)
            again = service.engine.restore(service.engine.dump())
            again.check()
            assert again.book.jobs == service.book.jobs

    async def finishes():
        async with serving(path, PLANS, backend, clock) as service:
            while service.book.jobs:
                await ends(service, backend, clock, running(backend))
                await until(lambda: not service.book.jobs or running(backend))
            service.engine.check()

    asked = asyncio.run(plans_until_the_solver_hangs())
    assert asked.request >= 1
    asyncio.run(goes_on_under(other, ["busy0"]))
    solver[0] = HANGS
    asyncio.run(goes_on_under(PLANS.policy, ["busy1"]))
    asyncio.run(goes_on_under(other, ["busy2"]))
    solver[0] = None
    asyncio.run(finishes())
    started = [job for what, job, _ in backend.told if what == "start"]
    assert sorted(started) == sorted(NAMES), "each job started once"
    forget_snapshots(path)
    journal = Journal(path)
    assert recover(journal, PLANS).book.solving is None, "all steps decide as they did"
    journal.close()


@pytest.mark.parametrize("pools", [{"a": 8}, {"a": 2, "b": 6}])
def test_a_start_that_waits_for_one_free_node_is_planned_anew_under_jvu(pools):
    """A count of GPUs starts the job, but no node has both; with `b` they are on loan."""
    engine = Engine.new(replace(setup(**pools), policy="emmfs", nodes=RACKS))
    owners = [name for name, quota in pools.items() for _ in range(quota)]
    engine.step(0.0, [submit(f"busy{i}", pool=owners[i], run_time=600.0) for i in range(8)])
    engine.step(0.0, [Started(f"busy{i}", 1) for i in range(8)])
    on = {}
    for name, record in engine.book.jobs.items():
        on.setdefault(record.nodes[0][0], []).append(name)
    engine.step(0.5, [Ended(names[0], 1, 0) for names in on.values()])  # half of each node
    engine.step(1.0, [submit("one-node", gpus=2, nodes=1, run_time=60.0)])
    assert [*engine.book.seatless] == ["one-node"]
    assert bool(engine.book.jobs["one-node"].loans) is ("b" in pools)
    done = engine.step(
        2.0, [Configured(replace(setup(**pools), policy="jvu:greedy", nodes=RACKS), 0)]
    )
    assert isinstance(done.answers[0], Accepted), done.answers[0]
    engine.check()
    record = engine.book.jobs["one-node"]
    assert (record.phase, record.attempt, record.loans) == (JobPhase.PENDING, 0, ())
    assert engine.core.state.jobs[record.core].runs == 0, "no start of it counts as killed"
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    (start,) = [each for each in engine.step(5.0, [Ended(on["m2"][1], 1, 0)]).effects
                if isinstance(each, StartEffect)]  # fmt: skip
    assert start.job == "one-node"
    assert len(start.nodes) == 1
    engine.check()
