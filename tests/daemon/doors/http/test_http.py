"""The daemon's door: what it lets in, what it says, and how it refuses."""

import asyncio
import json
import logging
import os
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient
from structlog.testing import capture_logs

from daemon.backends.local.config import LocalConfig
from daemon.config.config import Address, NodeConfig
from daemon.doors.http import event_stream
from daemon.doors.http.routes import jobs
from daemon.model.access import MACHINE
from daemon.model.errors import JournalError, UnavailableError
from daemon.process.serve import serving
from daemon.runtime.rate_limit import TokenBucket
from daemon.runtime.token_file import make_token, read_token
from sia.console.errors import UserError
from tests.support.clusters.cells import spec
from tests.support.daemons.doors import TOKEN, asked, config_in, door, job_in, story

NODES = (NodeConfig("n1", 8), NodeConfig("n2", 8))

AS_JSON = {"Content-Type": "application/json"}

SHORT = {"pool": "vision", "gpus": 2, "duration": 30}


@story
async def test_a_submitted_job_runs_and_ends(folder):
    async with door(folder, nodes=NODES) as client:
        body = {"id": "a", **SHORT, "duration": 300}
        answer = await asked(client, "POST", "/v1/jobs", body, status=201)
        assert answer == {"id": "a"}
        job = await job_in(client, "a", "finished")
        assert (job["pool"], job["gpus"], job["code"], job["attempt"]) == ("vision", 2, 0, 1)
        assert job["stream"] == "dedicated"
        assert job["nodes"] == {"n1": [0, 1]}
        assert 290 <= job["ran"] <= 600
        assert job["ran"] == job["ended"] - job["started"]
        assert "position" not in job


@story
async def test_a_repeated_submission_counts_once(folder):
    async with door(folder) as client:
        job = {"id": "a", **SHORT}
        first = await asked(client, "POST", "/v1/jobs", job, status=201)
        assert await asked(client, "POST", "/v1/jobs", job, status=200) == first
        other = await asked(client, "POST", "/v1/jobs", {**job, "gpus": 3}, status=409)
        assert other["title"] == "id is taken"
        assert other["mend"]


@story
async def test_an_idempotency_key_becomes_the_id_of_a_job_without_one(folder):
    async with door(folder) as client:
        key = {"Idempotency-Key": "once"}
        first = await asked(client, "POST", "/v1/jobs", SHORT, status=201, headers=key)
        assert await asked(client, "POST", "/v1/jobs", SHORT, headers=key) == first
        await asked(client, "POST", "/v1/jobs", {**SHORT, "gpus": 1}, status=409, headers=key)
        without = [await asked(client, "POST", "/v1/jobs", SHORT, status=201) for _ in range(2)]
        assert without[0] != without[1]


@story
async def test_each_job_of_a_batch_is_accepted_or_refused_by_itself(folder):
    async with door(folder) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "old", **SHORT}, status=201)
        jobs = [
            {"id": "new", **SHORT},
            {"id": "old", **SHORT},
            {"id": "wide", **SHORT, "gpus": 9},
            {"id": "nowhere", **SHORT, "pool": "robots"},
        ]
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert (said["accepted"], said["known"], said["refused"]) == (1, 1, 2)
        assert [line["status"] for line in said["jobs"]] == [201, 200, 422, 422]
        assert all(line["detail"] and line["mend"] for line in said["jobs"][2:])


@story
async def test_a_job_without_a_command_is_refused_if_jobs_are_commands(folder):
    async with door(folder, backend=LocalConfig(str(folder / "jobs"), 12)) as client:
        empty = {"id": "empty", "pool": "vision", "gpus": 1}
        said = await asked(client, "POST", "/v1/jobs", empty, status=422)
        assert (said["detail"], said["mend"]) == (
            "the job has no command, and this daemon's backend runs commands",
            "add a command: after --, or as a list of words",
        )
        full = {**empty, "id": "full", "command": ["true"]}
        said = await asked(client, "POST", "/v1/jobs", {"jobs": [empty, full, empty]})
        assert [(line["id"], line["status"]) for line in said["jobs"]] == [
            ("empty", 422), ("full", 201), ("empty", 422),
        ]  # fmt: skip
        said = await asked(client, "POST", "/v1/jobs", {"jobs": [empty]})
        assert said["refused"] == 1
        assert (await job_in(client, "full", "finished"))["code"] == 0


