"""One message, one job, one defect: what must not hold up the others on the bus."""

import asyncio
import gc
import json
import signal
import socket
from types import SimpleNamespace

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from daemon.config.config import PoolConfig
from daemon.config.mqtt import MqttConfig
from daemon.doors.mqtt.connection import TOO_LARGE, Wire, WireError
from daemon.doors.mqtt.executor import CommandHandler
from daemon.doors.mqtt.manager.config import MqttBackendConfig
from daemon.doors.mqtt.replies import fitting
from daemon.doors.mqtt.requests import ParsedMessage
from daemon.doors.mqtt.schemas import Reply
from daemon.engine.engine import Engine
from daemon.model.inputs import Submit
from daemon.model.job import JobPhase, JobSpec
from daemon.model.outputs import Accepted, Refused
from daemon.process.serve import serving
from daemon.wire.jobs import BatchLine
from tests.daemon.service.test_service import break_down
from tests.support.daemons.daemons import StillClock, setup, until
from tests.support.servers.managers import manager_on
from tests.support.servers.mqtt import daemon_on, on_bus, part, peer
from tests.support.servers.servers import mosquitto

ROOT = "sia/v1/main"
POOL = f"{ROOT}/pool/vision"
ME = f"{POOL}/reply/me"
OPEN = ("listener {port} 127.0.0.1", "allow_anonymous true")
SMALL = (*OPEN, "max_packet_size 1048576")
BACKEND = MqttBackendConfig(gone_after=5)


def story(*lines):
    """A test with a broker that has such a configuration."""

    def of(tell):
        def test(tmp_path):
            with mosquitto(tmp_path, lines or OPEN) as broker:
                asyncio.run(asyncio.wait_for(tell(tmp_path, broker), 120))

        test.__name__ = tell.__name__
        return pytest.mark.server(test)

    return of


async def answered(one, job):
    """What became of a job."""
    before = len(one.on("/reply/me"))
    await one.say(f"{POOL}/submit", job, reply=ME)
    await until(lambda: len(one.on("/reply/me")) > before)
    return one.on("/reply/me")[-1]["jobs"][0]["status"]


def spoiled():
    """Properties that brokers let pass, and paho does not read."""
    found = Properties(PacketTypes.PUBLISH)
    found.UserProperty = ("a", "\ufeffb")
    return found


@story()
async def test_an_unreadable_message_blocks_no_other_and_arrives_once(folder, broker):
    async with (
        manager_on(folder, broker.port),
        daemon_on(folder, broker.port, backend=BACKEND) as service,
        peer(broker.port, ME) as one,
    ):
        links = service.backend._link, service.backend._link.session
        for topic in (f"{POOL}/submit", f"{ROOT}/manager/report", f"{ROOT}/manager/state"):
            await one.client.publish(topic, b"{}", 1, properties=spoiled())
        assert await answered(one, {"id": "a", "gpus": 1, "command": ["x"], "duration": 1}) == 201
        await until(lambda: service.book.job("a").phase is JobPhase.FINISHED)
        assert links[0].session == links[1]
        assert part(service, "mqtt").ok
    async with thief(broker) as heard:  # and it is not kept
        assert await quiet(heard)


@story(*SMALL)
async def test_an_answer_larger_than_the_broker_accepts_is_truncated(folder, broker):
    name = "vision-research-team-munich-1"
    pool = f"{ROOT}/pool/{name}"
    async with (
        daemon_on(folder, broker.port, pools=(PoolConfig(name, 8),)) as service,
        peer(broker.port, f"{pool}/#") as one,
    ):
        body = json.dumps([{"gpus": 9}] * 5900, separators=(",", ":")).encode()
        more = {"reply": f"{pool}/reply/me", "correlation": b"of a client that counts"}
        await one.say(f"{pool}/submit", body, **more)
        await until(lambda: one.on("/reply/me"))
        (said,) = one.on("/reply/me")
        assert "texts are omitted" in said["detail"]
        assert [line["status"] for line in said["jobs"]] == [422] * 5900
        await until(lambda: len(one.on("/event")) == 101)
        assert "5,800 more jobs" in one.on("/event")[-1]["data"]["why"]
        assert part(service, "mqtt").ok


