"""`/ui/audit`: the audit, newest first, for operators."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, query_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses, pages_of
from daemon.doors.web.tables import Column, plain
from daemon.journal.audit import AuditRecord
from daemon.model.access import Rule
from daemon.wire.access import Audit, AuditView

COLUMNS = (
    Column("number", "Number", number=True, term="audit record"),
    Column("time", "Time"),
    Column("who", "Who"),
    Column("origin", "From"),
    Column("what", "What"),
    Column("target", "Target"),
    Column("change", "Change"),
)

_decode = msgspec.json.Decoder(AuditRecord).decode


class AuditPages(PageSet):
    """The audit page."""

    menu = ((f"{UI}/audit", "Audit"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/audit", Rule.OPERATE, self.audit, "Audit records.", {200: HTML},
                parameters=(PAGE,), refusals=(422,),
            )
        ]  # fmt: skip

    async def audit(self, request: web.Request) -> web.Response:
        """Render a page of records. Numbers have no gaps, so page N is a known range."""
        params = query_of(request, (PAGE,))
        end: Audit = await self._ask(request, 0, 1)
        last = end.newest - (params["page"] - 1) * ROWS
        views = await self._between(request, max(0, last - ROWS), last)
        return await self._pages.page(
            request, "audit.html", params=params, end=end,
            found=plain(COLUMNS, [(_decode(view.record), view.digest) for view in reversed(views)]),
            count_pages=pages_of(end.newest), address=addresses(request),
        )  # fmt: skip

    async def _between(self, request: web.Request, after: int, last: int) -> list[AuditView]:
        """Return the records after `after` up to `last`; the API may split them by size."""
        found: list[AuditView] = []
        while after < last:
            some = (await self._ask(request, after, last - after)).records
            if not some:
                break
            found += some
            after = some[-1].number
        return found

    async def _ask(self, request: web.Request, after: int, limit: int) -> Any:
        query = {"after": after, "limit": limit}
        return await self._pages.api.ask(request, "GET /v1/audit", query)
