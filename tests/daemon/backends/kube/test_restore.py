"""A backup of the journal is put back while Kubernetes went on: what runs there goes on."""

import shutil
from contextlib import asynccontextmanager

import pytest

from daemon.config.config import PoolConfig
from daemon.export.loss import accept_loss
from daemon.model.inputs import Cancel, Release
from tests.daemon.backends.kube.test_kube import POOL, taken_over
from tests.support.clusters.kube import HOST, cluster, job, node
from tests.support.clusters.kube_daemons import phase, phase_is, serving, submit
from tests.support.daemons.daemons import time_goes_by, until
from tests.support.daemons.doors import story

ONE = (PoolConfig("vision", 8),)
"""A pool, on either of two nodes."""


@asynccontextmanager
async def two_nodes():
    async with cluster(()) as k8s:
        for name in ("n1", "n2"):
            k8s.make("nodes", node(name, 8))
        k8s.runs_for = None
        yield k8s


async def waited_then_run(folder, k8s):
    """The id of a job that waits in the backup, and runs by now."""
    async with serving(folder, k8s, pools=ONE) as service:
        k8s.make("jobs", job("before", 8, labels=POOL), "vision")
        first = await taken_over(service, "before")
        await phase_is(service, first, "running")
        k8s.make("jobs", job("train", 8, labels=POOL), "vision")
        job_id = await taken_over(service, "train")
        assert phase(service, job_id) == "pending"
    kept(folder)
    async with serving(folder, k8s, pools=ONE) as service:
        k8s.finish("before")
        await phase_is(service, job_id, "running")
    return job_id


def kept(folder):
    (folder / "backup").mkdir()
    for file in folder.glob("sia.db*"):
        shutil.copy(file, folder / "backup")


def put_back(folder):
    for file in folder.glob("sia.db*"):
        file.unlink()
    for file in (folder / "backup").glob("sia.db*"):
        shutil.copy(file, folder)
    accept_loss(folder / "sia.db")


def said(service):
    """What the part says that names what is left alone."""
    parts = {each.name: each.why for each in service.parts.all()}
    return parts.get("backend backup", "")


def where(k8s, name):
    """On which node a Job's pods run, if they do."""
    (there,) = [
        pod["spec"]["nodeName"] for pod in k8s.all("pods")
        if pod["metadata"]["labels"]["job-name"] == name and pod["status"]["phase"] == "Running"
    ]  # fmt: skip
    return there


def suspended(k8s, name):
    return k8s.get("jobs", name)["spec"]["suspend"]


@story
async def test_a_job_held_in_the_backup_that_runs_is_left_to_finish(tmp_path):
    async with two_nodes() as k8s:
        async with serving(tmp_path, k8s, pools=ONE) as service:
            k8s.make("jobs", job("train", 8, labels=POOL), "vision")
            job_id = await taken_over(service, "train")
            await phase_is(service, job_id, "running")
            k8s.change("jobs", k8s.get("jobs", "train")["metadata"], {"spec": {"suspend": True}})
            await phase_is(service, job_id, "held")
        kept(tmp_path)
        async with serving(tmp_path, k8s, pools=ONE) as service:
            await service.submit([Release(job_id)])
            await phase_is(service, job_id, "running")
        begun, there = k8s.ran["train"], where(k8s, "train")
        put_back(tmp_path)
        for mark in ("once", "again"):
            async with serving(tmp_path, k8s, pools=ONE) as service:
                await until(lambda: service.backend._left._refs)
                await until(lambda: f"({job_id} on {there})" in said(service))
                k8s.make("jobs", job(mark, labels=POOL), "vision")
                await taken_over(service, mark)  # all of before was looked at
                assert phase(service, job_id) == "held"
                assert not suspended(k8s, "train")
                assert (k8s.ran["train"], where(k8s, "train")) == (begun, there)
                if mark == "again":
                    k8s.finish("train")
                    await phase_is(service, job_id, "cancelled")
                    await until(lambda: not service.backend._left._refs)
                    await until(lambda: not said(service))
                    assert not await service.notes.read("kube/left/")