def test_an_answer_is_truncated_no_more_than_necessary():
    lines = [BatchLine(f"j{i}", 422, "why " * 50, "mend") for i in range(100)]
    reply = Reply(200, lines)
    whole, short, least = (json.loads(fitting(reply, room)) for room in (10**6, 10_000, 500))
    assert whole["jobs"][7]["detail"]
    assert [line["id"] for line in short["jobs"]] == [line.id for line in lines]
    assert "jobs" not in least
    assert least["mend"]


@story(*SMALL)
async def test_a_job_whose_order_is_too_large_fails_with_a_reason_and_others_start(folder, broker):
    async with (
        manager_on(folder, broker.port) as manager,
        daemon_on(folder, broker.port, backend=BACKEND) as service,
    ):
        await until(lambda: part(service, "backend").ok)
        session = service.backend._link.session
        env = {f"V{i}": "x" * 4000 for i in range(300)}
        big = JobSpec("big", "vision", 1, ("true",), env, duration=5.0)
        await service.submit([Submit(big), Submit(JobSpec("a", "vision", 1, ("x",), duration=1.0))])
        await until(lambda: len(service.book.ended) == 2)
        assert service.book.job("a").phase is JobPhase.FINISHED
        assert service.book.job("big").phase is JobPhase.FAILED
        assert "the broker allows 1,048,576" in service.book.job("big").why
        assert manager.memory.started == {("a", 1)}
        assert service.backend._link.session == session


def thief(broker):
    return peer(broker.port, identifier="sia-main", clean_start=False)


async def quiet(one):
    """Whether the broker has nothing more for it: what it kept comes before a new message."""
    await one.client.subscribe("nothing", qos=1)
    await one.client.publish("nothing", b"new", qos=1)
    await until(lambda: any(topic == "nothing" for topic, *_ in one.heard))
    return not [topic for topic, *_ in one.heard if topic.endswith(("submit", "cmd"))]


@story()
async def test_the_broker_keeps_a_message_until_it_is_durable(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, ME) as one:
        assert await answered(one, {"id": "before", "gpus": 1, "duration": 1}) == 201
        break_down(service._writer.journal)
        await one.say(f"{POOL}/submit", {"id": "a", "gpus": 1, "duration": 1})
        await until(lambda: not service.ready)
        async with thief(broker) as heard:
            await until(lambda: heard.on("/submit"))
            assert [job["id"] for job in heard.on("/submit")] == ["a"]


@story()
async def test_a_defect_caused_by_one_message_is_answered_and_loses_no_other(folder, broker):
    answers, acknowledge, acknowledged = CommandHandler.answers, Wire.ack, []

    def ack(wire, mid, qos):
        acknowledge(wire, mid, qos)
        acknowledged.append(mid)

    async def fails(clerk, letters):
        if any("bad" in str(letter) for letter in letters if isinstance(letter, ParsedMessage)):
            raise ZeroDivisionError
        return await answers(clerk, letters)

    async with daemon_on(folder, broker.port) as service, peer(broker.port, ME) as one:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommandHandler, "answers", fails)
            patch.setattr(Wire, "ack", ack)
            for name in ("a", "bad", "b"):
                await one.say(f"{POOL}/submit", {"id": name, "gpus": 1, "duration": 1}, reply=ME)
            await until(lambda: len(one.on("/reply/me")) == len(acknowledged) == 3)
        assert [said["status"] for said in one.on("/reply/me")] == [200, 500, 200]
        assert {*service.book.jobs, *service.book.ended} == {"a", "b"}
    async with thief(broker) as heard:
        assert await quiet(heard)


def test_a_step_that_one_message_breaks_is_made_without_it():
    asked = []

    async def submit(commands):
        ids = [command.spec.id for command in commands]
        asked.append(ids)
        if "bad" in ids:
            return [Refused(500, "defect", "why", "report it")] * len(ids)
        return [Accepted(job_id) for job_id in ids]

    service = SimpleNamespace(
        submit=submit, backend=SimpleNamespace(can=frozenset()), engine=Engine.new(setup(vision=8)),
        clock=StillClock(), book=SimpleNamespace(setup=setup(vision=8), jobs={}),
    )  # fmt: skip
    letters = [
        ParsedMessage("vision", "submit", [[JobSpec(name, "vision", 1, duration=1.0)]])
        for name in ("a", "bad", "b")
    ]
    said = asyncio.run(CommandHandler(service).answers(letters))
    assert [reply.jobs[0].status for reply in said] == [201, 500, 201]
    assert asked == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


