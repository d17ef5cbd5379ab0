"""The way to the Kubernetes API: requests, and what their answers mean here."""

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
"""Seconds for an answer: an API server gives up on etcd before that."""

WRITE_TIMEOUT = 4.0
"""Seconds for the answer to a write: less than `kube_lease.MARGIN`, for which it may be sent."""

LONGEST_REST = 60.0
"""Seconds: a server that says `Retry-After` with more is asked then all the same."""

TRIES = 4
"""Times that a request is sent again which was put off by 429 or 503."""

MAX_ANSWER = 64 * 2**20
"""Bytes: 500 Jobs of the largest kind are less."""

PAGE = 500
"""Objects in one answer of a list, as many as kubectl asks for."""

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"

GONE = "see that the API server runs and can be reached from here; the daemon goes on by itself"
NOBODY = (
    "write backend.kubeconfig, or run the daemon in a pod with a service account (see: kubectl "
    "--kubeconfig FILE auth whoami)"
)
RIGHTS = "give the daemon's account that right: docs/operate/kubernetes.md has the list"


PASSED = "it is the matter of the daemon that acts by now; this one goes on when it may again"


class KubeError(Exception):
    """Kubernetes cannot be asked now: what is wrong, and the mend. It is to be asked again."""

    def __init__(self, why: str, mend: str = GONE) -> None:
        """Say why, in a line."""
        super().__init__(why)
        self.why, self.mend = why, mend


class KubeForbiddenError(KubeError):
    """The daemon has not the right to ask that."""


class KubeRefusedError(Exception):
    """Kubernetes was asked and said no: the same again changes nothing."""


class KubeGoneError(KubeRefusedError):
    """There is no such thing, or no more."""


class KubeConflictError(KubeRefusedError):
    """It is not, or no longer, what it was thought to be: it is to be looked at again."""


class KubeExpiredError(Exception):
    """What was asked for is too old: all is to be listed again (410)."""


REFUSALS = {404: KubeGoneError, 409: KubeConflictError, 410: KubeExpiredError}
"""What these answers are here."""


class _Status(Struct, frozen=True):
    """What the API says where it does not do what it was asked."""

    message: str = ""
    reason: str = ""
    code: int = 0


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Listed(Struct, frozen=True):
    """One answer of a list."""

    items: Sequence[msgspec.Raw]
    metadata: _ListMeta


class Kube:
    """Asks one API server, as one account. On one loop, from `open` to `close`.

    Attributes:
        fence: What is asked right before each write; None where nobody has a say in that.
    """

    def __init__(self, config: KubeConfig, *, tries: int = TRIES, timeout: float = TIMEOUT) -> None:
        """Nothing is read yet; a request is given up after so many tries of so many seconds."""
        self._config = config
        self._tries, self._timeout = tries, timeout
        self.fence: Fence | None = None
        self._client: ApiClient | None = None
        self._rest_until = 0.0

    async def close(self) -> None:
        """Let go of all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def get(self, path: str, kind: type[T]) -> T:
        """One object. Raises KubeError, KubeRefusedError."""
        return _decoded(await self._ask("GET", path), kind)

    async def text(self, path: str, query: Mapping[str, str]) -> bytes:
        """What is no object. Raises KubeError, KubeRefusedError."""
        return await self._ask("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Make one. Raises KubeConflictError where one of that name is there."""
        return _decoded(await self._ask("POST", path, body=body), kind)

    async def patch(
        self, path: str, body: Mapping[str, Any] | Sequence[Any], kind: type[T], how: str = MERGE
    ) -> T:
        """Change one. Raises KubeConflictError where it is another by now."""
        return _decoded(await self._ask("PATCH", path, body=body, content=how), kind)

    async def replace(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """Put another in its place. Raises KubeConflictError as `patch`."""
        return _decoded(await self._ask("PUT", path, body=body), kind)

    async def delete(self, path: str, uid: str) -> None:
        """Delete that one, once its pods are gone; another of its name is let be."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},
        }
        await self._ask("DELETE", path, body=body)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Listed]:
        """All there are, page by page. Raises KubeExpiredError where that takes too long."""
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
        """What changes, as lines, until the server ends it; `silent` seconds of nothing end it."""
        timeout = aiohttp.ClientTimeout(sock_connect=TIMEOUT, sock_read=silent)
        response = await self._send("GET", path, {**query, "watch": "true"}, None, "", timeout)
        try:
            if response.status != 200:
                body = await response.content.read(MAX_ANSWER)
                raise _refusal(f"watch {path}", response.status, body)
            yield response.content
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise KubeError(f"a watch of {path} broke off: {_said(error)}") from None
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
                raise KubeError(f"{method} {path}: this daemon may not act any more", PASSED)
            response = await self._send(method, path, query or {}, body, content, timeout)
            try:
                answer, whole = await _read(response.content)
            except (aiohttp.ClientError, OSError) as error:
                raise KubeError(f"{method} {path}: {_said(error)}") from None
            finally:
                response.release()
            if response.status < 300:
                if not whole:
                    raise KubeError(f"{method} {path}: an answer of more than {MAX_ANSWER} bytes")
                return answer
            later = _retry_after(response)
            if later is None or not left:
                break
            until = asyncio.get_running_loop().time() + later
            self._rest_until = max(self._rest_until, until)
        raise _refusal(f"{method} {path}", response.status, answer)

    async def _rest(self) -> None:
        """Wait where the server has asked for it: all requests do."""
        left = self._rest_until - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  two kinds of it
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
            raise KubeError(f"{method} {path}: {_said(error)}") from None
        return sent

    async def _opened(self) -> ApiClient:
        """The client, with the account that is configured. Raises KubeError."""
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
        except Exception as error:  # noqa: BLE001  of a file that is none, anything is raised
            where = config.kubeconfig or "the pod's service account"
            raise KubeError(f"{where}: {_said(error)}", NOBODY) from None
        return self._client


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"the API server says what is not understood: {error}"
        raise KubeError(why[:300], "report it with the version of Kubernetes") from None


async def _read(content: aiohttp.StreamReader) -> tuple[bytes, bool]:
    """An answer, however many pieces it comes in, and whether that is all of it."""
    pieces, size = list[bytes](), 0
    async for piece in content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER:
            return b"".join(pieces), False
    return b"".join(pieces), True


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds after which to ask again; None where that is not asked for."""
    said = response.headers.get("Retry-After", "")
    if response.status == 429 or (response.status == 503 and said):
        seconds = int(said) if said.isascii() and said.isdecimal() and len(said) < 6 else 1
        return min(float(seconds), LONGEST_REST)
    return None


def _refusal(asked: str, status: int, answer: bytes) -> Exception:
    """What an answer other than 2xx is here."""
    try:
        said = msgspec.json.decode(answer, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = _Status()
    words = "".join(c if c.isprintable() else "?" for c in said.message or said.reason)
    why = f"{asked}: {words[:300] or 'no words'} ({status})"
    if status == 401:
        return KubeError(f"Kubernetes does not know the daemon's account: {why}", NOBODY)
    if status == 403:
        return KubeForbiddenError(f"the daemon may not do that in Kubernetes: {why}", RIGHTS)
    if status == 400 and said.reason == "Expired":
        return KubeExpiredError(why)
    if status in REFUSALS:
        return REFUSALS[status](why)
    later = status >= 500 or status in (408, 429)
    return KubeError(why) if later else KubeRefusedError(why)


def _said(error: BaseException) -> str:
    """An error in one line."""
    words = str(error) or type(error).__name__
    return " ".join(words.split())[:300].rstrip(".")
