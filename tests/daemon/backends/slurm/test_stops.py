"""A job is told to stop and goes on later: in a Slurm whose every state the test sets."""

import asyncio
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from daemon.backends.interface import Expected
from daemon.backends.slurm import SlurmSection, actions
from daemon.backends.slurm.discovery import door_of
from daemon.backends.slurm.interface import SlurmRefusedError
from daemon.backends.slurm.rest import Rest
from daemon.backends.slurm.schema import job_of
from daemon.model.inputs import Ended, Started, Stopped
from daemon.model.job import JobPhase
from daemon.model.outputs import PreemptEffect
from daemon.runtime.health import HealthRegistry
from tests.support.clusters.slurm_fake import NOW, FakeSlurm, backend_of, order, row_of
from tests.support.daemons.daemons import MemoryNotes, until

LONG = 10.0
ADOPTED = {"origin": f"5@{int(NOW)}", "user": "alice", "nodes": 1}
TOLD = [("5", "USR1 to batch")]


def stop(job="job", **more):
    return PreemptEffect(job, 1, 30.0, **{"checkpoint": "B:USR1", **more})


async def adopted_runs(slurm, said, backend):
    """An adopted job runs as Slurm job 5."""
    slurm.has(5, user="alice", partition="a")
    await backend.start(order("job", **ADOPTED))
    await until(lambda: said == [Started("job", 1)], LONG)


async def own_runs(said, backend):
    """A job that the daemon submitted runs as Slurm job 5."""
    await backend.start(order("job"))
    await until(lambda: said == [Started("job", 1)], LONG)


async def runs(whose, slurm, said, backend):
    await (own_runs(said, backend) if whose == "own" else adopted_runs(slurm, said, backend))


async def looks(slurm, times=3):
    """Wait for complete looks at Slurm."""
    seen = slurm.lists
    await until(lambda: slurm.lists > seen + times, LONG)


def test_an_adopted_job_saves_its_work_is_requeued_and_resumes_as_the_same_job(monkeypatch):
    monkeypatch.setattr(actions, "SETTLES", 0.3)

    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await adopted_runs(slurm, said, backend)
            await backend.preempt(stop())
            await until(lambda: slurm.told, LONG)
            await looks(slurm)
            assert slurm.told == TOLD, "it has its grace time"
            await backend.preempt(stop(force=True))
            await until(lambda: slurm.rows[5].state == "PENDING", LONG)
            await looks(slurm)
            assert said == [Started("job", 1)], "its processes are still on its GPUs"
            slurm.leaves(5)
            await until(lambda: len(said) == 2, LONG)
            assert said[-1] == Stopped("job", 1)
            assert slurm.rows[5].reason == "JobHeldAdmin", "its owner cannot release it"
            await backend.start(replace(order("job", **ADOPTED), attempt=2))
            await looks(slurm)
            assert said[-1] == Stopped("job", 1), "slurmd would refuse it this early"
            await until(lambda: len(said) == 3, LONG)
            assert said[-1] == Started("job", 2)
            assert (slurm.ran, [*slurm.rows]) == (["5", "5"], [5])
            assert slurm.told == [*TOLD, ("5", "requeue")]

    asyncio.run(story())


@pytest.mark.parametrize("whose", ["own", "adopted"])
def test_a_signal_means_what_it_means_in_slurm(whose):
    """Without B: it is for the steps, because the shell of a batch script would die of it."""

    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await runs(whose, slurm, said, backend)
            await backend.preempt(stop(checkpoint="SIGUSR2"))
            await until(lambda: slurm.told, LONG)
            assert slurm.told == [("5", f"USR2 to {'all' if whose == 'own' else 'steps'}")]

    asyncio.run(story())


def test_a_job_that_has_no_way_to_save_is_ended_at_once():
    async def story():
        for checkpoint in ("", "save --all"):
            slurm, said = FakeSlurm(), []
            async with backend_of(slurm, said) as backend:
                await adopted_runs(slurm, said, backend)
                await backend.preempt(stop(checkpoint=checkpoint))
                await until(lambda: slurm.told, LONG)  # noqa: B023
                assert slurm.told == [("5", "requeue")]

    asyncio.run(story())


def test_a_job_of_the_daemon_is_cancelled_and_its_next_attempt_is_another_slurm_job():
    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await own_runs(said, backend)
            await backend.preempt(stop())
            await until(lambda: slurm.told, LONG)
            await backend.preempt(stop(force=True))
            await until(lambda: len(said) == 2, LONG)
            assert said[-1] == Stopped("job", 1)
            await backend.start(replace(order("job"), attempt=2))
            await until(lambda: len(said) == 3, LONG)
            assert said[-1] == Started("job", 2)
            assert slurm.told == [*TOLD, ("5", "cancel")]
            assert slurm.rows[6].comment.split(":")[2:] == ["2", "job"]

    asyncio.run(story())


