"""Held jobs that people submit to Slurm themselves: taken over, started when it is decided."""

import asyncio
from types import SimpleNamespace

import pytest

from daemon.backends.slurm import adopt, rest
from daemon.model.inputs import Cancel, Hold, Release, SetPool
from daemon.model.job import PoolMode
from tests.support.clusters.slurm import waits_for
from tests.support.clusters.slurm_daemons import looks, phase_is, serving, submit, until


def rows(slurm):
    return {ref: (part, state, where) for ref, part, state, *where in slurm.squeue()}


def warnings_of(monkeypatch):
    told = []
    log = SimpleNamespace(warning=lambda what, **_: told.append(what))
    monkeypatch.setattr(adopt, "log", lambda: log)
    return told


@pytest.mark.parametrize("way", ["token", "commands"])
def test_a_held_job_is_started_where_it_was_placed(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            out = slurm.root / "out" / f"adopted-{way}"
            gate = slurm.gate()
            told = f'echo "$CUDA_VISIBLE_DEVICES" > {out}; {waits_for(gate)}; exit 3'
            ref = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:2", "-t", "5", script=told)
            record = await phase_is(service, f"slurm-{ref}", "running")
            assert (record.spec.pool, record.spec.gpus, record.spec.user) == ("speech", 2, "nobody")
            assert record.time_limit == record.run_time == 300.0, "thought to run as long at most"
            assert rows(slurm)[ref] == ("speech", "RUNNING", ["n3"])
            gate.touch()
            record = await phase_is(service, f"slurm-{ref}", "failed")
            assert record.code == 3
            assert len(out.read_text().split(",")) == 2

    asyncio.run(story())


@pytest.mark.parametrize("way", ["token", "commands"])
def test_tasks_of_an_array_are_scheduled_one_by_one(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            out = slurm.root / "out" / f"array-{way}"
            told = f'echo "$SLURM_ARRAY_TASK_ID" >> {out}; sleep 1'
            ref = slurm.sbatch(
                "--hold", "-p", "robots", "--gres=gpu:4", "--array=0-3,7", "-t", "5", script=told
            )
            ids = [f"slurm-{ref}_{task}" for task in (0, 1, 2, 3, 7)]
            for each in ids:
                await phase_is(service, each, "finished")
            assert sorted(out.read_text().split()) == ["0", "1", "2", "3", "7"]

    asyncio.run(story())


@pytest.mark.parametrize("way", ["token", "commands"])
def test_a_task_that_is_cancelled_in_slurm_is_cancelled(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            ref = slurm.sbatch("--hold", "-p", "robots", "--gres=gpu:8", "--array=0-2", "-t", "5")
            first = await phase_is(service, f"slurm-{ref}_0", "running")
            assert first.area == "robots"
            others = [f"slurm-{ref}_{task}" for task in (1, 2)]
            await until(lambda: all(service.book.job(each) for each in others))
            waits = [each for each in others if service.book.job(each).phase.value == "pending"]
            slurm.run("scancel", f"{ref}_0", *(each.removeprefix("slurm-") for each in waits))
            for each in (f"slurm-{ref}_0", *waits):
                await phase_is(service, each, "cancelled")

    asyncio.run(story())


def test_a_gang_gets_the_nodes_it_asks_for(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            ref = slurm.sbatch("--hold", "-p", "vision", "-N2", "--gres=gpu:3", "-t", "5")
            wide = slurm.sbatch("--hold", "-p", "vision", "--gpus=2", "-t", "5")
            record = await phase_is(service, f"slurm-{ref}", "running")
            assert [(node, len(gpus)) for node, gpus in record.nodes] == [("n1", 3), ("n2", 3)]
            assert rows(slurm)[ref][2] == ["n[1-2]"]
            await phase_is(service, f"slurm-{wide}", "running")

    asyncio.run(story())


def test_changes_by_users_to_pending_jobs_are_followed(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            for pool, gpus in (("vision", 16), ("speech", 8), ("robots", 8)):
                await submit(service, f"full-{pool}", pool, gpus)
                await phase_is(service, f"full-{pool}", "running")
            refs = [
                slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5") for _ in range(4)
            ]
            gone, longer, here, last = (f"slurm-{ref}" for ref in refs)
            for each in (gone, longer, here, last):
                await phase_is(service, each, "pending")
            slurm.run("scancel", refs[0], user="nobody")
            await phase_is(service, gone, "cancelled")
            slurm.run("scontrol", "update", f"JobId={refs[1]}", "TimeLimit=3", user="nobody")
            await until(lambda: service.book.job(longer).run_time == 180.0)
            assert service.book.job(longer).time_limit == 180.0
            slurm.run("scontrol", "update", f"JobId={refs[1]}", "Nice=7")
            await until(lambda: service.book.job(longer).priority == -7)
            slurm.run("scontrol", "update", f"JobId={refs[1]}", "Nice=0")
            await until(lambda: service.book.job(longer).priority == 0)
            await service.submit([Cancel(here)])
            await until(lambda: refs[2] not in rows(slurm))
            await service.submit([Hold(last)])
            slurm.run("scontrol", "release", refs[3])
            await phase_is(service, last, "pending")
            assert rows(slurm)[refs[3]][1] == "PENDING"
            await service.submit([Cancel("full-speech")])
            await phase_is(service, last, "running")
            await phase_is(service, longer, "running")

    asyncio.run(story())


def test_a_user_cannot_bypass_the_daemon(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            await submit(service, "full", "speech", 8)
            await submit(service, "more", "robots", 8)
            await submit(service, "most", "vision", 16)
            await phase_is(service, "most", "running")
            ref = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await phase_is(service, f"slurm-{ref}", "pending")
            await until(lambda: slurm.reason(ref) == "JobHeldAdmin")
            assert slurm.do("scontrol", "release", ref, user="nobody").returncode
            assert rows(slurm)[ref][1] == "PENDING"

    asyncio.run(story())


def test_a_hold_by_an_operator_is_not_repeated_by_the_next_daemon(slurm, tmp_path, monkeypatch):
    holds = []
    hold = rest.Rest.hold

    async def counted(self, ref):
        await hold(self, ref)
        holds.append(ref)

    monkeypatch.setattr(rest.Rest, "hold", counted)

    async def story():
        async with serving(tmp_path, slurm) as service:
            await service.submit([SetPool("speech", state=PoolMode.HOLD)])
            ref = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await until(lambda: ref in holds)
            assert slurm.reason(ref) == "JobHeldAdmin"
        async with serving(tmp_path, slurm) as service:
            other = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await until(lambda: other in holds)
            assert holds == [ref, other]
            await service.submit([SetPool("speech", state=PoolMode.OPEN)])
            await phase_is(service, f"slurm-{ref}", "running")

    asyncio.run(story())


def test_a_job_that_is_queued_again_waits_for_its_turn(slurm, tmp_path):
    async def story():
        async with serving(tmp_path, slurm) as service:
            ref = slurm.sbatch("--hold", "--requeue", "-p", "speech", "--gres=gpu:1", "-t", "5")
            other = slurm.sbatch("--hold", "--requeue", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await phase_is(service, f"slurm-{ref}", "running")
            await phase_is(service, f"slurm-{other}", "running")
            slurm.run("scontrol", "requeue", ref)
            await until(lambda: service.book.job(f"slurm-{ref}").attempt == 2)
            await phase_is(service, f"slurm-{ref}", "running")
            slurm.run("scontrol", "requeuehold", other)
            await phase_is(service, f"slurm-{other}", "held")
            await service.submit([Release(f"slurm-{other}")])
            await phase_is(service, f"slurm-{other}", "running")

    asyncio.run(story())


def test_a_job_refused_by_a_closed_pool_is_adopted_once_the_pool_is_open(
    slurm, tmp_path, monkeypatch
):
    asked, told = [], warnings_of(monkeypatch)
    submitted = adopt.Submit
    monkeypatch.setattr(adopt, "RETRY", 0.4)
    monkeypatch.setattr(adopt, "Submit", lambda *a, **k: asked.append(a) or submitted(*a, **k))

    async def story():
        async with serving(tmp_path, slurm) as service:
            await service.submit([SetPool("speech", state=PoolMode.DRAIN)])
            ref = slurm.sbatch("--hold", "-p", "speech", "--gres=gpu:1", "-t", "5")
            await until(lambda: len(asked) > 2)
            assert service.book.job(f"slurm-{ref}") is None
            await service.submit([SetPool("speech", state=PoolMode.OPEN)])
            await phase_is(service, f"slurm-{ref}", "running")
            assert told == ["held Slurm job ignored"]

    asyncio.run(story())


def test_parts_of_a_heterogeneous_job_are_left_alone(slurm, tmp_path, monkeypatch):
    told = warnings_of(monkeypatch)

    async def story():
        async with serving(tmp_path, slurm) as service:
            part = ("-H", "--gres=gpu:1", "-t", "5", "-p")
            slurm.sbatch(*part, "speech", ":", *part[1:], "robots")
            after = slurm.sbatch(*part, "speech")
            await phase_is(service, f"slurm-{after}", "running")
            assert list(service.book.jobs) == [f"slurm-{after}"]

    asyncio.run(story())
    assert told == ["held Slurm job ignored"] * 2


@pytest.mark.parametrize("way", ["token", "commands"])
def test_tasks_of_an_array_with_many_gaps_all_run(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            tasks = [100 + 3 * each + each % 2 for each in range(24)]
            numbers = ",".join(map(str, tasks))
            ref = slurm.sbatch(
                "-H", "-p", "vision", "--gres=gpu:1", f"--array={numbers}", "-t", "5",
                script="true",
            )  # fmt: skip
            for task in tasks:
                await phase_is(service, f"slurm-{ref}_{task}", "finished")

    asyncio.run(story())


def test_jobs_without_gpus_or_with_dependencies_are_not_adopted(slurm, tmp_path, monkeypatch):
    async def story():
        async with serving(tmp_path, slurm) as service:
            gate = slurm.gate()
            first = slurm.sbatch(
                "-H", "-p", "speech", "--gres=gpu:1", "-t", "5", script=waits_for(gate)
            )
            after = slurm.sbatch(
                "-H", "-p", "speech", "--gres=gpu:1", "-t", "5", "-d", f"afterok:{first}",
                script="true",
            )  # fmt: skip
            plain = slurm.sbatch("-H", "-p", "speech", "-t", "5")
            wide = slurm.sbatch("-H", "-p", "vision", "-N2", "--gres=gpu:8", "-t", "5")
            await phase_is(service, f"slurm-{first}", "running")
            await phase_is(service, f"slurm-{wide}", "running")
            await looks(monkeypatch, service)
            assert service.book.job(f"slurm-{after}") is None
            gate.touch()
            await phase_is(service, f"slurm-{first}", "finished")
            assert service.book.job(f"slurm-{plain}") is None
            assert rows(slurm)[plain][1] == "PENDING"

    asyncio.run(story())
