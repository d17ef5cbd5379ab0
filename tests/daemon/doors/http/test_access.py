"""Who may do what: each route, asked with each kind of token, for an own and for another's pool."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from daemon.config.config import NodeConfig, PoolConfig
from daemon.doors.http.operations import Operation
from daemon.model.access import ISSUED, Principal, Role, Rule, allows
from tests.support.daemons.doors import asked, door, job_in, story

POOLS = (PoolConfig("own", 4), PoolConfig("other", 4))
NODES = (NodeConfig("n1", 8),)

KINDS = {
    "nobody": None,
    "viewer": {"role": "viewer"},
    "viewer of own": {"role": "viewer", "pools": ["own"]},
    "submitter of own": {"role": "submitter", "pools": ["own"]},
    "admin of own": {"role": "admin", "pools": ["own"]},
    "operator": {"role": "operator"},
}

ALL, READERS = "all", "readers"

# Whom a route lets in, by what it is done to: nothing of a pool, a job of one's own pool or the
# pool itself, and the same of another's. What is not named here is a failure.
WHO = {
    "GET /healthz": ALL,
    "GET /readyz": ALL,
    "GET /metrics": READERS,
    "GET /v1/asyncapi.json": READERS,
    "GET /v1/openapi.json": READERS,
    "GET /v1/pools": READERS,
    "GET /v1/pools/{name}": READERS,
    **{
        f"GET /v1/pools/{{name}}/{what}": {
            "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
            "other": {"viewer", "operator"},
        }
        for what in ("account", "ledger", "verdicts", "statement")
    },
    "GET /v1/nodes": READERS,
    "GET /v1/cells": READERS,
    "GET /v1/maintenance": READERS,
    "GET /v1/lending": READERS,
    "GET /v1/policy": READERS,
    "GET /v1/loans": READERS,
    "GET /v1/grants": READERS,
    "GET /v1/forecasts": READERS,
    "GET /v1/plan": READERS,
    "GET /v1/series": READERS,
    "POST /v1/whatif": READERS,
    "GET /v1/status": READERS,
    "GET /v1/events": READERS,
    "GET /v1/log-level": READERS,
    "GET /v1/jobs": READERS,
    "GET /v1/queue": READERS,
    "GET /v1/history": READERS,
    "GET /v1/jobs/{id}": {
        "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
        "other": {"viewer", "operator"},
    },
    "GET /v1/jobs/{id}/why": {
        "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
        "other": {"viewer", "operator"},
    },
    "GET /v1/jobs/{id}/eta": {
        "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
        "other": {"viewer", "operator"},
    },
    "GET /v1/estimates": READERS,
    "GET /v1/jobs/{id}/log": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "POST /v1/jobs": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "DELETE /v1/jobs/{id}": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "POST /v1/jobs/{id}/hold": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "POST /v1/jobs/{id}/release": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "POST /v1/jobs/{id}/progress": {
        "own": {"submitter of own", "admin of own", "operator"},
        "other": {"operator"},
    },
    "PATCH /v1/jobs/{id}": {"own": {"admin of own", "operator"}, "other": {"operator"}},
    "PATCH /v1/pools/{name}": {"own": {"admin of own", "operator"}, "other": {"operator"}},
    "POST /v1/nodes/{name}/drain": {"operator"},
    "POST /v1/nodes/{name}/resume": {"operator"},
    "POST /v1/maintenance": {"operator"},
    "DELETE /v1/maintenance/{name}": {"operator"},
    "PUT /v1/lending": {"operator"},
    "PUT /v1/policy": {"operator"},
    "GET /v1/policy/front": {"operator"},
    "GET /v1/policy/front/update": {"operator"},
    "POST /v1/policy/front/update": {"operator"},
    "DELETE /v1/policy/front/update": {"operator"},
    "PUT /v1/log-level": {"operator"},
    "GET /v1/webhooks": {"operator"},
    "GET /v1/webhooks/{name}/dead": {"operator"},
    "DELETE /v1/webhooks/{name}/dead": {"operator"},
    "POST /v1/webhooks/{name}/retry": {"operator"},
    "POST /v1/webhooks/{name}/test": {"operator"},
    "GET /": ALL,
    "GET /ui/assets/{name}": ALL,
    "GET /ui/sign-in": ALL,
    "POST /ui/sign-in": ALL,
    "POST /ui/sign-out": READERS,
    "GET /ui/events": READERS,
    "GET /ui/": READERS,
    "GET /ui/pools/{name}": READERS,
    "GET /ui/users/{name}": READERS,
    "GET /ui/series": READERS,
    "GET /ui/settings": READERS,
    "GET /ui/policy": {"operator"},
    "GET /ui/queue": READERS,
    "GET /ui/plan": READERS,
    "GET /ui/nodes": READERS,
    "GET /ui/loans": READERS,
    "GET /ui/whatif": READERS,
    "POST /ui/whatif": READERS,
    "GET /ui/audit": {"operator"},
    **{
        f"GET /ui/pools/{{name}}/{what}": {
            "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
            "other": {"viewer", "operator"},
        }
        for what in ("ledger", "statement")
    },
    "GET /ui/jobs": READERS,
    "GET /ui/jobs/{id}": {
        "own": {"viewer", "viewer of own", "submitter of own", "admin of own", "operator"},
        "other": {"viewer", "operator"},
    },
    **{
        f"POST /ui/jobs/{{id}}/{what}": {
            "own": {"submitter of own", "admin of own", "operator"},
            "other": {"operator"},
        }
        for what in ("cancel", "hold", "release")
    },
    "POST /ui/jobs/{id}/priority": {"own": {"admin of own", "operator"}, "other": {"operator"}},
    "POST /ui/nodes/{name}/drain": {"operator"},
    "POST /ui/nodes/{name}/resume": {"operator"},
    "POST /ui/settings/lending": {"operator"},
    "POST /ui/policy": {"operator"},
    "POST /ui/settings/tokens/{name}/sign-out": {"operator"},
    "POST /ui/sign-out-everywhere": READERS,
    "GET /v1/audit": {"operator"},
    "GET /v1/tokens": {"operator"},
    "POST /v1/tokens": {"operator"},
    "DELETE /v1/tokens/{name}": {"operator"},
    "DELETE /v1/tokens/{name}/sessions": {"operator"},
    "DELETE /v1/sessions": READERS,
}

BODIES = {
    "POST /v1/jobs": {"gpus": 1, "duration": 1e6},
    "PATCH /v1/jobs/{id}": {"priority": 1},
    "POST /v1/jobs/{id}/progress": {"done": 0.5, "attempt": 1},
    "PATCH /v1/pools/{name}": {"lend_limit": 3},
    "POST /v1/nodes/{name}/drain": {"why": "fan"},
    "POST /v1/maintenance": {"node": "n1", "start": 5e9, "end": 6e9},
    "PUT /v1/lending": {"on": True},
    "PUT /v1/policy": {"policy": "sia"},
    "POST /v1/policy/front/update": {"objectives": ["none"]},
    "POST /v1/whatif": {"lending": False},
    "PUT /v1/log-level": {"level": "info"},
    "POST /v1/tokens": {"name": "t", "role": "viewer"},
}


JOB = {"gpus": 1, "duration": 1e6}


async def token_of(client, name, kind):
    body = {"name": "of-a-" + name.replace(" ", "-"), **kind}
    return (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]


@asynccontextmanager
async def clients(folder, **settings):
    """An operator's client, and one for each kind of token."""
    settings = {"pools": POOLS, "nodes": NODES, "speed": 1.0, **settings}
    async with door(folder, **settings) as client:
        made = {}
        for name, kind in KINDS.items():
            token = None if kind is None else await token_of(client, name, kind)
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            made[name] = TestClient(client.server, headers=headers)
        try:
            yield client, made
        finally:
            for each in made.values():
                await each.session.close()


