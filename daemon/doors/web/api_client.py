"""Call the HTTP API in process, as the user who views the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from daemon.doors.http.authorization import AccessMiddleware
from daemon.doors.http.operations import BODY_OVERRIDE, JSON, Operation
from daemon.wire.problems import ProblemError

_encode = msgspec.json.Encoder().encode


class Api:
    """Calls operations under their rules, so that a page never shows more than the API would."""

    def __init__(self, operations: Iterable[Operation], guard: AccessMiddleware) -> None:
        """Index the operations."""
        self._operations = {(each.method, each.path): each for each in operations}
        self._guard = guard

    async def ask(
        self,
        request: web.Request,
        what: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        **names: str,
    ) -> Any:
        """Call an operation; return its answer as the struct or text that the operation declares.

        `what` is method and path as in the table (`GET /v1/jobs/{id}`). Path parameters come from
        `names`, else from the page's path. Query values of None are omitted. Raises ProblemError.
        """
        method, _, path = what.partition(" ")
        operation = self._operations[method, path]
        call = _api_request(request, method, path, query or {}, names)
        if body is not None:
            call[BODY_OVERRIDE] = _encode(body)
        try:
            await self._guard.allow(call, operation)
            response = await operation.handler(call)
        except ProblemError:
            await self._guard.remember(call)
            raise
        assert isinstance(response, web.Response), "pages do not use streams"
        body_bytes = response.body
        return (
            _read(body_bytes, operation.answers[response.status])
            if isinstance(body_bytes, bytes)
            else None
        )

    async def ask_if_allowed(
        self, request: web.Request, what: str, query: Mapping[str, Any] | None = None, **names: str
    ) -> Any:
        """Call `ask`, but return None for 403 and 404."""
        try:
            return await self.ask(request, what, query, **names)
        except ProblemError as problem:
            if problem.status in (403, 404):
                return None
            raise


def _read(body_bytes: bytes, kind: Any) -> Any:
    """Decode an answer; of several possible structs, return the first that fits."""
    if isinstance(kind, str):
        return body_bytes.decode(errors="replace")
    *others, last = get_args(kind) or (kind,)
    for each in others:
        try:
            return msgspec.json.decode(body_bytes, type=each)
        except msgspec.ValidationError:
            continue
    return msgspec.json.decode(body_bytes, type=last)


def _api_request(
    request: web.Request,
    method: str,
    path: str,
    query: Mapping[str, Any],
    names: Mapping[str, str],
) -> web.Request:
    """Return the request for the API call: a clone of the page's request."""
    parts = {**request.match_info, **names}
    given = {name: str(value) for name, value in query.items() if value is not None}
    url = URL.build(path=path.format_map(parts), query=given)
    call = request.clone(method=method, rel_url=url, headers=CIMultiDict(Accept=JSON))
    route = request.match_info.route
    call._match_info = web.UrlMappingMatchInfo(parts, route)  # noqa: SLF001  clones share theirs
    return call
