"""A broker with TLS, passwords and ACLs, as the example has it; and brokers that refuse."""

import asyncio
import re
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import aiomqtt
import pytest

from daemon.config.config import PoolConfig
from daemon.process.serve import serving
from tests.support.daemons.daemons import until
from tests.support.servers.managers import EXAMPLES, example
from tests.support.servers.mqtt import V5, daemon_on, on_bus, part, peer
from tests.support.servers.servers import free_port, mosquitto, needs

pytestmark = pytest.mark.server

POOLS = (PoolConfig("a", 4), PoolConfig("b", 4))


def run(*words, cwd):
    subprocess.run([*map(str, words)], cwd=cwd, check=True, capture_output=True)


def certificates(folder):
    """An authority, and a broker's certificate of it for the loopback."""
    needs("openssl", "mosquitto_passwd")
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
        "-nodes", "-days", 2, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt",
        cwd=folder)  # fmt: skip
    run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "broker.csr",
        cwd=folder)  # fmt: skip
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    run("openssl", "x509", "-req", "-in", "broker.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
        "-CAcreateserial", "-days", 2, "-extfile", "ext", "-out", "broker.crt",
        cwd=folder)  # fmt: skip


@contextmanager
def secured(folder):
    """The example's broker, on the loopback; passwords are the users' names."""
    certificates(folder)
    shutil.copy(EXAMPLES / "acl", folder / "acl")
    (folder / "acl").chmod(0o600)
    (folder / "passwd").touch(0o600)
    for user in ("sia", "a", "b", "manager"):
        run("mosquitto_passwd", "-b", "passwd", user, user, cwd=folder)
        (folder / f"{user}.password").write_text(f"{user}\n")
    text = (EXAMPLES / "mosquitto.conf").read_text()
    text = text.replace("listener 8883", "listener {port} 127.0.0.1")
    text = re.sub(r"(?m)^(\w+file) (\S+)", rf"\1 {folder}/\2", text)
    text = text.replace("persistence true", f"persistence true\npersistence_location {folder}/")
    with mosquitto(folder, tuple(text.splitlines())) as broker:
        yield broker


def as_sia(folder, **more):
    return {
        "tls": True,
        "ca": str(folder / "ca.crt"),
        "user": "sia",
        "password_file": str(folder / "sia.password"),
        **more,
    }


@asynccontextmanager
async def person(folder, broker, user, *filters, **more):
    tls = aiomqtt.TLSParameters(ca_certs=str(folder / "ca.crt"))
    login = {"username": user, "password": user, "tls_params": tls, **more}
    async with peer(broker.port, *filters, **login) as one:
        yield one


def story(tell):
    def test(tmp_path):
        asyncio.run(asyncio.wait_for(tell(tmp_path), 120))

    test.__name__ = tell.__name__
    return test


def at(pool, what):
    return f"sia/v1/main/pool/{pool}/{what}"


@story
async def test_a_client_of_one_pool_can_neither_read_nor_write_another(folder):
    everything = ("sia/#", "sia/v1/main/#", at("+", "event"), at("b", "event"), at("b", "state"),
                  at("b", "reply/#"), at("b", "submit"), "sia/v1/main/manager/#")  # fmt: skip
    with secured(folder) as broker:
        async with (
            daemon_on(folder, broker.port, mqtt=as_sia(folder), pools=POOLS) as service,
            person(
                folder,
                broker,
                "a",
                "sia/v1/main/state",
                at("a", "event"),
                at("a", "reply/#"),
                *everything,
            ) as a,
            person(folder, broker, "b", at("b", "event"), at("b", "reply/#"), *everything) as b,
        ):
            job = {"gpus": 1, "duration": 30}
            for what in ("submit", "cmd", "event", "state", "reply/b"):
                await a.say(at("b", what), {"id": f"x{what[0]}", **job})
            await a.say("sia/v1/main/manager/report", {"say": "ended"})
            await a.say("sia/v1/main/state", b"offline", retain=True)
            await a.say(at("a", "submit"), {"id": "of-a", **job}, reply=at("a", "reply/1"))
            await a.say(at("a", "submit"), {"id": "spy", **job}, reply=at("b", "reply/1"))
            await a.say(at("a", "cmd"), {"do": "cancel", "job": "of-b"})
            await b.say(at("b", "submit"), {"id": "of-b", **job}, reply=at("b", "reply/1"))
            await until(lambda: [e for e in a.on("/event") if e["kind"] == "ended"])
            await until(lambda: [e for e in b.on("/event") if e["kind"] == "ended"])
            assert set(service.book.ended) | set(service.book.jobs) == {"of-a", "of-b"}
            for one, pool in ((a, "a"), (b, "b")):
                foreign = [t for t, _, _ in one.heard if not t.startswith(at(pool, ""))]
                assert set(foreign) <= {"sia/v1/main/state"}
            assert a.retained.get("sia/v1/main/state") == b"online"
            assert not part(service, "mqtt").why


