"""`/v1/queue`: pending, running and held jobs with their estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta

from daemon.answers.estimates.estimator import EtaService
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.doors.views.estimates import estimate_view
from daemon.doors.views.queues import QueuePosition, Waiting, alive, shortly
from daemon.doors.views.resources import job_view
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.limits import MAX_PAGE, MAX_SEQ, PAGE
from daemon.wire.queue import Queue, Queued

if TYPE_CHECKING:
    from daemon.service.service import Service

What = Literal["waiting", "held", "running"]

QUERY = (
    Parameter("what", What, "waiting: pending for GPUs; held: until a release; running.",
              default="waiting"),
    Parameter("pool", Label, "Only jobs of this pool."),
    Parameter("user", Label, "Only jobs of this user."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Page size.", default=PAGE),
    Parameter("offset", Annotated[int, Meta(ge=0, le=MAX_SEQ)], "Jobs to skip.", default=0),
)  # fmt: skip


class QueueRoutes:
    """Handler of the queue."""

    def __init__(self, service: Service, eta: EtaService) -> None:
        """Serve the queues of a service."""
        self._service, self._eta = service, eta

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/queue", Rule.VIEW, self.queue,
                "Jobs by pool with estimates: pending jobs in queue order, running or held jobs in "
                "the order of submission.",
                {200: Queue}, parameters=QUERY, refusals=(422,),
            )
        ]  # fmt: skip

    async def queue(self, request: web.Request) -> web.Response:
        """Return a page. O(pools + jobs of their queues); by user, or not waiting, O(live jobs)."""
        params = query_of(request, QUERY)
        await self._service.settled()
        who, book = who_asks(request), self._service.book
        wanted = (
            sorted(book.pools) if params["pool"] is None else {params["pool"]} & book.pools.keys()
        )
        pools = [name for name in wanted if who.sees(name)]
        count, places = self._found(params, pools)
        return answer(Queue(self._service.clock.now(), count, [*map(self._line, places)]))

    def _found(
        self, params: dict[str, Any], pools: list[str]
    ) -> tuple[int, Sequence[QueuePosition]]:
        book, user = self._service.book, params["user"]
        offset, limit = params["offset"], params["limit"]
        if params["what"] != "waiting":
            found = alive(book, frozenset(pools), params["what"], user)
            return len(found), found[offset : offset + limit]
        return Waiting(book, self._service.engine.core, pools).piece(offset, limit, user)

    def _line(self, place: QueuePosition) -> Queued:
        record, eta = place.record, self._eta
        given = eta.estimate(record)
        return Queued(
            job_view(record), place.position, shortly(self._service.engine.core, place),
            None if given is None else estimate_view(given),
            eta.why_unknown(record) if given is None else "",
        )  # fmt: skip
