"""Kubernetes, in an emulator: Jobs are made, adopted, released, followed to their ends."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from daemon.backends.kube import adopt
from daemon.config.config import NodeConfig, PoolConfig
from daemon.model.inputs import Cancel, Release
from daemon.model.setup import Grant
from tests.support.clusters.kube import GPU, HOST, cluster, job, node
from tests.support.clusters.kube_daemons import client_of, phase, phase_is, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import asked as asked_of
from tests.support.daemons.doors import story

POOL = {"sia.internal/pool": "vision"}
ONE = (PoolConfig("vision", 8),)


def adopted(service, name):
    """The job here that a Job of that name is."""
    book = service.book
    known = [*book.jobs.values(), *book.ended.values()]
    found = [each for each in known if each.spec.origin.partition("@")[0].endswith(f"/{name}")]
    return found[0].spec.id if found else None


async def taken_over(service, name):
    await until(lambda: adopted(service, name) is not None)
    return adopted(service, name)


def writes(k8s):
    """What was asked to be changed in Jobs; a request that met another's change is made again."""
    found, versions = [], []
    for verb, named, request in k8s.requests_seen:
        if named == "jobs" and verb not in ("get", "list", "watch"):
            body = {**request.data, "metadata": dict(request.data["metadata"])}
            versions.append(body["metadata"].pop("resourceVersion", None))
            if (verb, body) not in found:
                found.append((verb, body))
    assert None not in versions[1:]  # after its creation nothing is done to what was not looked at
    return found


@story
async def test_a_job_is_made_suspended_and_released_by_one_request(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        more = {"env": {"A": "$HOME"}, "cwd": "/w", "time_limit": 90.5, "command": ("sh", "$(A)")}
        await submit(service, "Train/<b>", gpus=2, **more)
        record = await phase_is(service, "Train/<b>", "finished")
        assert (record.code, record.nodes) == (0, (("n1", (0, 1)),))
        (made, released) = writes(k8s)
        body = made[1]
        name, notes = body["metadata"]["name"], body["metadata"]["annotations"]
        daemon = notes["sia.internal/daemon"]
        assert k8s.ran == {name: 1}
        assert name.startswith("sia-train-b-")
        assert made[0] == "create"
        assert (notes["sia.internal/job"], notes["sia.internal/order"]) == ("Train/<b>", "1")
        assert (body["apiVersion"], body["kind"]) == ("batch/v1", "Job")
        spec = dict(body["spec"])
        pod = spec.pop("template")["spec"]
        assert spec == {
            "suspend": True, "parallelism": 1, "completions": 1, "completionMode": "Indexed",
            "backoffLimit": 0, "ttlSecondsAfterFinished": 86400, "activeDeadlineSeconds": 151,
        }  # fmt: skip
        (container,) = pod["containers"]
        assert container["command"] == ["sh", "$$(A)"]  # Kubernetes puts in nothing
        assert container["resources"] == {"limits": {GPU: "2"}}
        assert {"name": "A", "value": "$$HOME"} in container["env"]
        assert (container["image"], container["workingDir"]) == ("registry/job:1", "/w")
        assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
        seal = released[1]["metadata"]["annotations"].pop("sia.internal/released")
        assert re.fullmatch("[0-9a-f]{64} n1", seal)
        assert released == (
            "patch", {
                "metadata": {"annotations": {
                    "sia.internal/daemon": daemon, "sia.internal/job": "Train/<b>",
                    "sia.internal/attempt": "1",
                }},
                "spec": {"suspend": False, "template": {"spec": {
                    "nodeSelector": {HOST: "n1"},
                    "tolerations": [{"key": GPU, "operator": "Exists"}],
                }}},
            },
        )  # fmt: skip


@story
async def test_a_job_over_two_nodes_is_sent_to_both_of_them(tmp_path):
    pools = (PoolConfig("vision", 16),)
    async with cluster() as k8s, serving(tmp_path, k8s, pools=pools) as service:
        await submit(service, "wide", gpus=16, nodes=2)
        await phase_is(service, "wide", "finished")
        (made, released) = (body["spec"] for _, body in writes(k8s))
        assert (made["parallelism"], made["completions"]) == (2, 2)
        spread = made["template"]["spec"]["topologySpreadConstraints"]
        assert [(each["maxSkew"], each["topologyKey"]) for each in spread] == [(1, HOST)]
        affinity = released["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": HOST, "operator": "In", "values": ["n1", "n2"]}]
        assert sorted(next(iter(k8s.places.values()))) == ["n1", "n2"]