async def status_of(client, method, path, body=None):
    async with client.request(method, path, json=body) as response:
        return response.status


def operations_of(client):
    return [
        f"{route.method} {route.resource.canonical}"
        for route in client.app.router.routes()
        if isinstance(route, web.ResourceRoute) and route.method != "HEAD"
    ]


def pools_of(operation):
    """The pools to ask for: a request that names no pool and no job is the same for each."""
    named = "{id}" in operation or "pools" in operation or operation == "POST /v1/jobs"
    return ("own", "other") if named else ("own",)


def expected(operation, pool, kind):
    rule = WHO[operation]
    if rule == ALL:
        return True
    if rule == READERS:
        return kind != "nobody"
    return kind in (rule[pool] if isinstance(rule, dict) else rule)


def body_of(operation, pool):
    body = BODIES.get(operation)
    if operation == "POST /v1/jobs":
        return {**body, "pool": pool, "id": f"new-{pool}"}
    return body


async def is_let_in(client, operation, pool, job_id):
    """Whether the rules let somebody do it, whatever becomes of it then."""
    method, path = operation.split(" ")
    name = pool if "pools" in path else "n1" if "nodes" in path else "gone"
    path = path.replace("{id}", job_id).replace("{name}", name)
    body = {"data": {}} if path.startswith("/ui/") else {"json": body_of(operation, pool)}
    request = client.request(method, path, allow_redirects=False, **body)
    async with request as response:
        assert response.status != 429
        text = await response.text()
        denied = response.status in (401, 403) or "no such job" in text
        denied = denied and operation != "POST /ui/sign-in"  # which says so of an empty form
        return not denied, response.status


