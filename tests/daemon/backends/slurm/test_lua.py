"""`job_submit.lua`, in a Slurm of its own: who asks for GPUs of a pool waits for the daemon."""

import asyncio
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.clusters.slurm import NEEDED, slurm_cluster
from tests.support.clusters.slurm_daemons import phase_is, serving
from tests.support.paths import ROOT
from tests.support.servers.servers import needs

SCRIPT = ROOT / "deploy" / "slurm" / "job_submit.lua"

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def holding():
    needs(*NEEDED)
    with TemporaryDirectory(prefix="sia-lua-") as folder:
        shutil.copy(SCRIPT, Path(folder) / "job_submit.lua")
        with slurm_cluster(folder, more="JobSubmitPlugins=lua") as cluster:
            yield cluster


def state(cluster, job):
    return cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip()


@pytest.mark.parametrize(
    "asked",
    [
        ("-p", "vision", "--gres=gpu:1"),
        ("--gres=gpu:1",),  # of the partition that all have who name none
        ("-p", "robots,vision", "--gpus=2"),
        ("-p", "robots", "--gpus-per-task=1", "-n", "2"),
        ("-p", "robots", "-N1", "--gpus-per-socket=1", "--sockets-per-node=1"),
    ],
)
def test_a_job_that_requests_gpus_of_a_pool_is_held(holding, asked):
    job = holding.sbatch(*asked)
    assert state(holding, job) == "PENDING"
    for passing in (["release", job], ["update", f"JobId={job}", "Partition=speech"]):
        assert holding.do("scontrol", *passing, user="nobody").returncode != 0
    assert holding.run("squeue", "-h", "-j", job, "-o", "%r").strip() == "JobHeldUser"
    holding.run("scancel", job)


def test_a_job_changed_to_request_gpus_of_a_pool_is_held(holding):
    job = holding.sbatch("-p", "vision", "--begin=tomorrow")
    assert holding.run("squeue", "-h", "-j", job, "-o", "%r").strip() == "BeginTime"
    change = ("update", f"JobId={job}", "TresPerNode=gres:gpu:1")
    assert holding.do("scontrol", *change, user="nobody").returncode == 0
    assert holding.run("squeue", "-h", "-j", job, "-o", "%r").strip() == "JobHeldUser"
    holding.run("scancel", job)


def test_a_job_that_takes_whole_nodes_must_state_its_gpus(holding):
    alone = ("-p", "vision", "--exclusive")
    said = holding.do("sbatch", *alone, "--wrap", "sleep 100", user="nobody")
    assert said.returncode != 0
    assert "request them with --gres=gpu:N" in said.stderr
    job = holding.sbatch(*alone, "--gres=gpu:1")
    assert holding.run("squeue", "-h", "-j", job, "-o", "%r").strip() == "JobHeldUser"
    holding.run("scancel", job)


def test_an_exclusive_job_without_gpus_is_not_held(holding):
    job = holding.sbatch("-p", "vision", "--exclusive=user")
    holding.wait(lambda: state(holding, job) == "RUNNING", "a job without GPUs")
    assert "gpu" not in holding.run("squeue", "-h", "-j", job, "-o", "%b")
    holding.run("scancel", job)


def test_jobs_without_gpus_of_a_pool_are_not_held(holding):
    job = holding.sbatch("-p", "speech")
    holding.wait(lambda: state(holding, job) == "RUNNING", "a job without GPUs")
    holding.run("scancel", job)


def test_the_daemon_starts_what_is_held(holding, tmp_path):
    async def story():
        async with serving(tmp_path, holding) as service:
            job = holding.sbatch("-p", "speech", "--gres=gpu:2", "-t", "5", script="sleep 1")
            record = await phase_is(service, f"slurm-{job}", "finished")
            assert (record.spec.pool, record.spec.gpus, record.code) == ("speech", 2, 0)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("asked", "comment"),
    [
        (("--requeue",), "sia:preemptible=restart"),
        (("--requeue", "--comment=sia:value=3"), "sia:value=3,preemptible=restart"),
        (("--requeue", "--comment=sia:preemptible=30s"), "sia:preemptible=30s"),
        (("--requeue", "--comment=mine"), "mine"),
        (("--comment=sia:value=3",), "sia:value=3"),
    ],
)
def test_a_requeueable_job_can_be_stopped_and_restarted(holding, asked, comment):
    job = holding.sbatch("-p", "vision", "--gres=gpu:1", *asked)
    assert holding.run("squeue", "-h", "-j", job, "-o", "%k").strip() == comment
    holding.run("scancel", job)


@pytest.mark.parametrize(
    ("script", "comment"),
    [
        ("#SBATCH --signal=B:USR1@60", "sia:checkpoint=B:USR1"),
        ("#SBATCH --signal=R:USR1@60", "sia:checkpoint=USR1"),
        ("#SBATCH -n 1 --signal SIGTERM", "sia:checkpoint=SIGTERM"),
        ("#SBATCH --requeue\n#SBATCH --signal=usr2", "sia:preemptible=restart,checkpoint=USR2"),
        ("#SBATCH --comment=sia:checkpoint=./save --signal=USR1", "sia:checkpoint=./save"),
        ("echo --signal=USR1", "(null)"),
    ],
)
def test_the_signal_of_a_script_tells_it_to_save_its_work(holding, script, comment):
    job = holding.sbatch("-p", "vision", "--gres=gpu:1", script=script)
    assert holding.run("squeue", "-h", "-j", job, "-o", "%k").strip() == comment
    holding.run("scancel", job)
