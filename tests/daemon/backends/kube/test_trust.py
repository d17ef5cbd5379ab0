"""Users gain no rights by editing the labels and annotations of their own Jobs."""

from daemon.config.config import PoolConfig
from daemon.model.inputs import Cancel
from sia.model import Stream
from tests.daemon.backends.kube.test_kube import ONE, POOL, taken_over
from tests.support.clusters.kube import GPU, HOST, cluster, job, node
from tests.support.clusters.kube_daemons import phase, phase_is, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story

DAY = 86400
APART = (PoolConfig("vision", 8, share=False), PoolConfig("speech", 8, share=False))
KINDS = {"vision": {"kind": "a"}, "speech": {"kind": "b"}}


def deadline(k8s, made, seconds):
    k8s.change("jobs", made["metadata"], {"spec": {"activeDeadlineSeconds": seconds}})


async def seen(k8s, service):
    """All that was changed so far has come to the daemon: what is changed after it has."""
    mark = await taken_over(service, "mark")
    notes = {"metadata": {"annotations": {"sia.internal/priority": "5"}}}
    k8s.change("jobs", k8s.get("jobs", "mark")["metadata"], notes)
    await until(lambda: service.book.jobs[mark].priority == 5)


@story
async def test_a_job_that_has_its_gpus_gets_no_more_time_than_it_was_lent_them_for(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        k8s.make("jobs", job("own", 8, labels=POOL), "vision")
        await phase_is(service, await taken_over(service, "own"), "running")
        made = k8s.make("jobs", job("short", 8, labels=POOL, activeDeadlineSeconds=240), "vision")
        job_id = await taken_over(service, "short")
        record = await phase_is(service, job_id, "running")
        assert (record.stream, record.time_limit) == (Stream.SPARE, 300.0)
        k8s.make("jobs", job("mark", labels=POOL), "vision")
        deadline(k8s, made, 30 * DAY)
        await seen(k8s, service)
        assert service.book.jobs[job_id].time_limit == 300.0
        deadline(k8s, made, 40)
        await until(lambda: service.book.jobs[job_id].time_limit == 100.0)


@story
async def test_a_job_that_waits_is_lent_gpus_for_the_time_that_it_asks_for_now(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        await submit(service, "own", gpus=8)
        await submit(service, "lenders", pool="speech", gpus=8)
        await phase_is(service, "lenders", "running")
        made = k8s.make("jobs", job("longer", 8, labels=POOL, activeDeadlineSeconds=240), "vision")
        job_id = await taken_over(service, "longer")
        deadline(k8s, made, 30 * DAY)
        await until(lambda: service.book.jobs[job_id].time_limit == 30 * DAY + 60.0)
        assert service.book.jobs[job_id].run_time == 30 * DAY + 60.0
        await service.submit([Cancel("lenders")])
        await phase_is(service, "lenders", "cancelled")
        assert phase(service, job_id) == "pending"


@story
async def test_a_copy_of_a_job_that_ran_is_a_job_that_waits(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.make("jobs", job("train", 2, labels=POOL), "vision")
        await phase_is(service, await taken_over(service, "train"), "finished")
        notes = dict(k8s.get("jobs", "train")["metadata"]["annotations"])
        assert notes["sia.internal/attempt"] == "1"
        k8s.make("jobs", job("copy", 2, labels=POOL, notes=notes), "vision")
        await phase_is(service, await taken_over(service, "copy"), "finished")
        bare = {"sia.internal/attempt": "1"}
        k8s.make("jobs", job("bare", 2, labels=POOL, notes=bare), "vision")
        await phase_is(service, await taken_over(service, "bare"), "finished")
        assert k8s.ran == {"train": 1, "copy": 1, "bare": 1}


def on_speechs_nodes():
    wanted = {"key": "kind", "operator": "In", "values": ["b"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    tolerated = [{"key": GPU, "operator": "Exists"}]
    return {"affinity": {"nodeAffinity": required}, "tolerations": tolerated}


@story
async def test_a_forged_release_of_a_job_is_not_trusted(tmp_path):
    """All that the daemon writes may be written by others; that it is on its nodes, they cannot."""
    nodes = node("n1", 8, kind="a"), node("n2", 8, kind="b")
    async with cluster(()) as k8s:
        for each in nodes:
            k8s.make("nodes", each)
        async with serving(tmp_path, k8s, nodes=KINDS, pools=APART) as service:
            k8s.runs_for = None
            k8s.trouble = lambda verb, request: started(k8s, service, verb, request)
            k8s.make("jobs", job("sly", 8, labels=POOL, template=on_speechs_nodes()), "vision")
            job_id = await taken_over(service, "sly")
            await phase_is(service, job_id, "held")
            await until(lambda: k8s.get("jobs", "sly")["spec"]["suspend"])
            assert not [pod for pod in k8s.all("pods") if pod["status"]["phase"] == "Running"]


def started(k8s, service, verb, request):
    """Right before the daemon's own request comes, somebody has done what it would."""
    if (verb, request.name) != ("patch", "sly") or request.data["spec"]["suspend"]:
        return
    notes = request.data["metadata"]["annotations"]
    k8s.change("jobs", k8s.get("jobs", "sly")["metadata"], {
        "metadata": {"annotations": notes}, "spec": {"suspend": False},
    })  # fmt: skip
    return


@story
async def test_a_job_that_the_daemon_made_and_somebody_widened_is_set_back(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        await submit(service, "own", gpus=1)
        await phase_is(service, "own", "running")
        (made,) = k8s.all("jobs")
        wide = {"parallelism": 16, "completions": 16}
        k8s.change("jobs", made["metadata"], {"spec": wide})

        def pods():
            spec = k8s.get("jobs", made["metadata"]["name"])["spec"]
            return spec["parallelism"], spec["completions"]

        await until(lambda: pods() == (1, 1))
        assert phase(service, "own") == "running"


@story
async def test_a_job_widened_before_its_release_is_released_unchanged(tmp_path):
    async with cluster(("n1",)) as k8s, serving(tmp_path, k8s, pools=ONE) as service:
        k8s.runs_for = None
        widened = []

        def trouble(verb, request):
            if (verb, request.resource.plural) == ("patch", "jobs") and not widened:
                widened.append(request.name)
                meta = k8s.get("jobs", request.name)["metadata"]
                k8s.change("jobs", meta, {"spec": {"parallelism": 8, "completions": 8}})

        k8s.trouble = trouble
        await submit(service, "own", gpus=1)
        await phase_is(service, "own", "running")
        assert list(k8s.ran.values()) == [1]
        assert HOST in k8s.all("jobs")[0]["spec"]["template"]["spec"]["nodeSelector"]
