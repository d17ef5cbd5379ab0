"""A job is told to stop and goes on later, or changes its width: in an emulated Kubernetes."""

import asyncio
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from daemon.backends.interface import Expected
from daemon.backends.kube.attempts import Ref
from daemon.model.inputs import Ended, Resized, Started, Stopped
from daemon.model.job import JobPhase, JobSpec
from daemon.model.outputs import PreemptEffect, ResizeEffect, StartEffect
from tests.support.clusters.kube import cluster, failure, job
from tests.support.clusters.kube_daemons import backend_of
from tests.support.daemons import daemons
from tests.support.daemons.daemons import MemoryNotes
from tests.support.daemons.doors import story

FOUR = (("n1", (0, 1, 2, 3)),)
STOP = PreemptEffect("job", 1, 30.0)
LABEL = {"labels": {"sia.internal/pool": "vision"}}


async def until(happens):
    await daemons.until(happens, daemons.LONG)


def order(k8s=None, nodes=FOUR, gpus=4, **more):
    """An order to start: of the Job `theirs` of a user, if there is a cluster with it."""
    origin = ""
    if k8s is not None:
        meta = k8s.get("jobs", "theirs")["metadata"]
        origin = str(Ref(meta["namespace"], meta["name"], meta["uid"]))
    return StartEffect(
        "job", 1, JobSpec("job", "vision", gpus, ("run",), origin=origin, **more), nodes
    )


def theirs(k8s, gpus=4, pods=1, **more):
    """Make the suspended Job of a user, which runs until the test ends it."""
    k8s.slow.add("theirs")
    k8s.make("jobs", job("theirs", gpus, pods, **LABEL, **more), "vision")


def only(k8s):
    (found,) = k8s.all("jobs")
    return found


def pods_on(k8s):
    return sorted(pod["spec"].get("nodeName", "") for pod in k8s.all("pods"))


@story
async def test_an_adopted_job_is_suspended_and_resumes_as_the_same_job(tmp_path):
    async with cluster() as k8s:
        said = []
        theirs(k8s)
        uid = only(k8s)["metadata"]["uid"]
        k8s.lingers.add("theirs")
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            await backend.preempt(STOP)
            await until(lambda: only(k8s)["spec"]["suspend"])
            await until(lambda: k8s.all("pods")[0]["metadata"].get("deletionTimestamp"))
            await backend.preempt(replace(STOP, force=True))
            assert said == [Started("job", 1)], "its pod still holds its GPUs"
            k8s.leave("theirs")
            await until(lambda: len(said) == 2)
            assert said[-1] == Stopped("job", 1)
            assert "sia.internal/over" not in only(k8s)["metadata"]["annotations"]
            on = (("n2", (4, 5, 6, 7)),)
            await backend.start(replace(order(k8s), attempt=2, nodes=on))
            await until(lambda: len(said) == 3)
            assert said[-1] == Started("job", 2)
            assert only(k8s)["metadata"]["uid"] == uid
            assert only(k8s)["metadata"]["annotations"]["sia.internal/attempt"] == "2"
            assert k8s.places["theirs"] == ["n1", "n2"]
            k8s.finish("theirs")
            await until(lambda: len(said) == 4)
            assert (said[-1].code, said[-1].attempt) == (0, 2)


@story
async def test_a_job_of_the_daemon_resumes_as_another_kubernetes_job_on_other_nodes(tmp_path):
    async with cluster() as k8s:
        said = []
        k8s.runs_for = None
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(checkpoint="save --to '$HOME'"))
            await until(lambda: said == [Started("job", 1)])
            spec = only(k8s)["spec"]["template"]["spec"]
            assert spec["terminationGracePeriodSeconds"] == 30
            hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert hook == ["save", "--to", "$$HOME"]
            await backend.preempt(STOP)
            await until(lambda: said[-1] == Stopped("job", 1))
            wider = (("n1", (0, 1, 2, 3, 4, 5, 6, 7)), ("n2", (0, 1, 2, 3, 4, 5, 6, 7)))
            again = replace(order(min_width=4, max_width=16), attempt=2, nodes=wider, width=16)
            await backend.start(again)
            await until(lambda: said[-1] == Started("job", 2))
            await until(lambda: len(k8s.all("jobs")) == 1)
            assert only(k8s)["metadata"]["annotations"]["sia.internal/order"] == "2"
            assert pods_on(k8s) == ["n1", "n2"]


@story
async def test_a_job_that_finishes_while_it_stops_has_finished(tmp_path):
    async with cluster() as k8s:
        said = []
        theirs(k8s)
        k8s.lingers.add("theirs")
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            await backend.preempt(STOP)
            await until(lambda: only(k8s)["spec"]["suspend"])
            k8s.finish("theirs")
            await until(lambda: len(said) == 2)
            assert said[-1].code == 0


