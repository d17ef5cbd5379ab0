"""`/ui/queue`: pending, running or held jobs; `/ui/jobs`: all jobs, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any
from urllib.parse import quote

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.http.routes.queue import What
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses
from daemon.doors.web.ranges import page_query
from daemon.doors.web.sign_in import see
from daemon.doors.web.tables import MAX_SORTED, SORTED_SOME, Column, piece, sort_of, table
from daemon.model.access import Rule
from daemon.model.job import JobPhase
from daemon.wire.estimates import Moment
from daemon.wire.jobs import JobPage, JobView, Label
from daemon.wire.queue import Queue, Queued

ASKED = 12
"""Maximum API pages read for one web page: 60,000 jobs if few match the filter."""

WHOSE = (
    Parameter("pool", Label, "Only jobs of this pool.", default=""),
    Parameter("user", Label, "Only jobs of this user.", default=""),
)

JOB = (
    Column("job", "Job", attrgetter("job.id")),
    Column("pool", "Pool", attrgetter("job.pool"), term="pool"),
    Column("user", "User", attrgetter("job.user")),
    Column("gpus", "GPUs", attrgetter("job.gpus"), number=True, term="width"),
)
PENDING = (
    *JOB,
    Column("submitted", "Submitted", attrgetter("job.submitted")),
    Column("p50", "Start, p50", lambda row: _quantile(row, "start", "p50"), term="start, p50"),
    Column("p90", "Start, p90", lambda row: _quantile(row, "start", "p90"), term="start, p90"),
    Column("why", "Why"),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "waiting": (
        Column("position", "Position", attrgetter("position"), number=True, term="position"),
        *PENDING,
    ),
    "held": PENDING,
    "running": (
        *JOB,
        Column("started", "Started", attrgetter("job.started")),
        Column("p50", "End, p50", lambda row: _quantile(row, "end", "p50"), term="end, p50"),
        Column("p90", "End, p90", lambda row: _quantile(row, "end", "p90"), term="end, p90"),
        Column("stream", "Stream", lambda row: row.job.stream and row.job.stream.value,
               term="stream"),
    ),
}  # fmt: skip
"""Columns of the queue by kind of jobs."""

LISTED = (
    Column("job", "Job", attrgetter("id")),
    Column("pool", "Pool", attrgetter("pool"), term="pool"),
    Column("user", "User", attrgetter("user")),
    Column("gpus", "GPUs", attrgetter("gpus"), number=True, term="width"),
    Column("phase", "Phase", attrgetter("phase.value"), term="phase"),
    Column("submitted", "Submitted", attrgetter("submitted")),
    Column("started", "Started", attrgetter("started")),
    Column("ended", "Ended", attrgetter("ended")),
)
"""Columns of the list of jobs."""

QUERY = (
    Parameter("what", What, "Kind of jobs.", default="waiting"),
    *WHOSE,
    sort_of([each for columns in COLUMNS.values() for each in columns]),
    PAGE,
)

ALL = (
    Parameter("job", Label, "Id of a job, whose page is shown.", default=""),
    Parameter("phase", Label, "Only jobs in this phase.", default=""),
    *WHOSE,
    Parameter("tag", Label, "Only jobs with this tag, as KEY=VALUE or KEY.", default=""),
    sort_of(LISTED),
    PAGE,
    Parameter("cursor", Label, "End of the previous page.", default=""),
)

PIECE = 500
"""Jobs requested from the API at a time. One request blocks the event loop for about 8 ms."""


def _quantile(row: Queued, what: str, quantile: str) -> float | None:
    """Return an estimated time of a job, or None if it is not known."""
    moment: Moment | None = getattr(row.estimate, what, None)
    found: float | None = getattr(moment, quantile, None)
    return found


class QueuePages(PageSet):
    """The pages that list jobs."""

    menu = ((f"{UI}/queue", "Queue"), (f"{UI}/jobs", "Jobs"))

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/queue", Rule.VIEW, self.queue, "Pending, running or held jobs.",
                {200: HTML}, parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "GET", f"{UI}/jobs", Rule.VIEW, self.jobs, "Jobs, newest first.",
                {200: HTML, 303: None},
                parameters=ALL, refusals=(422,),
            ),
        ]  # fmt: skip

    async def queue(self, request: web.Request) -> web.Response:
        """Render a page of `/v1/queue`; sorted, of its first `MAX_SORTED` jobs."""
        params = page_query(request, QUERY)
        columns = COLUMNS[params["what"]]
        if params["sort"]:
            rows, count = await self._queued(request, params, 0, MAX_SORTED)
            note = "" if count <= len(rows) else SORTED_SOME.format(MAX_SORTED, f"{count:,} jobs")
            found = table(request, columns, rows, params, note=note)
        else:
            rows, count = await self._queued(request, params, (params["page"] - 1) * ROWS, ROWS)
            found = piece(request, columns, rows, params, count)
        return await self._pages.page(
            request, "jobs/queue.html", params=params, found=found, count=count,
            users=_users(row.job for row in found.rows), address=addresses(request),
        )  # fmt: skip

    async def _queued(
        self, request: web.Request, params: Mapping[str, Any], offset: int, most: int
    ) -> tuple[list[Queued], int]:
        """Return jobs of the queue from an offset on, and how many there are."""
        query = {key: params[key] or None for key in ("what", "pool", "user")}
        found: list[Queued] = []
        while True:
            some = {"limit": min(PIECE, most - len(found)), "offset": offset + len(found)}
            queue: Queue = await self._pages.api.ask(request, "GET /v1/queue", query | some)
            found += queue.jobs
            if not queue.jobs or len(found) == most:
                return found, queue.count
            await asyncio.sleep(0)  # let other requests run between two pieces

    async def jobs(self, request: web.Request) -> web.Response:
        """Render a page of `/v1/jobs`; sorted, of the newest `MAX_SORTED` that match."""
        params = page_query(request, ALL)
        if params["job"].strip():
            return see(f"{UI}/jobs/{quote(params['job'].strip(), safe='')}")
        query = {key: params[key] or None for key in ("phase", "pool", "user", "tag", "cursor")}
        if params["sort"]:
            jobs, following = await self._some(request, query | {"cursor": None}, MAX_SORTED)
            note = SORTED_SOME.format(MAX_SORTED, "the jobs, newest first,") if following else ""
            found = table(request, LISTED, jobs, params, note=note)
        else:
            jobs, following = await self._some(request, query, ROWS)
            found = piece(request, LISTED, jobs, params, None)
        return await self._pages.page(
            request, "jobs/jobs.html", params=params, found=found, next=following,
            users=_users(found.rows), address=addresses(request),
            phases=[phase.value for phase in JobPhase],
        )  # fmt: skip

    async def _some(
        self, request: web.Request, query: dict[str, str | None], most: int
    ) -> tuple[list[JobView], str | None]:
        """Collect jobs and their cursor: API pages are short when few jobs match."""
        found: list[JobView] = []
        for _ in range(ASKED):
            more = query | {"limit": min(PIECE, most - len(found))}
            some: JobPage = await self._pages.api.ask(request, "GET /v1/jobs", more)
            found += some.jobs
            query = query | {"cursor": some.next}
            if some.next is None or len(found) == most:
                break
            await asyncio.sleep(0)  # let other requests run between two pieces
        return found, query["cursor"]


def _users(jobs: Iterable[JobView]) -> list[str]:
    """Return the users of some jobs, as suggestions for the filter."""
    return sorted({job.user for job in jobs if job.user})
