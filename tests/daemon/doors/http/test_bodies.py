"""Bodies that are not what they should be: refused in one line that says how to send them."""

import asyncio
import json
from io import BytesIO

import pytest

from daemon.config.config import Address
from daemon.doors.http.authorization import AccessMiddleware
from daemon.doors.http.listener import listen
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.doors.mqtt.requests import Message, read
from daemon.doors.mqtt.topics import Topics
from daemon.model.errors import UnavailableError
from daemon.model.limits import MAX_ASKED
from daemon.process.application import bind, make_app
from daemon.process.build import build
from daemon.wire.limits import MAX_VALUE
from daemon.wire.problems import ProblemError
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import TOKEN, asked, config_in, door, story
from tests.support.servers.browsers import browser

AS_JSON = {"Content-Type": "application/json"}
GOOD = b'{"id":"a","pool":"vision","gpus":1}'
TWICE = b'{"id":"a","pool":"vision","gpus":1,"gpus":8}'
IN_TAGS = b'{"id":"a","pool":"vision","gpus":1,"tags":{"x":"1","x":"2"}}'


async def said(client, body, path="/v1/jobs", *, method="POST", **headers):
    """The status, and what is said of it."""
    sent = {**AS_JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.request(method, path, data=BytesIO(body), headers=sent) as response:
        found = await response.json(content_type=None)
        return response.status, found


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (TWICE, "the body: duplicate key 'gpus'"),
        (IN_TAGS, "the body: duplicate key 'x'"),
        (b'{"jobs":[%b,%b]}' % (GOOD, TWICE), "jobs[1]: duplicate key 'gpus'"),
        (b'{"jobs":[%b],"jobs":[]}' % GOOD, "unexpected key after jobs"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path, body, detail):
    async def tell():
        async with door(tmp_path) as client:
            status, problem = await said(client, body)
            assert (status, problem["detail"]) == (422, detail)
            assert problem["mend"]
            assert not client.service.book.jobs

    asyncio.run(tell())


@pytest.mark.parametrize("body", [TWICE, b"[%b]" % TWICE, b'{"jobs":[%b]}' % TWICE])
def test_a_key_that_is_given_twice_is_refused_over_mqtt(body):
    topics = Topics("main")
    mail = Message(topics.pool("vision", "submit"), body)
    with pytest.raises(ProblemError, match="duplicate key 'gpus'"):
        read(mail, topics, "vision", "submit")
    twice = b'{"do":"cancel","job":"a","job":"b"}'
    with pytest.raises(ProblemError, match="duplicate key 'job'"):
        read(Message(topics.pool("vision", "cmd"), twice), topics, "vision", "cmd")


def test_a_message_of_another_content_type_is_refused():
    topics = Topics("main")
    topic = topics.pool("vision", "submit")
    for kind in ("", "application/json", "application/json; charset=UTF-8"):
        assert read(Message(topic, GOOD, content=kind), topics, "vision", "submit").jobs == 1
    for kind in ("text/plain", "application/json; charset=latin-1"):
        with pytest.raises(ProblemError) as refused:
            read(Message(topic, GOOD, content=kind), topics, "vision", "submit")
        assert refused.value.status == 415
        assert kind in refused.value.details.detail


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=UTF-8", 201),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=utf-16", 415),
    ],
)
def test_a_body_must_be_declared_as_json_in_utf_8(tmp_path, kind, status):
    async def tell():
        async with door(tmp_path) as client:
            found, problem = await said(client, GOOD, Content_Type=kind)
            assert found == status
            if status == 415:
                assert kind in problem["detail"]
                assert problem["mend"] in ("send Content-Type: application/json", "send UTF-8")
            path = "/v1/lending"
            found, _ = await said(client, b'{"on":true}', path, method="PUT", Content_Type=kind)
            assert found == (415 if status == 415 else 200)

    asyncio.run(tell())


@story
async def test_a_form_must_be_declared_as_one(folder):
    async with door(folder) as client, browser(client, None) as visitor:
        body = f"token={TOKEN}".encode()
        for kind, status in (("text/plain", 415), ("application/x-www-form-urlencoded", 303)):
            headers = {"Content-Type": kind}
            request = visitor.post("/ui/sign-in", data=body, headers=headers, allow_redirects=False)
            async with request as response:
                assert response.status == status


@story
async def test_an_empty_idempotency_key_is_refused(folder):
    """It would make every job a new one, which whoever sends a key does not want."""
    async with door(folder) as client:
        status, problem = await said(client, GOOD, Idempotency_Key="")
        assert (status, problem["detail"]) == (422, "Idempotency-Key is empty")
        assert (await said(client, GOOD, Idempotency_Key="k"))[0] == 201