LATE = {
    "counted later": {"uncountedTerminatedPods": {"succeeded": ["a-pod"]}},
    "judged later": {"succeeded": 1},
}


@story
@pytest.mark.parametrize("how", LATE)
async def test_a_job_that_kubernetes_has_yet_to_judge_has_not_stopped(tmp_path, how):
    """Its pod ended well and is gone; the Job says so only after that."""
    async with cluster() as k8s:
        said = []
        theirs(k8s)
        k8s.lingers.add("theirs")
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            await backend.preempt(STOP)
            await until(lambda: only(k8s)["spec"]["suspend"])
            k8s.change("jobs", only(k8s)["metadata"], {"status": LATE[how]})
            k8s.leave("theirs")
            looks = k8s.verbs["list", "pods"]
            await until(lambda: k8s.verbs["list", "pods"] > looks + 2)
            assert said == [Started("job", 1)]
            complete = {"type": "Complete", "status": "True"}
            k8s.change("jobs", only(k8s)["metadata"], {"status": {"conditions": [complete]}})
            await until(lambda: len(said) == 2)
            assert said[-1].code == 0


@story
async def test_a_cancellation_ends_a_job_that_is_stopping(tmp_path):
    async with cluster() as k8s:
        said = []
        theirs(k8s)
        k8s.lingers.add("theirs")
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            await backend.preempt(STOP)
            await until(lambda: only(k8s)["spec"]["suspend"])
            await backend.stop("job", 1, "end")
            await until(lambda: only(k8s)["metadata"]["annotations"].get("sia.internal/over"))
            k8s.leave("theirs")
            await until(lambda: len(said) == 2)
            assert said[-1] == Ended("job", 1, signal=15)


@story
async def test_a_cancellation_counts_while_the_request_that_suspends_the_job_is_answered(tmp_path):
    async with cluster() as k8s:
        said, asked, answered = [], asyncio.Event(), asyncio.Event()
        theirs(k8s)

        async def late():
            asked.set()
            await answered.wait()

        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            k8s.trouble = lambda verb, _: late() if verb == "patch" else None
            await backend.preempt(STOP)
            await until(asked.is_set)
            await backend.stop("job", 1, "end")
            answered.set()
            await until(lambda: only(k8s)["metadata"]["annotations"].get("sia.internal/over"))
            await until(lambda: len(said) == 2)
            assert said[-1] == Ended("job", 1, signal=15)


def stopping(start):
    """The book of a daemon that was killed while the job was stopping."""
    more = {"spec": start.spec, "time_limit": None}
    return {"job": SimpleNamespace(phase=JobPhase.STOPPING, attempt=1, placed=True, **more)}


@story
@pytest.mark.parametrize("suspended", [False, True])
async def test_a_daemon_that_was_killed_while_a_job_stopped_does_not_release_it(
    tmp_path, suspended
):
    async with cluster() as k8s:
        said, notes = [], MemoryNotes()
        theirs(k8s)
        start = order(k8s)
        async with backend_of(tmp_path, k8s, said, notes=notes) as backend:
            await backend.start(start)
            await until(lambda: said == [Started("job", 1)])
        if suspended:
            k8s.change("jobs", only(k8s)["metadata"], {"spec": {"suspend": True}})
        expected = [Expected(start, 1000.0)]
        more = {"records": stopping(start), "notes": notes}
        async with backend_of(tmp_path, k8s, said, expected, **more) as backend:
            await backend.preempt(STOP)
            await until(lambda: len(said) == 2)
            assert said[-1] == Stopped("job", 1)
            assert (only(k8s)["spec"]["suspend"], k8s.ran) == (True, {"theirs": 1})


ELASTIC = {"min_width": 2, "max_width": 8}
GANG = {"completionMode": "Indexed"}


