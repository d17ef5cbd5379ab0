"""Read the output of a job's pods from Kubernetes, piece by piece.

The API has no offsets, so each piece is read from the start of the log. Therefore the size is
limited, reads go beyond the requested piece, the last reads are cached, and one request for the end
of a log serves all clients. A kubelet may be slow; clients wait at most `WAIT` seconds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from daemon.backends.interface import LogChunk, LogError, LogRequest
from daemon.backends.kube.attempts import Ref, jobs_path, name_of
from daemon.backends.kube.client import Kube, KubeError, KubeForbiddenError
from daemon.backends.kube.client import KubeRefusedError as Refused
from daemon.backends.kube.completion import pods_of
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.schema import INDEX, MAIN, ORDER, KubeJob, Pod, PodSpec, gpus_of_pod
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS

MOST = 16 * 2**20
"""Maximum bytes read for a piece; kubelets rotate logs at 10 MiB by default."""

AHEAD = 2**20
"""Bytes read beyond a piece, or as many as precede the piece. Then reading a whole log in pieces
reads at most twice its size."""

READ = 2**19
"""Bytes per second read from a growing log for all its readers. The longer the log, the less often
it is read."""

KEPT = 4
"""Number of logs whose last read is cached, with at most half of `MOST` bytes each."""

LINE = 64
"""Assumed minimum bytes of a line, to convert bytes from the end to lines."""

LINES = 200
"""Minimum lines read for the end of a log: enough for a page."""

ENDS = 64
"""Number of cached log ends, at most 256 KiB each."""

REST = 20
"""Lifetime of a cached end, as a multiple of the time that the read took; like REST in `sia.js`."""

LONGEST = 60.0
"""Maximum lifetime of a cached end in seconds."""

WAIT = 1.0
"""Maximum seconds a client waits, for a slot or for the end of a log; pages wait for this."""

TIMEOUT = 10.0
"""Seconds for all requests of one read."""

AT_ONCE = 2
"""Maximum number of concurrent reads: they are held in memory, and load the kubelet's disk."""

BUSY = "too many slow logs are being read"
SLOW = "Kubernetes has not returned the log yet"
AGAIN = "try again, or use kubectl logs, which waits longer"

LogKey = tuple[str, int, bool]
"""Job id, attempt number, and whether the attempt has ended: reads before the end may be
incomplete."""


K = TypeVar("K")
V = TypeVar("V")


class Read(NamedTuple):
    """The last read of a log: bytes from `after`; `whole` if the log had no more."""

    after: int
    data: bytes
    whole: bool
    until: float
    """Loop time until which the read counts as current."""

    def piece(self, request: LogRequest, now: float) -> LogChunk | None:
        """Return the requested piece if it is in this read."""
        begin = request.after - self.after
        known = self.whole and now < self.until
        if begin < 0 or begin + (0 if known else request.most) > len(self.data):
            return None
        return LogChunk(request.after, self.data[begin : begin + request.most])


class LogTail:
    """A read of the end of a log, possibly in progress.

    Attributes:
        until: Loop time until which the result is reused.
    """

    task: asyncio.Task[bytes | None]
    until = 0.0

    def current(self, now: float) -> bool:
        """Return whether the read is in progress or still current."""
        return not self.task.done() or now < self.until