@story
async def test_a_suspended_job_with_the_label_is_taken_over(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        more = {"activeDeadlineSeconds": 600, "notes": {"sia.internal/priority": "-7"}}
        k8s.slow.add("train")
        k8s.make("jobs", job("train", 2, 4, labels=POOL, **more), "vision")
        job_id = await taken_over(service, "train")
        record = await phase_is(service, job_id, "running")
        spec = record.spec
        assert (spec.pool, spec.gpus, spec.nodes, spec.name) == ("vision", 8, 1, "train")
        assert (spec.priority, record.time_limit) == (-7, 660.0)
        assert job_id.startswith("k8s-vision.train-")
        (there,) = k8s.all("jobs")
        assert there["metadata"]["annotations"]["sia.internal/attempt"] == "1"
        k8s.finish("train")
        assert (await phase_is(service, job_id, "finished")).code == 0
        assert k8s.ran["train"] == 4
        assert k8s.verbs["create", "jobs"] == k8s.verbs["delete", "jobs"] == 0


@story
async def test_the_annotations_contain_the_wishes_of_a_job(tmp_path):
    notes = {
        "deadline": "2100-01-01T00:00Z", "value": "20", "estimate": "3h", "preemptible": "restart",
        "checkpoint": "USR1", "min_width": "2", "max_width": "8", "prefers": "v100",
        "slowdown": "1.5", "budget": "4", "min_run_time": "10m",
    }  # fmt: skip
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.slow.add("train")
        notes = {f"sia.internal/{name}": text for name, text in notes.items()}
        k8s.make("jobs", job("train", 2, 2, labels=POOL, notes=notes), "vision")
        spec = (await phase_is(service, await taken_over(service, "train"), "running")).spec
        assert (spec.gpus, spec.min_width, spec.max_width) == (4, 2, 8)
        assert (spec.deadline, spec.value, spec.run_time) == (4102444800.0, 20.0, 10800.0)
        assert (spec.preemptible, spec.checkpoint) == ("restart", "USR1")
        assert (spec.prefers, spec.slowdown, spec.budget) == ("v100", 1.5, 4.0)
        assert spec.min_run_time == 600.0


@story
async def test_jobs_run_on_the_nodes_that_their_strl_names(tmp_path):
    settings = {"policy": "jvu:greedy:cycle=1", "nodes": (NodeConfig("n2", None, ("fast",)),)}
    async with (
        cluster(("n1", "n2")) as k8s,
        serving(tmp_path, k8s, pools=(PoolConfig("vision", 16),), settings=settings) as service,
    ):
        k8s.slow.add("train")
        text = "(max (nck fast 6 0 60 100) (nck all 6 0 90 100))"
        notes = {"sia.internal/strl": text}
        k8s.make("jobs", job("train", 1, 6, labels=POOL, notes=notes), "vision")
        theirs = await phase_is(service, await taken_over(service, "train"), "running")
        assert [node for node, _ in theirs.nodes] == ["n2"]
        assert theirs.spec.run_time == 60.0
        await submit(service, "own", gpus=6, strl=text, run_time=60.0)
        own = await phase_is(service, "own", "finished")
        assert [node for node, _ in own.nodes] == ["n1"]
        assert own.speed == pytest.approx(60 / 90), "slower there, by its own word"


@story
async def test_what_a_site_grants_bounds_annotations_too(folder):
    """A Job that asks for more stays suspended, with one line in the log; use is shown."""
    bound = Grant(pool="vision", max_value=9.0, never_jobs=1, extra_budget=2.0, gpu_hours=3.0)
    due = {"deadline": "2100-01-01T00:00Z", "estimate": "2h"}
    asked = {
        "dear": {"value": "10"}, "fair": {"value": "9"}, "stays": {"preemptible": "never"},
        "stays-too": {"preemptible": "never"}, "heavy": {"budget": "3"}, "light": {"budget": "1.5"},
        "due": due, "due-too": due, "unknown": {"mode": "gsn"},
    }  # fmt: skip
    warned = {}
    log = SimpleNamespace(warning=lambda what, **said: warned.update({said["job"]: said}))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adopt, "log", lambda: log)
        async with cluster() as k8s, client_of(folder, k8s, settings={"grants": (bound,)}) as sia:
            for name, wishes in asked.items():
                k8s.slow.add(name)
                notes = {f"sia.internal/{wish}": text for wish, text in wishes.items()}
                k8s.make("jobs", job(name, labels=POOL, notes=notes), "vision")
                if name in {"fair", "stays", "heavy", "due"}:
                    await phase_is(sia.service, await taken_over(sia.service, name), "running")
            await until(lambda: len(warned) == 5)
            said = {said["job"].split(".")[-1]: said for said in warned.values()}
            whys = {re.sub("-[0-9a-f]+$", "", name): each["why"] for name, each in said.items()}
            who = "pool 'vision' may "
            assert whys == {
                "dear": f"{who}give a job a value of at most 9 (got 10)",
                "stays-too": f"{who}have 1 job that must not be stopped (preemptible = never), has "
                "1 and would get 1 more",
                "light": f"{who}have 2 of budget beyond 1 for each job, has 2 and would get 0.5 "
                "more",
                "due-too": f"{who}have 3 GPU-hours in jobs with a deadline, has 2 and would get 2 "
                "more",
                "vision/unknown": "annotation sia.internal/mode 'gsn' is not a known mode",
            }
            (used,) = (await asked_of(sia, "GET", "/v1/grants"))["used"]
            assert (used["value"], used["never_jobs"]) == (9.0, 1)
            assert (used["extra_budget"], used["gpu_hours"]) == (2.0, 2.0)


