"""A daemon with its HTTP interface in the process of the test: real service, journal and HTTP."""

import asyncio
from contextlib import asynccontextmanager
from functools import wraps

from aiohttp.test_utils import TestClient, TestServer

from daemon.backends.simulated.config import SimulatedConfig
from daemon.config.config import Config, PoolConfig
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.process.application import make_app
from daemon.process.build import build

TOKEN = "a-token-that-nobody-guesses"

POOLS = (PoolConfig("vision", 8), PoolConfig("speech", 4))


def config_in(folder, *, pools=POOLS, speed=1000.0, **settings):
    return Config(
        database=folder / "sia.db",
        token_file=folder / "token",
        models=folder / "models",
        pools=pools,
        **{"forecast": "none", "backend": SimulatedConfig(speed), **settings},
    )


@asynccontextmanager
async def door(folder, *, begin=None, **settings):
    """Run a daemon; yield an HTTP client with the token. `client.service` is the daemon's service.

    `begin` may change the application before it starts.
    """
    config = config_in(folder, **settings)
    metrics = PrometheusMetrics()
    daemon = build(config, metrics)
    await daemon.service.start()
    app = make_app(daemon, config, TOKEN, metrics)
    if begin is not None:
        begin(app)
    server = TestServer(app)
    client = TestClient(server, headers={"Authorization": f"Bearer {TOKEN}"})
    client.service, client.eta, client.usage = daemon.service, daemon.eta, daemon.usage
    try:
        await client.start_server()
        yield client
    finally:
        await client.close()
        await daemon.service.stop()


async def asked(client, method, path, body=None, *, status=200, headers=None):
    """Return the JSON of the answer, which must have this status."""
    async with client.request(method, path, json=body, headers=headers) as response:
        text = await response.text()
        assert response.status == status, f"{method} {path}: {response.status} {text}"
        if status >= 400:
            assert response.content_type == "application/problem+json"
        return await response.json(content_type=None) if text else None


async def job_in(client, job_id, phase):
    """Wait until the job is in a phase, and return it."""
    for _ in range(1000):
        job = await asked(client, "GET", f"/v1/jobs/{job_id}")
        if job["phase"] == phase:
            return job
        await asyncio.sleep(0.005)
    raise AssertionError(f"{job_id} is {job['phase']}, not {phase}: {job}")


HANGS = 400
"""Seconds until a story counts as hanging; pytest allows more, but would not name its tasks."""


def story(tell):
    """Run a coroutine function as a test."""

    @wraps(tell)
    def test(*args, **fixtures):
        asyncio.run(asyncio.wait_for(tell(*args, **fixtures), HANGS))

    return test
