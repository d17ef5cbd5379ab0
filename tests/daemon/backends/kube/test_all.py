"""Many jobs through an emulated Kubernetes that drops, repeats, refuses and loses a node."""

import asyncio
from collections import Counter
from random import Random

from daemon.config.config import PoolConfig
from tests.support.budget import budget
from tests.support.clusters.kube import cluster, failure, job
from tests.support.clusters.kube_daemons import serving
from tests.support.daemons.daemons import submit as asked_for
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story

POOLS = (PoolConfig("vision", 16), PoolConfig("speech", 8), PoolConfig("robots", 8))
JOBS = budget(ci=60, soak=200)


def trouble_of(rng):
    """Of each request: 429, 409, 500, or no answer although it was done, now and then."""
    met = Counter()

    def trouble(verb, request):
        if verb == "watch" or rng.random() > 0.12:
            return None
        patch = (verb, request.subresource) == ("patch", None)
        how = rng.choice(["429", "500", "broken", *(["409"] if patch else [])])
        if patch and not met["409"]:
            how = "409"  # patches are few: the first fault of one is a conflict
        met[how] += 1
        if how == "broken":
            return breaks(trouble.cluster, verb, request)
        if how == "429":
            return failure(429, "TooManyRequests", "slow down", Retry_After="0")
        return failure(int(how), "", "by chance")

    trouble.met = met
    return trouble


async def breaks(k8s, verb, request):
    answer = await k8s._answer(request.resource.plural, verb, request)
    transport = request._raw_request.transport
    if transport is not None:  # the client may have gone already
        transport.abort()
    return answer


async def shaken(k8s, rng, over):
    """Watches break off and old events are forgotten, until all is over."""
    while not over.is_set():
        await asyncio.sleep(0.05 + 0.2 * rng.random())
        k8s.twice = not k8s.twice
        if rng.random() < 0.3:
            k8s.forget()
        k8s.drop_watches()


def ended(service):
    return [record.phase.value for record in service.book.ended.values()]


async def all_asked_for(service, k8s, rng):
    """Half of them by the daemon, half as suspended Jobs of others."""
    for i in range(JOBS):
        pool, gpus = rng.choice(POOLS).name, rng.choice([1, 1, 2, 4, 8])
        if i % 2:
            label = {"sia.internal/pool": pool}
            k8s.make("jobs", job(f"j{i}", gpus, labels=label), pool)
        else:
            more = {"command": ("run",), "requeue": True}
            await service.submit([asked_for(f"own{i}", pool, gpus, **more)])


def overfull(k8s):
    """Nodes on which more GPUs are in use than there are."""
    return {node: used for node, used in k8s.used().items() if used > 8}


@story
async def test_each_job_runs_once_and_none_is_lost(tmp_path):
    rng, over = Random(10), asyncio.Event()
    names = [f"n{i}" for i in range(1, 6)]
    spaces = ("vision", "speech", "robots", "sia")
    async with cluster(names, namespaces=spaces) as k8s:
        k8s.runs_for = 0.02
        async with serving(tmp_path, k8s, pools=POOLS) as service:
            k8s.trouble = trouble_of(rng)
            k8s.trouble.cluster = k8s
            shaking = asyncio.create_task(shaken(k8s, rng, over))
            await all_asked_for(service, k8s, rng)
            await until(lambda: len(ended(service)) > JOBS // 4)
            busy = k8s.used()
            lost = max(busy, key=busy.get) if busy else "n1"
            pods = [each for each in k8s.all("pods") if each["spec"].get("nodeName") == lost]
            begun = {each["metadata"]["labels"]["job-name"] for each in pods}
            k8s.lose(lost)
            await until(lambda: len(ended(service)) > JOBS // 2)
        async with serving(tmp_path, k8s, pools=POOLS) as service:  # the same again, a new daemon
            await until(lambda: len(ended(service)) > 3 * JOBS // 4)
        async with serving(tmp_path, k8s, pools=POOLS) as service:
            await until(lambda: len(ended(service)) == JOBS, 100)
            over.set()
            await shaking
        assert not overfull(k8s)
        met = k8s.trouble.met
        assert min(met[each] for each in ("429", "409", "500", "broken")) > 0, met
        assert len(service.book.ended) == JOBS
        phases = Counter(ended(service))
        pods = {each["metadata"]["name"]: each["spec"]["completions"] for each in k8s.all("jobs")}
        again = {name for name, times in k8s.ran.items() if times != pods.get(name)}
        assert again <= begun  # what was on the node that was lost
        assert phases["finished"] + phases["lost"] == JOBS, phases
