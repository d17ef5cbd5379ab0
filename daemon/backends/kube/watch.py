"""Cache of an API collection: listed once, then kept up to date by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import uniform
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from daemon.backends.kube.attempts import plain
from daemon.backends.kube.client import (
    GONE,
    Kube,
    KubeError,
    KubeExpiredError,
    KubeRefusedError,
    KubeSilentError,
)
from daemon.backends.kube.schema import Meta
from daemon.runtime.logs import log

WATCH_FOR = 90
"""Seconds after which the server ends a watch. Less than SILENT, so that a watch without changes
ends regularly even if the server sends no bookmarks."""

SILENT = 120.0
"""Seconds without a byte after which a watch is restarted, because the connection may be dead.
Silence is not an error; a failure of the new watch is one."""

MAX_LINE = 8 * 2**20
"""Maximum bytes of one event; etcd limits objects to 1.5 MB."""

AGAIN = (0.2, 30.0)
"""First and maximum delay between retries, in seconds."""


LASTED = 5.0
"""Seconds that a watch without events must last to reset the retry delay."""


class _Object(Protocol):
    """An object of a collection."""

    @property
    def metadata(self) -> Meta:
        """Name and version of the object."""


K = TypeVar("K", bound=_Object)


class _Event(Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Named(Struct, frozen=True):
    name: str


class _Bare(Struct, frozen=True):
    metadata: _Named


class _Failure(Struct, frozen=True):
    code: int = 0
    message: str = ""


class WatchCache(Generic[K]):
    """Objects by name. Results of the daemon's own writes appear at once, before the watch.

    Attributes:
        objects: Objects by name.
        unread: Names of objects that could not be parsed.
        synced: Whether a full list has completed.
        trouble: Reason and fix if the cache is not up to date; else empty.
    """

    def __init__(self, kube: Kube, path: str, kind: type[K], news: Callable[[str], None]) -> None:
        """`news` receives the name of each object that was added, changed or deleted."""
        self._kube, self._path, self._kind, self._news = kube, path, kind, news
        self.objects: dict[str, K] = {}
        self.unread: set[str] = set()
        self.synced = False
        self.trouble = "", ""
        self._version, self._heard = "", False
        self._decoder = msgspec.json.Decoder(kind)

    async def run(self) -> None:
        """Keep the cache up to date until cancelled; retries with growing delays."""
        loop = asyncio.get_running_loop()
        wait, began = AGAIN[0], loop.time()
        while True:
            try:
                if not self._version:
                    await self._list()
                began, self._heard = loop.time(), False
                await self._watch()
            except KubeSilentError:
                pass  # nothing has changed, or the connection is dead: the next watch shows which
            except KubeExpiredError:
                self._version = ""  # list again; if that fails too, the delay grows
            except KubeError as error:
                self._say(error.why, error.mend)
            except KubeRefusedError as error:
                self._say(str(error), GONE)
                self._version = ""
            well = self._heard or loop.time() - began > LASTED
            wait = AGAIN[0] if well else min(2 * wait, AGAIN[1])
            await asyncio.sleep(uniform(wait / 2, wait))  # noqa: S311  jitter

    def put(self, seen: K) -> None:
        """Store an object from a response of the server."""
        if self.objects.get(seen.metadata.name) != seen:
            self.objects[seen.metadata.name] = seen
            self.unread.discard(seen.metadata.name)
            self._news(seen.metadata.name)

    def drop(self, name: str) -> None:
        """Remove an object."""
        if self.objects.pop(name, None) is not None or name in self.unread:
            self.unread.discard(name)
            self._news(name)

    def _say(self, why: str, mend: str) -> None:
        if self.trouble != (why, mend):
            self.trouble = why, mend
            self._news("")

    async def _list(self) -> None:
        """List all objects; cached ones that are not listed are removed."""
        found: dict[str, K | None] = {}
        version = ""
        async for page in self._kube.pages(self._path, {}):
            for raw in page.items:
                name, seen = self._read(raw)
                if name:
                    found[name] = seen
            version = page.metadata.resource_version
        for name in [*self.objects, *self.unread]:
            if name not in found:
                self.drop(name)
        for name, seen in found.items():
            self._take(name, seen)
        self._version, self.synced = version, True
        self._news("")

    async def _watch(self) -> None:
        """Apply changes until the server ends the watch."""
        query = {
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_FOR),
        }
        async with self._kube.watch(self._path, query, SILENT) as stream:
            self._say("", "")
            async for line in _lines(stream):
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
            self._heard = event.type != "ERROR"
            if event.type == "ERROR":
                failure = msgspec.json.decode(event.object, type=_Failure)
                self._fail(failure)
            if event.type == "BOOKMARK":
                self._version = _version_of(event.object) or self._version
                return
            name, seen = self._read(event.object)
            version = _version_of(event.object)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = f"cannot parse an event of the watch of {self._path}: {error}"
            self._version = ""
            raise KubeError(why[:300], "report this with the version of Kubernetes") from None
        if event.type == "DELETED":
            self.drop(name)
        elif event.type in ("ADDED", "MODIFIED"):
            self._take(name, seen)
        self._version = version or self._version

    def _fail(self, failure: _Failure) -> None:
        if failure.code == 410:
            raise KubeExpiredError(failure.message)
        self._version = ""
        raise KubeError(f"a watch of {self._path} failed: {failure.message[:300]}")

    def _take(self, name: str, seen: K | None) -> None:
        if seen is not None:
            self.put(seen)
        elif name not in self.unread:
            self.objects.pop(name, None)
            self.unread.add(name)
            self._news(name)

    def _read(self, raw: msgspec.Raw) -> tuple[str, K | None]:
        """Parse an object; return its name, and None if it cannot be parsed."""
        try:
            seen = self._decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            name = msgspec.json.decode(raw, type=_Bare).metadata.name
            log().warning(
                "object cannot be parsed and is ignored",
                path=self._path, name=plain(name, 253), why=str(error)[:200],
            )  # fmt: skip
            return name, None
        return seen.metadata.name, seen


def _version_of(raw: msgspec.Raw) -> str:
    return msgspec.json.decode(raw, type=_Version).metadata.resource_version


class _VersionMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Version(Struct, frozen=True):
    metadata: _VersionMeta


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield complete lines; an incomplete last line is dropped."""
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE:
            raise KubeError(f"an event exceeds {MAX_LINE} bytes")
