"""`/v1/jobs`: submit, list, cancel, hold, release and change jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.answers.estimates.estimator import EtaService
from daemon.doors.http.authorization import check_own_job, who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, body_of, query_of
from daemon.doors.http.routes.submissions import Submissions
from daemon.doors.views.resources import alone_of, array_detail, job_detail, job_view, progress_view
from daemon.model.access import Principal, Rule, allows
from daemon.model.book import JobRecord
from daemon.model.inputs import Cancel, Command, Hold, Release, Reported, SetPriority
from daemon.model.job import JobPhase
from daemon.model.outputs import Answer, Refused
from daemon.service.admission import Admission
from daemon.wire.bodies import decoded
from daemon.wire.jobs import (
    ArrayDetail,
    Batch,
    BatchAnswer,
    History,
    JobDetail,
    JobPage,
    JobPatch,
    JobRequest,
    Label,
    ProgressReport,
    ProgressView,
    Submitted,
)
from daemon.wire.limits import LOOKED_AT, MAX_KEY, MAX_PAGE, MAX_SEQ, PAGE
from daemon.wire.problems import ProblemError, no_job, refusal

if TYPE_CHECKING:
    from daemon.service.service import Service

JOB = Parameter("id", str, "Id of the job or of an array.", "path")
KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(max_length=MAX_KEY)],
    "Determines the id of a job without one, so that a repeated request submits it once.",
    "header",
)
FILTERS = (
    Parameter("pool", Label, "Only jobs of this pool."),
    Parameter("phase", JobPhase, "Only jobs in this phase."),
    Parameter("user", Label, "Only jobs of this user."),
    Parameter("tag", Label, "Only jobs with this tag, as KEY=VALUE or KEY."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Page size.", default=PAGE),
    Parameter("cursor", Label, "`next` of the previous page."),
)

PAST = (
    Parameter("pool", Label, "Only jobs of this pool.", default=""),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Page size.", default=PAGE),
    Parameter(
        "before", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "`next` of the previous page.",
        default=MAX_SEQ,
    ),
)  # fmt: skip


class JobRoutes:
    """Handlers of jobs: convert requests to commands, and state to responses."""

    def __init__(self, service: Service, admission: Admission, eta: EtaService) -> None:
        """Serve the jobs of a service."""
        self._service = service
        self._submissions = Submissions(service, admission, eta)
        self._patch = msgspec.json.Decoder(JobPatch)
        self._report = msgspec.json.Decoder(ProgressReport)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        waits = {200: JobDetail | ArrayDetail}
        one = "/v1/jobs/{id}"
        return [
            Operation(
                "POST", "/v1/jobs", Rule.SUBMIT, self._submissions.submit,
                "Submit a job, or several as a batch.",
                {201: Submitted, 200: Submitted | BatchAnswer}, JobRequest | Batch, (KEY,),
                (409, 413, 422), of="body",
            ),
            Operation(
                "GET", "/v1/jobs", Rule.VIEW, self.list,
                "List jobs, newest first.", {200: JobPage},
                parameters=FILTERS, refusals=(422,),
            ),
            Operation(
                "GET", "/v1/history", Rule.VIEW, self.history,
                "Ended jobs, newest first, as long as the journal keeps them.",
                {200: History}, parameters=PAST, refusals=(422,),
            ),
            Operation(
                "GET", one, Rule.VIEW, self.show, "Show a job or an array.", waits,
                parameters=(JOB,), refusals=(404,), of="job",
            ),
            Operation(
                "DELETE", one, Rule.SUBMIT, self.cancel, "Cancel a job, or all jobs of an array.",
                {200: Submitted, 202: Submitted}, None, (JOB,), (404, 409), of="job",
            ),
            Operation(
                "PATCH", one, Rule.ADMIN, self.change,
                "Change the priority of a pending job.", waits,
                JobPatch, (JOB,), (404, 409, 413, 422), of="job",
            ),
            Operation(
                "POST", f"{one}/hold", Rule.SUBMIT, self.hold,
                "Hold a pending job.", waits,
                None, (JOB,), (404, 409), of="job",
            ),
            Operation(
                "POST", f"{one}/release", Rule.SUBMIT, self.release,
                "Release a held job.", waits,
                None, (JOB,), (404, 409), of="job",
            ),
            Operation(
                "POST", f"{one}/progress", Rule.REPORT, self.progress,
                "Report the progress of a running job, with the job's own token or a submitter's.",
                {200: ProgressView},
                ProgressReport, (JOB,), (404, 409, 413, 422), of="job",
            ),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """Return a page of jobs. O(limit), at most O(LOOKED_AT) if few jobs match."""
        params = query_of(request, FILTERS)
        await self._service.settled()
        tag, _, value = (params["tag"] or "").partition("=")
        limit, following = params["limit"], None
        found: list[JobRecord] = []
        records = self._records(who_asks(request), params["pool"], params["cursor"])
        for looked, record in enumerate(records, 1):
            spec = record.spec
            if (
                (params["user"] is None or spec.user == params["user"])
                and (params["phase"] is None or record.phase is params["phase"])
                and (not tag or (tag in spec.tags and value in ("", spec.tags[tag])))
            ):
                if len(found) == limit:
                    following = found[-1].spec.id
                    break
                found.append(record)
            if looked == LOOKED_AT:
                following = spec.id
                break
        return answer(JobPage([job_view(record) for record in found], following))

    def _records(self, who: Principal, pool: str | None, cursor: str | None) -> Iterator[JobRecord]:
        """Iterate over the visible jobs of one pool or all, newest first, after a cursor."""
        book = self._service.book
        if cursor is not None:
            known = book.job(cursor)
            if known is None or not who.sees(known.spec.pool):  # one answer for hidden and missing
                raise ProblemError(
                    422, "invalid query", "the job of the cursor is no longer in memory",
                    "start again without a cursor",
                )  # fmt: skip
        return book.newest(_pools(who, pool), cursor or "")

    async def history(self, request: web.Request) -> web.Response:
        """Return a page of ended jobs: see `Journal.history`."""
        params = query_of(request, PAST)
        limit = params["limit"]
        pools = _pools(who_asks(request), params["pool"])
        found = await self._service.past_jobs(params["before"], limit, pools)
        following = found[-1][0] if len(found) == limit else None
        return answer(History([job_view(record) for _, record in found], following))

    async def show(self, request: web.Request) -> web.Response:
        """Return a job or an array."""
        return await self._shown(request)

    async def _shown(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        await self._service.settled()
        book = self._service.book
        if job_id in book.arrays:
            return answer(array_detail(book, job_id))
        record = book.job(job_id) or await self._service.past_job(job_id)
        if record is None:
            raise no_job(job_id)
        detail = job_detail(self._service, record)
        detail.alone = await alone_of(self._service, record)
        if not allows(who_asks(request), Rule.SUBMIT, record.spec.pool):
            detail.env = {}  # the environment may hold secrets
        return answer(detail)

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a job or an array. Running jobs end within their grace period."""
        job_id = request.match_info["id"]
        new = await self._do(request, Cancel(job_id, who_asks(request).name))
        return answer(Submitted(job_id), 202 if new else 200)

    async def change(self, request: web.Request) -> web.Response:
        """Change the priority."""
        patch = decoded(await body_of(request), self._patch, JobPatch)
        job_id = request.match_info["id"]
        await self._do(request, SetPriority(job_id, patch.priority, who_asks(request).name))
        return await self._shown(request)

    async def hold(self, request: web.Request) -> web.Response:
        """Hold a job or an array."""
        job_id = request.match_info["id"]
        await self._do(request, Hold(job_id, who_asks(request).name))
        return await self._shown(request)

    async def release(self, request: web.Request) -> web.Response:
        """Release a job or an array."""
        job_id = request.match_info["id"]
        await self._do(request, Release(job_id, who_asks(request).name))
        return await self._shown(request)

    async def progress(self, request: web.Request) -> web.Response:
        """Accept a job's progress report."""
        report = decoded(await body_of(request), self._report, ProgressReport)
        check_own_job(request, report.attempt)
        job_id, who = request.match_info["id"], who_asks(request)
        await self._do(
            request,
            Reported(
                job_id,
                report.attempt,
                report.done,
                report.speed,
                report.regime,
                who.name,
                report.trials,
                report.iterations,
            ),
        )
        record = self._service.book.job(job_id)
        return answer(None if record is None else progress_view(record))

    async def _do(self, request: web.Request, command: Command) -> bool:
        """Submit a command; return whether it changed anything. Raises ProblemError if refused."""
        found: Answer
        (found,) = await self._service.submit([command], request.remote or "")
        if isinstance(found, Refused):
            raise refusal(found)
        return found.new


def _pools(who: Principal, pool: str | None) -> frozenset[str] | None:
    """Return the pools to list: the given one if visible, or all visible ones; None means all."""
    if pool:
        return frozenset((pool,) if who.sees(pool) else ())
    return None if who.sees_all else who.pools
