"""`GET /v1/queue`: who waits, runs or is held, piece by piece."""

from daemon.config.config import NodeConfig
from tests.support.daemons.doors import asked, door, job_in, story


async def send(client, job_id, pool="vision", gpus=8, **more):
    job = {"id": job_id, "pool": pool, "gpus": gpus, "duration": 1e6, **more}
    await asked(client, "POST", "/v1/jobs", job, status=201)


async def queue(client, query="", **more):
    said = await asked(client, "GET", f"/v1/queue?{query}", **more)
    return said["count"], [each["job"]["id"] for each in said["jobs"]]


async def crowd(client):
    """One of each kind in vision, and a queue in both."""
    await send(client, "runs", user="ann")
    await job_in(client, "runs", "running")
    await send(client, "held", hold=True, user="ann")
    for i in range(3):
        await send(client, f"w{i}", gpus=1, user="bob")
    await send(client, "first", priority=5, user="ann")
    for i in range(2):
        await send(client, f"s{i}", pool="speech", gpus=4)


@story
async def test_pending_jobs_are_listed_in_the_order_of_their_queue(folder):
    async with door(folder, speed=1.0) as client:
        await crowd(client)
        assert await queue(client) == (5, ["s1", "first", "w0", "w1", "w2"])
        assert await queue(client, "pool=vision") == (4, ["first", "w0", "w1", "w2"])
        assert await queue(client, "user=bob") == (3, ["w0", "w1", "w2"])
        assert await queue(client, "what=held") == (1, ["held"])
        assert await queue(client, "what=running") == (2, ["s0", "runs"])
        assert await queue(client, "what=running&user=ann&pool=vision") == (1, ["runs"])
        assert await queue(client, "pool=none") == (0, [])
        said = await asked(client, "GET", "/v1/queue?pool=vision")
        for each in said["jobs"]:
            alone = await asked(client, "GET", f"/v1/jobs/{each['job']['id']}")
            assert each["position"] == alone["position"]
        assert "more GPUs: vision has 0 of 8 free" in said["jobs"][0]["waits"]
        assert said["jobs"][2]["waits"] == "2 jobs ahead of it"
        for wrong in ("what=all", "limit=0", "offset=-1", "page=1", "limit=1001"):
            await asked(client, "GET", f"/v1/queue?{wrong}", status=422)


@story
async def test_pages_of_the_queue_join_to_the_whole(folder):
    async with door(folder, speed=1.0) as client:
        await crowd(client)
        for what in ("waiting", "running", "held"):
            for more in ("", "&user=bob", "&pool=vision"):
                count, whole = await queue(client, f"what={what}{more}")
                pieces = []
                for offset in range(0, count + 2, 2):
                    part = f"what={what}{more}&limit=2&offset={offset}"
                    again, some = await queue(client, part)
                    assert again == count == len(whole)
                    pieces += some
                assert pieces == whole


@story
async def test_jobs_of_a_pool_on_hold_and_jobs_without_their_gpus_are_listed_too(folder):
    async with door(folder, speed=1.0) as client:
        await crowd(client)
        await asked(client, "PATCH", "/v1/pools/vision", {"state": "hold"})
        said = await asked(client, "GET", "/v1/queue?pool=vision")
        assert [each["waits"] for each in said["jobs"]] == ["pool vision is on hold"] * 4
        assert all(each["unknown"] for each in said["jobs"])
        for state in (await asked(client, "GET", "/v1/pools"))["pools"]:
            assert (await queue(client, f"pool={state['name']}"))[0] == state["waiting"]


@story
async def test_jobs_of_invisible_pools_are_neither_listed_nor_counted(folder):
    async with door(folder, speed=1.0) as client:
        await crowd(client)
        kind = {"name": "t", "role": "viewer", "pools": ["speech"]}
        token = (await asked(client, "POST", "/v1/tokens", kind, status=201))["token"]
        headers = {"Authorization": f"Bearer {token}"}
        assert await queue(client, headers=headers) == (1, ["s1"])
        assert await queue(client, "what=running", headers=headers) == (1, ["s0"])
        assert await queue(client, "pool=vision", headers=headers) == (0, [])
        assert await queue(client, "what=held&user=ann", headers=headers) == (0, [])


@story
async def test_a_job_that_has_its_turn_waits_until_it_is_placed(folder):
    nodes = (NodeConfig("n0", 12),)
    async with door(folder, nodes=nodes, speed=1.0) as client:
        await asked(client, "POST", "/v1/nodes/n0/drain")
        await send(client, "turn")
        await send(client, "next")
        said = await asked(client, "GET", "/v1/queue?pool=vision")
        assert [each["job"]["id"] for each in said["jobs"]] == ["turn", "next"]
        assert said["jobs"][0]["waits"] == "started: waiting for its GPUs to become free"
        assert said["jobs"][1]["position"] == 1
        pool = await asked(client, "GET", "/v1/pools/vision")
        assert said["count"] == pool["waiting"] == 2
        assert await queue(client, "what=running") == (0, [])
        await asked(client, "POST", "/v1/nodes/n0/resume")
        await job_in(client, "turn", "running")
        assert await queue(client) == (1, ["next"])
        assert await queue(client, "what=running") == (1, ["turn"])
