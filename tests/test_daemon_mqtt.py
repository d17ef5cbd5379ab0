"""The daemon on a bus: jobs come in and are durable before they are acknowledged; events go out."""

import asyncio

from buses import daemon_on, peer
from daemons import until

POOL = "sia/v1/main/pool/vision"

JOB = {"id": "a", "gpus": 2, "duration": 30}


def story(tell):
    """Run a coroutine function as a test."""

    def test(tmp_path, broker):
        asyncio.run(asyncio.wait_for(tell(tmp_path, broker), 60))

    test.__name__ = tell.__name__
    return test


def kinds(one, topic="/event"):
    return [(event["kind"], event.get("job", "")) for event in one.on(topic)]


@story
async def test_a_job_is_submitted_answered_runs_and_all_of_it_is_told(folder, broker):
    async with daemon_on(folder, broker.port), peer(broker.port, "sia/#") as one:
        await one.say(f"{POOL}/submit", JOB, reply=f"{POOL}/reply/me", correlation=b"7")
        await until(lambda: ("ended", "a") in kinds(one), 20)
        assert one.on("/reply/me") == [{"status": 200, "jobs": [{"id": "a", "status": 201}]}]
        assert next(p for t, _, p in one.heard if t.endswith("/me")).CorrelationData == b"7"
        assert [kind for kind, job in kinds(one) if job == "a"] == [
            "submitted", "started", "running", "ended",
        ]  # fmt: skip
        numbers = [event["seq"] for event in one.on("/event")]
        assert numbers == sorted(set(numbers))
        await until(lambda: f"{POOL}/state" in one.retained or one.on(f"{POOL}/state"))
        assert one.on(f"{POOL}/state")[-1]["quota"] == 8
