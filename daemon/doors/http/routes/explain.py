"""`/v1/jobs/ID/why`: why a job is pending, worked out in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import web
from msgspec import json

from daemon.answers.explain.explain import explain, waiting_in
from daemon.answers.simulate.fork import WorkerQueue, child_worker, in_copy
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer
from daemon.model.access import Rule
from daemon.model.errors import UnavailableError
from daemon.wire.explain import JobWhy
from daemon.wire.problems import ProblemError, no_job
from sia.core.core import Core
from sia.events import Event
from sia.explain.explain import explain as explain_start
from sia.explain.explain import start_after
from sia.explain.glance import glance
from sia.explain.obstacles import Explanation
from sia.model import Stream
from sia.state.state import JobState

if TYPE_CHECKING:
    from daemon.service.service import Service

WHY_SECONDS = 10.0
"""Timeout of an explanation in seconds; 1,000 pools with 50,000 pending jobs take about two."""

WHY_NICE = 10
"""Niceness added to the child process, so that scheduling has precedence."""

STREAMS: tuple[Stream | None, ...] = (None, *Stream)
"""Result of a trial, by the exit status of the child process that ran it."""

JOB = Parameter("id", str, "Id of the job.", "path")


class WhyRoutes:
    """Handler of explanations."""

    def __init__(self, service: Service) -> None:
        """Explain jobs of a service."""
        self._service, self._line = service, WorkerQueue()

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/jobs/{id}/why", Rule.VIEW, self.why,
                "Why a job is pending, and what would let it start.", {200: JobWhy},
                parameters=(JOB,), refusals=(404, 409), of="job",
            ),
        ]  # fmt: skip

    async def why(self, request: web.Request) -> web.Response:
        """Explain a job; a child process runs at most `MOST_PASSES` decision passes."""
        job_id, service = request.match_info["id"], self._service
        await service.settled()
        if job_id in service.book.arrays:
            raise ProblemError(
                409, "is an array", f"{job_id} is an array; its jobs wait independently",
                f"use one of its jobs, like {job_id}.0",
            )  # fmt: skip
        record = service.book.job(job_id)
        if record is None:
            record = await service.past_job(job_id)
            if record is None:
                raise no_job(job_id)
            await service.settled()
        core, who, now = service.engine.core, who_asks(request), service.clock.now()
        if waiting_in(core, record) is None:
            return answer(explain(service.book, core, record, who, now=now))
        try:
            found = await child_worker(
                lambda: json.encode(
                    explain(service.book, core, record, who, explain_in_copies, now)
                ),
                seconds=WHY_SECONDS, nice=WHY_NICE,
                settled=service.settled, line=self._line,
            )  # fmt: skip
        except UnavailableError:  # too many questions, or a timeout: answer without trials
            return answer(explain(service.book, core, record, who, at_first_sight, now))
        return answer(json.decode(found, type=JobWhy))


def at_first_sight(core: Core, job: JobState) -> Explanation:
    """Explain why a job waits from the state alone, without trials."""
    return glance(core.policy, job)


def explain_in_copies(core: Core, job: JobState) -> Explanation:
    """Explain why a job waits; each trial runs in a forked copy of the calling child process."""

    def try_start(core: Core, job_id: str, events: Sequence[Event]) -> Stream | None:
        code = in_copy(lambda: STREAMS.index(start_after(core, job_id, events)))
        return STREAMS[code]

    return explain_start(core, job, try_start)
