"""Client for the Kubernetes API, and the classification of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config,
)
from msgspec import Struct

from daemon.backends.kube.config import KubeConfig
from daemon.runtime.fence import Fence

T = TypeVar("T")

TIMEOUT = 20.0
"""Timeout of a request in seconds; an API server gives up on etcd earlier."""

WRITE_TIMEOUT = 4.0
"""Timeout of a write in seconds. It is below `lease.MARGIN`, the time before the end of the lease
at which writes stop."""

LONGEST_REST = 60.0
"""Maximum Retry-After in seconds that is honoured."""

TRIES = 4
"""Maximum number of tries of a request that is answered with 429 or 503."""

MAX_ANSWER = 64 * 2**20
"""Maximum bytes of a response: more than 500 Jobs of the maximum size."""

PAGE = 500
"""Page size of a list, as in kubectl."""

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"

GONE = "check that the API server is running and reachable; the daemon retries"
NOBODY = (
    "set backend.kubeconfig, or run the daemon in a pod with a service account (check: kubectl "
    "--kubeconfig FILE auth whoami)"
)
RIGHTS = "grant the permission to the daemon's account; see docs/operate/kubernetes.md"


PASSED = "another daemon is the leader; this one continues when it holds the lease again"


class KubeError(Exception):
    """Kubernetes is unreachable: why, and the fix. The caller retries."""

    def __init__(self, why: str, mend: str = GONE) -> None:
        """Store the reason, one line, and the fix."""
        super().__init__(why)
        self.why, self.mend = why, mend


class KubeForbiddenError(KubeError):
    """The daemon's account lacks a permission."""


class KubeRefusedError(Exception):
    """Kubernetes refused a request; a retry would fail too."""


class KubeGoneError(KubeRefusedError):
    """The object does not exist."""


class KubeConflictError(KubeRefusedError):
    """The object exists already or has changed; it must be read again."""


class KubeSilentError(Exception):
    """A watch was silent for long, perhaps because nothing has changed."""


class KubeExpiredError(Exception):
    """The resource version is too old (410); a new list is needed."""


REFUSALS = {404: KubeGoneError, 409: KubeConflictError, 410: KubeExpiredError}
"""Exceptions by status."""


class _Status(Struct, frozen=True):
    """Error response of the API."""

    message: str = ""
    reason: str = ""
    code: int = 0


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Listed(Struct, frozen=True):
    """One page of a list."""

    items: Sequence[msgspec.Raw]
    metadata: _ListMeta