def test_a_trial_is_a_slurm_job_on_the_gpus_of_the_trial():
    """A job of 16 GPUs is tried on the 8 of a node, is told to stop, and begins anew on others."""

    async def story():
        slurm, said, targets = FakeSlurm(), [], []
        slurm.on_submit = lambda wanted: targets.append((wanted.place.nodes, wanted.script))
        wide = replace(order("job"), spec=replace(order("job").spec, gpus=16))
        async with backend_of(slurm, said) as backend:
            await backend.start(replace(wide, nodes=(("n1", tuple(range(8))),), width=8))
            await until(lambda: said == [Started("job", 1)], LONG)
            await backend.preempt(stop(checkpoint=""))
            await until(lambda: said[-1] == Stopped("job", 1), LONG)
            nodes = (("n2", tuple(range(8))), ("n3", tuple(range(8))))
            await backend.start(replace(wide, attempt=2, nodes=nodes))
            await until(lambda: said[-1] == Started("job", 2), LONG)
        assert [nodes for nodes, _ in targets] == [[("n1", 8)], [("n2", 8), ("n3", 8)]]
        assert ["SIA_WIDTH=8" in targets[0][1], "SIA_WIDTH=16" in targets[1][1]] == [True, True]

    asyncio.run(story())


ENDS = {
    "finished": ({"state": "COMPLETED", "code": 0}, Ended("job", 1, code=0, by_itself=True)),
    "cancelled": ({"state": "CANCELLED"}, "cancelled"),
}


@pytest.mark.parametrize("whose", ["own", "adopted"])
@pytest.mark.parametrize("how", ENDS)
def test_a_job_that_ends_while_it_saves_is_not_run_again(how, whose):
    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await (
                own_runs(said, backend) if whose == "own" else adopted_runs(slurm, said, backend)
            )
            await backend.preempt(stop())
            await until(lambda: slurm.told, LONG)
            change, wanted = ENDS[how]
            slurm.change(5, **change)
            if how == "finished":
                await backend.preempt(stop(force=True))  # before the daemon has seen the end
            await until(lambda: len(said) == 2, LONG)
            await backend.preempt(stop(force=True))
            last = said[-1]
            assert last.cancelled if wanted == "cancelled" else last == wanted
            assert slurm.rows[5].state == change["state"]

    asyncio.run(story())


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"])
def test_an_adopted_job_that_dies_while_it_saves_is_requeued(state):
    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await adopted_runs(slurm, said, backend)
            await backend.preempt(stop())
            await until(lambda: slurm.told, LONG)
            slurm.change(5, state=state, code=1)
            await until(lambda: len(said) == 2, LONG)
            assert said[-1] == Stopped("job", 1)
            assert slurm.told == [*TOLD, ("5", "requeue, ended")]

    asyncio.run(story())


def test_a_stopping_job_that_slurm_requeues_itself_has_stopped():
    """A node fails: Slurm requeues the job, and would run it wherever it likes."""

    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await adopted_runs(slurm, said, backend)
            await backend.preempt(stop())
            await until(lambda: slurm.told, LONG)
            slurm.change(5, state="PENDING", held=False, restarts=1)
            await until(lambda: len(said) == 2, LONG)
            assert said[-1] == Stopped("job", 1)
            assert slurm.rows[5].held

    asyncio.run(story())


def test_a_requeue_that_slurm_forgets_is_asked_for_again():
    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await adopted_runs(slurm, said, backend)
            requeue, asked = slurm.requeue, []

            async def forgets(ref, *, ended=False):
                asked.append(ref)
                if len(asked) > 1:
                    await requeue(ref, ended=ended)

            slurm.requeue = forgets
            await backend.preempt(stop(force=True))
            await until(lambda: slurm.rows[5].state == "PENDING", LONG)
            slurm.leaves(5)
            await until(lambda: said[-1] == Stopped("job", 1), LONG)

    asyncio.run(story())


def test_a_cancellation_ends_a_job_that_is_stopping():
    async def story():
        slurm, said = FakeSlurm(), []
        async with backend_of(slurm, said) as backend:
            await adopted_runs(slurm, said, backend)
            await backend.preempt(stop(force=True))
            await until(lambda: slurm.rows[5].state == "PENDING", LONG)
            await backend.stop("job", 1, "end")
            await backend.preempt(stop(force=True))  # it was under way
            await until(lambda: slurm.rows[5].state == "CANCELLED", LONG)
            slurm.leaves(5)
            await until(lambda: len(said) == 2, LONG)
            assert said[-1].cancelled

    asyncio.run(story())


def test_a_job_that_slurm_refuses_to_requeue_runs_on_and_is_reported():
    async def story():
        slurm, said, parts = FakeSlurm(), [], HealthRegistry(lambda: 1000.0)

        async def refused(ref, *, ended=False):
            raise SlurmRefusedError("Requested operation is presently disabled")

        slurm.requeue = refused
        async with backend_of(slurm, said, parts=parts) as backend:
            await adopted_runs(slurm, said, backend)
            await backend.preempt(stop(force=True))
            await until(lambda: any(not part.ok for part in parts.all()), LONG)
            (part,) = [part for part in parts.all() if not part.ok]
            assert "refuses to requeue job 5" in part.why
            slurm.change(5, state="COMPLETED", code=0)
            await until(lambda: len(said) == 2, LONG)
            assert said[-1].code == 0

    asyncio.run(story())


