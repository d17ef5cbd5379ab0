"""`/v1/jobs/ID/log`: the output of a job, in pieces."""

from __future__ import annotations

import asyncio
import os
from math import ceil
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Literal

from aiohttp import web
from msgspec import Meta

from daemon.backends.interface import Backend, LogChunk, LogError, LogReader, LogRequest
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.routes.jobs import JOB
from daemon.model.access import Rule
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS
from daemon.wire.limits import LOG_PIECE, MAX_SEQ
from daemon.wire.problems import ProblemError, no_job
from sia.wording import counted

if TYPE_CHECKING:
    from daemon.service.service import Service

QUERY = (
    Parameter("stream", Literal["stdout", "stderr"], "Output stream.", default="stdout"),
    Parameter(
        "attempt", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "Attempt; default: the latest."
    ),
    Parameter(
        "after", Annotated[int, Meta(ge=0, le=MAX_SEQ)], "Byte offset to read from.",
        default=0,
    ),
    Parameter(
        "tail", Annotated[int, Meta(ge=1, le=LOG_PIECE)],
        "Instead of `after`: number of bytes from the end.",
    ),
)  # fmt: skip

HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
"""Job output is untrusted: browsers must not interpret it."""


class LogRoutes:
    """Handler of job output."""

    def __init__(self, service: Service) -> None:
        """Serve the output of a service's jobs."""
        self._service = service

    def operations(self) -> list[Operation]:
        """Return the operations."""
        about = (
            f"Output of a job, at most {LOG_PIECE >> 10} KiB; a Link header with rel=next has the "
            "address to continue at, as long as there may be more."
        )
        return [
            Operation(
                "GET", "/v1/jobs/{id}/log", Rule.SUBMIT, self.log, about, {200: "text/plain"},
                parameters=(JOB, *QUERY), refusals=(404, 422), of="job",
            )
        ]  # fmt: skip

    async def log(self, request: web.Request) -> web.Response:
        """Return a piece of the output."""
        params = query_of(request, QUERY)
        record = await self._record(request.match_info["id"])
        job, backend = record.spec.id, self._service.backend
        attempt = params["attempt"] or record.attempt
        if not 0 < attempt <= record.attempt:
            why = f"{job} was started {counted(record.attempt, 'time')}"
            mend = "use an earlier attempt" if record.ended is not None else "wait for it"
            raise _nothing(why, mend)
        if "logs" not in backend.can:
            raise _nothing("this backend does not store job output", "see docs/operate/backends.md")
        wanted = LogRequest(attempt, params["stream"], params["after"], params["tail"], LOG_PIECE)
        # Checked before the log is read: a job that has already ended writes no more output.
        grows = attempt == record.attempt and record.phase in ON_GPUS
        found = await _found(backend, record, wanted)
        if found is None and not grows:
            raise _nothing(f"there is no output of {job}", "its log was deleted or never written")
        after, data = found or LogChunk(params["after"], b"")
        headers = dict(HEADERS)
        if after is not None and (grows or len(data) == LOG_PIECE):
            on = {"stream": params["stream"], "attempt": attempt, "after": after + len(data)}
            query = "&".join(f"{key}={value}" for key, value in on.items())
            headers["Link"] = f'</v1/jobs/{job}/log?{query}>; rel="next"'
        return web.Response(body=data, headers=headers)

    async def _record(self, job_id: str) -> JobRecord:
        service = self._service
        await service.settled()
        if job_id in service.book.arrays:
            raise _nothing(f"{job_id} is an array", f"use one of its jobs, like {job_id}.0")
        record = service.book.job(job_id) or await service.past_job(job_id)
        if record is None:
            raise no_job(job_id)
        return record


async def _found(backend: Backend, record: JobRecord, wanted: LogRequest) -> LogChunk | None:
    """Read the piece, on a thread if it is in a file. Raises ProblemError on failure."""
    if not isinstance(backend, LogReader):
        return await asyncio.to_thread(_read, backend, record.spec.id, wanted)
    try:
        return await backend.read_log(record, wanted)
    except LogError as error:
        if not error.again:
            raise _nothing(error.why, error.mend) from None
        headers = {"Retry-After": str(ceil(error.again))}
        raise ProblemError(503, "log unavailable", error.why, error.mend, headers=headers) from None


def _read(backend: Backend, job: str, wanted: LogRequest) -> LogChunk | None:
    """Read a piece of a log file; return None if the file does not exist.

    Raises ProblemError if the file cannot be read.

    Only regular files are read: the job may have replaced the file by a symbolic link, or by a
    pipe that never ends.
    """
    path = backend.log(job, wanted.attempt, wanted.stream)
    if path is None:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(file)
            if not S_ISREG(state.st_mode):
                raise _nothing(f"the log of {job} is not a regular file", "its output is lost")
            tail = wanted.tail
            after = wanted.after if tail is None else max(0, state.st_size - tail)
            return LogChunk(after, os.pread(file, wanted.most, after))
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"cannot read the log of {job}: {error.strerror}"
        raise _nothing(why, "check the backend's log directory") from None


def _nothing(why: str, mend: str) -> ProblemError:
    return ProblemError(404, "no log", why, mend)
