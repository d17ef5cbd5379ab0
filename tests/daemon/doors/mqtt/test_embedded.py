"""A first try: a broker in the daemon itself, and nothing to install beside it."""

import asyncio
import json

import aiomqtt
import pytest

from daemon.process.serve import serving
from sia.console.errors import UserError
from tests.support.daemons.daemons import until
from tests.support.servers.mqtt import daemon_on, on_bus, peer
from tests.support.servers.servers import free_port

POOL = "sia/v1/main/pool/vision"


def story(tell):
    def test(tmp_path):
        asyncio.run(asyncio.wait_for(tell(tmp_path), 120))

    test.__name__ = tell.__name__
    return test


@story
async def test_jobs_and_events_go_over_the_daemons_own_broker(folder):
    port = free_port()
    async with daemon_on(folder, port, mqtt={"broker": "embedded"}) as service:
        old = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_start": 3}
        async with peer(port, "sia/#", **old) as one:
            for _ in range(2):
                await one.say(f"{POOL}/submit", {"id": "a", "gpus": 2, "duration": 30})
            await one.say(f"{POOL}/submit", {"id": "b", "gpus": 99})
            await until(lambda: "ended" in [e["kind"] for e in one.on("/event")])
            await until(lambda: {"known", "refused"} <= {e["kind"] for e in one.on("/event")})
            assert service.book.job("a") is not None
            await until(lambda: f"{POOL}/state" in one.retained or one.on(f"{POOL}/state"))
            assert json.loads(one.retained.get(f"{POOL}/state", b"{}")).get("quota", 8) == 8


@story
async def test_an_occupied_port_is_reported_to_the_user(folder):
    port = free_port()
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with taken:
        with pytest.raises(UserError, match=r"mqtt.port: cannot listen on 127.0.0.1:\d+"):
            async with serving(on_bus(folder, port, mqtt={"broker": "embedded"})):
                raise AssertionError("it must not serve")
