"""Cost of a Kubernetes with many Jobs for the daemon: a list, an event, a poll. No network.

.venv/bin/python -m benchmarks.daemon.kube 1000 10000
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from daemon.backends.kube.schema import KubeJob
from daemon.backends.kube.watch import WatchCache

EVENTS = 10_000


def job(i: int) -> dict[str, Any]:
    """Return a Job of realistic size, with the fields that kubectl and the controller add."""
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    containers = [{"name": "main", "image": "x" * 80, "resources": limits, "env": [{"name": "A"}]}]
    meta = {
        "name": f"train-{i}", "namespace": "vision", "uid": f"{i:036}", "resourceVersion": "1",
        "labels": {"sia.internal/pool": "vision"}, "managedFields": [{"v1": {"f": "x" * 2000}}],
    }  # fmt: skip
    spec = {"suspend": True, "parallelism": 1, "template": {"spec": {"containers": containers}}}
    return {"metadata": meta, "spec": spec, "status": {"conditions": []}}


async def measure(many: int) -> None:
    """Seconds for a list of so many Jobs, and for each event of one."""
    rows = [json.dumps(job(i)).encode() for i in range(many)]

    async def pages(_path: str, _query: dict[str, str]) -> Any:
        yield SimpleNamespace(items=rows, metadata=SimpleNamespace(resource_version="1"))

    mirror = WatchCache(SimpleNamespace(pages=pages), "/x", KubeJob, lambda _: None)  # type: ignore[arg-type]
    began = time.perf_counter()
    await mirror._list()  # noqa: SLF001
    listed = time.perf_counter() - began
    found = [
        json.dumps({"type": "MODIFIED", "object": {**job(i % many), "status": {"active": i}}})
        for i in range(EVENTS)
    ]
    lines = [each.encode() for each in found]
    began = time.perf_counter()
    for line in lines:
        mirror._hear(line)  # noqa: SLF001
    heard = time.perf_counter() - began
    print(f"{many} Jobs: listed in {listed:.3f} s; {EVENTS / heard:,.0f} events/s")


for number in map(int, sys.argv[1:] or ["1000", "10000"]):
    asyncio.run(measure(number))
