"""`/ui/jobs/ID`: a job's time line, why it is where it is, when it is thought to end, its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from aiohttp import web

from daemon.doors.http.authorization import who_asks
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.sessions import UI
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, addresses, cut
from daemon.doors.web.sign_in import see
from daemon.doors.web.why_tree import trace
from daemon.model.access import Rule, allows
from daemon.model.job import JobPhase
from daemon.wire.estimates import Eta
from daemon.wire.jobs import ArrayDetail, JobDetail
from daemon.wire.problems import ProblemError

JOB = Parameter("id", str, "Of the job, or of an array.", "path")

TAIL = 2**14
"""Bytes of a log that the page shows: some two hundred lines."""

QUERY = (
    Parameter("stream", Literal["stdout", "stderr"], "What it wrote where.", default="stdout"),
    PAGE,
)

CHANGES = {
    "cancel": ("DELETE /v1/jobs/{id}", Rule.SUBMIT),
    "hold": ("POST /v1/jobs/{id}/hold", Rule.SUBMIT),
    "release": ("POST /v1/jobs/{id}/release", Rule.SUBMIT),
    "priority": ("PATCH /v1/jobs/{id}", Rule.ADMIN),
}
"""What may be done to a job: by which operation, and whom that is for."""


class JobMilestone(NamedTuple):
    """Something in a job's life; `thought` of what has not come yet."""

    time: float | None
    words: str
    thought: bool = False
    late: float | None = None
    """Nine times in ten before."""


class JobPages(PageSet):
    """One job, or an array, and what may be done to it."""

    def operations(self) -> list[Operation]:
        """All of them."""
        here = f"{UI}/jobs/{{id}}"
        return [
            Operation(
                "GET", here, Rule.VIEW, self.job, "One job, or an array.", {200: HTML},
                parameters=(JOB, *QUERY), refusals=(404, 422), of="job",
            ),
            *(
                Operation(
                    "POST", f"{here}/{what}", rule, self.change, f"Its {what}, as by the API.",
                    {303: None}, None, (JOB,), (404, 409, 422), of="job",
                )
                for what, (_, rule) in CHANGES.items()
            ),
        ]  # fmt: skip

    async def job(self, request: web.Request) -> web.Response:
        """What it is decides what the page says."""
        asked = query_of(request, QUERY)
        found = await self._pages.api.ask(request, "GET /v1/jobs/{id}")
        if isinstance(found, ArrayDetail):
            return await self._array(request, found, asked["page"])
        return await self._one(request, found, asked["stream"])

    async def _one(self, request: web.Request, job: JobDetail, stream: str) -> web.Response:
        api, one = self._pages.api, "GET /v1/jobs/{id}"
        eta, why = [await api.ask(request, f"{one}/{what}") for what in ("eta", "why")]
        may = allows(who_asks(request), Rule.SUBMIT, job.pool)
        return await self._pages.page(
            request, "job.html", job=job, eta=eta, why=why, ways=trace(why), steps=steps(job, eta),
            changes=_allowed(request, job.pool, changes(job.phase)), priority=job.priority,
            log=await self._log(request, stream) if may else None, stream=stream,
            address=addresses(request),
        )  # fmt: skip

    async def _array(self, request: web.Request, array: ArrayDetail, page: int) -> web.Response:
        pool = array.jobs[0].pool if array.jobs else None
        some = {each for job in array.jobs for each in changes(job.phase)}
        shown = cut(array.jobs, page)
        return await self._pages.page(
            request, "array.html", array=array, jobs=shown.rows, page=page,
            count_pages=shown.pages, address=addresses(request),
            changes=_allowed(request, pool, sorted(some)), priority=None,
        )  # fmt: skip

    async def _log(self, request: web.Request, stream: str) -> dict[str, Any]:
        """The end of what it wrote, or why there is nothing."""
        query = {"stream": stream, "tail": TAIL}
        try:
            text = await self._pages.api.ask(request, "GET /v1/jobs/{id}/log", query)
        except ProblemError as problem:
            return {"text": "", "why": problem.details.detail, "away": problem.status == 503}
        return {"text": text, "why": ""}

    async def change(self, request: web.Request) -> web.Response:
        """As by the API, and back to the job."""
        what = request.path.rpartition("/")[2]
        body = None
        if what == "priority":
            body = {"priority": _whole((await form_of(request)).get(what, ""))}
        await self._pages.api.ask(request, CHANGES[what][0], body=body)
        return see(f"{UI}/jobs/{quote(request.match_info['id'], safe='')}")


def changes(phase: JobPhase) -> list[str]:
    """What can be done to a job in a phase."""
    if phase.over or phase is JobPhase.ENDING:
        return []
    more = {JobPhase.HELD: ["release", "priority"], JobPhase.PENDING: ["hold", "priority"]}
    return ["cancel", *more.get(phase, [])]


def _allowed(request: web.Request, pool: str | None, some: Iterable[str]) -> list[str]:
    """Those that whoever looks may do to jobs of a pool."""
    who = who_asks(request)
    return [what for what in some if allows(who, CHANGES[what][1], pool)]


def _whole(text: str) -> int:
    """A number that was typed in. Raises ProblemError."""
    if re.fullmatch(r"[+-]?[0-9]{1,100}", text):
        return int(text)
    raise ProblemError(422, "invalid", f"{text[:40]!r} is no whole number", "write one like 10")


def steps(job: JobDetail, eta: Eta) -> list[JobMilestone]:
    """What happened to a job, and what is thought to, in the order of time."""
    return sorted(_steps(job, eta), key=lambda step: (step.time is None, step.time or 0.0))


def _steps(job: JobDetail, eta: Eta) -> Iterator[JobMilestone]:
    yield JobMilestone(job.submitted, "submitted")
    if job.alone is not None:
        yield JobMilestone(job.alone, "would have started in its pool alone")
    if eta.started is not None:
        again = f", attempt {job.attempt}" if job.attempt > 1 else ""
        yield JobMilestone(eta.started, f"given its GPUs{again}")
    if job.started is not None:
        yield JobMilestone(job.started, "runs")
    if job.ended is not None:
        yield JobMilestone(job.ended, job.phase.value)
    if eta.estimate is not None:
        start, end = eta.estimate.start, eta.estimate.end
        if start is not None:
            yield JobMilestone(start.p50, "starts", thought=True, late=start.p90)
        yield JobMilestone(end.p50, "ends", thought=True, late=end.p90)
