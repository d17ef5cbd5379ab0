"""Whose a job of Slurm is: not what its comment says, and not its number alone."""

import asyncio

import pytest

from daemon.backends.slurm import rest
from daemon.model.inputs import Cancel, Release
from tests.support.clusters.slurm_daemons import looks, phase, phase_is, serving, submit, until


def full(service):
    return [
        submit(service, f"full-{pool}", pool, gpus)
        for pool, gpus in (("vision", 16), ("speech", 8), ("robots", 8))
    ]


async def adopted_and_waits(service, slurm, monkeypatch):
    """A held job of somebody's that the daemon has seen, behind others that fill the cluster."""
    for one in full(service):
        await one
    await phase_is(service, "full-speech", "running")
    ref = slurm.sbatch("-H", "-p", "speech", "--gres=gpu:1", "-t", "5")
    await phase_is(service, f"slurm-{ref}", "pending")
    await looks(monkeypatch, service)
    return ref


def comments(slurm, state="RUNNING"):
    return [text for found, text in slurm.squeue("%T %k") if found == state]


@pytest.mark.parametrize("way", ["token", "commands"])
def test_a_job_may_change_its_own_comment(slurm, tmp_path, monkeypatch, way):
    async def story():
        ran = slurm.root / "out" / f"comment-{way}"
        told = f"scontrol update JobId=$SLURM_JOB_ID Comment=epoch3; echo x >> {ran}; sleep 60"
        env = {"SLURM_CONF": str(slurm.conf)}
        async with serving(tmp_path, slurm, way) as service:
            await submit(service, "own", command=("sh", "-c", told), requeue=True, env=env)
            await phase_is(service, "own", "running")
            await until(ran.exists)
            await until(lambda: comments(slurm) == ["epoch3"])
            await looks(monkeypatch, service)
        async with serving(tmp_path, slurm, way) as service:
            await looks(monkeypatch, service)
            assert (phase(service, "own"), service.book.job("own").attempt) == ("running", 1)
            assert ran.read_text().split() == ["x"]
            await service.submit([Cancel("own")])
            await phase_is(service, "own", "cancelled")
            await until(lambda: not slurm.squeue())

    asyncio.run(story())


def test_a_job_cannot_take_the_place_of_anothers_attempt(slurm, tmp_path, monkeypatch):
    """The answer to a submission is lost; a user has an earlier job with the same comment."""

    async def story():
        submitted, theirs = rest.Rest.submit, []

        async def lost(self, wanted):
            theirs.append(slurm.sbatch("-H", f"--comment={wanted.comment}", "-p", "speech"))
            await submitted(self, wanted)
            raise rest.SlurmError("the answer is lost", "")

        async with serving(tmp_path, slurm) as service:
            monkeypatch.setattr(rest.Rest, "submit", lost)
            out = slurm.root / "out" / "mine"
            await submit(service, "a", command=("sh", "-c", f"id -un > {out}; sleep 60"))
            await until(lambda: theirs)
            monkeypatch.setattr(rest.Rest, "submit", submitted)
            await phase_is(service, "a", "running")
            await until(out.exists)
            assert [row for row in slurm.squeue("%i %T %u") if row[0] == theirs[0]] == [
                [theirs[0], "PENDING", "nobody"]
            ]

    asyncio.run(story())


def test_a_job_with_the_number_of_an_adopted_one_is_left_alone(slurm, tmp_path, monkeypatch):
    """Slurm has lost its state, and counts its jobs from 1 again."""

    async def story():
        async with serving(tmp_path, slurm) as service:
            ref = await adopted_and_waits(service, slurm, monkeypatch)
            name = f"slurm-{ref}"
            slurm.stop("slurmctld")  # nothing of the daemon goes on meanwhile
            for path in (slurm.root / "state").glob("job_state*"):
                path.unlink()
            slurm.start_ctld("-c")
            other = ""
            while int(other or 0) < int(ref):
                other = slurm.sbatch("-H", "-p", "robots", "-t", "5")
            before = slurm.run("scontrol", "show", "job", ref)
            await phase_is(service, name, "cancelled")
            await looks(monkeypatch, service)
            assert slurm.run("scontrol", "show", "job", ref) == before

    asyncio.run(story())


def test_an_owner_gets_no_more_gpus_than_were_asked_for(slurm, tmp_path, monkeypatch):
    async def story():
        async with serving(tmp_path, slurm) as service:
            ref = await adopted_and_waits(service, slurm, monkeypatch)
            job = ("scontrol", "update", f"JobId={ref}")
            slurm.run(*job, "TresPerNode=gres:gpu:8", user="nobody")
            await service.submit([Cancel("full-speech")])
            record = await phase_is(service, f"slurm-{ref}", "held")
            assert [row[1] for row in slurm.squeue("%i %T") if row[0] == ref] == ["PENDING"]
            slurm.run(*job, "TresPerNode=gres:gpu:1", user="nobody")
            await service.submit([Release(record.spec.id)])
            await phase_is(service, record.spec.id, "running")

    asyncio.run(story())


def test_a_job_that_cannot_be_ended_does_not_block_others(slurm, tmp_path, monkeypatch):
    async def story():
        async def no(self, ref):
            raise rest.SlurmRefusedError("Access/permission denied")

        async with serving(tmp_path, slurm) as service:
            await submit(service, "stays", "speech")
            await phase_is(service, "stays", "running")
            monkeypatch.setattr(rest.Rest, "cancel", no)
            await service.submit([Cancel("stays")])
            parts = service.parts.all
            await until(lambda: any(not part.ok for part in parts()))
            await submit(service, "next", "robots")
            await phase_is(service, "next", "running")
            monkeypatch.undo()
            await phase_is(service, "stays", "cancelled")
            await until(lambda: all(part.ok for part in parts()))

    asyncio.run(story())
