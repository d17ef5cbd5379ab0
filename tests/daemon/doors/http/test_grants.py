"""What a job may ask for only if the site grants it: a value, budget, deadline, never a stop."""

import pytest

from daemon.config.check import problems_of
from daemon.config.read import ConfigError, read_config
from daemon.model.setup import Grant
from tests.support.daemons.doors import asked, config_in, door, job_in, story
from tests.support.servers.browsers import browser, seen

JOB = {"pool": "vision", "gpus": 2, "duration": 1e6}
STAYS = {**JOB, "preemptible": "never"}


async def submitted(client, job_id, status=201, **fields):
    return await asked(client, "POST", "/v1/jobs", {"id": job_id, **fields}, status=status)


@story
async def test_a_user_may_give_jobs_values_up_to_the_granted_sum(folder):
    grants = (Grant("*", max_value=10.0), Grant("ann", max_value=50.0))
    async with door(folder, grants=grants, speed=1.0) as client:
        await submitted(client, "plain", **JOB, user="bob")
        await submitted(client, "fair", **JOB, user="bob", value=10, deadline=4e9)
        said = await submitted(client, "dear", 403, **JOB, user="bob", value=11)
        assert said["title"] == "not granted"
        assert said["detail"] == "user 'bob' may give a job a value of at most 10 (got 11)"
        assert said["mend"].startswith("give at most 10, or ask an operator")
        await submitted(client, "dear", **JOB, user="ann", value=50)
        text = f"(scale 6 (nck all {JOB['gpus']} 0 60 2))"
        said = await submitted(client, "asks", 403, **JOB, user="bob", strl=text)
        assert said["detail"] == "user 'bob' may give a job a value of at most 10 (got 12)"
        await submitted(client, "asks", **JOB, user="ann", strl=text)


@story
async def test_non_preemptible_jobs_count_against_the_grant_until_they_end(folder):
    grants = (Grant("*", "vision", never_jobs=2), Grant(pool="vision", never_gpus=6))
    async with door(folder, grants=grants, speed=1.0) as client:
        await submitted(client, "a", **STAYS, user="ann")
        await submitted(client, "b", **STAYS, user="ann")
        await submitted(client, "a", 200, **STAYS, user="ann")
        said = await submitted(client, "c", 403, **STAYS, user="ann")
        assert said["detail"] == (
            "user 'ann' in pool 'vision' may have 2 jobs that must not be stopped (preemptible = "
            "never), has 2 and would get 1 more"
        )
        await submitted(client, "d", **STAYS, user="bob")
        said = await submitted(client, "e", 403, **STAYS, user="bob")
        assert "pool 'vision' may have 6 GPUs" in said["detail"], "the pool has no more for anyone"
        await submitted(client, "f", **JOB, user="ann", preemptible="restart")
        await submitted(client, "g", **STAYS | {"pool": "speech"}, user="ann")
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        await job_in(client, "a", "cancelled")
        await submitted(client, "c", **STAYS, user="ann")
    async with door(folder, grants=grants, speed=1.0) as client:  # counted again after a restart
        await submitted(client, "h", 403, **STAYS, user="ann")


@story
async def test_budgets_above_the_default_are_summed_up_to_the_grant(folder):
    grants = (Grant("*", "vision", extra_budget=4.5), Grant(extra_budget=6.0))
    async with door(folder, grants=grants, speed=1.0) as client:
        for name, budget in (("a", 4), ("b", 2.5), ("c", 1), ("d", 0.5), ("e", None)):
            await submitted(client, name, **JOB, user="ann", budget=budget)
        said = await submitted(client, "f", 403, **JOB, user="ann", budget=1.1)
        assert said["detail"] == (
            "user 'ann' in pool 'vision' may have 4.5 of budget beyond 1 for each job, has 4.5 and "
            "would get 0.1 more"
        )
        assert said["mend"].startswith(
            "wait until such a job has ended, give less budget, or ask an operator"
        )
        await submitted(client, "f", **JOB | {"pool": "speech"}, user="bob", budget=2.5)
        said = await submitted(client, "g", 403, **JOB, user="bob", budget=1.5)
        assert said["detail"].startswith("the whole site may have 6 of budget beyond 1")
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        await job_in(client, "a", "cancelled")
        await submitted(client, "g", **JOB, user="ann", budget=4)