@pytest.mark.parametrize(
    ("wrong", "mend"),
    [
        (
            {"id": "-a b"},
            "use letters, digits, dots, dashes, underscores, not starting with a dot or dash",
        ),
        ({"name": "a\tb"}, "use text without control characters"),
        ({"cwd": "a\0"}, "use text without NUL"),
        ({"command": ["a\0"]}, "use text without NUL in it"),
        ({"env": {"A=B": "c"}}, "use at least one character, without = and NUL in it"),
    ],
)
def test_the_error_says_which_characters_a_text_may_contain(tmp_path, wrong, mend):
    async def tell():
        async with door(tmp_path) as client:
            said = await asked(client, "POST", "/v1/jobs", {**SHORT, **wrong}, status=422)
            assert [error["mend"] for error in said["errors"]] == [mend]

    asyncio.run(tell())


@story
async def test_an_array_submits_one_job_many_times(folder):
    async with door(folder) as client:
        job = {"id": "a", "pool": "vision", "gpus": 1, "duration": 20, "array": 20}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "POST", "/v1/jobs", job, status=200)
        await asked(client, "POST", "/v1/jobs", {**job, "array": 21}, status=409)
        array = await asked(client, "GET", "/v1/jobs/a")
        assert (array["size"], len(array["jobs"])) == (20, 20)
        assert (await job_in(client, "a.19", "finished"))["array"] == [19, 20]


@story
async def test_a_pending_job_has_a_reason_and_a_queue_position(folder):
    async with door(folder, speed=1.0) as client:
        big = {"pool": "vision", "gpus": 8, "duration": 3600, "run_time": 3600}
        await asked(client, "POST", "/v1/jobs", {"id": "first", **big}, status=201)
        await asked(client, "POST", "/v1/jobs", {"id": "second", **big}, status=201)
        await asked(client, "POST", "/v1/jobs", {"id": "third", **big}, status=201)
        await job_in(client, "first", "running")
        second = await asked(client, "GET", "/v1/jobs/second")
        assert second["position"] == 1
        assert second["waits"] == [
            "Waiting for 8 more GPUs: vision has 0 of 8 free",
            (
                "Or it could start on spare GPUs, waiting for 4 more idle GPUs: its sharing group "
                "has 4 idle"
            ),
        ]
        third = await asked(client, "GET", "/v1/jobs/third")
        assert third["position"] == 2
        assert "1 job ahead of it (8 GPUs)" in third["waits"][0]
        await asked(client, "PATCH", "/v1/jobs/third", {"priority": 9})
        held = await asked(client, "POST", "/v1/jobs/second/hold")
        assert held["waits"] == ["it is held: sia release second"]
        released = await asked(client, "POST", "/v1/jobs/second/release")
        assert released["phase"] == "pending"
        plan = await asked(client, "GET", "/v1/plan")
        (group,) = plan["groups"]
        assert group["idle"] == 4
        assert [pool["pool"] for pool in group["pools"]] == ["vision"]
        assert {job["id"] for job in group["pools"][0]["next"]} == {"second", "third"}


@story
async def test_a_job_without_any_estimate_does_not_borrow(folder):
    async with door(folder, speed=1.0) as client:
        for job_id in "ab":
            job = {"id": job_id, "pool": "vision", "gpus": 8, "duration": 99}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        waits = (await asked(client, "GET", "/v1/jobs/b"))["waits"]
        assert "waiting for a known run time: give it a time limit of" in waits[1]