@story
async def test_a_job_pending_in_the_backup_that_runs_elsewhere_is_left_running(tmp_path):
    async with two_nodes() as k8s:
        job_id = await waited_then_run(tmp_path, k8s)
        begun, there = k8s.ran["train"], where(k8s, "train")
        k8s.change("nodes", k8s.get("nodes", there)["metadata"], {"spec": {"unschedulable": True}})
        put_back(tmp_path)
        async with serving(tmp_path, k8s, pools=ONE) as service:
            await phase_is(service, job_id, "held")
            await until(lambda: [*service.book.jobs] == [job_id])  # the quota is free
            await service.submit([Release(job_id)])  # somebody tries: it is as before
            await until(lambda: service.book.jobs[job_id].attempt > 1)
            await phase_is(service, job_id, "held")
            assert not suspended(k8s, "train")
            assert (k8s.ran["train"], where(k8s, "train")) == (begun, there)
            k8s.change("jobs", k8s.get("jobs", "train")["metadata"], {"spec": {"suspend": True}})
            await until(lambda: not service.backend._left._refs)
            await service.submit([Release(job_id)])
            await phase_is(service, job_id, "running")
            assert k8s.get("jobs", "train")["spec"]["template"]["spec"]["nodeSelector"] == {
                HOST: where(k8s, "train")
            }
            assert where(k8s, "train") != there


@pytest.mark.parametrize("lie", ["attempt", "seal", "uid", "nodes"])
def test_a_seal_of_another_job_or_other_nodes_is_invalid(tmp_path, lie):
    @story
    async def tell(folder):
        async with two_nodes() as k8s, serving(folder, k8s, pools=ONE) as service:
            k8s.make("jobs", job("first", 8, labels=POOL), "vision")
            first = await taken_over(service, "first")
            await phase_is(service, first, "running")
            notes = dict(k8s.get("jobs", "first")["metadata"]["annotations"])
            assert notes["sia.internal/released"].endswith(f" {where(k8s, 'first')}")
            k8s.make("jobs", job("sly", 8, labels=POOL), "vision")
            sly = await taken_over(service, "sly")
            notes["sia.internal/job"] = sly
            if lie == "attempt":
                notes["sia.internal/attempt"] = "7"
            elif lie == "seal":
                notes["sia.internal/released"] = f"{'0' * 64} n2"
            elif lie == "nodes":
                notes["sia.internal/released"] = notes["sia.internal/released"][:65] + "n1,n2"
            change = {"metadata": {"annotations": notes}, "spec": {
                "suspend": False, "template": {"spec": {"nodeSelector": {HOST: "n2"}}},
            }}  # fmt: skip
            k8s.change("jobs", k8s.get("jobs", "sly")["metadata"], change)
            await until(lambda: suspended(k8s, "sly"))
            await service.submit([Cancel(first)])

    tell(tmp_path)


def test_a_time_limit_that_passes_while_the_daemon_is_down_is_not_reported_as_reached(
    tmp_path, monkeypatch
):
    @story
    async def tell(folder):
        async with two_nodes() as k8s:
            async with serving(folder, k8s, pools=ONE) as service:
                await submit(service, "short", time_limit=600.0)
                await phase_is(service, "short", "running")
                (short,) = (each["metadata"]["name"] for each in k8s.all("jobs"))
                await submit(service, "long", time_limit=600.0)
                await phase_is(service, "long", "running")
            k8s.finish(short)
            time_goes_by(monkeypatch, 3600.0)
            async with serving(folder, k8s, pools=ONE) as service:
                await phase_is(service, "short", "finished")
                assert (await phase_is(service, "long", "failed")).why == "time limit"

    tell(tmp_path)
