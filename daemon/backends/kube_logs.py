"""What the pods of a job wrote, as Kubernetes keeps it: asked for piece by piece, and kept nowhere.

Kubernetes knows no offsets: a piece is had by reading from the beginning, and so there is a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from daemon.backends import Asked, LogError, Piece
from daemon.backends.kube_api import Kube, KubeError, KubeExpiredError
from daemon.backends.kube_api import KubeRefusedError as Refused
from daemon.backends.kube_runs import Ref, jobs_path, name_of
from daemon.backends.kube_shapes import INDEX, MAIN, ORDER, Job, Pod, PodSpec, gpus_of_pod
from daemon.book import JobRecord
from daemon.config_kube import KubeConfig

MOST = 16 * 2**20
"""Bytes of a log that are read to come to a piece: a kubelet begins another file after 10 MiB."""

TAIL = 2000
"""Lines that are read for the last bytes of a log: more than a page shows."""

TIMEOUT = 10.0
"""Seconds for an answer; somebody waits for it."""

AT_ONCE = 2
"""Requests on their way at a time: they are read whole, and the kubelet's disk has other work."""


class Logs:
    """Reads them."""

    def __init__(self, config: KubeConfig, name: str) -> None:
        """For the daemon of that name; by a client of its own, so that nothing rests for it."""
        self._config, self._name = config, name
        self._kube = Kube(config, tries=1, timeout=TIMEOUT)
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._kube.close()

    async def read(self, record: JobRecord, asked: Asked) -> Piece | None:
        """A piece; None where there is nothing. Raises LogError where it cannot be had."""
        if asked.stream != "stdout":
            raise LogError("Kubernetes keeps what pods write as one", "ask for stdout")
        if asked.after > MOST:
            raise LogError(f"it is more than {MOST >> 20} MiB", "see: kubectl logs")
        async with self._turn:
            try:
                return await self._read(record, asked)
            except KubeError as error:
                raise LogError(error.why, error.mend) from None
            except Refused:  # no such pod, or it has not begun
                return None

    async def _read(self, record: JobRecord, asked: Asked) -> Piece | None:
        uid, space = await self._job(record, asked.attempt)
        pods = await self._pods(space, uid) if uid else []
        if not pods:
            return None
        pod = pods[0]
        path = f"/api/v1/namespaces/{space}/pods/{pod.metadata.name}/log"
        query = {"container": _container(pod, self._config.gpu)}
        if asked.tail is not None:
            query["tailLines"], query["limitBytes"] = str(TAIL), str(MOST)
            return Piece(None, (await self._kube.text(path, query))[-asked.tail :])
        query["limitBytes"] = str(asked.after + asked.most)
        said = await self._kube.text(path, query)
        after = asked.after if asked.after <= len(said) else 0  # another file has begun
        return Piece(after, said[after : after + asked.most])

    async def _job(self, record: JobRecord, attempt: int) -> tuple[str, str]:
        """The uid of an attempt's Job, and its namespace; nothing where it is gone."""
        spec = record.spec
        if spec.origin:  # each attempt is the same Job, and has its pods taken away
            ref = Ref.of(spec.origin)
            return (ref.uid if attempt == record.attempt else "", ref.namespace)
        space = self._config.namespace_of(spec.pool)
        name = name_of(self._name, spec.id, attempt)
        job = await self._kube.get(f"{jobs_path(space)}/{name}", Job)
        return (job.metadata.uid if job.metadata.note(ORDER) else "", space)

    async def _pods(self, space: str, uid: str) -> Sequence[Pod]:
        """Those of a Job, the first of them first, and of these the one that began last."""
        path, found = f"/api/v1/namespaces/{space}/pods", list[Pod]()
        try:
            async for page in self._kube.pages(path, {"labelSelector": f"controller-uid={uid}"}):
                found += [msgspec.json.decode(raw, type=Pod) for raw in page.items]
        except (KubeExpiredError, msgspec.MsgspecError) as error:
            raise KubeError(f"its pods are not understood: {error}"[:300]) from None
        found.sort(key=lambda pod: pod.metadata.creation_timestamp, reverse=True)
        return sorted(found, key=_index)


def _index(pod: Pod) -> int:
    """Its number among those of its Job; those without one are alike."""
    said = pod.metadata.note(INDEX)
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 9 else 0


def _container(pod: Pod, gpu: str) -> str:
    """The one that people mean: as the pod says, or the first that has GPUs, or the first."""
    named = [each.name for each in pod.spec.containers]
    meant = pod.metadata.note(MAIN)
    if meant in named:
        return meant
    busy = (e.name for e in pod.spec.containers if gpus_of_pod(PodSpec([e]), gpu))
    return next(busy, named[0] if named else "")
