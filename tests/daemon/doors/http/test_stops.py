"""What the interface says of jobs that are stopped and go on."""

from daemon.backends.simulated.config import SimulatedConfig
from daemon.config.config import PoolConfig
from tests.support.daemons.doors import asked, door, job_in, story

POOLS = (PoolConfig("vision", 4),)


async def text_of(client, path):
    async with client.get(path) as response:
        return await response.text()


async def submit(client, job_id, seconds):
    body = {"id": job_id, "pool": "vision", "gpus": 4, "duration": seconds, "run_time": seconds}
    await asked(client, "POST", "/v1/jobs", body, status=201)


@story
async def test_a_job_that_saves_its_work_is_stopping(folder):
    backend = SimulatedConfig(speed=1.0, stop_time=1e6)
    async with door(folder, pools=POOLS, policy="srtf", backend=backend) as client:
        await submit(client, "long", 1e5)
        await job_in(client, "long", "running")
        await submit(client, "short", 10.0)
        job = await job_in(client, "long", "stopping")
        why = "jobs of a higher rank need its GPUs"
        assert job["preempted"] == why
        short = await job_in(client, "short", "starting")
        assert short["waits"] == ["its GPUs become free when 1 job being stopped or ended has gone"]
        words = (await asked(client, "GET", "/v1/jobs/long/why"))["words"]
        assert words == [f"it is being stopped, and will start again later: {why}"]
        page = await text_of(client, "/ui/jobs/long")
        assert f'<span class="phase stopping">stopping</span> ({why})' in page
        queue = await asked(client, "GET", "/v1/queue?pool=vision")
        assert [row["job"]["id"] for row in queue["jobs"]] == ["short", "long"]
        assert "sia_stopping_jobs 1.0" in await text_of(client, "/metrics")
        await asked(client, "DELETE", "/v1/jobs/long", status=202)
        await job_in(client, "long", "cancelled")
        await job_in(client, "short", "running")


@story
async def test_a_job_that_resumed_lists_its_stops(folder):
    backend = SimulatedConfig(speed=200.0, stop_time=5.0)
    settings = {"policy": "srtf", "grace": 3600.0}  # 18 s of a machine that may be busy
    async with door(folder, pools=POOLS, backend=backend, **settings) as client:
        await submit(client, "long", 300.0)
        await job_in(client, "long", "running")
        await submit(client, "short", 10.0)
        await job_in(client, "short", "finished")
        job = await job_in(client, "long", "finished")
        assert (job["stops"], job["attempt"]) == (1, 2)
        assert 0 < job["kept"] < 300
        assert abs(job["ran"] - 300) < 100  # its stop is no part of it
        metrics = await text_of(client, "/metrics")
        assert 'sia_stops_total{pool="vision"} 1.0' in metrics
        assert 'sia_stop_lost_seconds_total{pool="vision"} 0.0' in metrics
        assert 'sia_decisions_total{kind="PreemptJob"} 1.0' in metrics
        events = [row["kind"] for row in await events_of(client, "long")]
        begin = ["submitted", "started", "running", "preempted", "stopping", "stopped"]
        assert events == [*begin, "started", "running", "ended"]


async def events_of(client, job_id):
    events = (await asked(client, "GET", "/v1/events?after=0"))["events"]
    return [event for event in events if event.get("job") == job_id]
