"""`/ui/queue`: pending, running or held jobs; `/ui/jobs`: all jobs, newest first."""

from __future__ import annotations

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.routes.queue import What
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses, pages_of
from daemon.model.access import Rule
from daemon.model.job import JobPhase
from daemon.wire.jobs import JobPage, JobView, Label

ASKED = 12
"""Maximum API pages read for one web page: 60,000 jobs if few match the filter."""

WHOSE = (
    Parameter("pool", Label, "Only jobs of this pool.", default=""),
    Parameter("user", Label, "Only jobs of this user.", default=""),
)
QUERY = (Parameter("what", What, "Kind of jobs.", default="waiting"), *WHOSE, PAGE)

ALL = (
    Parameter("phase", Label, "Only jobs in this phase.", default=""),
    *WHOSE,
    Parameter("cursor", Label, "End of the previous page.", default=""),
)


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
                "GET", f"{UI}/jobs", Rule.VIEW, self.jobs, "Jobs, newest first.", {200: HTML},
                parameters=ALL, refusals=(422,),
            ),
        ]  # fmt: skip

    async def queue(self, request: web.Request) -> web.Response:
        """Render a page of `/v1/queue`."""
        params = query_of(request, QUERY)
        query = {
            "what": params["what"], "pool": params["pool"] or None, "user": params["user"] or None,
            "limit": ROWS, "offset": (params["page"] - 1) * ROWS,
        }  # fmt: skip
        queue = await self._pages.api.ask(request, "GET /v1/queue", query)
        return await self._pages.page(
            request, "jobs/queue.html", params=params, queue=queue,
            count_pages=pages_of(queue.count),
            address=addresses(request),
        )  # fmt: skip

    async def jobs(self, request: web.Request) -> web.Response:
        """Render a page of `/v1/jobs`."""
        params = query_of(request, ALL)
        query = {key: value or None for key, value in params.items()}
        jobs, following = await self._some(request, query)
        return await self._pages.page(
            request, "jobs/jobs.html", params=params, jobs=jobs, next=following,
            address=addresses(request),
            phases=[phase.value for phase in JobPhase],
        )  # fmt: skip

    async def _some(
        self, request: web.Request, query: dict[str, str | None]
    ) -> tuple[list[JobView], str | None]:
        """Collect a full page and its cursor: API pages are short when few jobs match."""
        found: list[JobView] = []
        for _ in range(ASKED):
            more = query | {"limit": ROWS - len(found)}
            some: JobPage = await self._pages.api.ask(request, "GET /v1/jobs", more)
            found += some.jobs
            query = query | {"cursor": some.next}
            if some.next is None or len(found) == ROWS:
                break
        return found, query["cursor"]