LEFT_ALONE = {
    "odd": job("odd", labels=POOL, notes={"sia.internal/deadline": "tomorrow"}),
    "uneven": job("uneven", 2, 2, labels=POOL, notes={"sia.internal/min_width": "3"}),
    "unlabelled": job("unlabelled"),
    "others": job("others", labels={"sia.internal/pool": "speech"}),
    "cpus": job("cpus", 0, labels=POOL),
    "queued": job("queued", labels={**POOL, "kueue.x-k8s.io/queue-name": "q"}),
    "picky": job("picky", labels=POOL, template={"nodeSelector": {"type": "A100"}}),
    "others-controller": job(
        "others-controller", labels=POOL, managedBy="kueue.x-k8s.io/multikueue"
    ),
    "claims": job("claims", labels=POOL, template={"resourceClaims": [{"name": "gpu"}]}),
    "gated": job("gated", labels=POOL, template={"schedulingGates": [{"name": "x"}]}),
    "nailed": job("nailed", labels=POOL, template={"nodeName": "n1"}),
    "scheduled": job("scheduled", labels=POOL, template={"schedulerName": "volcano"}),
    "over": job("over", labels=POOL, notes={"sia.internal/over": "ended by sia"}),
}


@story
async def test_jobs_without_the_label_are_left_alone(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        for body in LEFT_ALONE.values():
            k8s.make("jobs", body, "vision")
        k8s.make("jobs", job("last", labels=POOL), "vision")
        await phase_is(service, await taken_over(service, "last"), "finished")
        assert [adopted(service, name) for name in LEFT_ALONE] == [None] * len(LEFT_ALONE)
        assert {request.name for verb, _, request in k8s.requests_seen if verb == "patch"} <= {
            "last", "sia-daemon",
        }  # fmt: skip


@story
async def test_in_one_namespace_the_label_names_the_pool(tmp_path):
    async with (
        cluster(namespaces=("gpu", "sia")) as k8s,
        serving(tmp_path, k8s, namespace="gpu") as service,
    ):
        k8s.make("jobs", job("theirs", labels={"sia.internal/pool": "speech"}), "gpu")
        k8s.make("jobs", job("nobodys", labels={"sia.internal/pool": "robots"}), "gpu")
        record = await phase_is(service, await taken_over(service, "theirs"), "finished")
        assert record.spec.pool == "speech"
        await submit(service, "own", pool="speech")
        await phase_is(service, "own", "finished")
        assert adopted(service, "nobodys") is None
        (own,) = [body for verb, body in writes(k8s) if verb == "create"]
        assert own["metadata"]["labels"]["sia.internal/pool"] == "speech"


@story
async def test_a_pool_may_have_nodes_of_one_kind(tmp_path):
    async with cluster(("n1",)) as k8s:
        k8s.make("nodes", node("fast", 8, kind="H100"))
        nodes = {"vision": {"kind": "H100"}}
        async with serving(tmp_path, k8s, pools=ONE, nodes=nodes) as service:
            k8s.make(
                "jobs", job("a", labels=POOL, template={"nodeSelector": {"kind": "H100"}}), "vision"
            )
            record = await phase_is(service, await taken_over(service, "a"), "finished")
            assert record.nodes == (("fast", (0,)),)
            assert k8s.places["a"] == ["fast"]


ENDS = {
    "code": ({"code": 3, "reason": "Error"}, ("failed", 3, None, "")),
    "signal": ({"code": 137, "reason": "Error"}, ("failed", None, 9, "")),
    "memory": ({"code": 137, "reason": "OOMKilled"}, ("failed", None, 9, "out of memory")),
    "well": ({}, ("finished", 0, None, "")),
}


@pytest.mark.parametrize("way", ENDS)
def test_the_end_of_a_job_is_read_from_its_pod(tmp_path, way):
    how, wanted = ENDS[way]

    @story
    async def tell(folder):
        async with cluster() as k8s, serving(folder, k8s) as service:
            k8s.slow.add(way)
            k8s.make("jobs", job(way, labels=POOL, backoffLimit=0), "vision")
            job_id = await taken_over(service, way)
            await phase_is(service, job_id, "running")
            k8s.finish(way, **how)
            record = await phase_is(service, job_id, wanted[0])
            assert (record.phase.value, record.code, record.signal, record.why) == wanted

    tell(tmp_path)


@story
async def test_a_deadline_set_in_kubernetes_is_reported_as_such(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.slow.add("slow")
        made = k8s.make("jobs", job("slow", labels=POOL, activeDeadlineSeconds=5), "vision")
        job_id = await taken_over(service, "slow")
        await phase_is(service, job_id, "running")
        failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
        k8s.change("jobs", made["metadata"], {"status": {"conditions": [failed]}})
        k8s.remove("pods", k8s.all("pods")[0]["metadata"])
        record = await phase_is(service, job_id, "failed")
        assert record.why == "time limit in Kubernetes"


@story
async def test_gpus_are_free_only_when_no_pod_is_left_on_them(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.slow.add("train")
        made = k8s.make("jobs", job("train", labels=POOL), "vision")
        job_id = await taken_over(service, "train")
        await phase_is(service, job_id, "running")
        asked = k8s.verbs["list", "pods"]
        done = {"type": "Complete", "status": "True"}
        k8s.change("jobs", made["metadata"], {"status": {"conditions": [done]}})
        await until(lambda: k8s.verbs["list", "pods"] >= asked + 3)
        assert phase(service, job_id) == "running"  # its pod is still there
        k8s.finish("train")
        await phase_is(service, job_id, "finished")


@story
async def test_a_job_that_is_cancelled_is_deleted_and_others_are_only_suspended(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None  # nothing ends by itself
        k8s.make("jobs", job("theirs", labels=POOL), "vision")
        theirs = await taken_over(service, "theirs")
        await submit(service, "own")
        await phase_is(service, theirs, "running")
        await phase_is(service, "own", "running")
        await service.submit([Cancel("own"), Cancel(theirs)])
        await phase_is(service, "own", "cancelled")
        await phase_is(service, theirs, "cancelled")
        (there,) = k8s.all("jobs")
        assert there["metadata"]["name"] == "theirs"
        assert there["spec"]["suspend"]
        assert there["metadata"]["annotations"]["sia.internal/over"] == "ended by sia"
        assert k8s.all("pods") == []


@story
async def test_a_pending_job_that_is_cancelled_stays_suspended(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        await submit(service, "first", gpus=8)
        await phase_is(service, "first", "running")
        k8s.make("jobs", job("waits", labels=POOL), "vision")
        job_id = await taken_over(service, "waits")
        await service.submit([Cancel(job_id)])
        await until(
            lambda: "sia.internal/over" in k8s.get("jobs", "waits")["metadata"]["annotations"]
        )
        assert k8s.get("jobs", "waits")["spec"]["suspend"]


@story
async def test_a_job_deleted_in_kubernetes_is_cancelled(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        runs = k8s.make("jobs", job("runs", 8, labels=POOL), "vision")
        running = await taken_over(service, "runs")
        await phase_is(service, running, "running")
        waits = k8s.make("jobs", job("waits", labels=POOL), "vision")
        waiting = await taken_over(service, "waits")
        k8s.remove("jobs", waits["metadata"])
        assert (await phase_is(service, waiting, "cancelled")).by == "kubernetes"
        k8s.remove("jobs", runs["metadata"])
        assert "deleted" in (await phase_is(service, running, "cancelled")).why


@story
async def test_a_new_job_of_the_same_name_is_a_different_job(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        first = k8s.make("jobs", job("train", labels=POOL), "vision")
        one = await taken_over(service, "train")
        await phase_is(service, one, "running")
        k8s.remove("jobs", first["metadata"])
        k8s.make("jobs", job("train", labels=POOL), "vision")
        await phase_is(service, one, "cancelled")
        await until(lambda: any(r.spec.origin for r in service.book.jobs.values()))
        (other,) = service.book.jobs.values()
        assert other.spec.id != one
        await phase_is(service, other.spec.id, "running")
        assert k8s.ran["train"] == 2


@story
async def test_a_job_suspended_by_others_waits_until_it_is_released(tmp_path):
    """It then may run elsewhere: only a Job that never ran may change its nodes."""
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        made = k8s.make("jobs", job("train", 8, labels=POOL), "vision")
        job_id = await taken_over(service, "train")
        first = (await phase_is(service, job_id, "running")).nodes[0][0]
        k8s.change("jobs", made["metadata"], {"spec": {"suspend": True}})
        await phase_is(service, job_id, "held")
        k8s.change("nodes", {"name": first}, {"spec": {"unschedulable": True}})
        await until(lambda: service.book.nodes[first].reasons)
        await service.submit([Release(job_id)])
        await until(lambda: phase(service, job_id) == "running")
        assert k8s.places["train"] == [first, "n2" if first == "n1" else "n1"]
        assert ("patch", "jobs/status") in k8s.verbs


@story
async def test_a_job_started_by_others_before_its_decision_is_suspended_again(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        await submit(service, "first", gpus=8)
        await phase_is(service, "first", "running")
        made = k8s.make("jobs", job("eager", labels=POOL), "vision")
        job_id = await taken_over(service, "eager")
        k8s.change("jobs", made["metadata"], {"spec": {"suspend": False}})
        await until(lambda: k8s.get("jobs", "eager")["spec"]["suspend"])
        assert phase(service, job_id) == "pending"


@story
async def test_a_waiting_job_that_asks_for_other_gpus_is_held(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        await submit(service, "first", gpus=8)
        await phase_is(service, "first", "running")
        made = k8s.make("jobs", job("grows", 1, 2, labels=POOL), "vision")
        job_id = await taken_over(service, "grows")
        k8s.change("jobs", made["metadata"], {"spec": {"parallelism": 4, "completions": 4}})
        await service.submit([Cancel("first")])
        await phase_is(service, job_id, "held")
        assert k8s.ran["grows"] == 0


@story
async def test_a_running_job_that_grows_is_set_back(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        made = k8s.make("jobs", job("grows", 1, 2, labels=POOL), "vision")
        job_id = await taken_over(service, "grows")
        await phase_is(service, job_id, "running")
        k8s.change("jobs", made["metadata"], {"spec": {"parallelism": 6, "completions": 6}})
        await until(lambda: k8s.get("jobs", "grows")["spec"]["parallelism"] == 2)


@story
async def test_a_priority_and_a_deadline_may_be_changed_in_kubernetes(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        await submit(service, "first", gpus=8)
        await phase_is(service, "first", "running")
        made = k8s.make("jobs", job("later", labels=POOL), "vision")
        job_id = await taken_over(service, "later")
        notes = {"annotations": {"sia.internal/priority": "5"}}
        k8s.change("jobs", made["metadata"], {"metadata": notes})
        k8s.change("jobs", made["metadata"], {"spec": {"activeDeadlineSeconds": 40}})
        await until(lambda: service.book.jobs[job_id].priority == 5)
        await until(lambda: service.book.jobs[job_id].time_limit == 100.0)


def ready(*, yes):
    word = "True" if yes else "False"
    return {"status": {"conditions": [{"type": "Ready", "status": word, "message": "no kubelet"}]}}


TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
OUT = {
    "not ready: no kubelet": (ready(yes=False), ready(yes=True)),
    "cordoned": ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}),
    "tainted mine": (
        {"spec": {"taints": [TAINT, {"key": "mine", "effect": "NoSchedule"}]}},
        {"spec": {"taints": [TAINT]}},
    ),
    "Kubernetes reports 7 GPUs instead of 8": (
        {"status": {"allocatable": {GPU: "7"}}},
        {"status": {"allocatable": {GPU: "8"}}},
    ),
}


@story
async def test_nodes_go_down_and_return_as_kubernetes_reports(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        nodes = service.book.nodes
        for why, (out, back) in OUT.items():
            k8s.change("nodes", {"name": "n1"}, out)
            await until(lambda why=why: nodes["n1"].reasons.get("backend") == why)
            k8s.change("nodes", {"name": "n1"}, back)
            await until(lambda: not nodes["n1"].reasons)
        k8s.remove("nodes", {"name": "n1"})
        await until(lambda: "no longer in Kubernetes" in nodes["n1"].reasons.get("backend", ""))


@story
async def test_a_job_whose_node_is_lost_runs_elsewhere_where_its_owner_wants_that(tmp_path):
    async with cluster(("n1", "n2", "n3")) as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        await submit(service, "again", gpus=8, requeue=True)
        await submit(service, "once", pool="speech", gpus=8)
        first = (await phase_is(service, "again", "running")).nodes[0][0]
        other = (await phase_is(service, "once", "running")).nodes[0][0]
        k8s.lose(first)
        await until(lambda: service.book.jobs["again"].attempt == 2)
        record = await phase_is(service, "again", "running")
        assert record.nodes[0][0] not in {first, other}
        k8s.lose(other)
        record = await phase_is(service, "once", "lost")
        assert other in record.why
        assert sorted(k8s.ran.values()) == [1, 1, 1]


@story
async def test_a_job_is_placed_anew_although_the_daemon_restarts_while_its_job_is_deleted(tmp_path):
    async with cluster() as k8s:
        k8s.step = lambda: None  # no scheduler has seen it yet, and what is deleted stays
        async with serving(tmp_path, k8s) as service:
            await submit(service, "one")
            await until(lambda: any(not j["spec"]["suspend"] for j in k8s.all("jobs")))
            first = service.book.jobs["one"].nodes[0][0]
            k8s.lose(first)
            await until(lambda: "deletionTimestamp" in k8s.all("jobs")[0]["metadata"])
        assert service.book.jobs["one"].attempt == 1
        del k8s.step
        async with serving(tmp_path, k8s) as service:
            changed = {"metadata": {"labels": {"seen": "yes"}}}
            k8s.change("nodes", k8s.all("nodes")[0]["metadata"], changed)
            assert (await phase_is(service, "one", "finished")).nodes[0][0] != first
        assert sum(k8s.ran.values()) == 1


@story
async def test_a_node_that_is_down_at_the_start_gets_no_job(tmp_path):
    async with cluster() as k8s:
        k8s.change("nodes", {"name": "n1"}, {"spec": {"unschedulable": True}})
        async with serving(tmp_path, k8s) as service:
            await submit(service, "one")
            assert (await phase_is(service, "one", "finished")).nodes == (("n2", (0,)),)


@story
async def test_a_job_that_has_not_begun_on_a_node_that_is_cordoned_is_placed_anew(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.step = lambda: None  # no scheduler has seen it yet
        await submit(service, "one")
        await until(lambda: any(not j["spec"]["suspend"] for j in k8s.all("jobs")))
        first = service.book.jobs["one"].nodes[0][0]
        k8s.change("nodes", {"name": first}, {"spec": {"unschedulable": True}})
        await until(lambda: service.book.nodes[first].reasons)
        del k8s.step
        k8s.change("nodes", {"name": first}, {"metadata": {"labels": {"seen": "yes"}}})
        record = await phase_is(service, "one", "finished")
        assert record.nodes[0][0] != first
        assert sum(k8s.ran.values()) == 1


@story
async def test_an_adopted_job_whose_node_is_lost_is_placed_anew(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        k8s.make("jobs", job("train", 8, labels=POOL), "vision")
        job_id = await taken_over(service, "train")
        first = (await phase_is(service, job_id, "running")).nodes[0][0]
        k8s.lose(first)
        await until(lambda: len(k8s.places["train"]) == 2)
        record = await phase_is(service, job_id, "running")
        assert record.attempt == 2
        assert first != k8s.places["train"][1]


HOSTILE = "<script>alert(1)</script>\u202eevil\x07" + "x" * 4096


@story
async def test_hostile_names_are_treated_as_text(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        labels = {**POOL, "app.kubernetes.io/name": HOSTILE, HOSTILE: HOSTILE}
        notes = {
            "sia.internal/priority": HOSTILE,
            "sia.internal/attempt": HOSTILE,
            "sia.internal/job": HOSTILE,
        }
        k8s.make("jobs", job(HOSTILE, labels=labels, notes=notes), "vision")
        k8s.make("jobs", job("../../nodes/n1?x=#", labels=labels), "vision")
        wrong = job("wrong", labels={"sia.internal/pool": HOSTILE})
        k8s.make("jobs", wrong, "vision")
        k8s.make("jobs", job("good", labels=POOL), "vision")
        job_id = await taken_over(service, "good")
        await phase_is(service, job_id, "finished")
        for record in [*service.book.jobs.values(), *service.book.ended.values()]:
            assert record.spec.id.isprintable()
            assert len(record.spec.id) <= 200
            assert record.spec.name.isprintable()
            assert len(record.spec.name) <= 200
        assert set(k8s.ran) == {"good"}
        (why,) = [part.why for part in service.parts.all() if part.name == "backend jobs"]
        assert why.startswith("2 Jobs cannot be parsed: vision/../../nodes")
        assert why.isprintable()
        assert len(why) < 250


@story
async def test_a_restarted_daemon_finds_running_and_ended_jobs(tmp_path):
    async with cluster() as k8s:
        k8s.runs_for = None
        async with serving(tmp_path, k8s) as service:
            k8s.make("jobs", job("theirs", labels=POOL), "vision")
            theirs = await taken_over(service, "theirs")
            await submit(service, "own")
            await submit(service, "gone")
            for each in ("own", "gone", theirs):
                await phase_is(service, each, "running")
            names = {j["metadata"]["annotations"]["sia.internal/job"]: j for j in k8s.all("jobs")}
        k8s.finish("theirs", 4)
        k8s.change("jobs", names[theirs]["metadata"], {"spec": {"backoffLimit": 0}})
        k8s.remove("jobs", names["gone"]["metadata"])
        async with serving(tmp_path, k8s) as service:
            assert (await phase_is(service, theirs, "failed")).code == 4
            assert "is unknown" in (await phase_is(service, "gone", "failed")).why
            assert phase(service, "own") == "running"
            k8s.finish(names["own"]["metadata"]["name"])
            await phase_is(service, "own", "finished")
        assert set(k8s.ran.values()) == {1}


@story
async def test_a_job_with_the_daemons_name_that_it_did_not_create_is_removed(tmp_path):
    async with cluster() as k8s:
        k8s.runs_for = None
        async with serving(tmp_path, k8s) as service:
            await submit(service, "own")
            await phase_is(service, "own", "running")
            copy = k8s.all("jobs")[0]
        (tmp_path / "sia.db").rename(tmp_path / "before")  # the journal is another's by now
        (tmp_path / "sia.durable").unlink()
        async with serving(tmp_path, k8s) as service:
            k8s.finish(copy["metadata"]["name"])
            await until(
                lambda: k8s.get("jobs", copy["metadata"]["name"])["status"].get("conditions")
            )
            assert not service.book.jobs
        await asyncio.sleep(0)
        assert k8s.verbs["delete", "jobs"] == 0
