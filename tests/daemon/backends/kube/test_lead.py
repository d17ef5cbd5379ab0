"""Who acts in a cluster: whoever has the Lease, and keeps it, and nobody a moment longer."""

import pytest

from daemon.backends.kube import KubeSection, lease
from daemon.backends.kube.client import WRITE_TIMEOUT, Kube, KubeError
from daemon.backends.kube.schema import KubeJob
from tests.support.clusters.kube import cluster, failure, job, kubeconfig
from tests.support.clusters.kube_daemons import client_of, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story


class Brief:
    """A fence that holds for so many questions."""

    epoch = 1

    def __init__(self, times):
        self.left = times

    def holds(self):
        self.left -= 1
        return self.left >= 0


async def leads(client):
    text = await (await client.get("/metrics")).text()
    return [line for line in text.splitlines() if line.startswith("sia_leader ")]


@story
async def test_a_daemon_that_lost_the_lease_sends_no_postponed_action(tmp_path):
    async with cluster() as k8s:
        made = k8s.make("jobs", job("one"), "vision")
        k8s.trouble = lambda *_: failure(429, "TooManyRequests", "slow down", Retry_After="0")
        kube = Kube(KubeSection(kubeconfig=str(kubeconfig(tmp_path, k8s.address))))
        kube.fence = Brief(1)
        path = f"/apis/batch/v1/namespaces/vision/jobs/{made['metadata']['name']}"
        try:
            with pytest.raises(KubeError, match="no longer the leader"):
                await kube.patch(path, {"spec": {"suspend": False}}, KubeJob)
            assert k8s.verbs["patch", "jobs"] == 1
        finally:
            await kube.close()


@story
async def test_the_lease_is_renewed_while_nothing_else_happens(tmp_path):
    async with cluster() as k8s:
        before, lease.RENEW = lease.RENEW, 0.05
        try:
            async with serving(tmp_path, k8s) as service:
                rests = []

                def trouble(verb, request):
                    if (verb, request.resource.plural) != ("patch", "jobs"):
                        return None
                    rests.append(k8s.verbs["patch", "leases"])
                    return failure(429, "TooManyRequests", "slow down", Retry_After="600")

                k8s.trouble = trouble
                await submit(service, "one")
                await until(lambda: rests)
                await until(lambda: k8s.verbs["patch", "leases"] > rests[0] + 3)
                assert service.backend.fence.holds()
                assert len(rests) == 1
        finally:
            lease.RENEW = before


def test_the_times_of_a_lease_fit_together():
    """A write is given up, and a renewal that hangs is followed by one that does not, in time."""
    acts = lease.LASTS - lease.MARGIN
    assert lease.MARGIN > WRITE_TIMEOUT
    assert acts > lease.RENEW + 2 * lease.TIMEOUT + lease.RETRY


@story
async def test_only_one_of_two_daemons_is_the_leader(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with cluster() as k8s, client_of(tmp_path / "a", k8s) as one:
        await until(one.service.backend.fence.holds)
        async with client_of(tmp_path / "b", k8s) as two:
            await until(lambda: any("another" in part.why for part in two.service.parts.all()))
            assert await leads(one) == ["sia_leader 1.0"]
            assert await leads(two) == ["sia_leader 0.0"]