def stopping():
    record = SimpleNamespace(
        phase=JobPhase.STOPPING, attempt=1, placed=True, spec=order("job", **ADOPTED).spec
    )
    return {"job": record}


@pytest.mark.parametrize("gone", [False, True])
def test_a_daemon_that_was_killed_after_the_requeue_does_not_release_the_job(gone):
    """The order to stop is repeated late, or not before the job has left."""

    async def story():
        slurm, said, notes = FakeSlurm(), [], MemoryNotes()
        slurm.has(5, user="alice", partition="a", restarts=1, reason="JobHeldUser")
        if not gone:
            slurm.change(5, flags=frozenset({"COMPLETING"}))
        expected = [Expected(order("job", **ADOPTED), 1000.0)]
        async with backend_of(slurm, said, expected, records=stopping(), notes=notes) as backend:
            await looks(slurm)
            assert said == ([Stopped("job", 1)] if gone else [])
            await backend.preempt(stop(force=True))
            slurm.leaves(5)
            await until(lambda: said == [Stopped("job", 1)], LONG)
            assert slurm.ran == []

    asyncio.run(story())


ENDED = {
    "it has saved its work and left": ({"state": "FAILED", "code": 3}, Stopped),
    "it was cancelled by the daemon before": ({"state": "CANCELLED"}, Stopped),
    "it has finished": ({"state": "COMPLETED", "code": 0}, Ended),
}


@pytest.mark.parametrize("how", ENDED)
def test_a_job_of_the_daemon_that_ended_while_no_daemon_was_there_has_stopped(how):
    async def story():
        slurm, said, notes = FakeSlurm(), [], MemoryNotes()
        async with backend_of(slurm, said, notes=notes) as backend:
            await own_runs(said, backend)
        change, kind = ENDED[how]
        slurm.change(5, **change)
        expected = [Expected(order("job"), 1000.0)]
        more = {"records": stopping(), "notes": notes}
        async with backend_of(slurm, said, expected, **more) as backend:
            await backend.preempt(stop())
            await until(lambda: len(said) == 2, LONG)
            assert isinstance(said[-1], kind)

    asyncio.run(story())


def test_a_job_of_the_daemon_that_still_runs_after_a_restart_is_told_again():
    async def story():
        slurm, said, notes = FakeSlurm(), [], MemoryNotes()
        async with backend_of(slurm, said, notes=notes) as backend:
            await own_runs(said, backend)
        expected = [Expected(order("job"), 1000.0)]
        more = {"records": stopping(), "notes": notes}
        async with backend_of(slurm, said, expected, **more) as backend:
            await backend.preempt(stop())
            await until(lambda: slurm.told == [("5", "USR1 to batch")], LONG)
            await backend.preempt(stop(force=True))
            await until(lambda: said[-1] == Stopped("job", 1), LONG)

    asyncio.run(story())


def test_a_daemon_that_was_killed_before_the_requeue_does_it():
    async def story():
        slurm, said = FakeSlurm(), []
        slurm.has(5, user="alice", partition="a")
        slurm.change(5, state="RUNNING", held=False)
        expected = [Expected(order("job", **ADOPTED), 1000.0)]
        async with backend_of(slurm, said, expected, records=stopping()) as backend:
            await backend.preempt(stop(force=True))
            await until(lambda: slurm.rows[5].state == "PENDING", LONG)
            slurm.leaves(5)
            await until(lambda: said == [Stopped("job", 1)], LONG)

    asyncio.run(story())


def test_slurm_says_which_jobs_it_requeues():
    assert job_of(row_of(1)).requeues
    assert not job_of({**row_of(1), "requeue": False}).requeues
    assert not job_of({**row_of(1), "batch_flag": False}).requeues  # salloc, srun


def test_slurmrestd_requeues_by_commands_or_not_at_all():
    rest = {"rest": "unix:/nowhere"}
    assert not door_of(SlurmSection(**rest)).requeues
    assert door_of(SlurmSection(**rest, commands=True)).requeues
    assert door_of(SlurmSection(commands=True)).requeues


@pytest.mark.parametrize(("version", "flags"), [(38, None), (40, "FULL_JOB")])
def test_a_signal_goes_to_the_whole_job_in_each_version(version, flags):
    heard = []

    async def answer(request):
        known = request.path.startswith(f"/slurm/v0.0.{version}/")
        if request.method == "DELETE":
            heard.append((request.path.rpartition("/")[2], dict(request.query)))
        return web.json_response({}, status=200) if known else web.Response(status=404)

    async def story():
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            rest = Rest(f"http://127.0.0.1:{server.port}")
            await rest.signal("7_1", "USR1", "all")
            await rest.close()

    asyncio.run(story())
    assert heard == [("7_1", {"signal": "USR1", **({"flags": flags} if flags else {})})]