@story
async def test_a_job_can_be_cancelled_repeatedly(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
        await job_in(client, "a", "running")
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        await job_in(client, "a", "cancelled")
        await asked(client, "DELETE", "/v1/jobs/a", status=200)
        await asked(client, "DELETE", "/v1/jobs/nobody", status=404)


@story
async def test_jobs_are_listed_page_by_page_with_the_latest_first(folder):
    async with door(folder, speed=1.0) as client:
        jobs = [
            {"id": f"j{i}", "pool": "speech" if i % 2 else "vision", "gpus": 1, "duration": 900,
             "user": f"u{i % 3}", "tags": {"kind": "odd" if i % 2 else "even"}}
            for i in range(10)
        ]  # fmt: skip
        await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        await asked(client, "DELETE", "/v1/jobs/j0", status=202)
        await job_in(client, "j0", "cancelled")
        seen, cursor = [], ""
        while cursor is not None:
            page = await asked(client, "GET", f"/v1/jobs?limit=3{cursor}")
            assert len(page["jobs"]) <= 3
            seen += [job["id"] for job in page["jobs"]]
            cursor = page["next"] and f"&cursor={page['next']}"
        assert seen == [f"j{i}" for i in range(9, 0, -1)] + ["j0"]
        for query, ids in {
            "pool=speech&user=u0": ["j9", "j3"],
            "tag=kind=odd&user=u1": ["j7", "j1"],
            "tag=kind&limit=1": ["j9"],
            "phase=cancelled": ["j0"],
            "pool=nobody": [],
        }.items():
            page = await asked(client, "GET", f"/v1/jobs?{query}")
            assert [job["id"] for job in page["jobs"]] == ids, query


@story
async def test_jobs_that_have_ended_are_kept_as_history(folder):
    async with door(folder) as client:
        for i in range(5):
            job = {"id": f"j{i}", "pool": "speech" if i % 2 else "vision", "gpus": 1, "duration": 9}
            await asked(client, "POST", "/v1/jobs", job, status=201)
            await job_in(client, f"j{i}", "finished")
        page = await asked(client, "GET", "/v1/history?limit=2")
        assert [job["id"] for job in page["jobs"]] == ["j4", "j3"]
        page = await asked(client, "GET", f"/v1/history?limit=9&before={page['next']}")
        assert [job["id"] for job in page["jobs"]] == ["j2", "j1", "j0"]
        assert page["next"] is None
        page = await asked(client, "GET", "/v1/history?pool=speech")
        assert [job["id"] for job in page["jobs"]] == ["j3", "j1"]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("limit=0", "limit: '0' is invalid; use an integer of at least 1"),
        ("limit=x", "limit: 'x' is invalid; use an integer"),
        ("phase=late", "phase: 'late' is invalid; use held, pending, "),
        ("poool=a", "poool: is not a known parameter; known: pool, phase"),
        ("cursor=gone", "the job of the cursor is no longer in memory"),
    ],
)
def test_invalid_queries_are_refused_with_the_name_of_the_parameter(tmp_path, query, problem):
    async def tell():
        async with door(tmp_path) as client:
            said = await asked(client, "GET", f"/v1/jobs?{query}", status=422)
            assert problem in said["detail"]

    asyncio.run(tell())


@story
async def test_all_wrong_values_are_named_with_pointers(folder):
    async with door(folder) as client:
        bad = {"pool": "", "gpus": 0, "id": "a b", "tags": {"a": 1}, "extra": 1, "array": 10**9}
        said = await asked(client, "POST", "/v1/jobs", bad, status=422)
        assert {error["pointer"] for error in said["errors"]} == {
            "/pool", "/gpus", "/id", "/tags", "/extra", "/array",
        }  # fmt: skip
        assert all(error["detail"] and error["mend"] for error in said["errors"])
        batch = {"jobs": [SHORT, {"pool": "a"}, {**SHORT, "pol": 1}]}
        said = await asked(client, "POST", "/v1/jobs", batch, status=422)
        assert [error["pointer"] for error in said["errors"]] == ["/jobs/1/gpus", "/jobs/2/pol"]
        said = await asked(client, "POST", "/v1/jobs", {"jobs": []}, status=422)
        assert said["errors"][0]["pointer"] == "/jobs"


NO_JOBS = (
    (b"", 400),
    (b"{", 400),
    (b"\xff", 400),
    (b'{"pool":"\\ud800"}', 400),
    (b"[" * 200_000, 422),
    (b'{"tags":' * 20_000, 400),
    (b'{"tags":' * 200_000, 413),
    (b'{"pool":"vision","gpus":1,"run_time":1e999}', 422),
    (b'{"pool":"vision","gpus":' + b"9" * 5000 + b"}", 422),
    (b'{"pool":"vision","gpus":1,"id":"a\\n"}', 422),
    (b'{"pool":"vision","gpus":1,"command":["a\\u0000b"]}', 422),
    (b" " * (2**23 + 1), 413),
    (b"null", 422),
)


