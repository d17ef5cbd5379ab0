"""Nothing that a client sends holds the event loop: the worst of every door, measured."""

import asyncio
import json
from io import BytesIO
from types import SimpleNamespace

import pytest

from daemon.config.mqtt_limits import MAX_PAYLOAD, UNACKNOWLEDGED
from daemon.doors.http.csrf import MAX_FORM
from daemon.doors.mqtt.inbound import Inbound
from daemon.doors.mqtt.topics import Topics
from daemon.wire import limits
from sia.limits import MAX_ASKS
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import asked, door
from tests.support.daemons.loops import least_held
from tests.support.servers.browsers import browser, seal_in, seen

MOST = 0.05
"""Seconds of CPU time for which a client may hold the loop."""

AS_JSON = {"Content-Type": "application/json"}
JOB = {"pool": "vision", "gpus": 1, "hold": True}


def job(number, **more):
    return {**JOB, "id": f"j{number}", "user": "ann", "command": ["train", "--lr", "0.1"], **more}


def batch(jobs):
    return json.dumps({"jobs": jobs}).encode()


def value(text, size=limits.MAX_VALUE - 100):
    """One value that is as long as a value may be: the text again and again in a list."""
    return b"[" + b",".join([text] * (size // (len(text) + 1))) + b"]"


def body(key, wrong):
    return b'{"pool":"vision","gpus":1,"%b":%b}' % (key, wrong)


def strl(number):
    """As many starts as a job may ask for, each job others."""
    asks = (f"(nck a{i % 8} 1 {i // 8 * 10 + number} 5 {100 - i})" for i in range(MAX_ASKS))
    return f"(max {' '.join(asks)})"


def batches():
    """Batches that are refused. They take a third of a second to make, so a test makes them."""
    return {
        "one more than may be": batch([JOB] * 10_002),
        "twice as many, empty": b'{"jobs":[' + b",".join([b"{}"] * 20_000) + b"]}",
        "one bad among good ones": batch([*(job(i) for i in range(9_999)), {"pool": "vision"}]),
        "no jobs at all": b'{"jobs":' + value(b"0", 2**23 - 100) + b"}",
        "one endless job": b'{"jobs":[' + value(b"[]", 2**23 - 100) + b"]}",
        "large wrong jobs": b'{"jobs":' + value(body(b"tags", value(b"{}")), 2**23 - 100) + b"}",
        "many unknown keys": batch([{f"gpu{i}": 0 for i in range(2_000)}] * 50),
        "much STRL": batch([*(job(i, strl=strl(i)) for i in range(300)), {"pool": "vision"}]),
        "cut off": batch([job(i) for i in range(9_999)])[:-2],
    }


def values():
    """Bodies that are refused; made inside the test, as in `batches`."""
    return {
        "unknown keys": json.dumps({f"gpus{i}": i for i in range(15_000)}).encode(),
        "a long unknown key": json.dumps({"gpus" * 60_000: 1}).encode(),
        "many tags": body(b"tags", json.dumps({str(i): "" for i in range(20_000)}).encode()),
        "a long command": body(b"command", value(b'""')),
        "many arguments": body(b"command", json.dumps(["-v"] * limits.MAX_OBJECTS).encode()),
        "a long text": body(b"cwd", b'"' + b"a" * 250_000 + b'"'),
        "lists": body(b"tags", value(b"[]")),
        "objects": body(b"tags", value(b"{}")),
        "slow numbers": body(b"tags", value(b"1.7976931348623157e308")),
        "a long number": body(b"gpus", b"9" * 250_000),
        "one key again and again": b'{"pool":"vision"' + b',"user":""' * 25_000 + b"}",
        "nested": b"[" * 250_000,
        "too long": value(b"[]", 2**23 - 100),
    }


ROUTES = [
    ("POST", "/v1/jobs"),
    ("PATCH", "/v1/jobs/held"),
    ("PATCH", "/v1/pools/vision"),
    ("POST", "/v1/nodes/n1/drain"),
    ("POST", "/v1/maintenance"),
    ("PUT", "/v1/lending"),
    ("PUT", "/v1/log-level"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/whatif"),
]
FORMS = {
    "many fields": b"&".join([b"a=1"] * (MAX_FORM // 4)),
    "escapes": b"to=" + b"%41" * (MAX_FORM // 3 - 2),
}


async def statuses(client, method, path, bodies, headers=AS_JSON):
    found = {}
    for name, sent in bodies.items():
        async with client.request(method, path, data=BytesIO(sent), headers=headers) as response:
            found[name] = response.status
            await response.read()
    return found


def test_an_invalid_batch_does_not_block_the_event_loop(tmp_path, monkeypatch):
    async def story():
        async with door(tmp_path) as client:
            await asked(client, "POST", "/v1/jobs", job(0), status=201)  # all is loaded
            for name, sent in batches().items():

                async def send(name=name, sent=sent):
                    found = await statuses(client, "POST", "/v1/jobs", {name: sent})
                    assert found[name] in (400, 413, 422), (name, found)

                held = await least_held(monkeypatch, send, MOST)
                assert held.longest < MOST, (name, held.longest, held.what)
            assert len(client.service.book.jobs) == 1

    asyncio.run(story())


def test_a_batch_of_ten_thousand_valid_jobs_does_not_block_the_event_loop(tmp_path, monkeypatch):
    async def story():
        async with door(tmp_path) as client:
            await asked(client, "POST", "/v1/jobs", job(0), status=201)
            known = client.service.book.jobs

            async def submit():
                first = len(known)
                jobs = [job(i) for i in range(first, first + 10_000)]
                said = await statuses(client, "POST", "/v1/jobs", {"batch": batch(jobs)})
                assert said == {"batch": 200}
                array = json.dumps(job(f"s{first}", array=10_000)).encode()
                said = await statuses(client, "POST", "/v1/jobs", {"array": array})
                assert said == {"array": 201}
                assert len(known) == first + 20_000

            async def read():
                for query in ("limit=1000", "user=nobody", "tag=none=1&limit=1000"):
                    await asked(client, "GET", f"/v1/jobs?{query}")
                await asked(client, "GET", "/v1/events?limit=1000")

            for act in (submit, read):
                held = await least_held(monkeypatch, act, MOST)
                assert held.longest < MOST, (held.longest, held.what)

    asyncio.run(story())


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_an_invalid_value_does_not_block_the_event_loop(tmp_path, monkeypatch, route):
    async def story():
        async with door(tmp_path) as client:
            await asked(client, "POST", "/v1/jobs", job("held", id="held"), status=201)
            await statuses(client, *route, {"small": b'{"x":1}'})
            for name, sent in values().items():

                async def send(name=name, sent=sent):
                    found = await statuses(client, *route, {name: sent})
                    assert 400 <= found[name] < 500, (name, found)

                held = await least_held(monkeypatch, send, MOST)
                assert held.longest < MOST, (name, held.longest, held.what)

    asyncio.run(story())


def test_an_invalid_form_does_not_block_the_event_loop(tmp_path, monkeypatch):
    async def story():
        async with door(tmp_path) as client, browser(client) as visitor:
            seal = seal_in(await seen(visitor, "/ui/")).encode()
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            for path in ("/ui/sign-in", "/ui/settings/lending"):
                await statuses(visitor, "POST", path, {"small": b"a=1"}, kind)
                for name, sent in FORMS.items():
                    sealed = (b"form=%b&" % seal) + sent[: MAX_FORM - len(seal) - 6]

                    async def send(path=path, name=name, sealed=sealed):
                        await statuses(visitor, "POST", path, {name: sealed}, kind)

                    held = await least_held(monkeypatch, send, MOST)
                    assert held.longest < MOST, (path, name, held.longest, held.what)

    asyncio.run(story())


class Post:
    """A link to a broker, which only counts what was acknowledged."""

    session = 1

    def __init__(self):
        self.done = 0

    def ack(self, message, session):
        self.done += 1

    def pause(self, *, on):
        pass


class Told:
    async def tell(self, answers):
        return True


@pytest.mark.parametrize("end", ["submit", "cmd"])
def test_invalid_messages_do_not_block_the_event_loop(tmp_path, monkeypatch, end):
    """As many as a broker may send at once, each as large as it may be."""

    async def story():
        async with door(tmp_path) as client:
            link, topics = Post(), Topics("main")
            inbound = Inbound(client.service, link, topics, Told(), None, None)
            kinds = (
                b'{"jobs":' + value(b"{}", MAX_PAYLOAD - 100) + b"}",
                json.dumps({f"gpus{i}": 0 for i in range(4_000)}).encode(),
                body(b"tags", value(b"[]", MAX_PAYLOAD - 200)),
            )
            assert all(len(each) <= MAX_PAYLOAD for each in kinds)
            worker = asyncio.create_task(inbound.run())
            count = UNACKNOWLEDGED // 5

            async def send():
                done = link.done + count
                for i in range(count):
                    message = SimpleNamespace(
                        topic=topics.pool("vision", end), payload=kinds[i % len(kinds)],
                        retain=False, properties=None, qos=1,
                    )  # fmt: skip
                    inbound.receive(message)
                await until(lambda: link.done == done)

            held = await least_held(monkeypatch, send, MOST)
            worker.cancel()
            assert held.longest < MOST, (held.longest, held.what)

    asyncio.run(story())
