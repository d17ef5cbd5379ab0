"""`/v1/audit`: the audit records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.doors.http.times import FROM, TO, TimeRange, range_of
from daemon.model.access import Rule
from daemon.wire.access import Audit, AuditView
from daemon.wire.limits import MAX_PAGE, MAX_SEQ, PAGE

if TYPE_CHECKING:
    from daemon.service.service import Service

QUERY = (
    Parameter(
        "after",
        Annotated[int, Meta(ge=0, le=MAX_SEQ)],
        "Only records after this number.",
        default=0,
    ),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Maximum page size.", default=PAGE),
    FROM,
    TO,
)


class AuditRoutes:
    """Handler of the audit."""

    def __init__(self, service: Service) -> None:
        """Serve the audit of a service."""
        self._service = service

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/audit", Rule.OPERATE, self.audit,
                "Audit records. A digest is the SHA-256 (hex) of the previous digest, a line feed "
                "and the record's JSON exactly as returned; the first follows 64 zeros.",
                {200: Audit}, parameters=QUERY, refusals=(422,),
            )
        ]  # fmt: skip

    async def audit(self, request: web.Request) -> web.Response:
        """Return a page, which is shorter than `limit` if records are large. O(limit)."""
        params = query_of(request, QUERY)
        start, end = await self._numbers(range_of(params))
        after = max(params["after"], start - 1)
        rows = await self._service.audit(after, max(0, min(params["limit"], end - after - 1)))
        views = [AuditView(row.number, msgspec.Raw(row.body.encode()), row.digest) for row in rows]
        trail = self._service.trail
        following = views[-1].number if views else after
        return answer(Audit(views, following, trail.number, trail.head, start, end))

    async def _numbers(self, times: TimeRange) -> tuple[int, int]:
        """Return the number of the first record of a range, and of the first one after it."""
        start, end = times
        read = self._service.journal
        return (
            1 if start is None else await read(lambda j: j.audit_since(start)),
            self._service.trail.number + 1 if end is None
            else await read(lambda j: j.audit_since(end)),
        )  # fmt: skip