@story
async def test_every_route_admits_exactly_the_roles_in_the_table(folder):
    with pytest.MonkeyPatch.context() as patch:  # nobody has no token at hundreds of doors
        patch.setattr("daemon.doors.http.authentication.WRONG_AT_ONCE", 1e6)
        await _each_is_let_in(folder)


async def _each_is_let_in(folder):
    wrong = []
    # No job waits: to say why one does takes a tenth of a second each time.
    roomy = {"pools": (PoolConfig("own", 400), PoolConfig("other", 400))}
    async with clients(folder, **roomy, nodes=(NodeConfig("n1", 800),)) as (client, made):
        operations = operations_of(client)
        assert set(operations) == set(WHO)
        (folder / "log").write_text("hello")
        client.service.backend.log = lambda *_: folder / "log"
        client.service.backend.can = frozenset(("logs",))
        for number, operation in enumerate(operations):
            for pool in pools_of(operation):
                jobs = {kind: f"{pool}-{number}-{i}" for i, kind in enumerate(made)}
                if "{id}" in operation:
                    new = [{**JOB, "id": job, "pool": pool} for job in jobs.values()]
                    said = await asked(client, "POST", "/v1/jobs", {"jobs": new})
                    assert {line["status"] for line in said["jobs"]} == {201}
                for kind, who in made.items():
                    let_in, status = await is_let_in(who, operation, pool, jobs[kind])
                    if let_in is not expected(operation, pool, kind):
                        wrong.append((operation, pool, kind, status))
                    shut = kind == "nobody" and WHO[operation] != ALL
                    if (status == 401) is not (shut or operation == "POST /ui/sign-in"):
                        wrong.append((operation, pool, kind, status))
                    if "{id}" in operation:
                        await asked(client, "GET", f"/v1/jobs/{jobs[kind]}")
    assert wrong == []


def test_an_operation_without_a_rule_cannot_be_written():
    with pytest.raises(TypeError):
        Operation("GET", "/v1/new", handler=None, about="", answers={})


@story
async def test_a_route_missing_in_the_table_admits_nobody(folder):
    async with door(folder, begin=add_stray) as client:
        said = await asked(client, "GET", "/v1/stray", status=403)
        assert said["detail"] == "the operation has no rule"


def add_stray(app):
    async def stray(_request):
        return web.Response(text="all secrets")

    app.router.add_get("/v1/stray", stray)