@story
@pytest.mark.parametrize("mode", [{}, GANG])
async def test_a_job_becomes_narrower_and_its_gpus_are_free_when_the_pods_are_gone(tmp_path, mode):
    async with cluster() as k8s:
        said = []
        theirs(k8s, 2, 4, **mode)
        eight = (("n1", tuple(range(8))),)
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s, eight, 8, **ELASTIC))
            await until(lambda: said == [Started("job", 1)])
            await until(lambda: len(pods_on(k8s)) == 4)
            k8s.lingers.add("theirs")
            await backend.resize(ResizeEffect("job", 1, 4, eight))
            await until(lambda: only(k8s)["spec"]["parallelism"] == 2)
            assert only(k8s)["spec"]["completions"] == (2 if mode else 4)
            await until(
                lambda: (
                    sum(bool(p["metadata"].get("deletionTimestamp")) for p in k8s.all("pods")) == 2
                )
            )
            assert said == [Started("job", 1)], "the pods still hold the GPUs"
            k8s.leave("theirs")
            await until(lambda: len(said) == 2)
            assert said[-1] == Resized("job", 1, 4, FOUR)
            await backend.resize(ResizeEffect("job", 1, 8, eight))
            await until(lambda: len(said) == 3)
            assert said[-1] == Resized("job", 1, 8, eight)
            await until(lambda: len(pods_on(k8s)) == 4)
            assert len(k8s.all("jobs")) == 1


@story
async def test_a_daemon_that_was_killed_while_a_job_became_narrower_frees_its_gpus(tmp_path):
    """The order of the next daemon has the new width, and the nodes that the job had."""
    async with cluster() as k8s:
        said, notes = [], MemoryNotes()
        theirs(k8s, 2, 4)
        eight = (("n1", tuple(range(8))),)
        start = order(k8s, eight, 8, **ELASTIC)
        async with backend_of(tmp_path, k8s, said, notes=notes) as backend:
            await backend.start(start)
            await until(lambda: said == [Started("job", 1)])
        expected = [Expected(replace(start, width=4), 1000.0)]
        async with backend_of(tmp_path, k8s, said, expected, notes=notes) as backend:
            await backend.resize(ResizeEffect("job", 1, 4, eight))
            await until(lambda: len(said) == 2)
            assert said[-1] == Resized("job", 1, 4, FOUR)


@story
async def test_a_job_over_two_nodes_keeps_the_gpus_that_its_pods_hold(tmp_path):
    async with cluster() as k8s:
        said = []
        k8s.runs_for = None
        both = (("n1", (0, 1, 2, 3)), ("n2", (4, 5, 6, 7)))
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(nodes=both, gpus=8, **ELASTIC))
            await until(lambda: said == [Started("job", 1)])
            await until(lambda: len(pods_on(k8s)) == 2)
            await backend.resize(ResizeEffect("job", 1, 4, both))
            await until(lambda: len(said) == 2)
            (node,) = pods_on(k8s)
            assert said[-1] == Resized("job", 1, 4, tuple(each for each in both if each[0] == node))


IMPOSSIBLE = {
    "the pods are too large": (FOUR, 4, 1, 2, FOUR),
    "it has only two pods to run": (FOUR, 2, 2, 8, (("n1", tuple(range(8))),)),
    "other nodes": (FOUR, 2, 2, 8, (("n1", (0, 1, 2, 3)), ("n2", (0, 1, 2, 3)))),
}


@story
@pytest.mark.parametrize("what", IMPOSSIBLE)
async def test_a_width_that_a_job_cannot_take_in_place_is_reported_and_reached_by_a_stop(
    tmp_path, what
):
    nodes, gpus, pods, width, new = IMPOSSIBLE[what]
    async with cluster() as k8s:
        said = []
        theirs(k8s, gpus, pods, **(GANG if what == "other nodes" else {}))
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s, nodes, 4, **ELASTIC))
            await until(lambda: said == [Started("job", 1)])
            await backend.resize(ResizeEffect("job", 1, width, new))
            await until(lambda: len(said) == 2)
            assert said[-1] == Resized("job", 1, 4, nodes)
            assert only(k8s)["spec"]["parallelism"] == pods
            if what == "other nodes":
                await backend.preempt(STOP)
                await until(lambda: said[-1] == Stopped("job", 1))
                again = replace(order(k8s, **ELASTIC), attempt=2, nodes=new, width=8)
                await backend.start(again)
                await until(lambda: said[-1] == Started("job", 2))
                await until(lambda: len(pods_on(k8s)) == 4)


@story
async def test_a_width_refused_by_the_api_server_is_reached_by_a_stop(tmp_path):
    def trouble(verb, request):
        spec = (request.data or {}).get("spec", {}) if verb == "patch" else {}
        if "parallelism" in spec:
            return failure(422, "Invalid", "spec.completions: field is immutable")
        return None

    async with cluster() as k8s:
        said = []
        theirs(k8s, 2, 2, **GANG)
        async with backend_of(tmp_path, k8s, said) as backend:
            await backend.start(order(k8s))
            await until(lambda: said == [Started("job", 1)])
            k8s.trouble = trouble
            await backend.resize(ResizeEffect("job", 1, 2, FOUR))
            await until(lambda: len(said) == 2)
            assert said[-1] == Resized("job", 1, 4, FOUR)
