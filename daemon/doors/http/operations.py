"""Table of the HTTP operations, from which the routes and the OpenAPI document are built."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from daemon.config.validation import MAX_SHOWN, explained
from daemon.model.access import Rule
from daemon.wire.jobs import FieldProblem
from daemon.wire.limits import BODY_WITHIN
from daemon.wire.problems import ProblemError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"


class Parameter(NamedTuple):
    """A query, path or header parameter; `kind` is a type that msgspec can convert to."""

    name: str
    kind: Any
    about: str
    where: Literal["query", "path", "header"] = "query"
    default: Any = None


Target = Literal["", "job", "pool", "body"]
"""What the permission is checked for: nothing in particular; the job or pool in the path; or
objects in the body, which the handler checks."""


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    rule: Rule
    """Permission that the caller needs."""
    handler: Handler
    about: str
    answers: Mapping[int, Any]
    """Body type by status; None: no body; a string: text of that content type."""
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = ()
    """Problem statuses in addition to `openapi.ALWAYS`."""
    stream: bool = False
    """Whether the operation can also answer with server-sent events."""
    of: Target = ""


BODY_OVERRIDE = web.RequestKey("instead", bytes)
"""A body that replaces the request's body, when a page calls the API for a user."""


async def body_of(request: web.Request, kind: str = JSON) -> bytes:
    """Return the body, which must have this content type. Raises ProblemError.

    A body without a content type is accepted.
    """
    if BODY_OVERRIDE in request:
        return request[BODY_OVERRIDE]
    if "Content-Encoding" in request.headers:  # decompression is disabled: see `Connection`
        raise ProblemError(
            415, "compressed", "the body has a Content-Encoding", "send it uncompressed"
        )
    if "Content-Type" in request.headers and request.can_read_body:
        _check_type(request, kind)
    try:
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(BODY_WITHIN):
            return await request.read()
    except (aiohttp.ClientError, ConnectionError):  # the client will not get this answer
        raise ProblemError(
            400, "cut off", "the connection ended before the end of the body", "send the whole body"
        ) from None
    except TimeoutError:
        raise ProblemError(
            408, "too slow", f"the body took more than {BODY_WITHIN:g} s", "send it faster"
        ) from None


def _check_type(request: web.Request, kind: str) -> None:
    """Raise ProblemError for an unsupported content type or charset."""
    content_type = request.headers["Content-Type"][:MAX_SHOWN]
    if request.content_type != kind:
        raise ProblemError(
            415,
            "wrong content type",
            f"Content-Type is {content_type!r}",
            f"send Content-Type: {kind}",
        )
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise ProblemError(
            415, "unknown charset", f"Content-Type is {content_type!r}", "send UTF-8"
        )  # fmt: skip


def query_of(request: web.Request, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Convert the query parameters, with defaults, by name. Raises ProblemError."""
    given = request.query
    known = {p.name: p for p in parameters if p.where == "query"}
    there = f"known: {', '.join(known) or 'none'}"
    unknown = [name for name in given if name not in known]
    errors = [FieldProblem(name, "is not a known parameter", there) for name in unknown]
    values = {name: _value(parameter, given, errors) for name, parameter in known.items()}
    if errors:
        detail = "; ".join(f"{e.pointer}: {e.detail}; {e.mend}" for e in errors[:3])
        raise ProblemError(422, "invalid query", detail, "see /v1/openapi.json", errors=errors)
    return values


def _value(parameter: Parameter, given: Mapping[str, str], errors: list[FieldProblem]) -> Any:
    """Convert a parameter; on error return the default and add a problem to `errors`."""
    value = given.get(parameter.name)
    if value is None:
        return parameter.default
    try:
        return msgspec.convert(value, parameter.kind, strict=False)
    except msgspec.ValidationError as error:
        what, mend = explained(value, str(error), parameter.kind)
        errors.append(FieldProblem(parameter.name, what, mend))
    return parameter.default


_encode = msgspec.json.Encoder().encode


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON response."""
    return web.Response(
        body=_encode(value), status=status, content_type=JSON, headers=headers or None
    )
