"""What is not well is seen: by who asks whether it is ready, by Prometheus, by operators."""

from tests.doors import asked, door, story


@story
async def test_a_part_that_is_not_well_keeps_nobody_from_submitting_and_is_named(folder):
    async with door(folder) as client:
        ready = await asked(client, "GET", "/readyz")
        assert set(ready) == {"status", "time"}
        parts = client.service.parts
        parts.say("mqtt", "connection refused", "start the broker")
        parts.say("backend")
        ready = await asked(client, "GET", "/readyz")
        since = ready["parts"][0].pop("since")
        assert since <= ready["time"]
        assert ready["parts"] == [
            {"name": "mqtt", "ok": False, "why": "connection refused", "mend": "start the broker"}
        ]
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
async def test_all_parts_are_listed_with_how_the_daemon_is(folder):
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