@story
async def test_an_invalid_job_is_refused(folder):
    async with door(folder) as client:
        for body, status in NO_JOBS:
            request = client.post("/v1/jobs", data=BytesIO(body), headers=AS_JSON)
            async with request as response:
                assert response.status in (status, 400 if status == 422 else status), body[:40]
                said = await response.json(content_type="application/problem+json")
                assert said["status"] == response.status, body[:40]
                assert said["mend"], body[:40]
            assert len(client.service.book.jobs) == 0, body[:40]


@story
async def test_requests_without_the_token_are_refused(folder):
    async with door(folder) as client:
        stranger = TestClient(client.server)
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/v1/jobs", "/metrics", "/v1/openapi.json", "/nowhere"):
                async with stranger.get(path, headers=headers) as response:
                    assert response.status == 401
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                    assert TOKEN not in await response.text()
        for path in ("/healthz", "/readyz"):
            async with stranger.get(path) as response:
                assert (await response.json())["status"] == "ok"
        await stranger.session.close()


@story
async def test_repeated_wrong_tokens_are_slowed_down(folder):
    async with door(folder) as client:
        stranger = TestClient(client.server)
        statuses = set()
        for _ in range(110):
            async with stranger.get("/v1/jobs") as response:
                statuses.add(response.status)
        assert statuses == {401, 429}
        assert "Retry-After" in response.headers
        await asked(client, "GET", "/v1/jobs")  # the owner does not wait for them
        await stranger.session.close()