@story
async def test_deadlines_are_granted_by_the_gpu_hours_that_their_jobs_say_they_need(folder):
    due = {**JOB, "deadline": 4e9, "user": "ann"}
    async with door(folder, grants=(Grant("*", gpu_hours=10.0),), speed=1.0) as client:
        await submitted(client, "a", **due, estimate=3 * 3600)
        await submitted(client, "b", **due, estimate=9 * 3600, time_limit=3600, hold=True)
        await submitted(client, "c", **JOB, user="ann", estimate=99 * 3600)
        said = await submitted(client, "d", 403, **due, estimate=1.25 * 3600)
        assert said["detail"] == (
            "user 'ann' may have 10 GPU-hours in jobs with a deadline, has 8 and would get 2.5 more"
        )
        assert "omit deadline" in said["mend"]
        said = await submitted(client, "e", 403, **due)
        assert said["detail"] == (
            "user 'ann' may have 10 GPU-hours in jobs with a deadline, and this job does not say "
            "how long it runs"
        )
        assert said["mend"].startswith("give an estimate or a time limit, omit deadline, or ask")
        await submitted(client, "d", 403, **due, time_limit=1800, array=3)
        await submitted(client, "d", **due, time_limit=1800, array=2)
        await submitted(client, "other", **due | {"user": "bob"}, estimate=5 * 3600)
    async with door(folder, grants=(Grant("*", gpu_hours=10.5),), speed=1.0) as client:
        await submitted(client, "f", 403, **due, estimate=901)  # counted again after a restart
        await submitted(client, "f", **due, estimate=900)


@story
async def test_an_array_is_granted_as_a_whole_or_not_at_all(folder):
    async with door(folder, grants=(Grant("*", never_jobs=3),), speed=1.0) as client:
        await submitted(client, "wide", 403, **STAYS, array=4)
        assert (await asked(client, "GET", "/v1/jobs"))["jobs"] == []
        await submitted(client, "fits", **STAYS, array=3)
        await submitted(client, "fits", 200, **STAYS, array=3)
        jobs = [{"id": "one", **STAYS}, {"id": "two", **JOB}]
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert [line["status"] for line in said["jobs"]] == [403, 201]


@story
async def test_the_use_of_each_grant_is_shown(folder):
    grants = (Grant("*", max_value=10.0), Grant(pool="vision", never_gpus=6))
    async with door(folder, grants=grants, speed=1.0) as client, browser(client) as visitor:
        await submitted(client, "a", **STAYS, user="ann", value=4)
        await submitted(client, "b", **JOB, user="ann", value=9, budget=3, deadline=4e9)
        await submitted(client, "e", **JOB, user="ann", deadline=4e9, estimate=5400, budget=1.5)
        await submitted(client, "c", **STAYS | {"pool": "speech"}, user="bob")
        await submitted(client, "d", **JOB, user="eve", budget=1, estimate=60)
        said = await asked(client, "GET", "/v1/grants")
        assert [(each["user"], each["pool"], each["never_gpus"]) for each in said["grants"]] == [
            ("*", "", None), ("", "vision", 6),
        ]  # fmt: skip
        assert said["used"] == [
            {"user": "ann", "pool": "vision", "jobs": 3, "value": 13.0, "top_value": 9.0,
             "never_jobs": 1, "never_gpus": 2, "extra_budget": 2.5, "deadline_jobs": 2,
             "promised_jobs": 0, "all_jobs": 3, "gpu_hours": 3.0},
            {"user": "bob", "pool": "speech", "jobs": 1, "value": 0.0, "top_value": 0.0,
             "never_jobs": 1, "never_gpus": 2, "extra_budget": 0.0, "deadline_jobs": 0,
             "promised_jobs": 0, "all_jobs": 1, "gpu_hours": 0.0},
        ]  # fmt: skip
        page = await seen(visitor, "/ui/settings")
        assert "In use by jobs that have not ended" in page
        assert "<bdi>ann</bdi>" in page
        assert "<bdi>eve</bdi>" not in page


@pytest.mark.parametrize(
    ("grants", "problem"),
    [
        (
            (Grant("ann"),),
            "grant: user 'ann', pool '' bounds nothing; add one of max_value, never_jobs",
        ),
        ((Grant(pool="nowhere", never_jobs=1),), "grant: there is no pool 'nowhere'; use one of"),
        ((Grant("a", never_jobs=1), Grant("a", max_value=1)), "grant: 2 grants have user 'a'"),
    ],
)
def test_a_grant_without_effect_is_reported_at_the_start(tmp_path, grants, problem):
    told = problems_of(config_in(tmp_path, grants=grants))
    assert any(line.startswith(problem) for line in told), told


def test_grants_are_read_from_the_configuration(tmp_path):
    path = tmp_path / "sia.toml"
    pool = '[[pool]]\nname = "vision"\nquota = 4\n'
    path.write_text(pool + '[[grant]]\nuser = "*"\npool = "vision"\nnever_gpus = 2\n')
    assert read_config(path).grants == (Grant("*", "vision", never_gpus=2),)
    path.write_text(pool + '[[grant]]\nuser = "*"\nnever_gpu = 2\nmax_value = -1\n')
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert "did you mean never_gpus?" in str(refused.value)
    assert "max_value: -1 is invalid; use at least 0" in str(refused.value)
