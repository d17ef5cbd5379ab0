"""Jobs report their progress over HTTP: with their own token, and for nobody else."""

import json

import pytest

from daemon.backends.local.config import LocalConfig
from daemon.config.check import problems_of
from daemon.config.config import Address, Config, PoolConfig
from daemon.runtime.job_token import MOST, JobTokens, ReportVariables
from tests.support.daemons.daemons import forget_snapshots
from tests.support.daemons.doors import TOKEN, asked, door, job_in, story

TOKENS = JobTokens(TOKEN)


def of(job, attempt=1):
    return {"Authorization": f"Bearer {TOKENS.of(job, attempt)}"}


def slow(folder):
    return door(folder, speed=1.0)


async def runs(client, job_id, pool="vision"):
    job = {"id": job_id, "pool": pool, "gpus": 1, "duration": 1e6, "run_time": 2e6}
    await asked(client, "POST", "/v1/jobs", job, status=201)
    return await job_in(client, job_id, "running")


async def reports(client, job_id, headers, *, status=200, **body):
    path = f"/v1/jobs/{job_id}/progress"
    body = {"attempt": 1, **body}
    return await asked(client, "POST", path, body, status=status, headers=headers)


@story
async def test_a_progress_report_is_shown_everywhere(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        said = await reports(client, "j", of("j"), done=0.0, speed=4.0, regime=3)
        assert (said["done"], said["speed"], said["regime"]) == (0.0, 4.0, 3)
        assert said["end"] - said["at"] == pytest.approx(2e6 / 4)
        job = await asked(client, "GET", "/v1/jobs/j")
        assert job["progress"] == said
        why = await asked(client, "GET", "/v1/jobs/j/why")
        assert "at 4 times its nominal speed in regime 3" in why["words"][-1]
        async with client.get("/ui/jobs/j") as page:
            assert "0.0 % done, speed 4, regime 3" in await page.text()
        events = (await asked(client, "GET", "/v1/events"))["events"]
        (event,) = (each for each in events if each["kind"] == "progress")
        assert (event["job"], event["pool"], event["data"]["done"]) == ("j", "vision", 0.0)
        metrics = await (await client.get("/metrics")).text()
        assert 'sia_events_total{kind="progress"} 1.0' in metrics


@story
async def test_the_token_of_a_job_is_valid_only_for_its_attempt(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        await runs(client, "k")
        for job_id in ("k", "nobody"):  # the answer tells nothing about other jobs
            said = await reports(client, job_id, of("j"), done=0.5, status=403)
            assert said["detail"].startswith("this is the token of job j, attempt 1")
        said = await reports(client, "j", of("j"), done=0.5, attempt=2, status=403)
        assert "for that attempt alone" in said["detail"]
        said = await reports(client, "j", of("j", 2), done=0.5, attempt=2, status=409)
        assert "in attempt 1, not in 2" in said["detail"]
        forged = TOKENS.of("j", 1).replace("_1_", "_2_", 1)
        for wrong in (forged, JobTokens("another").of("j", 1), TOKENS.of("j", 1)[:-1]):
            await reports(client, "j", {"Authorization": f"Bearer {wrong}"}, done=0.5, status=401)
        assert (await asked(client, "GET", "/v1/jobs/j")).get("progress") is None
        denied = await asked(client, "GET", "/v1/audit")
        targets = [each["record"].get("target") for each in denied["records"]]
        assert targets.count("/v1/jobs/k/progress") == 1


@story
async def test_the_token_of_a_job_is_valid_for_nothing_else(folder):
    with pytest.MonkeyPatch.context() as patch:  # a job asks for less than every route there is
        patch.setattr("daemon.doors.http.authentication.JOB_BURST", 1e6)
        await _is_valid_for_nothing_else(folder)


async def _is_valid_for_nothing_else(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        document = await asked(client, "GET", "/v1/openapi.json")
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if operation["x-sia-rule"] in ("open", "report"):
                    continue
                there = path.replace("{id}", "j").replace("{name}", "vision")
                async with client.request(method, there, headers=of("j")) as response:
                    assert response.status == 403, (method, there)
        async with client.post("/ui/sign-in", data={"token": TOKENS.of("j", 1)}) as page:
            assert page.status == 401
        issue = {"name": "x", "role": "job"}
        said = await asked(client, "POST", "/v1/tokens", issue, status=422)
        assert "SIA_REPORT_TOKEN" in said["mend"]


@story
async def test_bad_reports_are_refused_in_one_line_and_jobs_go_on(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        for body, words in (
            ({"done": 1.5}, "done"),
            ({"done": None}, "done"),
            ({"done": 0.5, "speed": 0}, "speed"),
            ({"done": 0.5, "speed": 1e9}, "speed"),
            ({"done": 0.5, "regime": -1}, "regime"),
            ({"done": 0.5, "attempt": 0}, "attempt"),
            ({"done": 0.5, "iterations": 5}, "either done, iterations or trials"),
            ({"iterations": -1}, "iterations"),
            ({"done": 0.5, "eta": 5}, "eta"),
        ):
            said = await reports(client, "j", None, status=422, **body)
            assert words in said["detail"]
            assert "\n" not in said["detail"]
        assert (await asked(client, "GET", "/v1/jobs/j"))["phase"] == "running"
        await reports(client, "j", of("j"), done=0.5)
        said = await reports(client, "j", of("j"), done=0.6, status=429)
        assert "less than 1 s ago" in said["detail"]
        await asked(client, "DELETE", "/v1/jobs/j", status=202)
        await job_in(client, "j", "cancelled")
        said = await reports(client, "j", of("j"), done=0.7, status=409)
        assert said["detail"] == "job j is cancelled"


@story
async def test_too_many_reports_are_refused_before_they_reach_the_journal(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        steps = client.service.status().steps
        for _ in range(60):
            await client.post("/v1/jobs/j/progress", json={"done": 2}, headers=of("j"))
        said = await reports(client, "j", of("j"), done=0.5, status=429)
        assert said["title"] == "too many requests"
        assert client.service.status().steps == steps


@story
async def test_reported_progress_survives_a_restart(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        said = await reports(client, "j", of("j"), done=0.5, speed=1.7, regime=3)
        before = client.service.engine.dump()
    forget_snapshots(folder / "sia.db")  # so that the steps are repeated
    async with slow(folder) as client:
        assert (await asked(client, "GET", "/v1/jobs/j"))["progress"] == said
        again, then = json.loads(client.service.engine.dump()), json.loads(before)
        assert again["core"]["jobs"] == then["core"]["jobs"]


@story
async def test_a_submitter_of_the_pool_may_report_for_a_job(folder):
    async with slow(folder) as client:
        await runs(client, "j")
        await runs(client, "k", "speech")
        body = {"name": "ann", "role": "submitter", "pools": ["vision"]}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        ann = {"Authorization": f"Bearer {token}"}
        await reports(client, "j", ann, done=0.5)
        await reports(client, "k", ann, done=0.5, status=404)


@pytest.mark.parametrize("job", ["j", "a_b_c", "x y/z", "ключ", "100%", "🙂" * 200])
def test_a_token_names_its_job_and_attempt(job):
    token = TOKENS.of(job, 12)
    assert token.isascii()
    assert token.isprintable()
    assert " " not in token
    assert TOKENS.read(token) == (job, 12)


@pytest.mark.parametrize("text", ["", "sia-job_", "sia-job_1_x_j", "sia-job_x_y_z", "sia-job_²_x_j",
                                  "sia-job_1_" + "x" * MOST])  # fmt: skip
def test_other_text_is_not_accepted_as_a_token(text):
    assert TOKENS.read(text) is None


def config(folder, **settings):
    paths = {"database": folder / "db", "token_file": folder / "t", "models": folder / "m"}
    return Config(**paths, pools=(PoolConfig("a", 1),), **settings)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"backend": LocalConfig(gpus=1)}, "http://127.0.0.1:99"),
        ({"backend": LocalConfig(gpus=1), "listen": Address("0.0.0.0", 1)}, "http://127.0.0.1:99"),
        ({}, ""),
        ({"listen": Address("0.0.0.0", 1, "https")}, ""),
        ({"listen": Address("10.0.0.5", 1, "https")}, "https://10.0.0.5:99"),
        ({"url": "https://a:1,https://b:1"}, "https://a:1,https://b:1"),
    ],
)
def test_jobs_receive_an_address_that_they_can_reach(tmp_path, settings, url):
    said = config(tmp_path, **settings)
    assert said.url_for_jobs(99) == url
    variables = ReportVariables(url, TOKEN).of("j", 1)
    assert variables == (
        {"SIA_REPORT_URL": url, "SIA_REPORT_TOKEN": TOKENS.of("j", 1)} if url else {}
    )


@pytest.mark.parametrize("url", ["sia.example", "ftp://a", "http://", "http://a:99999"])
def test_an_invalid_address_is_refused(tmp_path, url):
    (problem,) = (p for p in problems_of(config(tmp_path, url=url)) if "daemon.url" in p)
    assert "write one like" in problem