def test_a_rate_limit_bucket_refills():
    now = [0.0]
    bucket = TokenBucket(2.0, 3.0, lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]
    now[0] = 0.5
    assert [bucket.take(), bucket.take()] == [0, 0.5]
    now[0] = 1000.0
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_the_token_file_is_created_once_and_private(tmp_path):
    path = tmp_path / "state" / "token"
    token = make_token(path)
    assert len(token) > 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_token(path) == token == read_token(path)
    path.chmod(0o640)
    with pytest.raises(UserError, match="other users can read the token; run chmod 600"):
        make_token(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(UserError, match="contains no token"):
        read_token(path)
    with pytest.raises(UserError, match="start the daemon first"):
        read_token(tmp_path / "gone")


def test_the_token_file_does_not_exist_before_its_token_is_written(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append((tmp_path / "token").exists()))
    token = make_token(tmp_path / "token")
    assert seen == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["token"]

    # Of two daemons that start at once, the second takes the token of the first.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)
        assert make_token(tmp_path / "token") == token
    assert len(list(tmp_path.iterdir())) == 1


@story
async def test_pools_are_shown_and_changed_by_version(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
        await job_in(client, "a", "running")
        async with client.get("/v1/pools/vision") as response:
            pool, tag = await response.json(), response.headers["ETag"]
        assert (pool["quota"], pool["running"], pool["dedicated"], pool["idle"]) == (8, 2, 2, 6)
        assert tag == '"1"'
        patch = {"state": "hold", "lend_limit": 3}
        changed = await asked(client, "PATCH", "/v1/pools/vision", patch, headers={"If-Match": tag})
        assert (changed["state"], changed["lend_limit"], changed["version"]) == ("hold", 3, 2)
        late = await asked(
            client, "PATCH", "/v1/pools/vision", patch, status=409, headers={"If-Match": tag}
        )
        assert late["title"] == "pool has changed"
        await asked(client, "PATCH", "/v1/pools/vision", patch, status=422,
                    headers={"If-Match": "yesterday"})  # fmt: skip
        low = await asked(client, "PATCH", "/v1/pools/vision", {"quota": 1}, status=409)
        assert low["title"] == "quota is in use"
        await asked(client, "PATCH", "/v1/pools/vision", {"quota": -1}, status=422)
        await asked(client, "PATCH", "/v1/pools/nobody", {"quota": 1}, status=404)
        await asked(client, "GET", "/v1/pools/nobody", status=404)
        free = await asked(client, "PATCH", "/v1/pools/vision", {"lend_limit": None, "weight": 2})
        assert (free["lend_limit"], free["weight"], free["state"]) == (None, 2, "hold")
        names = [pool["name"] for pool in (await asked(client, "GET", "/v1/pools"))["pools"]]
        assert names == ["speech", "vision"]


@story
async def test_an_override_has_an_end(folder):
    async with door(folder, speed=1.0) as client:
        until = client.service.clock.now() + 3600
        patch = {"quota": 6, "until": until}
        pool = await asked(client, "PATCH", "/v1/pools/vision", patch)
        assert pool["quota"] == 6
        assert pool["override"] == {"until": until, "quota": 8}


@story
async def test_nodes_are_drained_and_resumed(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client:
        drained = await asked(client, "POST", "/v1/nodes/n1/drain", {"why": "fan"})
        assert drained["out"] == {"operator": "fan"}
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
        assert (await job_in(client, "a", "running"))["nodes"] == {"n2": [0, 1]}
        nodes = (await asked(client, "GET", "/v1/nodes"))["nodes"]
        assert [(node["name"], node["used"], node["jobs"]) for node in nodes] == [
            ("n1", 0, []),
            ("n2", 2, ["a"]),
        ]
        assert (await asked(client, "POST", "/v1/nodes/n1/resume"))["out"] == {}
        await asked(client, "POST", "/v1/nodes/n9/drain", status=404)


@story
async def test_a_job_that_has_its_turn_waits_for_nodes_that_are_down(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client:
        await asked(client, "POST", "/v1/nodes/n1/drain", {"why": "fan"})
        later = client.service.clock.now() + 3600
        window = {"id": "m1", "node": "n2", "start": 0, "end": later, "why": "disk"}
        await asked(client, "POST", "/v1/maintenance", window, status=201)
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
        assert (await asked(client, "GET", "/v1/jobs/a"))["waits"] == [
            "it is due to start and needs 2 GPUs; nodes that take jobs have 0 free",
            "node n1 is out (operator: fan): sia resume n1",
            "node n2 is out (maintenance m1: disk): sia maintenance cancel m1",
        ]
        pool = await asked(client, "GET", "/v1/pools/vision")
        assert (pool["running"], pool["waiting"], pool["waiting_gpus"]) == (0, 1, 2)
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        assert "sia_running_jobs 0.0" in lines
        assert "sia_starting_jobs 1.0" in lines
        assert (await asked(client, "GET", "/v1/status"))["starting"] == 1
        (longest,) = (each for each in lines if each.startswith("sia_starting_longest_seconds "))
        assert float(longest.split()[1]) > 0
        assert 'sia_pool_waiting_jobs{pool="vision"} 1.0' in lines
        await asked(client, "POST", "/v1/nodes/n1/resume")
        await job_in(client, "a", "running")
        pool = await asked(client, "GET", "/v1/pools/vision")
        assert (pool["running"], pool["waiting"], pool["waiting_gpus"]) == (2, 0, 0)


@story
async def test_in_cells_a_job_is_told_of_nodes_that_are_down_and_of_rounding(folder):
    quotas = {"vision": {"node": 1}, "speech": {"quad": 1}}
    async with door(folder, cells=spec(quotas=quotas), speed=1.0) as client:
        two = {"cells": {"rack": {"node": 1, "quad": 1}}}
        pool = await asked(client, "PATCH", "/v1/pools/vision", two)
        assert (pool["quota"], pool["cells"]) == (12, two["cells"])
        one = {"cells": {"rack": {"node": 1}}}
        assert (await asked(client, "PATCH", "/v1/pools/vision", one))["quota"] == 8
        await asked(client, "PATCH", "/v1/pools/vision", {"quota": 12}, status=422)
        await asked(
            client, "PATCH", "/v1/pools/vision", {"cells": {"rack": {"node": 9}}}, status=422
        )
        for node in ("n0", "n1", "n2", "n3"):
            await asked(client, "POST", f"/v1/nodes/{node}/drain")
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT, "gpus": 3}, status=201)
        said = (await asked(client, "GET", "/v1/jobs/a"))["waits"]
        assert said[1] == (
            "it needs 3 (in cells 4) GPUs that lie together, and nodes that are out are in the way"
        )
        assert said[-1].endswith(
            "node n2 is out (operator: drained): sia resume n2; and 1 more node"
        )


@story
async def test_resuming_a_node_that_the_cells_file_marks_bad_says_so(folder):
    cells = spec(quotas={"vision": {"node": 1}, "speech": {"quad": 1}}, bad=("n1",))
    async with door(folder, cells=cells) as client:
        await asked(client, "POST", "/v1/nodes/n1/drain")
        resume = "/v1/nodes/n1/resume"
        assert "note" not in await asked(client, "POST", resume)  # it is bad again, and out
        node = await asked(client, "POST", resume)
        assert (node["out"], node["note"][:24]) == ({}, "the cells file marks thi")
        assert "note" not in await asked(client, "POST", resume)


@story
async def test_maintenance_can_be_planned_and_cancelled(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client:
        now = client.service.clock.now()
        asked_for = {"id": "m1", "node": "n1", "start": now + 60, "end": now + 120, "why": "fan"}
        await asked(client, "POST", "/v1/maintenance", asked_for, status=201)
        await asked(client, "POST", "/v1/maintenance", asked_for, status=200)
        backwards = {**asked_for, "id": "m2", "end": now - 1}
        await asked(client, "POST", "/v1/maintenance", backwards, status=422)
        (window,) = (await asked(client, "GET", "/v1/maintenance"))["maintenance"]
        assert window == {**asked_for, "begun": False}
        await asked(client, "DELETE", "/v1/maintenance/m1", status=204)
        await asked(client, "DELETE", "/v1/maintenance/m1", status=404)


@story
async def test_loans_are_shown_with_both_sides(folder):
    async with door(folder, speed=1.0) as client:
        for job_id in "ab":
            job = {"id": job_id, "pool": "speech", "gpus": 4, "duration": 60, "run_time": 60}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        borrower = await job_in(client, "b", "running")
        assert borrower["stream"] == "spare"
        assert borrower["loans"] == {"vision": 4}
        loans = await asked(client, "GET", "/v1/loans")
        assert (loans["lent"], loans["borrowed"]) == ({"vision": 4}, {"speech": 4})
        (loan,) = loans["loans"]
        assert (loan["job"], loan["borrower"], loan["donor"]) == ("b", "speech", "vision")
        pools = {pool["name"]: pool for pool in (await asked(client, "GET", "/v1/pools"))["pools"]}
        assert (pools["vision"]["lent"], pools["vision"]["idle"]) == (4, 4)
        assert pools["speech"]["borrowed"] == 4
        forecasts = await asked(client, "GET", "/v1/forecasts")
        assert forecasts["windows"] == [300.0, 3600.0, 43200.0]
        assert forecasts["pools"][0] == {
            "pool": "speech", "load": [0, 0, 0], "held_back": [0, 0, 0],
        }  # fmt: skip


@story
async def test_lending_is_switched(folder):
    async with door(folder) as client:
        off = {"on": False, "mode": "off", "shadow": None, "recalls": None, "pools": []}
        assert await asked(client, "PUT", "/v1/lending", {"on": False}) == off
        assert await asked(client, "GET", "/v1/lending") == off
        await asked(client, "PUT", "/v1/lending", {"on": "yes"}, status=422)


@story
async def test_events_are_available_by_pages_and_as_a_stream(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
        await job_in(client, "a", "running")
        page = await asked(client, "GET", "/v1/events?limit=1")
        assert [event["kind"] for event in page["events"]] == ["submitted"]
        rest = await asked(client, "GET", f"/v1/events?after={page['next']}")
        assert rest["events"][0]["seq"] == 2
        seen = await _stream(client, "?after=0", len(rest["events"]) + 1)
        assert [event["seq"] for event in seen] == [1, *(e["seq"] for e in rest["events"])]
        last = seen[-1]["seq"]
        opened, headers = asyncio.Event(), {"Last-Event-ID": str(last)}
        follow = asyncio.create_task(_stream(client, "", 1, headers, opened))
        await opened.wait()
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        (event,) = await follow
        assert event["seq"] == last + 1
        assert event["job"] == "a"
        await asked(client, "GET", "/v1/events?after=-1", status=422)


async def _stream(client, query, count, headers=None, opened=None):
    """The first events of a stream; the event `opened` is set once the answer has begun."""
    accept = {"Accept": "text/event-stream", **(headers or {})}
    found = []
    async with client.get(f"/v1/events{query}", headers=accept) as response:
        assert response.content_type == "text/event-stream"
        if opened is not None:
            opened.set()
        async for line in response.content:
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
                if len(found) == count:
                    break
    return found


@story
async def test_a_batch_of_arrays_obeys_the_limit_of_a_batch(folder):
    async with door(folder) as client:
        jobs = [{"id": f"a{i}", "pool": "vision", "gpus": 1, "array": 5_001} for i in range(2)]
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs}, status=413)
        assert "more than 10,000 jobs" in said["detail"]
        assert (await asked(client, "GET", "/v1/jobs"))["jobs"] == []


@story
async def test_stream_readers_receive_heartbeats_and_are_limited_in_number(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "HEARTBEAT", 0.01)
        patch.setattr(event_stream, "MAX_READERS", 1)
        async with door(folder) as client:
            accept = {"Accept": "text/event-stream"}
            async with client.get("/v1/events", headers=accept) as response:
                lines = [await response.content.readline() for _ in range(5)]
                assert b": alive\n" in lines
                async with client.get("/v1/events", headers=accept) as second:
                    assert second.status == 503


@story
async def test_unknown_paths_and_methods_are_refused(folder):
    async with door(folder) as client:
        await asked(client, "GET", "/v2", status=404)
        await asked(client, "GET", "/v1/jobs/nobody", status=404)
        said = await asked(client, "PUT", "/v1/jobs", {}, status=405)
        assert said["mend"] == "use GET,POST"


@story
async def test_a_defect_is_logged_and_fails_no_other_request(folder):
    async with door(folder) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jobs, "job_detail", lambda *_: 1 / 0)
            await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=201)
            said = await asked(client, "GET", "/v1/jobs/a", status=500)
            assert said["title"] == "internal error"
        await asked(client, "GET", "/v1/jobs/a")


