"""Why not, as RFC 9457 has it: `application/problem+json`, with the mend."""

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
    """Is answered instead of what was asked for."""

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
        """Say what, where and the mend."""
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})
        kind = "urn:sia:" + re.sub(r"[^a-z]+", "-", title.lower())
        self.details = ProblemDetails(kind, title, status, detail, mend, list(errors))

    def response(self) -> web.Response:
        """As it goes out."""
        return web.Response(
            status=self.status,
            body=_encode(self.details),
            content_type=PROBLEM_JSON,
            headers=self.headers,
        )


def refusal(refused: Refused) -> ProblemError:
    """What the engine refuses, as an answer."""
    headers = {}
    if refused.retry_after:
        headers["Retry-After"] = str(ceil(refused.retry_after))
    return ProblemError(
        refused.status, refused.title, refused.detail, refused.mend, headers=headers
    )


def no_job(job_id: str) -> ProblemError:
    """There is no such job."""
    return ProblemError(404, "no such job", f"there is no job {job_id!r}", "see: sia jobs")


def no_pool(name: str, known: Iterable[str]) -> ProblemError:
    """Return the answer about a pool that does not exist, with the nearest one."""
    return refusal(unknown_pool(name, known))


def of_http(error: web.HTTPException) -> web.Response:
    """What aiohttp refuses by itself, said our way."""
    mends = {
        404: "see /v1/openapi.json",
        405: f"use {error.headers.get('Allow', 'another method')}",
        413: "send less, or several batches",
    }
    headers = {key: value for key, value in error.headers.items() if key == "Allow"}
    detail = error.reason if error.status != 404 else "there is nothing here"
    mend = mends.get(error.status, "send a request that HTTP allows")
    return ProblemError(error.status, error.reason, detail, mend, headers=headers).response()
