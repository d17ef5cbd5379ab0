"""Jobs stop, go on and change their width in an emulated Kubernetes, while the daemon is killed.

`make soak` does it 50 times, `make test` once for each moment at which the daemon is killed.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.support.budget import budget
from tests.support.clusters.kube import cluster, job, kubeconfig
from tests.support.daemons import daemons
from tests.support.daemons.served import ServedDaemon

MOMENTS = ("told", "waits", "gone")
"""The daemon is killed when Kubernetes ends the pods, and the pods are gone before the next daemon
is there, or after that; or the daemon is killed when the pods are gone."""

TIMES = budget(ci=3, soak=50)
POOL = {"sia.internal/pool": "vision"}
LONG = {"sia.internal/preemptible": "0s", "sia.internal/estimate": "20h"}
SHORT = {"sia.internal/preemptible": "never", "sia.internal/estimate": "1s"}
PATIENCE = 600.0
"""Seconds until a test that hangs is ended, and for each of its stops."""

SETTINGS = """\
policy = "{policy}"
forecast = "none"
grace = "2s"
stops_per_job = 1000
estimates = false
"""

REST = """\
[backend]
kind = "kubernetes"
kubeconfig = "{path}"
namespace = "gpu"
image = "registry/job:1"
poll = 0.1

[[pool]]
name = "vision"
quota = 8
"""


class Story:
    """A long job on a node of eight GPUs, and the short jobs that it makes room for."""

    def __init__(self, k8s, daemon):
        self.k8s, self.daemon, self.busiest = k8s, daemon, 0
        self.long = ""

    async def ask(self, *words):
        return await asyncio.to_thread(self.daemon.ask, *words)

    async def until(self, happens):
        await daemons.until(happens, daemons.LONG)

    async def phase_is(self, job_id, phase):
        """Wait until a job, which the daemon may yet have to adopt, is in a phase; return it."""

        def look():
            known = self.daemon.ask("GET", "/jobs?limit=500")["jobs"]
            known += self.daemon.ask("GET", "/history?limit=500")["jobs"]
            return next((j for j in known if (j["id"], j["phase"]) == (job_id, phase)), None)

        return await asyncio.to_thread(self.daemon.until, look, f"{job_id} to be {phase}")

    async def submit_long(self, whose):
        if whose == "own":
            self.long = "long"
            more = {"preemptible": 0, "run_time": 72000, "command": ["run"]}
            body = {"id": "long", "pool": "vision", "gpus": 8, **more}
            await self.ask("POST", "/jobs", {"jobs": [body]})
        else:
            self.long = await self.adopt("long", 2, 4, LONG)

    async def adopt(self, name, gpus, pods, notes):
        """Make the Job of a user, and return its job's id once the daemon knows it."""
        made = self.k8s.make("jobs", job(name, gpus, pods, labels=POOL, notes=notes), "gpu")
        return f"k8s-gpu.{name}-{made['metadata']['uid'][:8]}"

    def job_of_long(self):
        """The Job of the present attempt of the long job."""
        found = [each for each in self.k8s.all("jobs") if "long" in each["metadata"]["name"]]
        return max(found, key=lambda each: int(each["metadata"]["resourceVersion"]), default=None)

    def leaving(self):
        """How many pods of the long job have been ended and still hold GPUs."""
        return sum(
            "long" in pod["metadata"]["name"] and bool(pod["metadata"].get("deletionTimestamp"))
            for pod in self.k8s.all("pods")
        )

    async def killed_at(self, moment, name, pods):
        """Kill the daemon while so many pods of the long job, whose Job has this name, leave."""
        await self.until(lambda: self.leaving() == pods)
        if moment == "gone":
            self.k8s.leave(name)
        self.daemon.kill()
        for lease in self.k8s.all("leases"):  # the next daemon need not wait until it expires
            self.k8s.remove("leases", lease["metadata"])
        if moment == "told":
            self.k8s.leave(name)
        self.daemon.start()
        if moment == "waits":
            await asyncio.to_thread(self.daemon.ask, "GET", "/pools")  # it has begun
            assert self.leaving() == pods
            self.k8s.leave(name)