@story
async def test_metrics_count_what_happened(folder):
    async with door(folder) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT, "run_time": 30}, status=201)
        await job_in(client, "a", "finished")
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'sia_decisions_total{kind="StartJob"} 1.0' in lines
        assert 'sia_events_total{kind="submitted"} 1.0' in lines
        assert 'sia_pool_gpus{pool="vision",use="quota"} 8.0' in lines
        assert 'sia_http_requests_total{operation="POST /v1/jobs",status="201"} 1.0' in lines
        assert "sia_run_time_ratio_count 1.0" in lines
        assert "sia_ready 1.0" in lines


@story
async def test_the_log_level_is_changed_while_it_runs(folder):
    async with door(folder) as client:
        assert await asked(client, "PUT", "/v1/log-level", {"level": "debug"}) == {"level": "debug"}
        assert await asked(client, "GET", "/v1/log-level") == {"level": "debug"}
        await asked(client, "PUT", "/v1/log-level", {"level": "loud"}, status=422)
        await asked(client, "PUT", "/v1/log-level", {"level": "warning"})


@pytest.mark.parametrize("written", [True, False])
def test_only_durable_steps_are_visible(tmp_path, written):
    async def tell():
        async with door(tmp_path, speed=1.0) as client:
            keeper, writes, go_on = client.service._writer, asyncio.Event(), asyncio.Event()
            commit = keeper.commit

            async def slow(*entry):
                writes.set()
                await go_on.wait()
                keeper.commit = commit
                if not written:
                    raise JournalError("the disk is full")
                await commit(*entry)

            def look(path, status=200):
                return asyncio.create_task(asked(client, "GET", path, status=status))

            keeper.commit = slow
            job, status = {"id": "a", **SHORT, "duration": 999}, 201 if written else 503
            told = asyncio.create_task(asked(client, "POST", "/v1/jobs", job, status=status))
            await writes.wait()
            assert client.service.book.job("a")  # it is a step ahead
            pool, jobs = look("/v1/pools/vision"), look("/v1/jobs")
            single = look("/v1/jobs/a", 200 if written else 404)
            others = [look(f"/v1/{path}") for path in ("pools", "plan", "nodes", "loans")]
            for _ in range(20):
                await asked(client, "GET", "/healthz")
            assert not any(task.done() for task in (told, pool, jobs, single, *others))
            go_on.set()
            await asyncio.gather(told, single, *others)
            assert [job["id"] for job in (await jobs)["jobs"]] == ["a"] * written
            assert (await pool)["running"] == 2 * written

    asyncio.run(asyncio.wait_for(tell(), 120))


