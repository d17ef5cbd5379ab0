"""A short story on a real cluster: SIA_KUBECONFIG says which, SIA_KUBE_NAMESPACE where.

Nothing else may use that namespace's GPUs meanwhile. Without a GPU, SIA_KUBE_GPU names an extended
resource that a node was given (kubectl patch node … --subresource=status).
"""

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest

from daemon.backends.kube import KubeSection
from daemon.backends.kube.attempts import jobs_path
from daemon.backends.kube.client import Kube
from daemon.backends.kube.schema import KubeJob
from daemon.config.config import PoolConfig
from daemon.process.build import build
from daemon.service.observer import Observer
from tests.support.clusters.kube import job as job_body
from tests.support.clusters.kube_daemons import phase_is, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import config_in, story

FILE = os.environ.get("SIA_KUBECONFIG", "")
FILE = FILE and str(Path(FILE).absolute())
SPACE = os.environ.get("SIA_KUBE_NAMESPACE", "sia-test")
GPU = os.environ.get("SIA_KUBE_GPU", "nvidia.com/gpu")
IMAGE = os.environ.get("SIA_KUBE_IMAGE", "busybox:1.36")

pytestmark = [
    pytest.mark.skipif(not FILE, reason="no SIA_KUBECONFIG: nobody has given a cluster"),
]


@story
async def test_jobs_run_on_a_real_cluster(tmp_path):
    backend = KubeSection(
        kubeconfig=FILE, home=SPACE, namespaces={"a": SPACE}, gpu=GPU,
        image=IMAGE, tolerations=(GPU,), keep=60.0,
    )  # fmt: skip
    config = config_in(tmp_path, pools=(PoolConfig("a", 1),), backend=backend)
    daemon = await asyncio.to_thread(build, config, Observer())
    service, kube, tail = daemon.service, Kube(backend), uuid4().hex[:6]
    await service.start()
    try:
        await submit(service, f"good-{tail}", "a", command=("sh", "-c", 'test "$SIA_POOL" = a'))
        await submit(service, f"bad-{tail}", "a", command=("sh", "-c", "exit 3"))
        body = job_body(f"theirs-{tail}", labels={"sia.internal/pool": "a"})
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "command": ["true"], "resources": {"limits": {GPU: "1"}}}
        await kube.create(jobs_path(SPACE), body, KubeJob)
        assert (await phase_is(service, f"good-{tail}", "finished")).code == 0
        assert (await phase_is(service, f"bad-{tail}", "failed")).code == 3
        await until(lambda: any(r.spec.origin for r in service.book.ended.values()), 300)
        (theirs,) = [r for r in service.book.ended.values() if r.spec.origin]
        assert theirs.phase.value == "finished"
    finally:
        await service.stop()
        await kube.close()