@asynccontextmanager
async def told(folder, policy):
    async with cluster(("n1",), namespaces=("gpu", "sia")) as k8s:
        k8s.runs_for = None
        rest = REST.format(path=kubeconfig(folder, k8s.address))
        daemon = ServedDaemon(folder, SETTINGS.format(policy=policy), rest)
        daemon.start()
        watch = asyncio.create_task(never_overfull(k8s))
        try:
            yield Story(k8s, daemon)
            assert not watch.done() or watch.result()
        finally:
            watch.cancel()
            await asyncio.to_thread(daemon.stop)


async def never_overfull(k8s):
    """End with an error when more GPUs of the node are in use than there are."""
    while True:
        assert max(k8s.used().values(), default=0) <= 8, k8s.used()
        await k8s.wake.wait()


def run(story):
    asyncio.run(asyncio.wait_for(story, PATIENCE + 60 * TIMES))


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("whose", ["own", "adopted"])
def test_a_job_stops_and_goes_on_and_nothing_is_lost_or_started_twice(tmp_path, whose):
    async def story():
        async with told(tmp_path, "srtf") as it:
            k8s = it.k8s
            await it.submit_long(whose)
            await it.phase_is(it.long, "running")
            uids = {it.job_of_long()["metadata"]["uid"]}
            for i in range(TIMES):
                name = it.job_of_long()["metadata"]["name"]
                k8s.lingers.add(name)
                short = await it.adopt(f"short{i}", 8, 1, SHORT)
                await it.killed_at(MOMENTS[i % len(MOMENTS)], name, 4 if whose == "adopted" else 1)
                await it.phase_is(short, "running")
                assert k8s.ran[f"short{i}"] == 1
                k8s.finish(f"short{i}")
                await it.phase_is(short, "finished")
                found = await it.phase_is(it.long, "running")
                assert found["attempt"] == i + 2
                uids.add(it.job_of_long()["metadata"]["uid"])
            k8s.finish(it.job_of_long()["metadata"]["name"])
            await it.phase_is(it.long, "finished")
            starts = {name: n for name, n in k8s.ran.items() if "long" in name}
            if whose == "adopted":
                assert (len(uids), starts) == (1, {"long": 4 * (TIMES + 1)})
            else:
                assert len(uids) == TIMES + 1
                assert [*starts.values()] == [1] * (TIMES + 1)
                await it.until(
                    lambda: (
                        len([j for j in k8s.all("jobs") if "long" in j["metadata"]["name"]]) == 1
                    )
                )

    run(story())


WIDTHS = {"sia.internal/min_width": "4", "sia.internal/max_width": "8"}


@pytest.mark.usefixtures("leaves_nothing")
def test_a_job_becomes_narrower_in_place_and_wider_by_a_stop(tmp_path):
    async def story():
        async with told(tmp_path, "emmfs") as it:
            k8s = it.k8s
            it.long = await it.adopt("long", 2, 4, {**LONG, **WIDTHS})
            await it.phase_is(it.long, "running")
            uid = it.job_of_long()["metadata"]["uid"]
            for i in range(TIMES):
                k8s.lingers.add("long")
                short = await it.adopt(f"short{i}", 4, 1, SHORT)
                await it.killed_at(MOMENTS[i % len(MOMENTS)], "long", 2)
                await it.phase_is(short, "running")
                found = await it.phase_is(it.long, "running")
                assert (found["attempt"], it.job_of_long()["spec"]["parallelism"]) == (i + 1, 2)
                k8s.finish(f"short{i}")
                await it.phase_is(short, "finished")
                await it.until(lambda: it.job_of_long()["spec"]["parallelism"] == 4)
                found = await it.phase_is(it.long, "running")
                assert found["attempt"] == i + 2
                await it.until(lambda: k8s.used()["n1"] == 8)
            assert it.job_of_long()["metadata"]["uid"] == uid

    run(story())
