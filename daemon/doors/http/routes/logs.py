"""`/v1/jobs/ID/log`: what a job wrote, piece by piece."""

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
    Parameter("stream", Literal["stdout", "stderr"], "Which of the two.", default="stdout"),
    Parameter(
        "attempt", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "Of its starts; without it the latest."
    ),
    Parameter(
        "after", Annotated[int, Meta(ge=0, le=MAX_SEQ)], "Bytes to leave out, from the beginning.",
        default=0,
    ),
    Parameter(
        "tail", Annotated[int, Meta(ge=1, le=LOG_PIECE)],
        "Instead of `after`: so many bytes, from the end.",
    ),
)  # fmt: skip

HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
"""Whatever a job wrote, no browser is to run it."""


class LogRoutes:
    """The one."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service

    def operations(self) -> list[Operation]:
        """The one."""
        about = (
            f"What a job wrote, {LOG_PIECE >> 10} KiB at most; a Link header with rel=next says "
            "where to go on, as long as more may come."
        )
        return [
            Operation(
                "GET", "/v1/jobs/{id}/log", Rule.SUBMIT, self.log, about, {200: "text/plain"},
                parameters=(JOB, *QUERY), refusals=(404, 422), of="job",
            )
        ]  # fmt: skip

    async def log(self, request: web.Request) -> web.Response:
        """A piece."""
        asked = query_of(request, QUERY)
        record = await self._record(request.match_info["id"])
        job, backend = record.spec.id, self._service.backend
        attempt = asked["attempt"] or record.attempt
        if not 0 < attempt <= record.attempt:
            why = f"{job} was started {counted(record.attempt, 'time')}"
            mend = "there is none" if record.ended is not None else "wait for it"
            raise _nothing(why, mend)
        if "logs" not in backend.can:
            raise _nothing("this backend keeps no job output", "see docs/operate/backends.md")
        wanted = LogRequest(attempt, asked["stream"], asked["after"], asked["tail"], LOG_PIECE)
        # Looked up before the log: what is over by now has written all that it will.
        grows = attempt == record.attempt and record.phase in ON_GPUS
        found = await _found(backend, record, wanted)
        if found is None and not grows:
            raise _nothing(f"nothing is left of what {job} wrote", "its log is gone")
        after, data = found or LogChunk(asked["after"], b"")
        headers = dict(HEADERS)
        if after is not None and (grows or len(data) == LOG_PIECE):
            on = {"stream": asked["stream"], "attempt": attempt, "after": after + len(data)}
            query = "&".join(f"{key}={value}" for key, value in on.items())
            headers["Link"] = f'</v1/jobs/{job}/log?{query}>; rel="next"'
        return web.Response(body=data, headers=headers)

    async def _record(self, job_id: str) -> JobRecord:
        service = self._service
        await service.settled()
        if job_id in service.book.arrays:
            raise _nothing(f"{job_id} is an array", f"ask for one of its jobs, like {job_id}.0")
        record = service.book.job(job_id) or await service.past_job(job_id)
        if record is None:
            raise no_job(job_id)
        return record


async def _found(backend: Backend, record: JobRecord, asked: LogRequest) -> LogChunk | None:
    """The piece, by a thread where it is of a file. Raises ProblemError where it cannot be had."""
    if not isinstance(backend, LogReader):
        return await asyncio.to_thread(_read, backend, record.spec.id, asked)
    try:
        return await backend.read_log(record, asked)
    except LogError as error:
        if not error.again:
            raise _nothing(error.why, error.mend) from None
        headers = {"Retry-After": str(ceil(error.again))}
        raise ProblemError(503, "log away", error.why, error.mend, headers=headers) from None


def _read(backend: Backend, job: str, asked: LogRequest) -> LogChunk | None:
    """A piece of a file; None where there is no such file.

    Raises ProblemError where it cannot be read.

    Only a file is read: a job may have put something else in its place, that leads elsewhere or
    never ends.
    """
    path = backend.log(job, asked.attempt, asked.stream)
    if path is None:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(file)
            if not S_ISREG(state.st_mode):
                raise _nothing(f"what {job} wrote is no file any more", "its files are gone")
            tail = asked.tail
            after = asked.after if tail is None else max(0, state.st_size - tail)
            return LogChunk(after, os.pread(file, asked.most, after))
        finally:
            os.close(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"what {job} wrote cannot be read: {error.strerror}"
        raise _nothing(why, "look into the backend's folder") from None


def _nothing(why: str, mend: str) -> ProblemError:
    return ProblemError(404, "no log", why, mend)