@story
async def test_requests_get_503_while_the_journal_cannot_be_read(folder):
    async with door(folder, speed=1.0) as client:
        keeper = client.service._writer

        async def broken(*_):
            raise JournalError("the disk is gone")

        with pytest.MonkeyPatch.context() as patch:
            for name in ("commit", "recover"):
                patch.setattr(keeper, name, broken)
            await asked(client, "POST", "/v1/jobs", {"id": "a", **SHORT}, status=503)
            said = await asked(client, "GET", "/v1/pools", status=503)
            assert said["detail"] == "the disk is gone"
            await asked(client, "GET", "/healthz")
            async with client.get("/metrics") as response:
                assert "sia_ready 0.0" in await response.text()
        for _ in range(300):
            await asyncio.sleep(0 if client.service.ready else 0.01)
        await asked(client, "GET", "/v1/jobs/a", status=404)


@pytest.mark.parametrize(("status", "title"), [(503, "unavailable"), (429, "too many requests")])
def test_a_request_that_cannot_be_accepted_now_is_never_a_success(tmp_path, status, title):
    async def tell():
        async with door(tmp_path) as client:

            async def refuse(commands, origin):
                raise UnavailableError(status, "the disk is full", 3.0)

            client.service.submit = refuse
            async with client.post("/v1/jobs", json=SHORT) as response:
                said = await response.json(content_type="application/problem+json")
                assert (response.status, response.headers["Retry-After"]) == (status, "3")
            assert (said["title"], said["detail"]) == (title, "the disk is full")
            await asked(client, "GET", "/v1/pools")
            await asked(client, "POST", "/v1/jobs/a/hold", status=status)

    asyncio.run(tell())


