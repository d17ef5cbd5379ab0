"""Kubernetes, in an emulator: Jobs are made, released, followed to their end."""

from doors import story
from kube_cluster import cluster
from kube_daemons import phase_is, serving, submit


@story
async def test_a_job_is_made_suspended_released_and_followed_to_its_end(tmp_path):
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        await submit(service, "one", gpus=2)
        record = await phase_is(service, "one", "finished")
        assert record.code == 0
        (there,) = k8s.all("jobs")
        assert k8s.ran[there["metadata"]["name"]] == 1
