"""What pods wrote, by the API, the page and the command: as Kubernetes has it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from daemon.backends.interface import LogError, LogRequest
from daemon.backends.kube import pod_logs
from daemon.model.inputs import Release
from daemon.wire.limits import LOG_PIECE
from tests.daemon.backends.kube.test_kube import POOL, taken_over
from tests.support.clusters.kube import cluster, failure, job
from tests.support.clusters.kube_daemons import client_of, phase_is, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import TOKEN, asked, story
from tests.support.servers.browsers import browser, seen


async def log(client, job_id, query="", status=200):
    """(What was answered, where to go on)."""
    async with client.get(f"/v1/jobs/{job_id}/log?{query}") as response:
        body = await response.read()
        assert response.status == status, body
        return body, str(response.links.get("next", {}).get("url", "")).partition("?")[2]


async def end_of_log(client, job_id, size):
    """The last bytes, asked for again while Kubernetes has not returned the log yet.

    The daemon reads on meanwhile, and then answers with what it read.
    """
    url = f"/v1/jobs/{job_id}/log?tail={size}"
    while True:
        async with client.get(url) as response:
            body = await response.read()
        if response.status != 503 or pod_logs.SLOW.encode() not in body:
            assert response.status == 200, body
            return body


@asynccontextmanager
async def training(folder):
    """(Cluster, client of its daemon, id of the job that was made of the Job `train` and runs)."""
    async with cluster() as k8s, client_of(folder, k8s) as client:
        k8s.runs_for = None
        k8s.make("jobs", job("train", 2, labels=POOL), "vision")
        job_id = await taken_over(client.service, "train")
        await phase_is(client.service, job_id, "running")
        yield k8s, client, job_id


@story
async def test_a_pod_log_is_read_piece_by_piece_to_its_end(tmp_path):
    async with training(tmp_path) as (k8s, client, job_id):
        assert (await log(client, job_id))[0] == b""
        k8s.logs["train"] = b"epoch 1\n"
        said, following = await log(client, job_id)
        assert said == b"epoch 1\n"
        k8s.logs["train"] += "ä <b>\n".encode() + b"x" * LOG_PIECE
        said, further = await log(client, job_id, following)
        assert said == k8s.logs["train"][8 : 8 + LOG_PIECE]
        k8s.finish("train")
        await phase_is(client.service, job_id, "finished")
        said, last = await log(client, job_id, further)
        assert said == k8s.logs["train"][8 + LOG_PIECE :]
        assert not last
        assert await end_of_log(client, job_id, 5) == b"xxxxx"
        k8s.remove("pods", k8s.all("pods")[0]["metadata"])
        said, _ = await log(client, job_id, status=404)
        assert b"there is no output" in said


@story
async def test_a_log_that_was_restarted_is_read_from_its_beginning(tmp_path):
    async with training(tmp_path) as (k8s, client, job_id):
        k8s.logs["train"] = b"a file that is full"
        _, following = await log(client, job_id)
        k8s.logs["train"] = b"the next"
        assert (await log(client, job_id, following))[0] == b"the next"


@story
async def test_the_log_is_that_of_the_first_pod_and_of_the_container_with_gpus(tmp_path):
    async with cluster() as k8s, client_of(tmp_path, k8s) as client:
        k8s.runs_for = None
        side = {"name": "side", "image": "x", "resources": {"limits": {}}}
        main = job("x", 2)["spec"]["template"]["spec"]["containers"]
        template = {"containers": [side, *main]}
        k8s.make("jobs", job("wide", 2, 3, labels=POOL, template=template), "vision")
        job_id = await taken_over(client.service, "wide")
        await phase_is(client.service, job_id, "running")
        await until(lambda: len(k8s.all("pods")) == 3)
        for i, pod in enumerate(reversed(k8s.all("pods"))):
            index = {"batch.kubernetes.io/job-completion-index": str(i)}
            k8s.change("pods", pod["metadata"], {"metadata": {"annotations": index}})
            k8s.logs[pod["metadata"]["name"]] = b"of %d" % i
        assert (await log(client, job_id))[0] == b"of 0"
        (_, _, request) = next(each for each in k8s.requests_seen if each[1] == "pods/log")
        assert request.params["container"] == "main"


@story
async def test_a_job_of_the_daemon_s_own_has_a_log_on_its_page_and_for_the_command(tmp_path):
    async with cluster() as k8s, client_of(tmp_path, k8s) as client:
        await submit(client.service, "own", gpus=1)
        await phase_is(client.service, "own", "finished")
        (made,) = k8s.all("jobs")
        k8s.logs[made["metadata"]["name"]] = b"<script>alert(1)</script>"
        assert (await log(client, "own"))[0] == b"<script>alert(1)</script>"
        async with browser(client, TOKEN) as visitor:
            page = await seen(visitor, "/ui/jobs/own")
            assert "&lt;script&gt;alert(1)" in page
            assert "stores stdout and stderr together" in await seen(
                visitor, "/ui/jobs/own?stream=stderr"
            )


@story
async def test_an_unreadable_log_is_reported_and_delays_nothing(tmp_path):
    async with cluster() as k8s, client_of(tmp_path, k8s) as client:
        k8s.runs_for = None
        k8s.make("jobs", job("train", 2, labels=POOL), "vision")
        job_id = await taken_over(client.service, "train")
        record = await phase_is(client.service, job_id, "running")
        k8s.forbidden.add(("get", "pods/log"))
        said, _ = await log(client, job_id, status=404)
        assert b"pods/log is forbidden" in said
        k8s.forbidden.clear()
        for much, words in ((f"after={17 << 20}", b"kubectl logs"), ("stream=stderr", b"together")):
            assert words in (await log(client, job_id, much, status=404))[0]
        k8s.trouble = lambda verb, request: _busy() if request.subresource == "log" else None
        for which in ("", "tail=9"):
            async with client.get(f"/v1/jobs/{job_id}/log?{which}") as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert b"(429)" in await response.read()
        await submit(client.service, "meanwhile")
        await phase_is(client.service, "meanwhile", "running")
        k8s.trouble = lambda *_: None
        k8s.change("jobs", k8s.get("jobs", "train")["metadata"], {"spec": {"suspend": True}})
        await phase_is(client.service, job_id, "held")
        await client.service.submit([Release(job_id)])
        await until(lambda: client.service.book.jobs[job_id].attempt == 2)
        first = LogRequest(1, "stdout", 0, None, 10)
        assert await client.service.backend.read_log(record, first) is None


def _busy():
    return failure(429, "TooManyRequests", "busy", Retry_After="60")


@pytest.mark.parametrize("kind", ["viewer", "other"])
def test_only_those_who_work_with_jobs_of_the_pool_read_a_log(tmp_path, kind):
    @story
    async def tell(folder):
        async with cluster() as k8s, client_of(folder, k8s) as client:
            await submit(client.service, "own", gpus=1)
            await phase_is(client.service, "own", "finished")
            body = {"viewer": {"role": "viewer"},
                    "other": {"role": "submitter", "pools": ["speech"]}}[kind]  # fmt: skip
            made = await asked(client, "POST", "/v1/tokens", {"name": "t", **body}, status=201)
            headers = {"Authorization": f"Bearer {made['token']}"}
            status = 403 if kind == "viewer" else 404
            await asked(client, "GET", "/v1/jobs/own/log", status=status, headers=headers)
            assert ("get", "pods/log") not in k8s.verbs

    tell(tmp_path)


def looks(k8s):
    """How much was read of logs, each time."""
    return [
        int(request.params["limitBytes"])
        for _, what, request in k8s.requests_seen if what == "pods/log"
    ]  # fmt: skip


def test_a_kubelet_that_hangs_delays_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_logs, "WAIT", 0.05)
    monkeypatch.setattr(pod_logs, "REST", 1e6)

    @story
    async def tell(folder):
        async with training(folder) as (k8s, client, job_id):
            k8s.logs["train"] = b"epoch 1"
            goes_on = asyncio.Event()

            async def hang():
                await goes_on.wait()

            k8s.trouble = lambda _, asked: hang() if asked.subresource == "log" else None
            async with browser(client, TOKEN) as visitor:
                path = f"/ui/jobs/{job_id}"
                for page in await asyncio.gather(*(seen(visitor, path) for _ in range(12))):
                    assert "The log is unavailable now" in page
                await until(lambda: looks(k8s))
                goes_on.set()
                while "epoch 1" not in (page := await seen(visitor, path)):
                    assert "The log is unavailable now" in page
                assert len(looks(k8s)) == 1, "what came late is told, and not asked for again"

    tell(tmp_path)


def test_readers_learn_that_logs_are_busy_and_slow_ones_are_paused(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_logs, "WAIT", 0.05)

    @story
    async def tell(folder):
        async with training(folder) as (k8s, client, job_id):
            # a single request may take longer: its own time limit was set at the start
            monkeypatch.setattr(pod_logs, "TIMEOUT", 0.5)
            k8s.trouble = lambda _, asked: (
                asyncio.sleep(3600) if asked.subresource == "log" else None
            )
            record = client.service.book.jobs[job_id]
            asked = LogRequest(1, "stdout", 0, None, 10)
            reads = [client.service.backend.read_log(record, asked) for _ in range(4)]
            errors = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(each, LogError) and each.again for each in errors)
            said = [each.why for each in errors]
            assert said.count(pod_logs.BUSY) == said.count(pod_logs.SLOW) == 2
            before = len(looks(k8s))
            with pytest.raises(LogError, match=pod_logs.SLOW):
                await client.service.backend.read_log(record, asked)
            assert len(looks(k8s)) == before
            k8s.trouble = lambda *_: None

    tell(tmp_path)


def test_a_long_log_is_read_a_few_times_over_and_its_end_not_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_logs, "READ", 1.0)

    @story
    async def tell(folder):
        async with training(folder) as (k8s, client, job_id):
            long = b"".join(b"%d\n" % i for i in range(10**6))
            k8s.logs["train"] = long
            said, following = b"", ""
            while True:
                piece, following = await log(client, job_id, following)
                if not piece:
                    break
                said += piece
            assert said == long
            read = sum(min(each, len(long)) for each in looks(k8s))
            assert read <= 3 * len(long)
            before = len(looks(k8s))
            for _ in range(5):
                assert (await log(client, job_id, following))[0] == b""
            assert len(looks(k8s)) == before
            k8s.logs["train"] += b"the last words"
            k8s.finish("train")
            await phase_is(client.service, job_id, "finished")
            said, further = await log(client, job_id, following)
            assert (said, further) == (b"the last words", "")

    tell(tmp_path)


@story
async def test_the_end_of_a_log_of_long_lines_is_its_end(tmp_path):
    async with training(tmp_path) as (k8s, client, job_id):
        k8s.logs["train"] = b"".join(b"%d" % i + b"x" * 2**18 + b"\n" for i in range(100)) + b"end"
        assert await end_of_log(client, job_id, 3) == b"end"


@story
async def test_a_pod_that_only_bears_a_job_s_label_is_not_read_and_ends_nothing_late(tmp_path):
    async with training(tmp_path) as (k8s, client, job_id):
        (pod,) = k8s.all("pods")
        other = {
            "metadata": {"name": "other", "labels": pod["metadata"]["labels"],
                         "ownerReferences": [{"kind": "Job", "uid": "another"}],
                         "creationTimestamp": "2999-01-01T00:00:00Z"},
            "spec": pod["spec"], "status": {"phase": "Running"},
        }  # fmt: skip
        k8s.make("pods", other, "vision")
        k8s.logs |= {"train": b"its own", "other": b"another's"}
        assert (await log(client, job_id))[0] == b"its own"
        k8s.finish("train")
        await phase_is(client.service, job_id, "finished")
