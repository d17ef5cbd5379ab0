"""In front of Kueue: Jobs are kept from it by a gate, and its queues lend what is foreseen idle."""

from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.backends.kube.kueue import ClusterQueue, limits_of, steps_of
from daemon.backends.kube.manifests import split
from daemon.config.config import PoolConfig
from daemon.model.inputs import Cancel, Lending, SetPool
from daemon.model.job import JobSpec
from daemon.model.outputs import StartEffect
from sia.limits import UNLIMITED
from tests.daemon.backends.kube.test_kube import adopted, taken_over
from tests.daemon.backends.kube.test_trouble import ill
from tests.support.clusters.kube import GPU, cluster, job
from tests.support.clusters.kube_daemons import phase, phase_is, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story

GATE = "kueue.x-k8s.io/admission-gated-by"
TOLERANT = {"tolerations": [{"key": GPU, "operator": "Exists"}]}
QUEUE = {"kueue.x-k8s.io/queue-name": "vision"}
POOLS = (PoolConfig("vision", 8), PoolConfig("speech", 8, borrow_limit=3))


def queue(name, *quotas, cohort="all", **more):
    flavors = [
        {"name": f"f{i}", "resources": [
            {"name": "cpu", "nominalQuota": "100"}, {"name": GPU, "nominalQuota": q, **more},
        ]}
        for i, q in enumerate(quotas)
    ]  # fmt: skip
    groups = [{"coveredResources": ["cpu", GPU], "flavors": flavors}]
    return {"metadata": {"name": name}, "spec": {"cohort": cohort, "resourceGroups": groups}}


def limits(k8s, name):
    groups = k8s.get("clusterqueues", name)["spec"]["resourceGroups"]
    found = [each["resources"][1] for each in groups[0]["flavors"]]
    return [(each.get("lendingLimit"), each.get("borrowingLimit")) for each in found]


class Kueue:
    """Admits what is not gated, and ends what is deactivated."""

    def __init__(self, k8s):
        self.k8s = k8s
        self.admits = True

    def look(self):
        for each in self.k8s.all("jobs"):
            meta = each["metadata"]
            if "kueue.x-k8s.io/queue-name" not in meta["labels"] or meta["annotations"].get(GATE):
                continue
            work = self.k8s.get("workloads", f"w-{meta['name']}", meta["namespace"])
            if work is None:
                labels = {"kueue.x-k8s.io/job-uid": meta["uid"]}
                body = {"metadata": {"name": f"w-{meta['name']}", "labels": labels}}
                work = self.k8s.make("workloads", {**body, "spec": {}}, meta["namespace"])
            wanted = not (self.admits and work["spec"].get("active", True))
            if each["spec"]["suspend"] != wanted:
                self.k8s.change("jobs", meta, {"spec": {"suspend": wanted}})


def before(k8s):
    """Kueue in this cluster: it looks whenever controllers do."""
    kueue, step = Kueue(k8s), k8s.step

    def both():
        kueue.look()
        step()

    k8s.step = both
    for name in ("vision", "speech"):
        k8s.make("clusterqueues", queue(name, 8))
    return kueue


