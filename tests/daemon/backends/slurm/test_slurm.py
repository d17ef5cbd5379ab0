"""Jobs of the daemon in a real Slurm: started where decided, followed to their end."""

import asyncio

import pytest

from daemon.config.config import NodeConfig, PoolConfig
from daemon.model.inputs import Cancel
from tests.support.clusters.slurm import waits_for
from tests.support.clusters.slurm_daemons import DOORS, phase_is, serving, submit, until
from tests.support.daemons.daemons import time_goes_by


@pytest.mark.parametrize("way", DOORS)
def test_a_job_runs_in_its_pools_partition_on_its_nodes_and_gpus(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            out = slurm.root / "out" / f"a-{way}"
            gate = slurm.gate()
            told = f'echo "$SIA_JOB_ID $SIA_POOL $GREETING $CUDA_VISIBLE_DEVICES" > {out}; '
            told += waits_for(gate)
            env = {"GREETING": 'it\'s $HOME; "quoted"\nand more'}
            await submit(service, "a", "speech", 3, command=("sh", "-c", told), env=env)
            record = await phase_is(service, "a", "running")
            ((node, gpus),) = record.nodes
            assert (record.area, node, len(gpus)) == ("speech", "n3", 3)
            ((_, partition, state, where),) = slurm.squeue()
            assert (partition, state, where) == ("speech", "RUNNING", "n3")
            gate.touch()
            record = await phase_is(service, "a", "finished")
            assert (record.code, record.signal) == (0, None)
            said = out.read_text()
            assert said.startswith(f"a speech {env['GREETING']} "), said
            assert len(said.split()[-1].split(",")) == 3

    asyncio.run(story())


def test_single_jobs_are_queried_if_listing_all_costs_too_much(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.backends.slurm.backend.COSTLY", 0.0)

    async def story():
        async with serving(tmp_path, slurm) as service:
            await until(lambda: service.backend._all_due)
            service.backend._all_due += 1000.0
            await submit(service, "a", command=("sh", "-c", "sleep 1; exit 3"))
            held = slurm.sbatch("-H", "-p", "speech", "--gres=gpu:1", "-t", "5", script="sleep 1")
            assert (await phase_is(service, "a", "failed")).code == 3
            await phase_is(service, f"slurm-{held}", "finished")

    asyncio.run(story())


@pytest.mark.parametrize("way", DOORS)
def test_the_end_of_a_job_is_reported(slurm, tmp_path, way):
    async def story():
        async with serving(tmp_path, slurm, way) as service:
            await submit(service, "bad", command=("sh", "-c", "exit 7"))
            await submit(service, "killed", command=("sh", "-c", "kill -9 $$"))
            await submit(service, "gone", "robots")
            await submit(service, "unwanted", "speech")
            assert (await phase_is(service, "bad", "failed")).code == 7
            assert (await phase_is(service, "killed", "failed")).signal == 9
            await phase_is(service, "gone", "running")
            ((ref,),) = [row[:1] for row in slurm.squeue() if row[1] == "robots"]
            slurm.run("scancel", ref)
            assert "Slurm" in (await phase_is(service, "gone", "cancelled")).why
            await phase_is(service, "unwanted", "running")
            await service.submit([Cancel("unwanted")])
            await phase_is(service, "unwanted", "cancelled")
            await until(lambda: not slurm.squeue())

    asyncio.run(story())


@pytest.mark.parametrize("way", DOORS)
def test_a_time_limit_that_passes_while_the_daemon_is_down_is_not_reported_as_reached(
    slurm, tmp_path, monkeypatch, way
):
    async def story():
        gate = slurm.gate()
        async with serving(tmp_path, slurm, way) as service:
            told = ("sh", "-c", waits_for(gate))
            await submit(service, "short", "speech", command=told)
            await submit(service, "long", "robots")
            await phase_is(service, "short", "running")
            await phase_is(service, "long", "running")
        gate.touch()
        await until(lambda: [row[1] for row in slurm.squeue()] == ["robots"])
        time_goes_by(monkeypatch, 3600.0)
        async with serving(tmp_path, slurm, way) as service:
            assert (await phase_is(service, "short", "finished")).code == 0
            assert (await phase_is(service, "long", "failed")).why == "time limit"

    asyncio.run(story())


def test_jobs_run_on_the_nodes_that_their_strl_names(slurm, tmp_path):
    """One that is submitted to the daemon, one to Slurm, and one that waits for its only set."""
    pools = (PoolConfig("vision", 16),)  # on n1 and n2
    settings = {"policy": "jvu:greedy:cycle=1", "nodes": (NodeConfig("n2", None, ("fast",)),)}

    async def story():
        gate = slurm.gate()
        told = ("sh", "-c", waits_for(gate))
        async with serving(tmp_path, slurm, pools=pools, settings=settings) as service:
            text = "(max (nck fast 6 0 60 100) (nck all 6 0 90 50))"
            await submit(service, "own", gpus=6, strl=text, command=told, run_time=60.0)
            own = await phase_is(service, "own", "running")
            assert [node for node, _ in own.nodes] == ["n2"]
            ref = slurm.sbatch(
                "-H", "-p", "vision", "--gres=gpu:2", "-t", "5",
                "--comment=sia:strl=(max (nck fast 2 0 60 100) (nck (n1) 2 0 90 50))",
                script=waits_for(gate),
            )  # fmt: skip
            theirs = await phase_is(service, f"slurm-{ref}", "running")
            assert theirs.spec.run_time == 60.0
            assert [node for node, _ in theirs.nodes] == ["n2"]
            only = "(nck fast 4 0 60 100)"
            await submit(service, "only", gpus=4, strl=only, command=("true",), run_time=60.0)
            other = "(nck all 8 0 60 1)"
            await submit(service, "other", gpus=8, strl=other, command=told, run_time=60.0)
            assert [n for n, _ in (await phase_is(service, "other", "running")).nodes] == ["n1"]
            assert service.book.jobs["only"].phase.value == "pending"
            assert {(row[2], row[3]) for row in slurm.squeue()} == {
                ("RUNNING", "n1"), ("RUNNING", "n2"),
            }  # fmt: skip
            gate.touch()
            done = await phase_is(service, "only", "finished")
            assert [node for node, _ in done.nodes] == ["n2"]

    asyncio.run(story())
