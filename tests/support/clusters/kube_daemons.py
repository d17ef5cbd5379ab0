"""Daemons on the emulated Kubernetes, in the process of the test."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from aiohttp.test_utils import TestClient, TestServer

from daemon.backends.kube import KubeSection
from daemon.backends.kube.backend import KubeBackend
from daemon.backends.kube.client import Kube
from daemon.backends.kube.nodes import KubeInventory
from daemon.config.config import PoolConfig
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.model.inputs import Submit
from daemon.process.application import make_app
from daemon.process.build import build
from daemon.service.observer import Observer
from tests.support.clusters.kube import kubeconfig
from tests.support.daemons import daemons
from tests.support.daemons.daemons import house, job, until
from tests.support.daemons.doors import TOKEN, config_in

POOLS = (PoolConfig("vision", 8), PoolConfig("speech", 8))


async def built(folder, cluster, watch, *, pools=POOLS, settings=None, **more):
    """Return a daemon on this cluster and its configuration. This thread has to run the server."""
    path = kubeconfig(folder, cluster.address)
    options = {"poll": 0.1, "image": "registry/job:1", **more}
    config = config_in(
        folder, pools=pools, backend=KubeSection(kubeconfig=str(path), **options),
        **(settings or {}),
    )  # fmt: skip
    return await asyncio.to_thread(build, config, watch), config


@asynccontextmanager
async def serving(folder, cluster, **more):
    """Run the service of such a daemon."""
    daemon, _ = await built(folder, cluster, Observer(), **more)
    await daemon.service.start()
    try:
        yield daemon.service
    finally:
        await daemon.service.stop()


@asynccontextmanager
async def client_of(folder, cluster, **more):
    """Return an HTTP client of the daemon, with the token."""
    metrics = PrometheusMetrics()
    daemon, config = await built(folder, cluster, metrics, **more)
    await daemon.service.start()
    server = TestServer(make_app(daemon, config, TOKEN, metrics))
    client = TestClient(server, headers={"Authorization": f"Bearer {TOKEN}"})
    client.service = daemon.service
    try:
        await client.start_server()
        yield client
    finally:
        await client.close()
        await daemon.service.stop()


async def submit(service, job_id, pool="vision", gpus=1, **more):
    more = {"command": ("run",), **more}
    (answer,) = await service.submit([Submit(job(job_id, pool, gpus, **more))])
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


@asynccontextmanager
async def backend_of(folder, cluster, said, expected=(), records=None, *, notes=None, **more):
    """Return a backend without a daemon; its reports are appended to `said`."""
    pools = {pool.name: pool for pool in POOLS}
    book = SimpleNamespace(
        jobs=records or {}, ended={}, nodes={}, pools=pools, job=(records or {}).get
    )
    path = str(kubeconfig(folder, cluster.address))
    config = KubeSection(kubeconfig=path, poll=0.05, image="registry/job:1", adopt=False, **more)
    nodes = [node["metadata"]["name"] for node in cluster.all("nodes")]
    found = KubeInventory(tuple((name, tuple(range(8))) for name in nodes))
    backend = KubeBackend(config, Kube(config), found)
    await backend.open(house(said.append, book=lambda: book, notes=notes))
    await backend.reconcile(expected)
    try:
        yield backend
    finally:
        await backend.close()