@story
async def test_a_job_is_kept_from_kueue_until_it_is_its_turn(tmp_path):
    async with cluster() as k8s:
        kueue = before(k8s)
        async with serving(tmp_path, k8s, pools=POOLS, kueue=True) as service:
            k8s.runs_for = None
            notes = {GATE: "other/gate, sia.internal/sia"}
            k8s.make("jobs", job("one", 8, labels=QUEUE, notes=notes, template=TOLERANT), "vision")
            k8s.make("jobs", job("plain", labels=QUEUE), "vision")
            job_id = await taken_over(service, "one")
            await until(
                lambda: k8s.get("jobs", "one")["metadata"]["annotations"][GATE] == "other/gate"
            )
            (patch,) = [
                request.data for verb, kind, request in k8s.requests_seen
                if (verb, kind) == ("patch", "jobs")
            ]  # fmt: skip
            assert set(patch) == {"metadata"}  # Kueue itself has it run, and chooses nodes
            assert phase(service, job_id) == "starting"
            k8s.change(
                "jobs",
                {"name": "one", "namespace": "vision"},
                {"metadata": {"annotations": {GATE: None}}},
            )
            await phase_is(service, job_id, "running")
            kueue.admits = False  # Kueue preempts it, and admits it again by itself
            k8s.step()
            await until(lambda: not k8s.used())
            assert phase(service, job_id) == "running"
            kueue.admits = True
            k8s.step()
            await until(lambda: k8s.ran["one"] == 2)
            k8s.finish("one")
            await phase_is(service, job_id, "finished")
            assert adopted(service, "plain") is None
            assert ("list", "nodes") not in k8s.verbs


@story
async def test_a_released_job_is_ended_by_its_workload(tmp_path):
    async with cluster() as k8s:
        before(k8s)
        async with serving(tmp_path, k8s, pools=POOLS, kueue=True) as service:
            k8s.runs_for = None
            notes = {GATE: "sia.internal/sia"}
            body = job("one", labels=QUEUE, notes=notes, template=TOLERANT)
            k8s.make("jobs", body, "vision")
            job_id = await taken_over(service, "one")
            await submit(service, "own", pool="speech")
            await phase_is(service, job_id, "running")
            await phase_is(service, "own", "running")
            await service.submit([Cancel(job_id), Cancel("own")])
            await phase_is(service, job_id, "cancelled")
            await phase_is(service, "own", "cancelled")
            assert k8s.get("workloads", "w-one")["spec"] == {"active": False}
            assert [each["metadata"]["name"] for each in k8s.all("jobs")] == ["one"]


@story
async def test_queues_lend_what_is_not_needed_and_nothing_while_lending_is_off(tmp_path):
    async with cluster() as k8s:
        before(k8s)
        async with serving(tmp_path, k8s, pools=POOLS, kueue=True, poll=0.05) as service:
            k8s.runs_for = None
            await until(lambda: limits(k8s, "speech") == [("8", "3")])
            await until(lambda: limits(k8s, "vision") == [("8", None)])
            await submit(service, "own", gpus=3)
            await until(lambda: limits(k8s, "vision") == [("5", None)])
            await service.submit([SetPool("vision", lend_limit=2)])
            await until(lambda: limits(k8s, "vision") == [("2", None)])
            await service.submit([Lending(on=False)])
            await until(lambda: limits(k8s, "vision") == [("0", "0")])
            (said,) = {
                request.headers["Content-Type"] for verb, kind, request in k8s.requests_seen
                if (verb, kind) == ("patch", "clusterqueues")
            }  # fmt: skip
            assert said == "application/json-patch+json"


TROUBLE = {
    "is in no cohort": lambda: queue("vision", 8, cohort=""),
    "has 6 GPUs, pool vision 8": lambda: queue("vision", 4, 2),
    "has the nominalQuota '8500m'": lambda: queue("vision", "8500m"),
}


@pytest.mark.parametrize("why", [*TROUBLE, "not found"])
def test_a_queue_that_cannot_be_controlled_is_reported_and_others_are_controlled(tmp_path, why):
    @story
    async def tell(folder):
        async with cluster() as k8s:
            before(k8s)
            k8s.remove("clusterqueues", {"name": "vision"})
            if why in TROUBLE:
                k8s.make("clusterqueues", TROUBLE[why]())
            async with serving(folder, k8s, pools=POOLS, kueue=True, poll=0.05) as service:
                await until(lambda: why in ill(service, "backend kueue"))
                await until(lambda: limits(k8s, "speech") == [("8", "3")])
                if why in TROUBLE:
                    k8s.remove("clusterqueues", {"name": "vision"})
                k8s.make("clusterqueues", queue("vision", 8))
                await until(lambda: not ill(service, "backend kueue"))
                await until(lambda: limits(k8s, "vision") == [("8", None)])

    tell(tmp_path)


