"""`/v1/jobs/ID/why`: what a job waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from daemon.answers.explain.explain import explain
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer
from daemon.model.access import Rule
from daemon.wire.explain import JobWhy
from daemon.wire.problems import ProblemError, no_job

if TYPE_CHECKING:
    from daemon.service.service import Service

JOB = Parameter("id", str, "Of the job.", "path")


class WhyRoutes:
    """The handler of that."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", "/v1/jobs/{id}/why", Rule.VIEW, self.why,
                "Why a job waits, and what would have it start.", {200: JobWhy},
                parameters=(JOB,), refusals=(404, 409), of="job",
            ),
        ]  # fmt: skip

    async def why(self, request: web.Request) -> web.Response:
        """O(jobs)."""
        job_id, service = request.match_info["id"], self._service
        await service.settled()
        if job_id in service.book.arrays:
            raise ProblemError(
                409, "is an array", f"{job_id} is an array, and each of its jobs waits by itself",
                f"ask of one of its jobs, like {job_id}.0",
            )  # fmt: skip
        record = service.book.job(job_id)
        if record is None:
            record = await service.past_job(job_id)
            if record is None:
                raise no_job(job_id)
            await service.settled()
        return answer(explain(service.book, service.engine.core, record, who_asks(request)))
