"""`/ui/audit`: the audit, newest first, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.http.times import range_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses
from daemon.doors.web.ranges import KEPT, page_query
from daemon.doors.web.tables import MAX_SORTED, SEARCHED_SOME, Column, piece, sort_of, table
from daemon.journal.audit import AuditRecord
from daemon.model.access import Rule
from daemon.wire.access import Audit


class Row(NamedTuple):
    """A record, and the digest that chains it to the earlier ones."""

    record: AuditRecord
    digest: str


COLUMNS = (
    Column("number", "Number", lambda row: row.record.number, number=True, term="audit record"),
    Column("time", "Time", lambda row: row.record.time),
    Column("who", "Who", lambda row: row.record.who),
    Column("origin", "Address", lambda row: row.record.origin),
    Column("what", "What", lambda row: row.record.what),
    Column("target", "Target", lambda row: row.record.target),
    Column("change", "Change"),
)

Part = Annotated[str, Meta(max_length=200)]

FILTERS = (
    Parameter("who", Part, "Part of the author's name.", default=""),
    Parameter("what", Part, "Part of the command.", default=""),
    Parameter("target", Part, "Part of the name of what was changed.", default=""),
)

QUERY = (*FILTERS, sort_of(COLUMNS), PAGE)

PIECE = 500
"""Records requested from the API at a time. One request blocks the event loop for some
milliseconds."""

_decode = msgspec.json.Decoder(AuditRecord).decode


class AuditPages(PageSet):
    """The audit page."""

    menu = ((f"{UI}/audit", "Audit"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/audit", Rule.OPERATE, self.audit, "Audit records.", {200: HTML},
                parameters=(*QUERY, *KEPT), refusals=(422,),
            )
        ]  # fmt: skip

    async def audit(self, request: web.Request) -> web.Response:
        """Render a page of records; sorted or searched, of the newest `MAX_SORTED`.

        Numbers have no gaps, so page N of all records is a known range of numbers.
        """
        params = page_query(request, QUERY)
        parts = {name: params[name].lower() for name in ("who", "what", "target")}
        times = {name: params[name] or None for name in ("from", "to")}
        end: Audit = await self._ask(request, times | {"limit": 1})
        count = max(0, end.end - end.first)
        if params["sort"] or any(parts.values()):
            rows = await self._between(request, max(end.first, end.end - MAX_SORTED), end.end)
            rows = [row for row in rows if _matches(row.record, parts)]
            note = SEARCHED_SOME.format(MAX_SORTED, f"{count:,} records")
            found = table(request, COLUMNS, rows, params, note=note if count > MAX_SORTED else "")
        else:
            last = end.end - (params["page"] - 1) * ROWS
            rows = await self._between(request, max(end.first, last - ROWS), last)
            found = piece(request, COLUMNS, rows, params, count)
        return await self._pages.page(
            request, "audit.html", params=params, end=end, found=found, range=range_of(params),
            address=addresses(request), commands=sorted({row.record.what for row in rows}),
            authors=sorted({row.record.who for row in rows}),
        )  # fmt: skip

    async def _between(self, request: web.Request, first: int, end: int) -> list[Row]:
        """Return the records from number `first` until before `end`, newest first."""
        found: list[Row] = []
        while first < end:
            query = {"after": first - 1, "limit": min(PIECE, end - first)}
            some = (await self._ask(request, query)).records
            if not some:
                break
            found += [Row(_decode(view.record), view.digest) for view in some]
            first = some[-1].number + 1
            await asyncio.sleep(0)  # let other requests run between two pieces
        found.reverse()
        return found

    async def _ask(self, request: web.Request, query: Mapping[str, Any]) -> Any:
        return await self._pages.api.ask(request, "GET /v1/audit", query)


def _matches(record: AuditRecord, parts: Mapping[str, str]) -> bool:
    return all(part in getattr(record, name).lower() for name, part in parts.items())
