"""Daemons on a real Slurm, in the process of the test."""

import asyncio
from contextlib import asynccontextmanager

from daemon.backends.slurm import SlurmSection
from daemon.config.config import PoolConfig
from daemon.model.inputs import Submit
from daemon.process.build import build
from daemon.service.observer import Observer
from tests.support.daemons import daemons
from tests.support.daemons.daemons import job
from tests.support.daemons.doors import config_in

POOLS = (PoolConfig("vision", 16), PoolConfig("speech", 8), PoolConfig("robots", 8))

DOORS = ("socket", "token", "commands")


def backend(cluster, way="token", **more):
    """Configure a backend that uses REST as nobody, REST with root's token, or commands as root."""
    common = {"poll": 0.2, "work_dir": str(cluster.root / "out"), **more}
    if way == "commands":
        return SlurmSection(commands=True, conf=str(cluster.conf), **common)
    if way == "socket":
        return SlurmSection(rest=f"unix:{cluster.socket}", **common)
    return SlurmSection(rest=cluster.url, jwt_file=str(cluster.jwt), user="root", **common)


@asynccontextmanager
async def serving(folder, cluster, way="token", *, pools=POOLS, settings=None, **more):
    """Run the service of a daemon on this Slurm."""
    config = config_in(
        folder, pools=pools, backend=backend(cluster, way, **more), **(settings or {})
    )
    daemon = await asyncio.to_thread(build, config, Observer())
    await daemon.service.start()
    try:
        yield daemon.service
    finally:
        await daemon.service.stop()


async def until(happens, seconds=daemons.LONG):
    """Wait for an effect of Slurm, with a longer time limit than for the daemon alone."""
    await daemons.until(happens, seconds)


async def looks(monkeypatch, service, times=3):
    """Wait for a number of complete polls."""
    seen = []
    marks = service.backend._marks
    forget = marks.forget

    async def counted(runs):
        await forget(runs)
        seen.append(1)

    monkeypatch.setattr(marks, "forget", counted)
    await until(lambda: len(seen) >= times)
    monkeypatch.undo()


async def submit(service, job_id, pool="vision", gpus=1, **more):
    more = {"command": ("sleep", "300"), "time_limit": 600.0, **more}
    (answer,) = await service.submit([Submit(job(job_id, pool, gpus, **more))])
    assert getattr(answer, "new", False), answer


def phase(service, job_id):
    record = service.book.job(job_id)
    return None if record is None else record.phase.value


async def phase_is(service, job_id, wanted, seconds=daemons.LONG):
    try:
        await until(lambda: phase(service, job_id) == wanted, seconds)
    except AssertionError:
        raise AssertionError(
            f"{job_id} is {service.book.job(job_id)}, {service.parts.all()}"
        ) from None
    return service.book.job(job_id)
