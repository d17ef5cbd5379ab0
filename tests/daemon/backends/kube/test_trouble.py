"""A Kubernetes API that is unavailable, refuses, repeats or forgets, and daemons that crash."""

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.backends.kube import KubeSection
from daemon.backends.kube.attempts import jobs_path
from daemon.backends.kube.client import Kube, KubeError
from daemon.backends.kube.lease import KubeFence
from daemon.backends.kube.schema import KubeJob
from daemon.backends.kube.watch import SILENT, WatchCache
from daemon.runtime.fence import SoleLeader
from sia.console.errors import UserError
from tests.daemon.backends.kube.test_kube import ONE, POOL, taken_over
from tests.support.clusters.kube import cluster, failure, job, kubeconfig
from tests.support.clusters.kube_daemons import client_of, phase, phase_is, serving, submit
from tests.support.daemons.daemons import MemoryNotes, house, until
from tests.support.daemons.doors import asked, story


def ill(service, part="backend"):
    """Why that part is not well; nothing where it is."""
    return next((each.why for each in service.parts.all() if each.name == part), "")


def broken(k8s, verb, kind, times=1, *, done=True):
    """Cut the connection without an answer, before or after a number of requests were executed."""
    left = [times]

    def trouble(asked_verb, request):
        if (asked_verb, request.resource.plural) != (verb, kind) or not left[0]:
            return None
        left[0] -= 1

        async def breaks():
            if done:
                await k8s._answer(kind, verb, request)
            request._raw_request.transport.abort()
            return web.Response()

        return breaks()

    k8s.trouble = trouble
    return left


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("verb", ["create", "patch"])
def test_a_request_without_an_answer_starts_nothing_twice(tmp_path, verb, done):
    @story
    async def tell(folder):
        async with cluster() as k8s, serving(folder, k8s) as service:
            left = broken(k8s, verb, "jobs", 3, done=done)
            await submit(service, "one")
            await phase_is(service, "one", "finished")
            assert list(k8s.ran.values()) == [1]
            assert left[0] < 3  # it happened
            assert len(k8s.all("jobs")) == 1

    tell(tmp_path)


@pytest.mark.parametrize("verb", ["create", "patch"])
def test_a_daemon_that_dies_before_the_answer_starts_nothing_twice(tmp_path, verb):
    """Its journal says that it is to start; the next one finds what was done."""

    @story
    async def tell(folder):
        async with cluster() as k8s:
            k8s.runs_for = None
            stuck = asyncio.Event()

            def trouble(asked_verb, request):
                if (asked_verb, request.resource.plural) != (verb, "jobs"):
                    return None

                async def hangs():
                    await k8s._answer("jobs", verb, request)
                    stuck.set()
                    await asyncio.Event().wait()

                return hangs()

            async with serving(folder, k8s) as service:
                k8s.trouble = trouble
                k8s.make("jobs", job("theirs", labels=POOL), "vision")
                await submit(service, "own")
                await stuck.wait()
                k8s.trouble = lambda verb, request: None
            async with serving(folder, k8s) as service:
                await phase_is(service, "own", "running")
                theirs = await taken_over(service, "theirs")
                await phase_is(service, theirs, "running")
                assert sorted(k8s.ran.values()) == [1, 1]

    tell(tmp_path)


