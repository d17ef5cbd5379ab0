"""A deadline at the door: the answer says whether it is promised, and the plan what is promised."""

import re

from daemon.cli.jobs import description, promise_text
from daemon.config.config import PoolConfig
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, seen

JOB = {"pool": "vision", "duration": 1e6, "estimate": 1000.0}


@story
async def test_a_job_without_an_estimate_is_promised_by_what_its_trial_measures(folder):
    """A job of two nodes has two trials; simulated jobs report their iterations by themselves."""
    pools = (PoolConfig("vision", 48),)
    policy = "chronus:capacity=16"
    async with door(folder, speed=400.0, policy=policy, pools=pools) as client:
        due = {"deadline": client.service.clock.now() + 1e7, "pool": "vision"}
        job = {**due, "id": "a", "gpus": 16, "duration": 40_000.0, "iterations": 10_000}
        said = await asked(client, "POST", "/v1/jobs", job, status=201)
        assert "promise" not in said
        decided = "its deadline is not decided yet: the job waits for its trial on 16 GPUs"
        assert any(note.startswith(decided) for note in said["notes"])
        await until(lambda: client.service.book.jobs["a"].trial)
        why = (await asked(client, "GET", "/v1/jobs/a/why"))["words"]
        assert any("in a trial" in line for line in why)
        await until(lambda: client.service.book.jobs["a"].promise)
        shown = await asked(client, "GET", "/v1/jobs/a")
        assert (shown["promise"]["guaranteed"], shown["iterations"]) == (True, 10_000)
        assert dict(description(shown))["iterations"] == "10000"
        assert shown["run_time"] > 0
        assert shown["attempt"] == 2


@story
async def test_the_answer_names_a_job_that_the_profiler_leaves_too_few_gpus(folder):
    pools = (PoolConfig("vision", 24),)
    async with door(folder, speed=1.0, policy="chronus:capacity=16", pools=pools) as client:
        job = {"pool": "vision", "duration": 4000.0}
        for gpus, more, words in (
            (8, {}, ""), (16, {}, "so it can end only in its trial"),
            (16, {"preemptible": "never"}, "so it never starts"),
        ):  # fmt: skip
            said = await asked(
                client, "POST", "/v1/jobs", {**job, "gpus": gpus, **more}, status=201
            )
            notes = [note for note in said.get("notes", []) if "profiler" in note]
            assert len(notes) == bool(words)
            assert not notes or notes[0] == (
                f"it is wider than the 8 GPUs that the profiler leaves, {words}; set a lower "
                "capacity or floor, or profile=0"
            )


@story
async def test_the_answer_says_by_when_a_job_ends_at_the_latest_or_what_could_be(folder):
    async with door(folder, speed=1.0, policy="chronus:profile=0") as client, browser(client) as ui:
        quota = (await asked(client, "GET", "/v1/pools/vision"))["quota"]
        now = client.service.clock.now()
        job = {**JOB, "gpus": quota, "deadline": now + 9000.0}
        said = await asked(
            client, "POST", "/v1/jobs", {"id": "a", **job, "soft": "2:50"}, status=201
        )
        assert said["promise"]["guaranteed"]
        assert said["promise"]["step"] == 0
        assert abs(said["promise"]["latest"] - (now + 18000.0)) < 60
        shown = await asked(client, "GET", "/v1/jobs/a")
        assert shown["promise"] == said["promise"]
        assert shown["soft"] == [[2.0, 50.0]]
        batch = {
            "jobs": [{"id": "b", **job, "deadline": now + 1100.0}, {"id": "c", "gpus": 1, **JOB}]
        }
        no, none = (await asked(client, "POST", "/v1/jobs", batch))["jobs"]
        assert not no["promise"]["guaranteed"]
        assert no["promise"]["soonest"] > now + 1100.0
        assert no["promise"]["why"].startswith("no plan of leases has room")
        assert "promise" not in none
        facts = dict(description(shown))
        assert facts["soft"] == "2:50"
        assert facts["promise"].startswith("guaranteed: it ends by ")
        assert " at the latest; the current plan meets the step at " in facts["promise"]
        assert promise_text(no["promise"]).endswith(", which is not promised")
        why = (await asked(client, "GET", "/v1/jobs/a/why"))["words"]
        assert any("its deadline is guaranteed: it ends in" in line for line in why)
        assert not any("no promise" in line for line in why)
        why = (await asked(client, "GET", "/v1/jobs/b/why"))["words"]
        assert any("its deadline is not guaranteed: no plan" in line for line in why)
        [b] = [each for each in (await asked(client, "GET", "/v1/queue"))["jobs"]
               if each["job"]["id"] == "b"]  # fmt: skip
        assert "position" not in b
        assert b["waits"].startswith("waiting for ")
        assert "position" not in await asked(client, "GET", "/v1/jobs/b")
        assert "position" not in await asked(client, "GET", "/v1/jobs/b/why")
        (group,) = [each for each in (await asked(client, "GET", "/v1/plan"))["groups"]
                    if each["promised"]]  # fmt: skip
        assert group["promised"][0]["gpus"] == quota
        assert "at the latest" in await seen(ui, "/ui/jobs/a")
        assert "which is not promised" in await seen(ui, "/ui/jobs/b")
        assert "Promised to deadlines" in await seen(ui, "/ui/plan")
        array = {"id": "d", **job, "gpus": 1, "array": quota, "deadline": now + 40000.0}
        all_of_it = await asked(client, "POST", "/v1/jobs", array, status=201)
        assert all_of_it["promise"]["guaranteed"]
        many = 6 * quota + 1  # more than fit into the leases until then
        tight = {**array, "id": "e", "array": many, "deadline": now + 6000.0}
        (part,) = (await asked(client, "POST", "/v1/jobs", {"jobs": [tight]}))["jobs"]
        assert not part["promise"]["guaranteed"]
        assert re.match(rf"[\d,]+ of {many:,} jobs: no plan of", part["promise"]["why"])