@story
async def test_the_example_of_a_submitter_waits_until_its_job_is_safe(folder):
    submitter = example("submitter")
    with secured(folder) as broker:
        tls = aiomqtt.TLSParameters(ca_certs=str(folder / "ca.crt"))
        login = {"username": "a", "password": "a", "tls_params": tls, **V5}
        async with aiomqtt.Client("127.0.0.1", broker.port, **login) as bus:
            job = {"id": "x", "gpus": 9}
            asking = asyncio.create_task(submitter.submit(bus, "main", "a", job, again=0.3))
            async with daemon_on(folder, broker.port, mqtt=as_sia(folder), pools=POOLS):
                said = await asyncio.wait_for(asking, 20)
                assert said["jobs"][0]["status"] == 422


@asynccontextmanager
async def failing(folder, port, **mqtt):
    """A daemon whose bus is not well, and what it says of it."""
    async with serving(on_bus(folder, port, mqtt=mqtt, pools=POOLS)) as (daemon, _):
        service = daemon.service
        await until(lambda: part(service, "mqtt") is not None)
        assert service.ready  # all else goes on
        yield part(service, "mqtt")


@story
async def test_a_broker_that_refuses_is_reported_with_the_fix(folder):
    with secured(folder) as broker:
        (folder / "wrong").write_text("guess")
        wrong = as_sia(folder, password_file=str(folder / "wrong"))
        async with failing(folder, broker.port, **wrong) as state:
            assert re.search("rejects user or password|does not authorize", state.why)
            assert "mqtt.password_file" in state.mend
            assert "guess" not in str(state)
        async with failing(folder, broker.port, **as_sia(folder, ca="")) as state:
            assert "certificate verification failed" in state.why
            assert "mqtt.ca" in state.mend
        async with failing(folder, broker.port, **as_sia(folder, host="localhost")) as state:
            assert "certificate verification failed" in state.why
            assert "mqtt.host" in state.mend
        not_sia = {"user": "a", "password_file": str(folder / "a.password")}
        async with failing(folder, broker.port, **as_sia(folder, **not_sia)) as state:
            assert re.search("broker denies|connection was lost", state.why)
    async with failing(folder, free_port()) as state:
        assert "connection refused" in state.why
        assert "start the broker" in state.mend


@story
async def test_a_server_that_is_not_a_broker_is_reported(folder):
    with secured(folder) as broker:
        async with failing(folder, broker.port) as state:  # no TLS to a TLS port
            assert state.why
    with mosquitto(folder) as broker:
        async with failing(folder, broker.port, **as_sia(folder)) as state:
            assert "uses TLS" in state.mend


async def submitter(folder, broker, user, pool, *, patience=30):
    """The example as a process: its code, and what it has said to whom."""
    job = '{"id": "of-a", "gpus": 1, "duration": 30}'
    login = ("--user", user, "--password-file", folder / "as.password", "--ca", folder / "ca.crt")
    where = ("--port", broker.port, "--pool", pool, "--patience", patience)
    child = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLES / "submitter.py", *map(str, (*login, *where)), job,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    said, wrong = await child.communicate()
    return child.returncode, said.decode(), wrong.decode()


@story
async def test_the_example_submitter_ends_with_one_line_on_any_error(folder):
    with secured(folder) as broker:
        (folder / "as.password").write_text("a\n")
        code, said, wrong = await submitter(folder, broker, "a", "a", patience=1)
        assert (code, said) == (1, "")
        assert wrong.startswith("no answer within 1 s; ")
        async with daemon_on(folder, broker.port, mqtt=as_sia(folder), pools=POOLS):
            assert (await submitter(folder, broker, "a", "a"))[0] == 0
            code, said, wrong = await submitter(folder, broker, "a", "b", patience=5)
            assert (code, said, wrong.count("\n")) == (1, "", 1)
        (folder / "as.password").write_text("wrong\n")
        code, said, wrong = await submitter(folder, broker, "a", "a")
        assert (code, said, wrong.count("\n")) == (1, "", 1)
        assert "Not authorized" in wrong
