"""Error responses as problem details (RFC 9457): `application/problem+json`, with a fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import msgspec
from aiohttp import web

from daemon.model.outputs import Refused, unknown_pool
from daemon.wire.jobs import FieldProblem, ProblemDetails

PROBLEM_JSON = "application/problem+json"

_encode = msgspec.json.Encoder().encode


class ProblemError(Exception):
    """A refused request; the server answers with these problem details."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        mend: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create a problem from a title, what is wrong (`detail`) and how to fix it (`mend`)."""
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})
        kind = "urn:sia:" + re.sub(r"[^a-z]+", "-", title.lower())
        self.details = ProblemDetails(kind, title, status, detail, mend, list(errors))

    def response(self) -> web.Response:
        """Return the HTTP response."""
        return web.Response(
            status=self.status,
            body=_encode(self.details),
            content_type=PROBLEM_JSON,
            headers=self.headers,
        )


def refusal(refused: Refused) -> ProblemError:
    """Return the problem for a command that the engine refused."""
    headers = {}
    if refused.retry_after:
        headers["Retry-After"] = str(ceil(refused.retry_after))
    return ProblemError(
        refused.status, refused.title, refused.detail, refused.mend, headers=headers
    )


def no_job(job_id: str) -> ProblemError:
    """Return the problem for a job that does not exist."""
    return ProblemError(404, "no such job", f"there is no job {job_id!r}", "list jobs: sia jobs")


def no_pool(name: str, known: Iterable[str]) -> ProblemError:
    """Return the problem for a pool that does not exist, with the nearest existing name."""
    return refusal(unknown_pool(name, known))


def of_http(error: web.HTTPException) -> web.Response:
    """Convert an error that aiohttp raised itself to problem details."""
    fixes = {
        404: "see /v1/openapi.json",
        405: f"use {error.headers.get('Allow', 'another method')}",
        413: "send a smaller body, or several batches",
    }
    headers = {key: value for key, value in error.headers.items() if key == "Allow"}
    detail = error.reason
    if error.status == 404:
        detail = "no such path"
    elif isinstance(error, web.HTTPMethodNotAllowed):
        detail = f"this path does not take {error.method}"
    fix = fixes.get(error.status, "send a valid HTTP request")
    return ProblemError(error.status, error.reason, detail, fix, headers=headers).response()
