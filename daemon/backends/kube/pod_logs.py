"""What the pods of a job wrote, as Kubernetes keeps it: asked for piece by piece.

Kubernetes knows no offsets: a piece is had by reading from the beginning. So there is a bound, more
is read than was asked for, what was read last is kept for a while, and who asks for the end of a
log is answered by one look for all of them. A kubelet may take as long as it likes: nobody waits
for it longer than a moment.
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
"""Bytes of a log that are read to come to a piece: a kubelet begins another file after 10 MiB."""

AHEAD = 2**20
"""Bytes that are read beyond the beginning of a piece, or as many as are before it: all of a log is
had by reading twice as much, however many pieces that are."""

READ = 2**19
"""Bytes a second that are read of a log that goes on, for all who follow it: it is looked at the
less often the longer it is."""

KEPT = 4
"""Logs of which what was read last is kept: half of `MOST` each, at most."""

LINE = 64
"""Bytes of a line, as few as there are in most logs: so many lines are read for the last bytes."""

LINES = 200
"""Lines that are read for them at least: a page's worth."""

ENDS = 64
"""Ends of logs that are kept, of 256 KiB at most."""

REST = 20
"""An end is kept so many times as long as it took to read, as `sia.js` asks for pages."""

LONGEST = 60.0
"""Seconds for which it is kept at most."""

WAIT = 1.0
"""Seconds for which somebody waits: for the turn, and for the end of a log. Pages wait for it."""

TIMEOUT = 10.0
"""Seconds for all requests that one look takes."""

AT_ONCE = 2
"""Looks at a time: they are read whole, and the kubelet's disk has other work."""

BUSY = "others' logs are being read, and these take long"
SLOW = "Kubernetes has not said yet what it wrote"
AGAIN = "ask again; kubectl logs says the same, and waits longer"

LogKey = tuple[str, int, bool]
"""A job, an attempt of it, and whether that is over: what it had written before is not all."""


K = TypeVar("K")
V = TypeVar("V")


class Read(NamedTuple):
    """What was read last of a log: bytes from `after` on; `whole` if it has no more so far."""

    after: int
    data: bytes
    whole: bool
    until: float
    """By the loop's clock, until when nobody looks for more."""

    def piece(self, asked: LogRequest, now: float) -> LogChunk | None:
        """What is asked for, if it is in it."""
        begin = asked.after - self.after
        known = self.whole and now < self.until
        if begin < 0 or begin + (0 if known else asked.most) > len(self.data):
            return None
        return LogChunk(asked.after, self.data[begin : begin + asked.most])


class LogTail:
    """A look at the end of a log, which may be under way.

    Attributes:
        until: By the loop's clock, until when what it found is told; it may be under way.
    """

    task: asyncio.Task[bytes | None]
    until = 0.0

    def told(self, now: float) -> bool:
        """Whether nobody is to look again."""
        return not self.task.done() or now < self.until


