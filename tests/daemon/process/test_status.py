"""What is not well is seen: by who asks whether it is ready, by Prometheus, by operators."""

from daemon.model.errors import AWAY, IN_DOUBT, UnavailableError
from tests.daemon.doors.http.test_access import clients
from tests.support.daemons.doors import asked, door, story


@story
async def test_an_unhealthy_component_is_named_and_submissions_continue(folder):
    async with door(folder) as client:
        ready = await asked(client, "GET", "/readyz")
        assert set(ready) == {"status", "time"}
        parts = client.service.parts
        parts.say("mqtt", "connection refused", "start the broker")
        parts.say("backend")
        ready = await asked(client, "GET", "/readyz")
        since = ready["parts"][0].pop("since")
        assert since <= ready["time"]
        assert ready["parts"] == [{"name": "mqtt", "ok": False}]
        assert (await asked(client, "GET", "/healthz")).keys() == {"status", "time"}
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'sia_part_ok{part="mqtt"} 0.0' in lines
        assert 'sia_part_ok{part="backend"} 1.0' in lines
        parts.say("mqtt")
        assert "parts" not in await asked(client, "GET", "/readyz")
        parts.forget("mqtt")
        async with client.get("/metrics") as response:
            assert 'part="mqtt"' not in await response.text()


@story
async def test_the_status_lists_all_components_and_their_health(folder):
    async with door(folder) as client:
        client.service.parts.say("tls")
        client.service.parts.say("backend", "no answer", "start it")
        said = await asked(client, "GET", "/v1/status")
        assert [(part["name"], part["ok"]) for part in said["parts"]] == [
            ("backend", False),
            ("database", True),
            ("tls", True),
        ]
        assert (said["serving"], said["why"], said["jobs"], said["lending"]) == (True, "", 0, True)


@story
async def test_only_operators_see_why_a_component_is_unhealthy(folder):
    async with clients(folder) as (client, made):
        client.service.parts.say("tls", "/etc/ssl/private/cert.pem: expires in 3 days", "renew it")
        for name, who in made.items():
            views = [await asked(who, "GET", "/readyz")]
            if name != "nobody":
                views.append(await asked(who, "GET", "/v1/status"))
            told = [part for view in views for part in view["parts"] if part["name"] == "tls"]
            assert [part["ok"] for part in told] == [False] * len(views)
            whys = [part.get("why", "") + part.get("mend", "") for part in told]
            assert [bool(why) for why in whys] == [False, name == "operator"][: len(views)]


@story
async def test_only_operators_see_why_commands_are_refused(folder):
    async with door(folder) as client:
        service = client.service
        why = "connection to db.internal refused for user sia"
        service._status = service._status._replace(serving=False, reason=why)
        said = await asked_as_it_is(client, "/readyz")
        assert said["status"] == "unavailable"
        assert "db.internal" not in str(said)
        assert (await asked(client, "GET", "/v1/status"))["why"] == why


@story
async def test_database_errors_are_shown_to_operators_only(folder):
    async with clients(folder) as (client, made):
        service = client.service
        why = "connection to db.internal refused for user sia"
        service._status = service._status._replace(serving=False, reason=why)
        job = {"id": "a", "pool": "own", "gpus": 1}
        for name in ("operator", "submitter of own"):
            said = await asked(made[name], "POST", "/v1/jobs", job, status=503)
            status = await asked(made[name], "GET", "/v1/status")
            told = [said["detail"], status["why"]]
            assert told == ([why, why] if name == "operator" else [AWAY, AWAY])
        error = UnavailableError(503, f"{why}; {IN_DOUBT}", 1.0)
        assert error.shown(whole=False) == f"{AWAY}; {IN_DOUBT}"


async def asked_as_it_is(client, path):
    async with client.get(path) as response:
        return await response.json()