@story
async def test_conflicts_and_too_many_requests_are_tried_again(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        said = []

        def trouble(verb, request):
            if verb in ("create", "patch") and request.resource.plural == "jobs" and len(said) < 4:
                said.append(verb)
                if len(said) % 2:
                    return failure(429, "TooManyRequests", "slow down", Retry_After="0")
                return failure(409, "Conflict", "modified") if verb == "patch" else None
            return None

        k8s.trouble = trouble
        k8s.make("jobs", job("one", labels=POOL), "vision")
        await phase_is(service, await taken_over(service, "one"), "finished")
        assert (k8s.ran["one"], len(said)) == (1, 4)


@story
async def test_retry_after_is_waited_for_by_all_requests(tmp_path):
    async with cluster() as k8s:
        kube = Kube(KubeSection(kubeconfig=str(kubeconfig(tmp_path, k8s.address))))
        loop, times = asyncio.get_running_loop(), []

        def trouble(verb, request):
            times.append(loop.time())
            return failure(429, Retry_After="1") if len(times) == 1 else None

        k8s.trouble = trouble
        try:
            pages = [page async for page in kube.pages("/api/v1/nodes", {})]
        finally:
            await kube.close()
        assert len(pages[0].items) == 2
        assert times[1] - times[0] >= 0.9


RIGHTS = {
    ("list", "jobs"): "backend",
    ("list", "nodes"): "backend",
    ("patch", "jobs"): "backend rights",
    ("create", "jobs"): "backend rights",
    ("list", "pods"): "backend rights",
    ("create", "leases"): "backend",
}


@pytest.mark.parametrize(("right", "part"), RIGHTS.items(), ids=str)
def test_a_missing_right_is_reported_with_the_fix(tmp_path, right, part):
    @story
    async def tell(folder):
        async with cluster() as k8s:
            if right != ("list", "nodes"):
                k8s.forbidden.add(right)
            async with client_of(folder, k8s) as client:
                service = client.service
                if right == ("list", "nodes"):
                    k8s.forbidden.add(right)
                    k8s.forget()
                    k8s.drop_watches()
                await submit(service, "one")
                await until(lambda: "lacks a permission" in ill(service, part))
                ready = await asked(client, "GET", "/readyz")
                assert [each["ok"] for each in ready["parts"] if each["name"] == part] == [False]
                parts = (await asked(client, "GET", "/v1/status"))["parts"]
                (there,) = [each for each in parts if each["name"] == part]
                assert f'cannot {right[0]} resource "{right[1]}"' in there["why"]
                assert "docs/operate/kubernetes.md" in there["mend"]
                text = await (await client.get("/metrics")).text()
                assert f'sia_part_ok{{part="{part}"}} 0.0' in text
                k8s.forbidden.clear()
                await phase_is(service, "one", "finished")
                await until(lambda: not ill(service, part))

    tell(tmp_path)


@story
async def test_the_daemon_waits_for_an_absent_api_server_and_catches_up(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        for name in ("ends", "stays"):
            k8s.make("jobs", job(name, labels=POOL), "vision")
        ends, stays = [await taken_over(service, name) for name in ("ends", "stays")]
        await phase_is(service, ends, "running")
        await phase_is(service, stays, "running")

        def away(_, request):
            request._raw_request.transport.abort()
            return web.Response()

        k8s.trouble = away
        k8s.drop_watches()
        await until(lambda: ill(service))
        k8s.finish("ends")
        k8s.make("jobs", job("new", labels=POOL), "vision")
        await submit(service, "kept")
        k8s.forget()
        k8s.trouble = lambda *_: None
        k8s.runs_for = 0.0
        await phase_is(service, ends, "finished")
        await phase_is(service, "kept", "finished")
        await phase_is(service, await taken_over(service, "new"), "finished")
        assert phase(service, stays) == "running"
        await until(lambda: not ill(service))
        assert set(k8s.ran.values()) == {1}


@story
async def test_a_daemon_can_start_without_kubernetes_from_its_earlier_findings(tmp_path):
    async with cluster() as k8s:
        async with serving(tmp_path, k8s):
            pass
        k8s.trouble = lambda *_: failure(500, "InternalError", "etcd is away")
        async with serving(tmp_path, k8s) as service:
            assert "etcd is away" in ill(service)
            assert sorted(service.book.nodes) == ["n1", "n2"]
            k8s.trouble = lambda *_: None
            await submit(service, "one")
            await phase_is(service, "one", "finished")


@story
async def test_a_cluster_without_gpus_or_without_an_answer_is_refused_at_the_start(tmp_path):
    async with cluster(nodes=()) as k8s:
        with pytest.raises(UserError, match="no node in Kubernetes has nvidia"):
            async with serving(tmp_path, k8s):
                pass
        k8s.forbidden.add(("list", "nodes"))
        with pytest.raises(UserError, match=r"cannot list resource .* daemon's account"):
            async with serving(tmp_path, k8s):
                pass
        k8s.forbidden.clear()
        k8s.trouble = lambda *_: failure(401, "Unauthorized", "who are you")
        with pytest.raises(UserError, match="rejects the daemon's credentials"):
            async with serving(tmp_path, k8s):
                pass


@story
async def test_a_job_that_kubernetes_refuses_fails_and_says_why(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        words = "env: Invalid value: \u202e<b>"
        k8s.trouble = lambda verb, request: (
            failure(422, "", words)
            if (verb, request.resource.plural) == ("create", "jobs")
            else None
        )
        await submit(service, "one")
        record = await phase_is(service, "one", "failed")
        assert "env: Invalid value" in record.why
        assert record.why.isprintable()


@story
async def test_an_unreadable_job_still_counts_as_present(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        made = k8s.make("jobs", job("odd", labels=POOL), "vision")
        job_id = await taken_over(service, "odd")
        await phase_is(service, job_id, "running")
        k8s.change("jobs", made["metadata"], {"spec": {"activeDeadlineSeconds": "x"}})
        await until(lambda: "vision/odd" in ill(service, "backend jobs"))
        assert phase(service, job_id) == "running"
        k8s.change("jobs", made["metadata"], {"spec": {"activeDeadlineSeconds": 9}})
        await until(lambda: not ill(service, "backend jobs"))
        k8s.finish("odd")
        await phase_is(service, job_id, "finished")


@story
async def test_only_one_of_two_daemons_with_separate_journals_acts(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with cluster() as k8s:
        async with serving(tmp_path / "a", k8s) as one:
            await submit(one, "first")
            await phase_is(one, "first", "finished")
            async with serving(tmp_path / "b", k8s) as two:
                await submit(two, "second")
                k8s.make("jobs", job("theirs", labels=POOL), "vision")
                await until(lambda: "the leader is another daemon" in ill(two))
                await phase_is(one, await taken_over(one, "theirs"), "finished")
                assert phase(two, "second") == "starting"
                assert not any(record.spec.origin for record in two.book.jobs.values())
                assert len(k8s.all("jobs")) == 2
        lease = k8s.get("leases", "sia-daemon")
        assert lease["spec"]["holderIdentity"] == ""
        async with serving(tmp_path / "b", k8s) as two:
            await phase_is(two, "second", "finished")


async def told_of(k8s, folder, name="one", epoch=1, **more):
    kube = Kube(KubeSection(kubeconfig=str(kubeconfig(folder, k8s.address))))
    return kube, KubeFence(KubeSection(**more), kube, SoleLeader(epoch), name)


@story
async def test_a_lease_is_not_taken_over_from_a_holder_that_may_be_alive(tmp_path):
    async with cluster() as k8s:
        kube, before = await told_of(k8s, tmp_path, "one", 3)
        _, copy = await told_of(k8s, tmp_path, "one", 4)  # a backup of its journal, begun anew
        _, other = await told_of(k8s, tmp_path, "two", 9)
        copy._kube = other._kube = kube
        try:
            await before._take()
            await other._take()
            assert (before.holds(), other.holds()) == (True, False)
            await copy._take()
            assert (before.holds(), copy.holds()) == (True, False)
            assert "another daemon" in copy.trouble[0]
            await before._let_go()
            await copy._take()
            await before._take()
            assert (before.holds(), copy.holds()) == (False, True)
            assert "another daemon" in before.trouble[0]
            lease = k8s.get("leases", "sia-daemon")
            assert lease["spec"]["leaseTransitions"] == 1
            await other._take()
            other._seen = other._seen[0], other._seen[1] - 60  # nobody was seen to renew it since
            k8s.change("leases", lease["metadata"], {"spec": {"holderIdentity": "<b>\u202e/x"}})
            await other._take()
            assert other.trouble[0].isprintable()
            other._seen = other._seen[0], other._seen[1] - 60
            await other._take()
            assert other.holds()
        finally:
            await kube.close()


# --- what a mirror shows --------------------------------------------------


class Said:
    """An API that says what a test has it say, and then breaks off."""

    def __init__(self):
        self.truth, self.version = {}, 0
        self.lines = []


def obj(name, version):
    meta = {"name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"parallelism": version % 7 + 1}}


def test_a_silent_watch_is_not_an_error(tmp_path, monkeypatch):
    """A collection that does not change, of a server that sends no bookmarks."""
    monkeypatch.setattr("daemon.backends.kube.watch.SILENT", 0.1)
    monkeypatch.setattr("daemon.backends.kube.watch.AGAIN", (0.01, 0.01))
    seen, told = [], []

    @story
    async def tell(folder):
        async with cluster() as k8s:
            k8s.trouble = lambda verb, request: seen.append(request) if verb == "watch" else None
            kube = Kube(KubeSection(kubeconfig=str(kubeconfig(folder, k8s.address))))
            mirror = WatchCache(
                kube, jobs_path("vision"), KubeJob, lambda _: told.append(mirror.trouble)
            )
            following = asyncio.create_task(mirror.run())
            await until(lambda: len(seen) > 4)
            k8s.make("jobs", job("late", 1), "vision")
            await until(lambda: "late" in mirror.objects)
            following.cancel()
            await kube.close()

    tell(tmp_path)
    assert told
    assert set(told) == {("", "")}
    assert all(int(each.params["timeoutSeconds"]) < SILENT for each in seen)


HAPPENS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["set", "delete"]), st.integers(0, 3)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(HAPPENS)
def test_a_mirror_shows_the_present_state_whatever_the_order_of_events(happens):
    """Each event may come twice, be late in a list, or be lost with a watch that breaks off."""
    mirror, truth, log = WatchCache(None, "/x", KubeJob, lambda _: None), {}, []
    for version, (name, what, how) in enumerate(happens, 1):
        if what == "delete" and name not in truth:
            continue
        if what == "set":
            word = "MODIFIED" if name in truth else "ADDED"
            truth[name] = obj(name, version)
        else:
            word = "DELETED"
            log.append((word, truth.pop(name), version))
            log[-1][1]["metadata"]["resourceVersion"] = str(version)
        if what == "set":
            log.append((word, truth[name], version))
        if how == 0:
            continue  # nobody hears of it until later
        seen = int(mirror._version or 0)
        if how == 1:  # all is listed again
            asyncio.run(relist(mirror, truth, version))
            continue
        for said, raw, at in log:
            if at > seen:
                line = json.dumps({"type": said, "object": raw}).encode()
                for _ in range(how - 1):
                    mirror._hear(line)
        assert {key: each.spec.parallelism for key, each in mirror.objects.items()} == {
            key: each["spec"]["parallelism"] for key, each in truth.items()
        }


async def relist(mirror, truth, version):
    items = [json.dumps(each).encode() for each in truth.values()]
    page = SimpleNamespace(items=items, metadata=SimpleNamespace(resource_version=str(version)))

    async def pages(_path, _query):
        yield page

    mirror._kube = SimpleNamespace(pages=pages)
    await mirror._list()


@story
async def test_broken_watches_are_resumed_and_restarted(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.twice = True
        await until(lambda: len(k8s.watches) == 3)
        k8s.drop_watches()
        await until(lambda: len(k8s.watches) == 3)
        lists = k8s.verbs["list", "jobs"]
        assert lists == 2  # one for each namespace: a broken watch goes on where it was
        k8s.make("jobs", job("one", labels=POOL), "vision")
        await phase_is(service, await taken_over(service, "one"), "finished")
        k8s.make("jobs", job("two", labels=POOL), "vision")
        k8s.forget()
        k8s.drop_watches()
        await phase_is(service, await taken_over(service, "two"), "finished")
        await until(lambda: k8s.verbs["list", "jobs"] > lists)
        assert k8s.ran == {"one": 1, "two": 1}


FAILED = b'{"type": "ERROR", "object": {"code": 500}}\n'
NONSENSE = [b"<html>\n", b'{"type": "ADDED"}\n', FAILED, b"\xff\n"]


@pytest.mark.parametrize("said", NONSENSE, ids=range(len(NONSENSE)))
def test_a_watch_that_sends_nonsense_is_restarted(tmp_path, said):
    @story
    async def tell(folder):
        async with cluster() as k8s, serving(folder, k8s) as service:
            left = [2]

            def trouble(verb, request):
                if verb != "watch" or not left[0]:
                    return None
                left[0] -= 1
                return web.Response(body=said)

            k8s.trouble = trouble
            k8s.drop_watches()
            await until(lambda: not left[0])
            k8s.make("jobs", job("one", labels=POOL), "vision")
            await phase_is(service, await taken_over(service, "one"), "finished")

    tell(tmp_path)


@pytest.mark.parametrize("body", [b"<html>back soon</html>", b"{}", b'{"items": 3}', b"", b"\xff"])
def test_an_invalid_answer_never_means_that_jobs_are_gone(tmp_path, body):
    @story
    async def tell(folder):
        async with cluster() as k8s, serving(folder, k8s) as service:
            k8s.runs_for = None
            k8s.make("jobs", job("one", labels=POOL), "vision")
            job_id = await taken_over(service, "one")
            await phase_is(service, job_id, "running")
            k8s.trouble = lambda verb, _: web.Response(body=body)
            k8s.forget()
            k8s.drop_watches()
            await until(lambda: ill(service))
            k8s.trouble = lambda *_: None
            await until(lambda: not ill(service))
            assert phase(service, job_id) == "running"

    tell(tmp_path)


@story
async def test_an_invalid_kubeconfig_is_reported(tmp_path):
    path = tmp_path / "kubeconfig"
    for text in ("", "not: [yaml", "{}", "a: 1", "\x00"):
        path.write_text(text)
        kube = Kube(KubeSection(kubeconfig=str(path)))
        with pytest.raises(KubeError, match=r"kubeconfig"):
            await kube.get("/version", dict)
        await kube.close()
    with pytest.raises(KubeError, match="service account"):
        await Kube(KubeSection()).get("/version", dict)


def test_the_context_in_these_tests_matches_that_of_the_daemon():
    assert house(None, notes=MemoryNotes()).counts() == {}
    assert ONE[0].quota == 8


@story
async def test_an_answer_in_many_pieces_is_read_completely(tmp_path):
    async with cluster() as k8s:
        notes = {"about": "x" * 1_500_000}
        k8s.make("jobs", job("large", labels=POOL, notes=notes), "vision")
        async with serving(tmp_path, k8s) as service:
            await phase_is(service, await taken_over(service, "large"), "finished")
            path = "/apis/batch/v1/namespaces/vision/jobs/large"
            few = patch("daemon.backends.kube.client.MAX_ANSWER", 1_000_000)
            with few, pytest.raises(KubeError, match="the response exceeds 1000000 bytes"):
                await service.backend._kube.get(path, KubeJob)