@story
async def test_a_stream_reader_that_does_not_read_is_disconnected(folder):
    class Stuck:
        async def write(self, data):
            await asyncio.sleep(60)

    async def nothing():
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "SLOW_READER", 0.01)
        with pytest.raises(TimeoutError):
            await event_stream._feed(Stuck(), nothing(), 0, MACHINE, lambda: True)


@story
async def test_a_stream_ends_with_the_daemon(folder):
    async with door(folder) as client:
        response = await client.get("/v1/events", headers={"Accept": "text/event-stream"})
        assert b"resume with Last-Event-ID" in await response.content.readline()
        await client.server.close()
        rest = await response.content.read()
    assert rest in (b"id: 0\n\n", b"")


@story
async def test_the_log_contains_what_happens_and_no_secrets(folder):
    logger = logging.getLogger("sia")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    with capture_logs() as lines:
        config = config_in(folder, nodes=NODES, listen=Address("127.0.0.1", 0))
        async with serving(config) as (_, address):
            token = {"Authorization": f"Bearer {read_token(config.token_file)}"}
            async with ClientSession(address.url, headers=token) as client:
                secret = {"id": "a", **SHORT, "command": ["s3cret"], "env": {"KEY": "s3cret"}}
                await asked(client, "POST", "/v1/jobs", secret, status=201)
                await job_in(client, "a", "finished")
                await asked(client, "POST", "/v1/nodes/n1/drain", {"why": "fan"})
                await asked(client, "PATCH", "/v1/pools/vision", {"quota": 7})
                await asked(client, "PUT", "/v1/log-level", {"level": "info"})
                await asked(client, "POST", "/v1/jobs", {}, status=422)
    logger.setLevel(before)
    said = [line["event"] for line in lines]
    assert said[:2] == ["restoring", "serving"]
    assert said[-2:] == ["stopping", "stopped"]
    for event in ("submitted", "started", "running", "ended", "node_out", "pool_changed"):
        assert event in said, event
    assert {"event": "log level", "new": "info", "log_level": "info"} in lines
    (out,) = [line for line in lines if line["event"] == "node_out"]
    assert (out["node"], out["why"], out["log_level"]) == ("n1", "fan", "info")
    assert "s3cret" not in str(lines)