class Logs:
    """Reads them."""

    def __init__(self, config: KubeConfig, name: str) -> None:
        """For the daemon of that name; by a client of its own, so that nothing rests for it."""
        self._config, self._name = config, name
        self._kube = Kube(config, tries=1, timeout=TIMEOUT)
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._reads: OrderedDict[LogKey, Read] = OrderedDict()
        self._ends: OrderedDict[tuple[LogKey, int], LogTail] = OrderedDict()
        self._slow: OrderedDict[LogKey, float] = OrderedDict()

    async def close(self) -> None:
        """Let go of the connections."""
        tasks = [end.task for end in self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._kube.close()

    async def read(self, record: JobRecord, asked: LogRequest) -> LogChunk | None:
        """A piece; None where there is nothing. Raises LogError where it cannot be had."""
        if asked.stream != "stdout":
            raise LogError("Kubernetes keeps what pods write as one", "ask for stdout")
        if asked.after > MOST:
            raise LogError(f"it is more than {MOST >> 20} MiB", "see: kubectl logs")
        over = asked.attempt != record.attempt or record.phase not in ON_GPUS
        key = (record.spec.id, asked.attempt, over)
        if asked.tail is not None:
            data = await self._end(key, record, asked)
            return None if data is None else LogChunk(None, data[-asked.tail :])
        found = self._known(key, asked)
        if found is None:
            async with self._look(key):
                found = self._known(key, asked) or await self._piece(key, record, asked)
        return found

    def _known(self, key: LogKey, asked: LogRequest) -> LogChunk | None:
        """A piece of what was read before."""
        read = self._reads.get(key)
        return None if read is None else read.piece(asked, asyncio.get_running_loop().time())

    async def _piece(self, key: LogKey, record: JobRecord, asked: LogRequest) -> LogChunk | None:
        most = min(asked.after + max(asked.after, AHEAD), MOST + asked.most)
        said = await self._text(record, asked.attempt, {"limitBytes": str(most)})
        if said is None:
            return None
        after = asked.after if asked.after <= len(said) else 0  # another file has begun
        until = asyncio.get_running_loop().time() + len(said) / READ
        self._reads[key] = Read(after, said[after:], len(said) < most, until)
        _bound(self._reads, key, KEPT)
        return LogChunk(after, said[after : after + asked.most])

    async def _end(self, key: LogKey, record: JobRecord, asked: LogRequest) -> bytes | None:
        """The last bytes, as one look finds them for all who ask meanwhile."""
        lines = max(LINES, (asked.tail or 0) // LINE)
        end = self._ends.get((key, lines))
        if end is None or not end.told(asyncio.get_running_loop().time()):
            end = self._ends[key, lines] = LogTail()
            end.task = asyncio.create_task(self._last(end, key, record, asked, lines))
            end.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        gone = _bound(self._ends, (key, lines), ENDS)
        if gone is not None:
            gone.task.cancel()
        await asyncio.wait([end.task], timeout=WAIT)
        if not end.task.done() or end.task.cancelled():
            raise LogError(SLOW, AGAIN, WAIT)
        error = end.task.exception()
        if isinstance(error, LogError):  # for each who asks one of their own
            raise LogError(error.why, error.mend, error.again)
        return end.task.result()

    async def _last(
        self, end: LogTail, key: LogKey, record: JobRecord, asked: LogRequest, lines: int
    ) -> bytes | None:
        """Of so many lines; of fewer where they are long: of too many bytes the first come."""
        async with self._look(key):
            now = asyncio.get_running_loop().time
            began = now()
            try:
                while True:
                    query = {"tailLines": str(lines), "limitBytes": str(MOST)}
                    said = await self._text(record, asked.attempt, query)
                    if said is None or len(said) < MOST or lines == 1:
                        return None if said is None else said[-asked.most :]
                    lines = max(1, lines // 10)
            finally:
                end.until = now() + min(REST * (now() - began), LONGEST)

    @asynccontextmanager
    async def _look(self, key: LogKey) -> AsyncIterator[None]:
        """One's turn, if it comes soon. Raises LogError, whatever Kubernetes says.

        Whose log did not come in time is not asked for again at once: others' would wait for it.
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
        """What its first pod wrote; None where there is no such pod, or it has not begun."""
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
        """The uid of an attempt's Job, and its namespace; nothing where it is gone."""
        spec = record.spec
        if spec.origin:  # each attempt is the same Job, and has its pods taken away
            ref = Ref.of(spec.origin)
            return (ref.uid if attempt == record.attempt else "", ref.namespace)
        space = self._config.namespace_of(spec.pool)
        name = name_of(self._name, spec.id, attempt)
        job = await self._kube.get(f"{jobs_path(space)}/{name}", KubeJob)
        return (job.metadata.uid if job.metadata.note(ORDER) else "", space)


def _bound(kept: OrderedDict[K, V], key: K, most: int) -> V | None:
    """Have that be the last that goes; returns what goes where there are too many."""
    kept.move_to_end(key)
    return kept.popitem(last=False)[1] if len(kept) > most else None


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
