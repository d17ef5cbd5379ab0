"""Daemons before the tests' Kubernetes, in the test's own process."""

import asyncio
from contextlib import asynccontextmanager

import daemons
from daemons import job, until
from doors import config_in
from kube_cluster import kubeconfig

from daemon.build import build
from daemon.config import PoolConfig
from daemon.config_kube import KubeConfig
from daemon.inputs import Submit
from daemon.watch import Watch

POOLS = (PoolConfig("vision", 8), PoolConfig("speech", 8))


@asynccontextmanager
async def serving(folder, cluster, *, pools=POOLS, settings=None, **more):
    """The service of a daemon that has this cluster."""
    path = kubeconfig(folder, cluster.address)
    options = {"poll": 0.1, "image": "registry/job:1", **more}
    config = config_in(
        folder, pools=pools, backend=KubeConfig(kubeconfig=str(path), **options),
        **(settings or {}),
    )  # fmt: skip
    daemon = await asyncio.to_thread(build, config, Watch())
    await daemon.service.start()
    try:
        yield daemon.service
    finally:
        await daemon.service.stop()


async def submit(service, job_id, pool="vision", gpus=1, **more):
    (answer,) = await service.submit([Submit(job(job_id, pool, gpus, command=("run",), **more))])
    assert getattr(answer, "new", False), answer


def phase(service, job_id):
    record = service.book.job(job_id)
    return None if record is None else record.phase.value


async def phase_is(service, job_id, wanted):
    try:
        await until(lambda: phase(service, job_id) == wanted, daemons.LONG)
    except AssertionError:
        raise AssertionError(
            f"{job_id} is {service.book.job(job_id)}, {service.parts.all()}"
        ) from None
    return service.book.job(job_id)
