"""`/ui/jobs/ID`: a job's timeline, explanation, estimates and log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.queue import LISTED
from daemon.doors.web.pagination import PAGE, addresses
from daemon.doors.web.ranges import page_query
from daemon.doors.web.sign_in import see
from daemon.doors.web.tables import Column, plain, sort_of, table
from daemon.doors.web.why_tree import trace
from daemon.model.access import Rule, allows
from daemon.model.job import JobPhase
from daemon.wire.estimates import Eta
from daemon.wire.jobs import ArrayDetail, JobDetail
from daemon.wire.problems import ProblemError

JOB = Parameter("id", str, "Id of the job or of an array.", "path")

TAIL = 2**14
"""Bytes of the log shown on the page: about 200 lines."""

IN_ARRAY = tuple(column for column in LISTED if column.key not in ("pool", "user"))
"""Columns of the jobs of an array."""

QUERY = (
    Parameter("stream", Literal["stdout", "stderr"], "Output stream.", default="stdout"),
    sort_of(IN_ARRAY),
    PAGE,
)

GIVEN = (
    Column("made", "Made"),
    Column("start_p50", "Start, p50", term="start, p50"),
    Column("start_p90", "Start, p90", term="start, p90"),
    Column("end_p50", "End, p50", term="end, p50"),
    Column("end_p90", "End, p90", term="end, p90"),
)
"""Columns of earlier estimates."""

CHANGES = {
    "cancel": ("DELETE /v1/jobs/{id}", Rule.SUBMIT),
    "hold": ("POST /v1/jobs/{id}/hold", Rule.SUBMIT),
    "release": ("POST /v1/jobs/{id}/release", Rule.SUBMIT),
    "priority": ("PATCH /v1/jobs/{id}", Rule.ADMIN),
}
"""Actions on a job: the API operation and the permission for it."""


class JobMilestone(NamedTuple):
    """A point on a job's timeline; `estimate` marks an estimate."""

    time: float | None
    words: str
    estimate: bool = False
    late: float | None = None
    """The 90th percentile of an estimate."""
    expected: bool = False
    """Whether the estimate has no percentiles because it uses only expected run times."""


class JobPages(PageSet):
    """The page of a job or array, and its actions."""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        here = f"{UI}/jobs/{{id}}"
        return [
            Operation(
                "GET", here, Rule.VIEW, self.job, "Show a job or an array.", {200: HTML},
                parameters=(JOB, *QUERY), refusals=(404, 422), of="job",
            ),
            *(
                Operation(
                    "POST", f"{here}/{what}", rule, self.change, f"Action {what} on a job.",
                    {303: None}, None, (JOB,), (404, 409, 422), of="job",
                )
                for what, (_, rule) in CHANGES.items()
            ),
        ]  # fmt: skip

    async def job(self, request: web.Request) -> web.Response:
        """Render the page of a job or of an array."""
        params = page_query(request, QUERY)
        found = await self._pages.api.ask(request, "GET /v1/jobs/{id}")
        if isinstance(found, ArrayDetail):
            return await self._array(request, found, params)
        return await self._one(request, found, params["stream"])

    async def _one(self, request: web.Request, job: JobDetail, stream: str) -> web.Response:
        api, one = self._pages.api, "GET /v1/jobs/{id}"
        eta, why = [await api.ask(request, f"{one}/{what}") for what in ("eta", "why")]
        may = allows(who_asks(request), Rule.SUBMIT, job.pool)
        return await self._pages.page(
            request, "jobs/job.html", job=job, eta=eta, why=why, ways=trace(why, eta.now),
            steps=steps(job, eta),
            changes=_allowed(request, job.pool, changes(job.phase)), priority=job.priority,
            log=await self._log(request, stream) if may else None, stream=stream,
            given=plain(GIVEN, eta.given), address=addresses(request),
        )  # fmt: skip

    async def _array(
        self, request: web.Request, array: ArrayDetail, params: Mapping[str, Any]
    ) -> web.Response:
        pool = array.jobs[0].pool if array.jobs else None
        some = {each for job in array.jobs for each in changes(job.phase)}
        return await self._pages.page(
            request, "jobs/array.html", array=array,
            found=table(request, IN_ARRAY, array.jobs, params),
            changes=_allowed(request, pool, sorted(some)), priority=None,
        )  # fmt: skip

    async def _log(self, request: web.Request, stream: str) -> dict[str, Any]:
        """Return the end of the job's output, or why it is not available."""
        query = {"stream": stream, "tail": TAIL}
        try:
            text = await self._pages.api.ask(request, "GET /v1/jobs/{id}/log", query)
        except ProblemError as problem:
            return {"text": "", "why": problem.details.detail, "away": problem.status == 503}
        return {"text": text, "why": ""}

    async def change(self, request: web.Request) -> web.Response:
        """Run an action through the API, then redirect to the job."""
        what = request.path.rpartition("/")[2]
        body = None
        if what == "priority":
            body = {"priority": _whole((await form_of(request)).get(what, ""))}
        await self._pages.api.ask(request, CHANGES[what][0], body=body)
        return see(f"{UI}/jobs/{quote(request.match_info['id'], safe='')}")


def changes(phase: JobPhase) -> list[str]:
    """Return the actions that apply to a job in a phase."""
    if phase.over or phase is JobPhase.ENDING:
        return []
    more = {JobPhase.HELD: ["release", "priority"], JobPhase.PENDING: ["hold", "priority"]}
    return ["cancel", *more.get(phase, [])]


def _allowed(request: web.Request, pool: str | None, some: Iterable[str]) -> list[str]:
    """Return the actions that the user is permitted to run on jobs of a pool."""
    who = who_asks(request)
    return [what for what in some if allows(who, CHANGES[what][1], pool)]


def _whole(text: str) -> int:
    """Parse an integer from a form. Raises ProblemError."""
    if re.fullmatch(r"[+-]?[0-9]{1,100}", text):
        return int(text)
    raise ProblemError(422, "invalid", f"{text[:40]!r} is not an integer", "write one like 10")


def steps(job: JobDetail, eta: Eta) -> list[JobMilestone]:
    """Return a job's timeline in order of time, estimates included."""
    return sorted(_steps(job, eta), key=lambda step: (step.time is None, step.time or 0.0))


def _steps(job: JobDetail, eta: Eta) -> Iterator[JobMilestone]:
    yield JobMilestone(job.submitted, "submitted")
    if job.alone is not None:
        yield JobMilestone(job.alone, "would have started without sharing")
    turn = eta.turn
    if turn is not None and turn.time is not None and not turn.came:
        words = "has its turn in its pool alone"
        yield JobMilestone(turn.time, words, estimate=True, expected=True)
    if eta.started is not None:
        again = f", attempt {job.attempt}" if job.attempt > 1 else ""
        yield JobMilestone(eta.started, f"placed on GPUs{again}")
    if job.started is not None:
        yield JobMilestone(job.started, "running")
    if job.ended is not None:
        yield JobMilestone(job.ended, job.phase.value)
    if eta.estimate is not None:
        start, end = eta.estimate.start, eta.estimate.end
        if start is not None:
            yield JobMilestone(start.p50, "starts", estimate=True, late=start.p90)
        yield JobMilestone(end.p50, "ends", estimate=True, late=end.p90)