@story
async def test_single_values_are_bounded_and_batches_may_be_long(folder):
    async with door(folder) as client:
        long = {"pool": "vision", "gpus": 1, "hold": True, "command": ["x" * 4000] * 60}
        assert (await said(client, json.dumps(long).encode()))[0] == 201
        assert (await said(client, json.dumps({"jobs": [long] * 5}).encode()))[0] == 200
        longer = {**long, "command": ["x" * 4000] * 80}
        assert len(json.dumps(longer)) > MAX_VALUE
        for body in (longer, {"jobs": [long, longer]}):
            status, problem = await said(client, json.dumps(body).encode())
            assert status == 413
            assert f"{MAX_VALUE:,}" in problem["detail"]
        assert len(client.service.book.jobs) == 6


HEAD = f"Host: sia\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
GONE = (
    f"POST /v1/jobs HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\n{{",
    f"POST /v1/jobs HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\n{{",
    f"GET /v1/events HTTP/1.1\r\n{HEAD}Accept: text/event-stream\r\n\r\n",
    f"GET /v1/jobs HTTP/1.1\r\n{HEAD}\r\n" * 5,
)


@story
async def test_a_client_that_disconnects_leaves_no_traceback(folder):
    """Not through `TestServer`, which ends handlers whose clients are gone."""
    config, metrics, logged = config_in(folder), PrometheusMetrics(), []
    daemon = build(config, metrics)
    await daemon.service.start()
    with pytest.MonkeyPatch.context() as patch:
        for module in ("daemon.process.application", "daemon.doors.http.listener"):
            patch.setattr(f"{module}.log", lambda: Spy(logged))
        begun, check = [], AccessMiddleware.check

        async def counted(guard, request):
            begun.append(request.path)
            await check(guard, request)

        patch.setattr(AccessMiddleware, "check", counted)
        app = make_app(daemon, config, TOKEN, metrics)
        bound = bind(Address("127.0.0.1", 0))
        place = bound.getsockname()
        served = await listen(app, bound)
        for request in GONE:
            _, writer = await asyncio.open_connection(*place)
            before = len(begun)
            writer.write(request.encode())
            await until(lambda before=before: len(begun) > before)
            writer.transport.abort()
        await until(lambda: len(logged) >= 2)  # the two whose bodies end early
        await served.cleanup()
    await daemon.service.stop()
    assert {level for level, _ in logged} == {"debug"}, logged


class Spy:
    """A log that keeps what it is told."""

    def __init__(self, kept):
        self._kept = kept

    def __getattr__(self, level):
        return lambda event, **more: self._kept.append((level, event))


@story
async def test_each_refused_job_of_a_batch_has_its_reason(folder):
    """The other jobs are durable: an answer for the whole batch would have them sent again."""
    async with door(folder) as client:
        submit, calls = client.service.submit, []

        async def once(commands, origin=""):
            calls.append(len(commands))
            if len(calls) > 1:
                raise UnavailableError(503, "the disk is full", 1.0)
            return await submit(commands, origin)

        jobs = [{"id": f"j{i}", "pool": "vision", "gpus": 1, "hold": True} for i in range(700)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.service, "submit", once)
            answer = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert (answer["accepted"], answer["refused"]) == (500, 200)
        assert {line["status"] for line in answer["jobs"][500:]} == {503}
        assert all("with the same id" in line["mend"] for line in answer["jobs"][500:])
        answer = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert (answer["accepted"], answer["known"]) == (200, 500)


@story
async def test_a_partly_accepted_array_is_completed_by_sending_it_again(folder):
    async with door(folder) as client:
        array = {"id": "s", "pool": "vision", "gpus": 1, "hold": True, "array": MAX_ASKED + 1}
        take = client.service._inbox.take

        def refused():
            batch = take()
            if any(each.commands[0].spec.id == f"s.{MAX_ASKED}" for each in batch.asked):
                batch.refuse(UnavailableError(503, "the disk is full", 1.0))
                batch.asked.clear()
            return batch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("daemon.service.inbox.MAX_BATCH", MAX_ASKED)
            patch.setattr(client.service._inbox, "take", refused)
            said = await asked(client, "POST", "/v1/jobs", array, status=503)
            assert said["mend"].endswith("with the same id: s")
            assert len(client.service.book.jobs) == MAX_ASKED
        await asked(client, "POST", "/v1/jobs", array, status=201)
        assert len(client.service.book.jobs) == MAX_ASKED + 1
