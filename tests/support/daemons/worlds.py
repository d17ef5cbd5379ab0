"""Daemons to look at: with nothing, little, much and hostile data, for tests and pictures."""

import asyncio
import random
from contextlib import asynccontextmanager

from daemon.config.config import NodeConfig, PoolConfig
from sia.wording import HOUR, MINUTE
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import asked, door

HOSTILE = (
    "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>",
    "\u202eright to left \u05e2\u05d1\u05e8\u05d9\u05ea",
    "very-long-" + "b" * 180,
    "\U0001f9ea \U0001f469\u200d\U0001f52c lab",
    "{{7*7}}{% x %}",
)
"""Names that a page must show as they are."""

TEAMS = ("vision", "speech", "language", "robotics", "search", "ads")

USERS = ("ann", "bob", "chen", "dora", "emeka", "fatima", "goran", "hana")

NAMES = ("pretrain", "finetune", "eval", "sweep", "distill")


def job(rng, number, pool, widths=(1, 1, 2, 4, 8)):
    """A job as people submit them."""
    run_time = rng.choice((10, 30, 60, 120, 300)) * MINUTE * rng.uniform(0.5, 1.5)
    return {
        "id": f"{rng.choice(NAMES)}-{number}", "pool": pool, "gpus": rng.choice(widths),
        "duration": run_time, "run_time": run_time, "time_limit": 4 * run_time,
        "user": rng.choice(USERS), "name": rng.choice(NAMES),
    }  # fmt: skip


async def send(client, jobs):
    """Submit jobs in batches."""
    for at in range(0, len(jobs), 5000):
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs[at : at + 5000]})
        assert not said["refused"], said["jobs"][:3]


@asynccontextmanager
async def nothing(folder):
    """A daemon that nobody has used yet."""
    async with door(folder, speed=1.0) as client:
        await client.eta.look()
        yield client


@asynccontextmanager
async def little(folder):
    """Six pools that have lived through three hours, some of them short of GPUs."""
    rng = random.Random(7)
    nodes = tuple(NodeConfig(f"gpu{i:02}", 8) for i in range(14))
    quotas = (24, 16, 32, 8, 16, 16)
    pools = tuple(PoolConfig(*each) for each in zip(TEAMS, quotas, strict=True))
    busy = ("vision", "speech", "vision", "language", "robotics", "vision")
    settings = {"pools": pools, "nodes": nodes, "forecast": "none", "drift": "off"}
    async with door(folder, speed=HOUR / 2, **settings) as client:
        for number in range(150):
            await send(client, [job(rng, number, rng.choice(busy))])
            await client.service.clock.sleep_until(client.service.clock.now() + 80.0)
            await client.usage.look()
    async with door(folder, speed=1.0, **settings) as client:
        await asked(client, "POST", "/v1/nodes/gpu13/drain", {"why": "fan replaced"})
        at = client.service.clock.now() + 5 * HOUR
        window = {"node": "gpu02", "start": at, "end": at + HOUR, "why": "firmware", "id": "m1"}
        await asked(client, "POST", "/v1/maintenance", window, status=201)
        await asked(client, "POST", "/v1/jobs/" + (await of_phase(client, "pending")) + "/hold")
        async with estimating(client):
            yield client


@asynccontextmanager
async def much(folder, jobs=20_000):
    """Sixty pools, 300 nodes and this number of jobs."""
    rng = random.Random(7)
    names = [f"{team}-{i}" for i in range(10) for team in TEAMS]
    pools = tuple(PoolConfig(name, 40) for name in names)
    nodes = tuple(NodeConfig(f"gpu{i:03}", 8) for i in range(300))
    async with door(folder, pools=pools, nodes=nodes, speed=1.0) as client:
        await send(client, [job(rng, i, rng.choice(names[:40])) for i in range(jobs)])
        await client.usage.look()
        yield client


@asynccontextmanager
async def hostile(folder):
    """Pools, jobs, users and nodes with names that must do no harm."""
    pools = tuple(PoolConfig(name, 4) for name in HOSTILE)
    nodes = (NodeConfig("n" * 60, 16), NodeConfig("n1", 4))
    async with door(folder, pools=pools, nodes=nodes, speed=1.0) as client:
        for i, name in enumerate(HOSTILE * 2):
            body = {"id": f"j{i}", "pool": name, "gpus": 3, "duration": HOUR, "name": name,
                    "user": name, "tags": {name: name}, "command": [name, "x" * 4000]}  # fmt: skip
            await asked(client, "POST", "/v1/jobs", body, status=201)
        yield client


@asynccontextmanager
async def estimating(client):
    """Keep estimates of all jobs, and wait until there are some."""
    task = asyncio.create_task(client.eta.run())
    try:
        await until(lambda: client.eta.outlook is not None)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def of_phase(client, phase):
    """The id of a job in a phase, or None."""
    jobs = (await asked(client, "GET", f"/v1/jobs?phase={phase}&limit=1"))["jobs"]
    return jobs[0]["id"] if jobs else None


WORLDS = {"none": nothing, "little": little, "much": much, "hostile": hostile}
