"""What a real Slurm does too seldom: numbers that come again, answers that say nothing."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.backends.interface import Expected
from daemon.backends.slurm import adopt
from daemon.backends.slurm.actions import VAIN
from daemon.backends.slurm.backend import SlurmBackend
from daemon.backends.slurm.interface import SlurmRefusedError
from daemon.backends.slurm.partial_listing import FEW, LeastRecentlyPolled
from daemon.backends.slurm.rest import Rest
from daemon.doors.views.notes import notes_of
from daemon.model.errors import JournalError
from daemon.model.inputs import Ended, Requeued, SetPool, Started
from daemon.model.job import JobPhase, PoolMode
from daemon.runtime.health import HealthRegistry
from tests.support.clusters.slurm_fake import (
    CONFIG,
    FOUND,
    NOW,
    FakeRest,
    FakeSlurm,
    backend_of,
    order,
    row_of,
)
from tests.support.daemons import daemons
from tests.support.daemons.daemons import MemoryNotes, setup, until

LONG = 60.0


def dies_at(slurm, times):
    """It dies when it is told of that many-th job."""
    calls = []

    def submit(wanted):
        calls.append(wanted)
        slurm.away = slurm.away or len(calls) == times

    slurm.on_submit = submit


def starts(said):
    return sorted(each.job for each in said if isinstance(each, Started))


def test_a_reused_slurm_number_is_not_taken_for_the_earlier_job():
    """slurmctld dies between two submissions, and comes back with what it had saved before."""

    async def story():
        slurm, said = FakeSlurm(), []
        dies_at(slurm, 2)
        async with backend_of(slurm, said) as backend:
            await backend.start(order("one"))
            await backend.start(order("two"))
            await until(lambda: slurm.away, LONG)
            assert [*slurm.rows] == [5]
            slurm.begins_anew()
            await until(lambda: len(starts(said)) == 2, LONG)
            comments = {row.comment.rpartition(":")[2] for row in slurm.rows.values()}
            assert (comments, sorted(slurm.ran)) == ({"one", "two"}, ["5", "6"])
            slurm.change(5, state="COMPLETED", code=0)
            await until(lambda: any(isinstance(each, Ended) for each in said), LONG)
            assert len([each for each in said if isinstance(each, Ended)]) == 1

    asyncio.run(story())


def test_a_foreign_job_with_a_reused_number_is_left_alone():
    async def story():
        slurm, said, notes = FakeSlurm(), [], MemoryNotes()
        dies_at(slurm, 2)
        async with backend_of(slurm, said, notes=notes) as backend:
            await backend.start(order("one"))
            await backend.start(order("two"))
            await until(lambda: slurm.away, LONG)
            slurm.begins_anew()
            theirs = slurm.has(5, user="alice", partition="other", comment="mine")
            slurm.next = 6
            await until(lambda: len(starts(said)) == 2, LONG)
            assert slurm.rows[5] == theirs
            assert await notes.read("slurm/user/") == {"slurm/user/root": "1"}

    asyncio.run(story())


@pytest.mark.parametrize("state", ["COMPLETED", "RUNNING"])
def test_a_job_released_by_an_earlier_daemon_may_begin_before_its_second_release(state):
    """It waited for its node when this daemon looked, and waits no more when it acts."""

    async def story():
        slurm, said, notes = FakeSlurm(), [], MemoryNotes()
        async with backend_of(slurm, said, notes=notes) as backend:
            slurm.on_release = lambda ref: slurm.change(int(ref), state="PENDING")
            await backend.start(order("one"))
            await until(lambda: slurm.ran, LONG)

        async def begins(ref, place):
            slurm.change(int(ref), state=state)
            raise SlurmRefusedError("Job has already finished")

        slurm.release = begins
        kinds = {"COMPLETED": Ended, "RUNNING": Started}
        async with backend_of(slurm, said, notes=notes, expected=[Expected(order("one"), None)]):
            await until(lambda: said, LONG)
            assert [type(each) for each in said] == [kinds[state]]

    asyncio.run(story())


def test_a_job_lost_before_it_was_recorded_is_submitted_again():
    """The journal is away between a submission and its note; Slurm begins anew meanwhile."""

    class Away(MemoryNotes):
        fails = False

        async def write(self, changes):
            if self.fails:
                raise JournalError("the disk is full")
            await super().write(changes)

    async def story():
        slurm, said, notes = FakeSlurm(), [], Away()
        async with backend_of(slurm, said, notes=notes) as backend:
            notes.fails = True
            await backend.start(order("one"))
            await until(lambda: slurm.rows, LONG)
            slurm.begins_anew()
            slurm.has(5, user="alice", partition="other")
            slurm.next = 6
            notes.fails = False
            await until(lambda: starts(said) == ["one"], LONG)
            assert (slurm.ran, slurm.rows[5].held) == (["6"], True)

    asyncio.run(story())


def test_a_job_whose_comment_was_changed_is_held_with_a_reason():
    async def story():
        slurm, said = FakeSlurm(), []
        submit = slurm.submit

        async def changed(wanted):
            ref = await submit(wanted)
            slurm.change(int(ref), comment="by the site's plugin")
            return ref

        slurm.submit = changed
        async with backend_of(slurm, said) as backend:
            await backend.start(order("one"))
            await until(lambda: said, LONG)
            (last,) = said
            assert isinstance(last, Requeued)
            assert last.hold
            assert "by the site's plugin" in last.why
            assert (len(slurm.rows), slurm.ran) == (VAIN, [])

    asyncio.run(story())


NOTHING = ["<html>back in a minute</html>", '{"jobs": [{"job', "", {}, {"jobs": {"set": True}}]
NOT_READ = [{"jobs": [{"job_id": number, "state": {"current": ["RUNNING"]}}]} for number in (5, 9)]
NO_NUMBER = {"jobs": [{"state": "RUNNING"}, 3]}


async def bad_for_some_looks(rest, body, parts):
    """Say this until it was seen and is said."""
    rest.body = body
    await until(lambda: any(not part.ok for part in parts.all()), LONG)
    await three_looks(rest)
    rest.body = None
    await until(lambda: all(part.ok for part in parts.all()), LONG)
    await three_looks(rest)


async def three_looks(rest):
    before = rest.looks
    await until(lambda: rest.looks >= before + 3, LONG)


@pytest.mark.parametrize("body", [*NOTHING, NOT_READ[0], NO_NUMBER], ids=str)
def test_an_invalid_answer_does_not_mean_that_a_job_is_gone(body):
    async def story():
        rest, said, parts = FakeRest(), [], HealthRegistry(lambda: 1000.0)
        async with rest.serving() as url, backend_of(Rest(url), said, parts=parts) as backend:
            await backend.start(order("one"))
            await until(lambda: said, LONG)
            await bad_for_some_looks(rest, body, parts)
            assert starts(said) == ["one"]
            assert len(said) == 1
            rest.rows[5]["job_state"] = "COMPLETED"
            await until(lambda: len(said) == 2, LONG)

    asyncio.run(story())


@pytest.mark.parametrize("body", [*NOTHING, NOT_READ[1], NO_NUMBER], ids=str)
def test_an_invalid_answer_does_not_cancel_adopted_jobs(body, tmp_path):
    async def story():
        rest = FakeRest()
        rest.rows[9] = row_of(9, user_name="alice", state_reason="JobHeldUser")
        async with rest.serving() as url:
            backend = SlurmBackend(CONFIG, Rest(url), FOUND)
            async with daemons.serving(tmp_path / "db", setup([8], a=8), backend) as service:
                await service.submit([SetPool("a", state=PoolMode.HOLD)])
                await until(lambda: rest.told, LONG)
                await bad_for_some_looks(rest, body, service.parts)
                assert service.book.job("slurm-9").phase is JobPhase.PENDING
                assert [what for what, _ in rest.told] == ["9"]

    asyncio.run(story())


def test_a_hold_right_after_the_release_of_an_adopted_job_is_respected():
    async def story():
        slurm, said = FakeSlurm(), []
        slurm.has(9, user="alice", partition="a", reason="JobHeldAdmin")
        slurm.next = 10
        slurm.on_release = lambda _: slurm.change(9, state="PENDING", held=True)
        async with backend_of(slurm, said) as backend:
            await backend.start(order("slurm-9", origin="9@1000", user="alice", nodes=1))
            await until(lambda: said, LONG)
            assert (type(said[0]), said[0].hold, slurm.ran) == (Requeued, True, ["9"])

    asyncio.run(story())


def test_a_release_without_visible_effect_is_repeated():
    async def story():
        slurm, said = FakeSlurm(), []
        before = slurm.has(9, user="alice", partition="a", reason="JobHeldAdmin")

        def forget(_):
            if len(slurm.ran) == 1:
                slurm.rows[9] = before

        slurm.on_release = forget
        async with backend_of(slurm, said) as backend:
            await backend.start(order("slurm-9", origin="9@1000", user="alice", nodes=1))
            await until(lambda: starts(said) == ["slurm-9"], LONG)
            assert (slurm.ran, len(said)) == (["9", "9"], 1)

    asyncio.run(story())


def test_each_poll_queries_only_a_few_of_many_jobs(monkeypatch):
    """All that run, and all that came since, have their turn; lists of all are far between."""

    async def story():
        slurm, said, many = FakeSlurm(), [], 3 * FEW
        async with backend_of(slurm, said) as backend:
            for i in range(many):
                await backend.start(order(f"j{i}"))
            await until(lambda: len(starts(said)) == many, LONG)
            monkeypatch.setattr("daemon.backends.slurm.backend.COSTLY", 0.0)
            monkeypatch.setattr("daemon.backends.slurm.backend.REST", 1e9)
            await until(lambda: backend._all_due, LONG)
            lists, looked = slurm.lists, []
            forget = backend._marks.forget

            async def counted(runs):
                looked.append(len(slurm.asked))
                slurm.asked.clear()
                await forget(runs)

            backend._marks.forget = counted
            for number in [*slurm.rows]:
                slurm.change(number, state="COMPLETED", code=0)
            first = slurm.next
            for number in range(first, first + many):
                slurm.has(number, user="alice", partition="other")
            await until(lambda: sum(isinstance(each, Ended) for each in said) == many, LONG)
            await until(lambda: backend._view.next == first + many, LONG)
            assert len(backend._view.jobs) == 2 * many
            assert max(looked[1:]) <= 2 * FEW + 1
            assert slurm.lists == lists

    asyncio.run(story())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300))
def test_each_job_is_queried_in_turn(runs, waiting):
    some, others = [f"{i}" for i in range(runs)], [f"{i}" for i in range(runs, runs + waiting)]
    in_turn, seen = LeastRecentlyPolled(), set()
    for look in range(1, 25):
        found = in_turn.next(dict.fromkeys(some), others)
        assert len(found) == len({*found}) == min(FEW, runs + waiting)
        seen.update(found)
        if look * FEW * 3 // 4 >= runs:
            assert seen.issuperset(some)
        if look * FEW // 4 >= waiting:
            assert seen.issuperset(others)


ASKED = (
    "sia:deadline=in 2h,value=20,budget=4,preemptible=restart,checkpoint=python save.py a,b,"
    "demand=1:3600;2:1900,estimate=3h,mode=gns,regimes=32:9:36.5;64:21:20"
)
"""What a user says in `--comment`."""

WIDTHS = "sia:min_width=1,checkpoint=python save.py"
NO_WIDTHS = (
    "min_width and max_width have no effect: the job was submitted to the cluster itself, and its "
    "script is for 1 GPU; submit it with sia submit if it can run on others"
)


def test_the_comment_contains_the_wishes_of_a_job(tmp_path, monkeypatch):
    """Another comment says nothing; one that is wrong is told with the fix, and left alone."""

    async def story():
        slurm, told = FakeSlurm(), []
        cluster = replace(setup([8], a=8), policy="srtf")
        log = SimpleNamespace(warning=lambda what, **said: told.append(said))
        monkeypatch.setattr(adopt, "log", lambda: log)
        slurm.has(7, user="alice", partition="a", comment="sia:deadline=tomorrow")
        slurm.has(8, user="alice", partition="a", comment="sia:colour=3")
        slurm.has(
            13, user="alice", partition="a", comment="sia:min_width=1,checkpoint=python save.py"
        )
        slurm.has(9, user="alice", partition="a", comment=ASKED)
        slurm.has(10, user="alice", partition="a", comment="my job")
        slurm.has(11, user="alice", partition="a", comment="sia:else:1:job")
        slurm.has(12, user="alice", partition="a", comment=ASKED, requeues=False)
        backend = SlurmBackend(CONFIG, slurm, FOUND)
        async with daemons.serving(tmp_path / "db", cluster, backend) as service:
            await service.submit([SetPool("a", state=PoolMode.HOLD)])
            await until(lambda: service.book.job("slurm-12"), LONG)
            spec = service.book.job("slurm-9").spec
            assert (spec.deadline, spec.value, spec.run_time) == (NOW + 7200, 20.0, 10800.0)
            assert spec.budget == 4.0
            assert (spec.preemptible, spec.mode) == ("restart", "gns")
            assert spec.demand == ((1, 3600.0), (2, 1900.0))
            assert [tuple(r) for r in spec.regimes] == [("32", 9, 36.5, None), ("64", 21, 20, None)]
            assert spec.checkpoint == "python save.py a,b"
            assert service.book.job("slurm-10").spec.deadline is None
            assert service.book.job("slurm-12").spec.preemptible == "never", "Slurm cannot"
            assert all(service.book.job(f"slurm-{i}") is None for i in (7, 8, 11))
            wide = service.book.job("slurm-13").spec
            assert wide.min_width == wide.max_width == wide.gpus
            assert notes_of(service, wide, None)[-2:] == [
                "checkpoint has no effect: the backend runs no command before a stop",
                NO_WIDTHS,
            ]
            bad, unknown = (f"{said['why']}; {said['mend']}" for said in told)
            assert bad.startswith("comment: deadline 'tomorrow' is not a time; write one like")
            assert unknown.startswith("comment: 'colour' is not a field of a job; use one of")

    asyncio.run(story())