class Kube:
    """Client of one API server with one account. Use on one event loop.

    Attributes:
        fence: Checked right before each write; None for no check.
    """

    def __init__(self, config: KubeConfig, *, tries: int = TRIES, timeout: float = TIMEOUT) -> None:
        """Create the client without connecting; tries and timeout (seconds) per request."""
        self._config = config
        self._tries, self._timeout = tries, timeout
        self.fence: Fence | None = None
        self._client: ApiClient | None = None
        self._rest_until = 0.0

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def get(self, path: str, kind: type[T]) -> T:
        """Read an object. Raises KubeError or KubeRefusedError."""
        return _decoded(await self._ask("GET", path), kind)

    async def text(self, path: str, query: Mapping[str, str]) -> bytes:
        """Read plain text. Raises KubeError or KubeRefusedError."""
        return await self._ask("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Create an object. Raises KubeConflictError if the name is taken."""
        return _decoded(await self._ask("POST", path, body=body), kind)

    async def patch(
        self, path: str, body: Mapping[str, Any] | Sequence[Any], kind: type[T], how: str = MERGE
    ) -> T:
        """Patch an object. Raises KubeConflictError if it has changed."""
        return _decoded(await self._ask("PATCH", path, body=body, content=how), kind)

    async def replace(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Replace an object. Raises KubeConflictError if it has changed."""
        return _decoded(await self._ask("PUT", path, body=body), kind)

    async def delete(self, path: str, uid: str) -> None:
        """Delete an object with its pods, if it still has this uid."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},
        }
        await self._ask("DELETE", path, body=body)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Listed]:
        """Iterate over the pages of a list. Raises KubeExpiredError if it takes too long."""
        token = ""
        while True:
            asked = {**query, "limit": str(PAGE), **({"continue": token} if token else {})}
            page = _decoded(await self._ask("GET", path, query=asked), Listed)
            yield page
            token = page.metadata.continue_
            if not token:
                return

    @asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], silent: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Watch changes as lines until the server ends the watch or is silent for `silent` s."""
        timeout = aiohttp.ClientTimeout(sock_connect=TIMEOUT, sock_read=silent)
        response = await self._send("GET", path, {**query, "watch": "true"}, None, "", timeout)
        try:
            if response.status != 200:
                body = await response.content.read(MAX_ANSWER)
                raise _refusal(f"watch {path}", response.status, body)
            yield response.content
        except TimeoutError:
            raise KubeSilentError(f"the watch of {path} was silent for {silent:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise KubeError(f"the watch of {path} was interrupted: {_one_line(error)}") from None
        finally:
            response.close()

    async def _ask(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> bytes:  # fmt: skip
        most = self._timeout if method == "GET" else min(self._timeout, WRITE_TIMEOUT)
        timeout = aiohttp.ClientTimeout(total=most)
        for left in reversed(range(self._tries)):
            await self._rest()
            if method != "GET" and self.fence is not None and not self.fence.holds():
                raise KubeError(f"{method} {path}: this daemon is no longer the leader", PASSED)
            response = await self._send(method, path, query or {}, body, content, timeout)
            try:
                answer, whole = await _read(response.content)
            except (aiohttp.ClientError, OSError) as error:
                raise KubeError(f"{method} {path}: {_one_line(error)}") from None
            finally:
                response.release()
            if response.status < 300:
                if not whole:
                    raise KubeError(f"{method} {path}: the response exceeds {MAX_ANSWER} bytes")
                return answer
            later = _retry_after(response)
            if later is None or not left:
                break
            until = asyncio.get_running_loop().time() + later
            self._rest_until = max(self._rest_until, until)
        raise _refusal(f"{method} {path}", response.status, answer)

    async def _rest(self) -> None:
        """Wait until the server's last Retry-After is over; it applies to all requests."""
        left = self._rest_until - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  reads and writes differ
    ) -> aiohttp.ClientResponse:  # fmt: skip
        client = await self._opened()
        headers = {"Accept": "application/json", "User-Agent": "sia-scheduler"}
        if content:
            headers["Content-Type"] = content
        try:
            await client.update_params_for_auth(headers, [], ["BearerToken"])
            sent: aiohttp.ClientResponse = await client.rest_client.request(
                method, f"{client.configuration.host}{path}", query_params=dict(query),
                headers=headers, body=body, _preload_content=False, _request_timeout=timeout,
            )  # fmt: skip
        except (aiohttp.ClientError, OSError, ConfigException) as error:
            raise KubeError(f"{method} {path}: {_one_line(error)}") from None
        return sent

    async def _opened(self) -> ApiClient:
        """Return the API client of the configured account. Raises KubeError."""
        if self._client is not None:
            return self._client
        known, config = Configuration(), self._config
        try:
            if config.kubeconfig:
                await load_kube_config(
                    config_file=config.kubeconfig, context=config.context or None,
                    client_configuration=known, persist_config=False,
                )  # fmt: skip
            else:
                load_incluster_config(client_configuration=known)  # type: ignore[no-untyped-call]
            self._client = ApiClient(known)
        except Exception as error:  # noqa: BLE001  a malformed file can raise anything
            where = config.kubeconfig or "the pod's service account"
            raise KubeError(f"{where}: {_one_line(error)}", NOBODY) from None
        return self._client


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"cannot parse the API server's response: {error}"
        raise KubeError(why[:300], "report this with the version of Kubernetes") from None


async def _read(content: aiohttp.StreamReader) -> tuple[bytes, bool]:
    """Read a response up to `MAX_ANSWER`; return whether it is complete."""
    pieces, size = list[bytes](), 0
    async for piece in content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER:
            return b"".join(pieces), False
    return b"".join(pieces), True


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of Retry-After, or None if no retry is asked for."""
    text = response.headers.get("Retry-After", "")
    if response.status == 429 or (response.status == 503 and text):
        seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
        return min(float(seconds), LONGEST_REST)
    return None


def _refusal(asked: str, status: int, answer: bytes) -> Exception:
    """Convert an error response to an exception."""
    try:
        reply = msgspec.json.decode(answer, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        reply = _Status()
    words = "".join(c if c.isprintable() else "?" for c in reply.message or reply.reason)
    why = f"{asked}: {words[:300] or 'no message'} ({status})"
    if status == 401:
        return KubeError(f"Kubernetes rejects the daemon's credentials: {why}", NOBODY)
    if status == 403:
        return KubeForbiddenError(f"the daemon lacks a permission in Kubernetes: {why}", RIGHTS)
    if status == 400 and reply.reason == "Expired":
        return KubeExpiredError(why)
    if status in REFUSALS:
        return REFUSALS[status](why)
    later = status >= 500 or status in (408, 429)
    return KubeError(why) if later else KubeRefusedError(why)


def _one_line(error: BaseException) -> str:
    """Format an error in one line."""
    words = str(error) or type(error).__name__
    return " ".join(words.split())[:300].rstrip(".")
