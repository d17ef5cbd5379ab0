"""`/v1/jobs`: submit, look, cancel, hold, release, change."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.answers import Answer, Refused
from daemon.book import JobRecord
from daemon.http.limits import MAX_KEY, MAX_PAGE, MAX_SEQ, PAGE
from daemon.http.operations import JSON, Operation, Parameter, answer, body_of, query_of
from daemon.http.problems import ProblemError, decoded, refusal
from daemon.http.views import array_detail, job_detail, job_view
from daemon.inputs import Cancel, Command, Hold, Release, SetPriority, Submit
from daemon.jobs import JobPhase
from daemon.schemas import (
    MAX_JOBS,
    ArrayDetail,
    Batch,
    BatchAnswer,
    History,
    JobDetail,
    JobPatch,
    JobRequest,
    Jobs,
    Label,
    Submitted,
)
from daemon.submissions import array_name, line_of, nothing_to_run, specs_of, together

if TYPE_CHECKING:
    from daemon.service import Service

ACTOR = "token"
"""Who asked, as the journal says: there is one token."""

JOB = Parameter("id", str, "Of the job, or of an array.", "path")
KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(max_length=MAX_KEY)],
    "Makes the id of a job that has none: sending it again is sending it once.",
    "header",
)
FILTERS = (
    Parameter("pool", Label, "Only jobs of this pool."),
    Parameter("phase", JobPhase, "Only jobs in this phase."),
    Parameter("user", Label, "Only jobs of this user."),
    Parameter("tag", Label, "Only jobs with this tag, as KEY=VALUE or KEY."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Jobs of a page.", default=PAGE),
    Parameter("cursor", Label, "`next` of the page before."),
)

PAST = (
    Parameter("pool", Label, "Only jobs of this pool.", default=""),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Jobs of a page.", default=PAGE),
    Parameter(
        "before", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "`next` of the page before.",
        default=MAX_SEQ,
    ),
)  # fmt: skip


class JobRoutes:
    """Handlers that turn requests into commands, and the book into answers."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service
        self._job = msgspec.json.Decoder(JobRequest)
        self._batch = msgspec.json.Decoder(Batch)
        self._patch = msgspec.json.Decoder(JobPatch)

    def operations(self) -> list[Operation]:
        """All of them."""
        waits = {200: JobDetail | ArrayDetail}
        one = "/v1/jobs/{id}"
        return [
            Operation(
                "POST", "/v1/jobs", self.submit, "Submit a job, or several as a batch.",
                {201: Submitted, 200: Submitted | BatchAnswer}, JobRequest | Batch, (KEY,),
                (409, 413, 422),
            ),
            Operation(
                "GET", "/v1/jobs", self.list, "List jobs, the latest first.", {200: Jobs},
                parameters=FILTERS, refusals=(422,),
            ),
            Operation(
                "GET", "/v1/history", self.history, "Jobs that have ended, as far as is kept.",
                {200: History}, parameters=PAST, refusals=(422,),
            ),
            Operation(
                "GET", one, self.show, "One job and why it waits, or an array.", waits,
                parameters=(JOB,), refusals=(404,),
            ),
            Operation(
                "DELETE", one, self.cancel, "Cancel a job, or all of an array.",
                {200: Submitted, 202: Submitted}, None, (JOB,), (404, 409),
            ),
            Operation(
                "PATCH", one, self.change, "Change the priority of a waiting job.", waits,
                JobPatch, (JOB,), (404, 409, 413, 422),
            ),
            Operation(
                "POST", f"{one}/hold", self.hold, "Have a waiting job wait for a release.", waits,
                None, (JOB,), (404, 409),
            ),
            Operation(
                "POST", f"{one}/release", self.release, "Let a held job start again.", waits,
                None, (JOB,), (404, 409),
            ),
        ]  # fmt: skip

    async def submit(self, request: web.Request) -> web.Response:
        """One job or a batch, which begins with the key `jobs`."""
        body = await body_of(request)
        key = _key(request)
        if body.lstrip()[1:].lstrip().startswith(b'"jobs"'):
            return await self._submit_batch(decoded(body, self._batch, Batch), key)
        job = decoded(body, self._job, JobRequest)
        specs = specs_of(job, key)
        found: Answer | None = nothing_to_run(specs[0], self._service.backend.can)
        if found is None:
            answers = await self._service.submit([Submit(spec, actor=ACTOR) for spec in specs])
            found = together(answers)
        if isinstance(found, Refused):
            raise refusal(found)
        name = array_name(specs[0])
        return web.Response(
            body=b'{"id":"%b"}' % name.encode(),  # an id needs no escapes
            status=201 if found.new else 200,
            content_type=JSON,
            headers={"Location": f"/v1/jobs/{name}"} if found.new else None,
        )

    async def _submit_batch(self, batch: Batch, key: str) -> web.Response:
        if sum(job.array or 1 for job in batch.jobs) > MAX_JOBS:
            why = f"more than {MAX_JOBS:,} jobs, those of arrays counted"
            raise ProblemError(413, "too many jobs", why, "send several batches")
        specs = [specs_of(job, f"{key} {i}" if key else "") for i, job in enumerate(batch.jobs)]
        can = self._service.backend.can
        wrong = [nothing_to_run(group[0], can) for group in specs]
        right = [group for group, why in zip(specs, wrong, strict=True) if why is None]
        asked = [Submit(spec, actor=ACTOR) for group in right for spec in group]
        said = iter(await self._service.submit(asked) if asked else ())
        lines = [
            line_of(group, why or together([*islice(said, len(group))]))
            for group, why in zip(specs, wrong, strict=True)
        ]
        statuses = [line.status for line in lines]
        new, known = statuses.count(201), statuses.count(200)
        return answer(BatchAnswer(new, known, len(lines) - new - known, lines))

    async def list(self, request: web.Request) -> web.Response:
        """A page of jobs. O(jobs) for a filter that few pass."""
        asked = query_of(request, FILTERS)
        await self._service.settled()
        records = self._records(asked["cursor"])
        tag, _, value = (asked["tag"] or "").partition("=")
        limit = asked["limit"]
        found: list[JobRecord] = []
        for record in records:
            spec = record.spec
            if (
                (asked["pool"] is None or spec.pool == asked["pool"])
                and (asked["user"] is None or spec.user == asked["user"])
                and (asked["phase"] is None or record.phase is asked["phase"])
                and (not tag or (tag in spec.tags and value in ("", spec.tags[tag])))
            ):
                found.append(record)
                if len(found) > limit:
                    break
        following = found[limit - 1].spec.id if len(found) > limit else None
        return answer(Jobs([job_view(record) for record in found[:limit]], following))

    def _records(self, cursor: str | None) -> Any:
        """Jobs alive, the latest first, then those that have ended, the latest first."""
        book = self._service.book
        if cursor is None or cursor in book.jobs:
            alive = reversed(book.jobs.values())
            if cursor is not None:
                alive = _after(alive, cursor)
            yield from alive
            yield from reversed(book.ended.values())
        elif cursor in book.ended:
            yield from _after(reversed(book.ended.values()), cursor)
        else:
            raise ProblemError(
                422, "invalid query", "the job of the cursor is forgotten", "begin anew without it"
            )

    async def history(self, request: web.Request) -> web.Response:
        """A page of the journal's history. O(limit)."""
        asked = query_of(request, PAST)
        limit = asked["limit"]
        found = await self._service.past_jobs(asked["before"], limit, asked["pool"])
        following = found[-1][0] if len(found) == limit else None
        return answer(History([job_view(record) for _, record in found], following))

    async def show(self, request: web.Request) -> web.Response:
        """One job, or an array."""
        return await self._shown(request.match_info["id"])

    async def _shown(self, job_id: str) -> web.Response:
        await self._service.settled()
        book = self._service.book
        if job_id in book.arrays:
            return answer(array_detail(book, job_id))
        record = book.job(job_id) or await self._service.past_job(job_id)
        if record is None:
            raise no_job(job_id)
        return answer(job_detail(self._service, record))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel it; what runs ends soon."""
        job_id = request.match_info["id"]
        new = await self._do(Cancel(job_id, ACTOR))
        return answer(Submitted(job_id), 202 if new else 200)

    async def change(self, request: web.Request) -> web.Response:
        """Change its priority."""
        patch = decoded(await body_of(request), self._patch, JobPatch)
        job_id = request.match_info["id"]
        await self._do(SetPriority(job_id, patch.priority, ACTOR))
        return await self._shown(job_id)

    async def hold(self, request: web.Request) -> web.Response:
        """Hold it."""
        job_id = request.match_info["id"]
        await self._do(Hold(job_id, ACTOR))
        return await self._shown(job_id)

    async def release(self, request: web.Request) -> web.Response:
        """Release it."""
        job_id = request.match_info["id"]
        await self._do(Release(job_id, ACTOR))
        return await self._shown(job_id)

    async def _do(self, command: Command) -> bool:
        """Whether it did something that had not been done. Raises ProblemError if refused."""
        found: Answer
        (found,) = await self._service.submit([command])
        if isinstance(found, Refused):
            raise refusal(found)
        return found.new


def no_job(job_id: str) -> ProblemError:
    """There is no such job."""
    return ProblemError(404, "no such job", f"there is no job {job_id!r}", "see: sia jobs")


def _after(records: Any, cursor: str) -> Any:
    """What comes after the job of that id."""
    for record in records:
        if record.spec.id == cursor:
            break
    return records


def _key(request: web.Request) -> str:
    key: str = request.headers.get("Idempotency-Key", "")
    if len(key) > MAX_KEY:
        raise ProblemError(
            422, "invalid", f"Idempotency-Key is longer than {MAX_KEY}", "send a UUID"
        )
    return key