class Logs:
    """Reads the output of pods."""

    def __init__(self, config: KubeConfig, name: str) -> None:
        """Create a reader with its own client, whose delays do not affect other requests."""
        self._config, self._name = config, name
        self._kube = Kube(config, tries=1, timeout=TIMEOUT)
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._reads: OrderedDict[LogKey, Read] = OrderedDict()
        self._ends: OrderedDict[tuple[LogKey, int], LogTail] = OrderedDict()
        self._slow: OrderedDict[LogKey, float] = OrderedDict()

    async def close(self) -> None:
        """Cancel reads and close the connections."""
        tasks = [end.task for end in self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._kube.close()

    async def read(self, record: JobRecord, request: LogRequest) -> LogChunk | None:
        """Return a piece, or None if there is no output. Raises LogError if unavailable."""
        if request.stream != "stdout":
            raise LogError("Kubernetes stores stdout and stderr together", "use stdout")
        if request.after > MOST:
            raise LogError(f"the log exceeds {MOST >> 20} MiB", "use kubectl logs")
        over = request.attempt != record.attempt or record.phase not in ON_GPUS
        key = (record.spec.id, request.attempt, over)
        if request.tail is not None:
            data = await self._end(key, record, request)
            return None if data is None else LogChunk(None, data[-request.tail :])
        found = self._known(key, request)
        if found is None:
            async with self._look(key):
                found = self._known(key, request) or await self._piece(key, record, request)
        return found

    def _known(self, key: LogKey, request: LogRequest) -> LogChunk | None:
        """Return a piece from the cache."""
        read = self._reads.get(key)
        return None if read is None else read.piece(request, asyncio.get_running_loop().time())

    async def _piece(self, key: LogKey, record: JobRecord, request: LogRequest) -> LogChunk | None:
        most = min(request.after + max(request.after, AHEAD), MOST + request.most)
        text = await self._text(record, request.attempt, {"limitBytes": str(most)})
        if text is None:
            return None
        after = request.after if request.after <= len(text) else 0  # the log was rotated
        until = asyncio.get_running_loop().time() + len(text) / READ
        self._reads[key] = Read(after, text[after:], len(text) < most, until)
        _bound(self._reads, key, KEPT)
        return LogChunk(after, text[after : after + request.most])

    async def _end(self, key: LogKey, record: JobRecord, request: LogRequest) -> bytes | None:
        """Return the end of a log; concurrent requests share one read."""
        lines = max(LINES, (request.tail or 0) // LINE)
        end = self._ends.get((key, lines))
        if end is None or not end.current(asyncio.get_running_loop().time()):
            end = self._ends[key, lines] = LogTail()
            end.task = asyncio.create_task(self._last(end, key, record, request, lines))
            end.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        gone = _bound(self._ends, (key, lines), ENDS)
        if gone is not None:
            gone.task.cancel()
        await asyncio.wait([end.task], timeout=WAIT)
        if not end.task.done() or end.task.cancelled():
            raise LogError(SLOW, AGAIN, WAIT)
        error = end.task.exception()
        if isinstance(error, LogError):  # each client gets its own exception
            raise LogError(error.why, error.mend, error.again)
        return end.task.result()

    async def _last(
        self, end: LogTail, key: LogKey, record: JobRecord, request: LogRequest, lines: int
    ) -> bytes | None:
        """Read the last lines. If they exceed the limit, retry with fewer lines.

        Kubernetes would cut off the last bytes, not the first ones.
        """
        async with self._look(key):
            now = asyncio.get_running_loop().time
            began = now()
            try:
                while True:
                    query = {"tailLines": str(lines), "limitBytes": str(MOST)}
                    text = await self._text(record, request.attempt, query)
                    if text is None or len(text) < MOST or lines == 1:
                        return None if text is None else text[-request.most :]
                    lines = max(1, lines // 10)
            finally:
                end.until = now() + min(REST * (now() - began), LONGEST)

    @asynccontextmanager
    async def _look(self, key: LogKey) -> AsyncIterator[None]:
        """Wait for a slot. Raises LogError, also for errors of Kubernetes.

        A log that was slow is not read again for a while, so that other logs can use the slot.
        """
        now = asyncio.get_running_loop().time
        if now() < self._slow.get(key, 0.0):
            raise LogError(SLOW, AGAIN, WAIT)
        try:
            async with asyncio.timeout(WAIT):
                await self._turn.acquire()
        except TimeoutError:
            raise LogError(BUSY, AGAIN, WAIT) from None
        began = now()
        try:
            async with asyncio.timeout(TIMEOUT):
                yield
        except (TimeoutError, KubeError) as error:
            if now() - began > WAIT:
                self._slow[key] = now() + min(REST * (now() - began), LONGEST)
                _bound(self._slow, key, ENDS)
            if isinstance(error, KubeError):
                again = 0.0 if isinstance(error, KubeForbiddenError) else WAIT
                raise LogError(error.why, error.mend, again) from None
            raise LogError(SLOW, AGAIN, WAIT) from None
        finally:
            self._turn.release()

    async def _text(self, record: JobRecord, attempt: int, query: dict[str, str]) -> bytes | None:
        """Return the output of the first pod; None if it does not exist or has not started."""
        try:
            uid, space = await self._job(record, attempt)
            found = await pods_of(self._kube, space, uid) if uid else []
            pods = [pod for pod in found if pod.metadata.owned_by(uid)]
            if not pods:
                return None
            pods.sort(key=lambda pod: pod.metadata.creation_timestamp, reverse=True)
            pod = min(pods, key=_index)
            path = f"/api/v1/namespaces/{space}/pods/{pod.metadata.name}/log"
            query = {**query, "container": _container(pod, self._config.gpu)}
            return await self._kube.text(path, query)
        except Refused:
            return None

    async def _job(self, record: JobRecord, attempt: int) -> tuple[str, str]:
        """Return uid and namespace of an attempt's Job; the uid is "" if it is gone."""
        spec = record.spec
        if spec.origin:  # all attempts share one Job, and its earlier pods are deleted
            ref = Ref.of(spec.origin)
            return (ref.uid if attempt == record.attempt else "", ref.namespace)
        space = self._config.namespace_of(spec.pool)
        name = name_of(self._name, spec.id, attempt)
        job = await self._kube.get(f"{jobs_path(space)}/{name}", KubeJob)
        return (job.metadata.uid if job.metadata.note(ORDER) else "", space)


def _bound(cache: OrderedDict[K, V], key: K, most: int) -> V | None:
    """Mark a key as most recently used; remove and return the oldest value above the limit."""
    cache.move_to_end(key)
    return cache.popitem(last=False)[1] if len(cache) > most else None


def _index(pod: Pod) -> int:
    """Return the completion index of a pod, 0 without one."""
    text = pod.metadata.note(INDEX)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0


def _container(pod: Pod, gpu: str) -> str:
    """Return the main container: as annotated, else the first with GPUs, else the first."""
    named = [each.name for each in pod.spec.containers]
    meant = pod.metadata.note(MAIN)
    if meant in named:
        return meant
    busy = (e.name for e in pod.spec.containers if gpus_of_pod(PodSpec([e]), gpu))
    return next(busy, named[0] if named else "")