@story
async def test_every_change_names_its_pool_or_job(folder):
    async with door(folder) as client:
        document = await asked(client, "GET", "/v1/openapi.json")
    rules = {
        f"{method.upper()} {path}": operation["x-sia-rule"]
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert set(rules.values()) == {rule.value for rule in Rule}
    for operation, rule in rules.items():
        looks = operation.startswith(("GET /v1/jobs/{id}", "GET /v1/pools/{name}/"))
        assert (rule in ("report", "submit", "admin")) is isinstance(WHO[operation], dict) or looks
        assert (rule == "open") is (WHO[operation] == ALL)


@pytest.mark.parametrize("role", ISSUED)
def test_each_role_includes_the_lower_ones_and_scoped_roles_without_pools_may_do_nothing(role):
    order = [rule for rule in Rule if rule is not Rule.REPORT]  # below others, and no reader has it
    mine, all_ = Principal("a", role, frozenset(("own",))), Principal("a", role)
    for rule in order[1:]:
        assert not allows(None, rule)
        others = role is Role.OPERATOR
        assert not allows(mine, rule, "other") or others
        if role in (Role.SUBMITTER, Role.ADMIN):
            assert not allows(all_, rule, "own")
    allowed = [allows(mine, rule, "own") for rule in order]
    assert allowed == sorted(allowed, reverse=True)
    assert allowed.index(False) if False in allowed else len(order) == 5


@story
async def test_lists_views_and_streams_hide_other_pools_jobs(folder):
    async with clients(folder) as (client, made):
        # 4 of own's jobs borrow other's GPUs or wait, and other has one.
        for i in range(2):
            job = {"id": f"own{i}", "pool": "own", "gpus": 3, "time_limit": 60, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(
            client, "POST", "/v1/jobs",
            {"id": "secret-other", "pool": "other", "gpus": 2, "duration": 1e6}, status=201,
        )  # fmt: skip
        await job_in(client, "own0", "running")
        await asked(client, "DELETE", "/v1/jobs/secret-other", status=202)
        await job_in(client, "secret-other", "cancelled")
        await asked(
            client, "POST", "/v1/jobs",
            {"id": "secret-two", "pool": "other", "gpus": 2, "duration": 1e6}, status=201,
        )  # fmt: skip
        views = (
            "/v1/jobs", "/v1/jobs?pool=other", "/v1/history", "/v1/history?pool=other", "/v1/nodes",
            "/v1/loans", "/v1/plan", "/v1/pools", "/v1/forecasts", "/v1/events?limit=1000",
            "/metrics", "/v1/maintenance",
        )  # fmt: skip
        for kind in ("viewer of own", "submitter of own", "admin of own"):
            for path in views:
                async with made[kind].get(path) as response:
                    assert response.status == 200
                    assert "secret" not in await response.text(), (kind, path)
            known = await status_of(made[kind], "GET", "/v1/jobs?cursor=secret-two")
            assert known == await status_of(made[kind], "GET", "/v1/jobs?cursor=nobody") == 422
            jobs = await asked(made[kind], "GET", "/v1/jobs")
            assert {job["id"] for job in jobs["jobs"]} == {"own0", "own1"}
        for kind in ("viewer", "operator"):
            assert "secret-two" in str(await asked(made[kind], "GET", "/v1/jobs"))
            assert "secret-other" in str(await asked(made[kind], "GET", "/v1/history"))
            events = await asked(made[kind], "GET", "/v1/events?limit=1000")
            assert "secret-two" in str(events)
            assert ("token_issued" in str(events)) is (kind == "operator")


@story
async def test_a_hidden_job_looks_like_one_that_does_not_exist(folder):
    async with clients(folder) as (client, made):
        job = {"id": "hidden", "pool": "other", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "POST", "/v1/jobs", {**job, "id": "all", "array": 3}, status=201)
        for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/hold"), ("GET", "/log")):
            said = []
            for name in ("hidden", "all", "all.1", "nobody"):
                path = f"/v1/jobs/{name}{end}"
                async with made["submitter of own"].request(method, path) as response:
                    text = await response.text()
                    said.append((response.status, text.replace(name, "X"), [*response.headers]))
            assert said.count(said[0]) == len(said), said
            assert said[0][0] == 404


@story
async def test_only_those_who_may_submit_see_secrets_of_a_job(folder):
    async with clients(folder) as (client, made):
        job = {"id": "a", "pool": "own", "gpus": 1, "duration": 1e6, "env": {"KEY": "hush"}}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        for kind, who in made.items():
            if kind == "nobody":
                continue
            shown = await asked(who, "GET", "/v1/jobs/a")
            assert ("env" in shown) is (not kind.startswith("viewer")), kind
            assert "hush" not in str(await asked(who, "GET", "/v1/jobs"))


@story
async def test_a_batch_accepts_only_jobs_that_its_sender_may_submit(folder):
    async with clients(folder) as (_, made):
        jobs = [
            {"id": "a", "pool": "own", "gpus": 1},
            {"id": "b", "pool": "other", "gpus": 1},
            {"id": "c", "pool": "own", "gpus": 1, "priority": 1},
            {"id": "d", "pool": "own", "gpus": 1, "priority": -1},
        ]
        said = await asked(made["submitter of own"], "POST", "/v1/jobs", {"jobs": jobs})
        assert [line["status"] for line in said["jobs"]] == [201, 403, 403, 201]
        detail = said["jobs"][1]["detail"]
        assert "it may not submit and manage jobs" in detail
        assert detail.endswith("in pool 'other'")
        assert "priority above 0" in said["jobs"][2]["detail"]
        said = await asked(made["admin of own"], "POST", "/v1/jobs", {"jobs": jobs})
        assert [line["status"] for line in said["jobs"]] == [200, 403, 201, 200]
        alone = await asked(made["submitter of own"], "POST", "/v1/jobs", jobs[1], status=403)
        assert alone["title"] == "not allowed"
        assert alone["mend"]


@story
async def test_an_admin_cannot_take_over_jobs_of_others(folder):
    async with clients(folder) as (client, made):
        admin = made["admin of own"]
        until = client.service.clock.now() + 60.0
        for patch in (
            {"quota": 5}, {"weight": 2.0}, {"cells": {}}, {"quota": 4, "state": "hold"},
            {"slowed_budget_pct": 0.0}, {"slowed_budget_pct": None},
            {"slowed_budget_minutes": 5.0}, {"slowed_budget_minutes": None},
            {"slowed_budget_pct": 5.0, "until": until}, {"lend_limit": 1, "slowed_budget_pct": 1.0},
        ):  # fmt: skip
            await asked(admin, "PATCH", "/v1/pools/own", patch, status=403)
        for patch in (
            {"state": "hold"}, {"lend_limit": 1}, {"borrow_limit": 2}, {"lend_budget_hours": 0.0},
        ):  # fmt: skip
            await asked(admin, "PATCH", "/v1/pools/own", patch)
            await asked(admin, "PATCH", "/v1/pools/other", patch, status=403)


@story
async def test_a_stream_ends_with_its_token(folder):
    async with clients(folder) as (client, made):
        who = made["submitter of own"]
        response = await who.get("/v1/events", headers={"Accept": "text/event-stream"})
        assert b"resume" in await response.content.readline()
        job = {"id": "a", "pool": "own", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "DELETE", "/v1/tokens/of-a-submitter-of-own", status=204)
        rest = await asyncio.wait_for(response.content.read(), 60)
        assert b"event: submitted" in rest
        assert b"token_revoked" not in rest
        await asked(who, "GET", "/v1/jobs", status=401)


@story
async def test_a_page_of_own_jobs_reads_no_others(folder):
    async with clients(folder) as (client, made):
        for i, pool in enumerate(("own", "other", "other", "own", "other", "other", "other")):
            job = {"id": f"{pool}{i}", "pool": pool, "gpus": 1, "hold": True, "user": pool}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("daemon.doors.http.routes.jobs.LOOKED_AT", 2)
            for query in ("", "?pool=own"):
                page = await asked(made["viewer of own"], "GET", f"/v1/jobs{query}")
                assert [job["id"] for job in page["jobs"]] == ["own3", "own0"]
            # Who sees all looks at two at a time, and is told where to go on.
            pages, cursor = [], ""
            while cursor is not None:
                page = await asked(client, "GET", f"/v1/jobs?user=own{cursor}")
                pages.append([job["id"] for job in page["jobs"]])
                cursor = page["next"] and f"&cursor={page['next']}"
        assert pages == [[], ["own3"], [], ["own0"]]


@story
async def test_pools_have_keys_of_their_own(folder):
    async with clients(folder) as (client, made):
        job = {"gpus": 1, "duration": 1e6}
        key = {"headers": {"Idempotency-Key": "nightly-1"}}
        own = {**job, "pool": "own"}
        who = made["submitter of own"]
        first = await asked(who, "POST", "/v1/jobs", own, status=201, **key)
        other = {**job, "pool": "other"}
        second = await asked(client, "POST", "/v1/jobs", other, status=201, **key)
        assert first != second
        assert await asked(made["admin of own"], "POST", "/v1/jobs", own, **key) == first
        batch = {"jobs": [own, own]}
        line = (await asked(who, "POST", "/v1/jobs", batch, **key))["jobs"]
        again = (await asked(who, "POST", "/v1/jobs", batch, **key))["jobs"]
        assert [each["id"] for each in line] == [each["id"] for each in again]


@story
async def test_looking_for_a_hidden_job_takes_the_same_steps_as_for_a_missing_one(folder):
    async with clients(folder) as (client, made):
        for name in ("own", "other"):
            job = {"id": f"of-{name}", "pool": name, "gpus": 1, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        looked, past_job = [], client.service.past_job

        async def past(job_id):
            looked.append(job_id)
            return await past_job(job_id)

        client.service.past_job = past
        who = made["viewer of own"]
        await asked(who, "GET", "/v1/jobs/of-own")
        await asked(who, "GET", "/v1/jobs/of-other", status=404)
        await asked(who, "GET", "/v1/jobs/nowhere", status=404)
        assert looked == ["of-other", "nowhere"]


@story
async def test_no_token_uses_up_all_event_streams_and_some_are_kept_for_operators(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daemon.doors.http.event_stream.MAX_READERS", 5)
        patch.setattr("daemon.doors.http.event_stream.READERS_KEPT", 2)
        patch.setattr("daemon.doors.http.event_stream.READERS_EACH", 2)
        async with clients(folder) as (_, made), AsyncExitStack() as open_ones:

            async def follows(who):
                stream = made[who].get("/v1/events", headers={"Accept": "text/event-stream"})
                return (await open_ones.enter_async_context(stream)).status

            assert [await follows("viewer of own") for _ in range(3)] == [200, 200, 503]
            assert [await follows("viewer") for _ in range(2)] == [200, 503]
            assert [await follows("operator") for _ in range(3)] == [200, 200, 503]
