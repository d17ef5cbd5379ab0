"""What can be asked for: one table, from which both routes and OpenAPI document are made."""

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
    """Of a query, a path or a header; `kind` is a type that msgspec knows."""

    name: str
    kind: Any
    about: str
    where: Literal["query", "path", "header"] = "query"
    default: Any = None


Target = Literal["", "job", "pool", "body"]
"""What an operation is done to, and so whose pool has to allow it: nothing of a pool; the job or
the pool that its path names; what its body names, at which its handler looks."""


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    rule: Rule
    """Who may do it."""
    handler: Handler
    about: str
    answers: Mapping[int, Any]
    """Types by status; None for no body, a string for text of that content type."""
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = ()
    """Statuses of problems, besides those that all have."""
    stream: bool = False
    """Whether it may answer with server-sent events as well."""
    of: Target = ""


INSTEAD = web.RequestKey("instead", bytes)
"""A body instead of the one that was sent, where a page asks for somebody."""


async def body_of(request: web.Request, kind: str = JSON) -> bytes:
    """The body of this content type, if it comes soon enough. Raises ProblemError.

    A body without a content type is taken for what it should be.
    """
    if INSTEAD in request:
        return request[INSTEAD]
    if "Content-Encoding" in request.headers:  # the door unpacks nothing
        raise ProblemError(
            415, "compressed", "the body comes with a Content-Encoding", "send it as it is"
        )
    if "Content-Type" in request.headers and request.can_read_body:
        _check_type(request, kind)
    try:
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(BODY_WITHIN):
            return await request.read()
    except (aiohttp.ClientError, ConnectionError):  # nobody reads the answer
        raise ProblemError(
            400, "cut off", "the connection ended before the body did", "send all of it"
        ) from None
    except TimeoutError:
        raise ProblemError(
            408, "too slow", f"the body was not there within {BODY_WITHIN:g} s", "send it at once"
        ) from None


def _check_type(request: web.Request, kind: str) -> None:
    """Raises ProblemError for a content type or a charset that is not read here."""
    said = request.headers["Content-Type"][:MAX_SHOWN]
    if request.content_type != kind:
        raise ProblemError(
            415, "wrong content type", f"Content-Type is {said!r}", f"send Content-Type: {kind}"
        )
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise ProblemError(
            415, "unknown charset", f"Content-Type is {said!r}", "send UTF-8"
        )  # fmt: skip


def query_of(request: web.Request, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The parameters of a query, all of them, by name. Raises ProblemError for wrong ones."""
    given = request.query
    known = {p.name: p for p in parameters if p.where == "query"}
    there = f"there is {', '.join(known) or 'none'}"
    unknown = [name for name in given if name not in known]
    errors = [FieldProblem(name, "is unknown", there) for name in unknown]
    values = {name: _value(parameter, given, errors) for name, parameter in known.items()}
    if errors:
        detail = "; ".join(f"{e.pointer}: {e.detail}; {e.mend}" for e in errors[:3])
        raise ProblemError(422, "invalid query", detail, "see /v1/openapi.json", errors=errors)
    return values


def _value(parameter: Parameter, given: Mapping[str, str], errors: list[FieldProblem]) -> Any:
    """A parameter, by default where it is not given or wrong, which goes to the errors."""
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
    """A value as JSON."""
    return web.Response(
        body=_encode(value), status=status, content_type=JSON, headers=headers or None
    )
