"""Why not, as RFC 9457 has it: `application/problem+json`, with the mend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from daemon.config.validation import ConfigProblem, read
from daemon.model.outputs import Refused, unknown_pool
from daemon.wire.jobs import Batch, FieldProblem, JobRequest, ProblemDetails
from daemon.wire.limits import MAX_PROBLEMS

PROBLEM_JSON = "application/problem+json"

T = TypeVar("T")

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


def decoded(
    body: bytes, decoder: msgspec.json.Decoder[T], kind: type[Any], see: str = "/v1/openapi.json"
) -> T:
    """A body as what it should be. Raises ProblemError with all that is wrong.

    `kind` says what is wrong; `see` is the document that says what is right.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, kind, str(error), f"see {see}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(400, "no JSON", str(error), "send JSON in UTF-8") from None
    except RecursionError:
        raise _TOO_DEEP from None


_TOO_DEEP = ProblemError(400, "too deep", "the JSON is nested too deeply", "see /v1/openapi.json")


def _invalid(body: bytes, kind: Any, first: str, mend: str) -> ProblemError:
    """All that is wrong with a body; what `msgspec` said first where that is not found again."""
    problems: list[ConfigProblem] = []
    try:
        values = msgspec.json.decode(body)
    except RecursionError:
        return _TOO_DEEP
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return ProblemError(400, "no JSON", str(error), "send JSON in UTF-8")
    if kind is Batch and isinstance(values, dict) and isinstance(values.get("jobs"), list):
        for i, job in enumerate(values["jobs"]):
            if len(problems) < MAX_PROBLEMS:
                read(job, JobRequest, ("jobs", i), problems)
    if not problems:
        read(values, kind, (), problems)
    errors = [
        FieldProblem("".join(map(_step, problem.path)), problem.what, problem.mend)
        for problem in problems[:MAX_PROBLEMS]
    ]
    detail = "; ".join(map(str, problems[:3])) if problems else first
    return ProblemError(422, "invalid", detail, mend, errors=errors)


def _step(key: str | int) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


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