@story
async def test_queues_of_thousands_are_counted_as_kubernetes_writes_them(tmp_path):
    pools = (PoolConfig("vision", 1000), PoolConfig("speech", 8))
    async with cluster() as k8s:
        before(k8s)
        k8s.remove("clusterqueues", {"name": "vision"})
        k8s.make("clusterqueues", queue("vision", "1k"))
        async with serving(tmp_path, k8s, pools=pools, kueue=True, poll=0.05) as service:
            await until(lambda: limits(k8s, "vision") == [("1000", None)])
            assert not ill(service, "backend kueue")


def pool(
    quota, unused, lends=0, pending=0, load=(0,), lend=UNLIMITED, borrow=UNLIMITED, *, on=True
):
    return SimpleNamespace(
        quota=quota, unused=unused, lends=lends, pending_width=pending, load=list(load),
        lend_limit=lend, borrow_limit=borrow, group=SimpleNamespace(lending=on),
    )  # fmt: skip


def test_a_trial_on_fewer_gpus_has_whole_pods():
    """Kueue places them, so the pods are as large as those of the whole job, or it is one pod."""
    for gpus, nodes, tried, pods in ((32, 4, 8, (1, 8)), (32, 4, 16, (2, 8)), (12, 3, 8, (2, 4)),
                                     (15, 3, 8, (1, 8)), (15, 3, 15, (3, 5))):  # fmt: skip
        wanted = JobSpec("job", "vision", gpus, ("run",), nodes=nodes)
        assert split(StartEffect("job", 1, wanted, (), width=tried)) == pods


def test_a_queue_may_lend_all_but_the_reservation():
    assert limits_of(pool(8, 8)) == (8, None)
    assert limits_of(pool(8, 5, pending=2)) == (3, None)
    assert limits_of(pool(8, 5, pending=2, load=(1, 2, 0))) == (1, None)
    assert limits_of(pool(8, 3, lends=4, load=(9,))) == (4, None)  # loans that are made stay
    assert limits_of(pool(8, -1, lends=2)) == (2, None)
    assert limits_of(pool(8, 8, lend=3, borrow=2)) == (3, 2)
    assert limits_of(pool(8, 8, lend=0)) == (0, None)
    assert limits_of(pool(8, 8, on=False)) == (0, 0)


def applied(body, steps):
    """A queue after these steps of a JSON Patch."""
    for step in steps[1:]:
        *path, last = step["path"].split("/")[1:]
        there = body
        for key in path:
            there = there[int(key)] if isinstance(there, list) else there[key]
        if step["op"] == "remove":
            del there[last]
        else:
            there[last] = step["value"]
    return body


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    st.integers(0, 80),
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 9),
)
def test_a_queue_that_was_told_lends_so_much_and_needs_no_second_word(quotas, lend, borrow, was):
    told = {} if was is None else {"lendingLimit": str(was), "borrowingLimit": was}
    body = queue("q", *quotas, **told)
    body["metadata"]["resourceVersion"] = "7"
    lend = min(lend, sum(quotas))
    steps = steps_of(msgspec.convert(body, ClusterQueue), GPU, lend, borrow)
    assert not steps or steps[0] == {
        "op": "test", "path": "/metadata/resourceVersion", "value": "7",
    }  # fmt: skip
    after = msgspec.convert(applied(body, steps), ClusterQueue)
    assert not steps_of(after, GPU, lend, borrow)
    own = [f.resources[1] for f in after.spec.resource_groups[0].flavors]
    assert sum(int(each.lending_limit) for each in own) == lend
    assert all(0 <= int(each.lending_limit) <= each.nominal_quota for each in own)
    borrowed = [None if e.borrowing_limit is None else int(e.borrowing_limit) for e in own]
    assert borrowed == ([None] * len(own) if borrow is None else [borrow] + [0] * (len(own) - 1))