@story()
async def test_a_former_leader_sends_no_queued_messages(folder, broker):
    acts = True
    wire = Wire(MqttConfig(port=broker.port), "w", None, print, lambda: acts)
    async with peer(broker.port, "sia/#") as one, wire:
        wire._room = asyncio.Semaphore(0)
        sending = asyncio.create_task(wire.send("sia/late", b"1"))
        await asyncio.sleep(0)
        acts = False
        wire._room.release()
        with pytest.raises(WireError, match="another daemon"):
            await sending
        acts = True
        await (await wire.send("sia/next", b"2"))
        await until(lambda: one.heard)
        assert [topic for topic, *_ in one.heard] == ["sia/next"]
        wire.most = 100
        assert await (await wire.send("sia/big", b"x" * 100)) == TOO_LARGE


@pytest.mark.server
def test_a_topic_that_the_broker_forbids_is_reported_until_it_is_allowed(tmp_path):
    async def tell(broker):
        config = on_bus(tmp_path, broker.port)
        async with serving(config) as (daemon, _), peer(broker.port, ME) as one:
            service = daemon.service
            await until(lambda: part(service, "mqtt") is not None)
            job = {"id": "a", "gpus": 1, "duration": 1}
            await one.say(f"{POOL}/submit", job, reply=ME)
            for name in ("reply", "state"):
                await until(lambda: f"pool/vision/{name}" in part(service, "mqtt").why)  # noqa: B023
            assert "ACL" in part(service, "mqtt").mend
            rules.write_text("topic readwrite sia/#\n")
            broker.process.send_signal(signal.SIGHUP)
            while not part(service, "mqtt").ok:
                await one.say(f"{POOL}/submit", job, reply=ME)
                await asyncio.sleep(0.05)
            assert one.on("/reply/me")
            await one.client.subscribe(f"{POOL}/state", qos=1)
            await until(lambda: f"{POOL}/state" in one.retained)

    rules = tmp_path / "acl"
    rules.write_text(
        "topic readwrite sia/#\ntopic deny sia/v1/main/pool/vision/reply/#\n"
        "topic deny sia/v1/main/pool/vision/state\n"
    )
    rules.chmod(0o644)
    lines = (*OPEN, f"acl_file {rules}")
    with mosquitto(tmp_path, lines) as broker:
        asyncio.run(asyncio.wait_for(tell(broker), 120))


@story()
async def test_a_broker_that_comes_and_goes_leaves_no_tracebacks(folder, broker):
    wrong = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(what))
    async with (
        manager_on(folder, broker.port),
        daemon_on(folder, broker.port, backend=BACKEND) as service,
    ):
        for turn in range(3):
            jobs = [
                Submit(JobSpec(f"{turn}-{i}", "vision", 1, ("x",), duration=1.0)) for i in range(60)
            ]
            submitting = asyncio.create_task(service.submit(jobs))
            broker.stop(signal.SIGKILL)
            await submitting
            await until(lambda: not part(service, "mqtt").ok)
            broker.start()
            await until(lambda: part(service, "mqtt").ok)
    gc.collect()
    await asyncio.sleep(0)
    assert not wrong


@story()
async def test_a_socket_that_closes_before_it_is_watched_is_ignored(folder, broker):
    wire = Wire(MqttConfig(port=broker.port), "w", None, print)
    with socket.socket() as gone:
        wire._on_socket_open(wire._client, None, gone)
        wire._on_socket_register_write(wire._client, None, gone)
        number = gone.fileno()
    wrong = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, what: wrong.append(what))
    await asyncio.sleep(0.01)
    assert not wrong
    assert not loop.remove_reader(number)
    assert wire._misc_task is None
