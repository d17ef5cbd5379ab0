"""`/v1/pools/NAME/account`, `/ledger`, `/verdicts`, `/statement`: what sharing was to a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import gmtime
from typing import TYPE_CHECKING, Annotated, TypeVar

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authorization import demand, who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.doors.views.statements import (
    StatementTally,
    account_view,
    loan_row,
    month_of,
    open_loans,
    statement,
    verdict_row,
)
from daemon.journal.account_tables import LedgerTable
from daemon.journal.journal import Journal
from daemon.model.access import Rule
from daemon.wire.accounts import AccountView, Ledger, Statement, Verdicts
from daemon.wire.limits import MAX_PAGE, MAX_SEQ, PAGE
from daemon.wire.problems import ProblemError, no_pool

if TYPE_CHECKING:
    from daemon.service.service import Service

T = TypeVar("T")

NAME = Parameter("name", str, "Of the pool.", "path")
PAGES = (
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Rows of a page.", default=PAGE),
    Parameter(
        "before", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "`next` of the page before.",
        default=MAX_SEQ,
    ),
)  # fmt: skip
MONTH = Parameter(
    "month",
    Annotated[str, Meta(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")],
    "Like 2026-11 (UTC); without it, the one that goes on.",
)
HTML = "text/html"

LedgerRows = list[tuple[int, float, T]]


class AccountRoutes:
    """Handlers of all that."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service
        self._one = asyncio.Lock()  # statements read much: one at a time

    def operations(self) -> list[Operation]:
        """All of them."""
        pool = "/v1/pools/{name}"
        return [
            Operation(
                "GET", f"{pool}/account", Rule.VIEW, self.account,
                "What sharing has been to a pool so far.", {200: AccountView},
                parameters=(NAME,), refusals=(404,), of="pool",
            ),
            Operation(
                "GET", f"{pool}/ledger", Rule.VIEW, self.ledger,
                "What a pool lent and borrowed, loan by loan.", {200: Ledger},
                parameters=(NAME, *PAGES), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/verdicts", Rule.VIEW, self.verdicts,
                "When jobs of a pool ran, and when they would have alone.", {200: Verdicts},
                parameters=(NAME, *PAGES), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/statement", Rule.VIEW, self.statement,
                "A month of a pool; with Accept: text/html as a page by itself.",
                {200: Statement}, parameters=(NAME, MONTH), refusals=(404, 422), of="pool",
            ),
        ]  # fmt: skip

    async def _pool(self, request: web.Request) -> str:
        """The pool that is meant, of which whoever asks may know."""
        name = request.match_info["name"]
        demand(request, Rule.VIEW, name)
        await self._service.settled()
        self._service.engine.settle_accounts()
        if name not in self._service.book.pools:
            raise no_pool(name, self._service.book.pools)
        if name not in self._service.book.accounts:
            why = f"the account of pool {name} is opened when anything happens"
            raise ProblemError(404, "no account yet", why, "submit a job, or wait")
        return name

    async def account(self, request: web.Request) -> web.Response:
        """O(loans under way, jobs of the pool)."""
        pool = await self._pool(request)
        return answer(account_view(self._service.book, pool, self._service.clock.now()))

    async def ledger(self, request: web.Request) -> web.Response:
        """A page."""
        asked = query_of(request, PAGES)
        pool, who = await self._pool(request), who_asks(request)
        now = self._service.clock.now()
        under_way = [*open_loans(self._service.book, pool, now, who.sees)]
        found = await self._read(lambda j: j.lent(pool, asked["before"], asked["limit"]))
        rows = [loan_row(number, row, who.sees) for number, _, row in found]
        return answer(Ledger(rows, under_way, _next(found, asked["limit"])))

    async def verdicts(self, request: web.Request) -> web.Response:
        """A page."""
        asked = query_of(request, PAGES)
        pool = await self._pool(request)
        found = await self._read(lambda j: j.verdicts(pool, asked["before"], asked["limit"]))
        rows = [verdict_row(number, verdict) for number, _, verdict in found]
        return answer(Verdicts(rows, _next(found, asked["limit"])))

    async def statement(self, request: web.Request) -> web.Response:
        """O(rows of the month), read page by page, so that commits have their turn between."""
        asked = query_of(request, (MONTH,))
        pool, who, now = await self._pool(request), who_asks(request), self._service.clock.now()
        month = asked["month"] or _month(now)
        start, end = month_of(month)
        if start > now:
            mend = f"ask for {_month(now)}, or one before"
            raise ProblemError(422, "no such month yet", f"{month} has not begun (UTC)", mend)
        tally = StatementTally(pool)
        async with self._one:
            await self._within(
                "verdicts", start, end, lambda j, before: j.verdicts(pool, before, MAX_PAGE),
                tally.add_verdicts,
            )  # fmt: skip
            await self._within(
                "lent", start, end, lambda j, before: j.lent(pool, before, MAX_PAGE),
                tally.add_loans,
            )  # fmt: skip
        made = statement(self._service.book, tally, pool, month, now, who.sees)
        if HTML not in request.headers.get("Accept", ""):
            return answer(made)
        from daemon.doors.views.statement_page import page  # noqa: PLC0415  jinja takes its time

        text = await asyncio.to_thread(page, made)
        return web.Response(text=text, content_type=HTML, headers={"Vary": "Accept"})

    async def _within(
        self,
        table: LedgerTable,
        start: float,
        end: float,
        read: Callable[[Journal, int], LedgerRows[T]],
        take: Callable[[list[tuple[int, T]]], None],
    ) -> None:
        """Take all rows that were booked from a time to a time, page by page, newest first."""
        first = await self._read(lambda j: j.booked_since(table, start))
        before = await self._read(lambda j: j.booked_since(table, end))
        while before > first:
            some = await self._read(lambda j, before=before: read(j, before))  # type: ignore[misc]
            take([(number, row) for number, _, row in some if number >= first])
            before = some[-1][0] if len(some) == MAX_PAGE else first

    async def _read(self, do: Callable[[Journal], T]) -> T:
        return await self._service.journal(do)


def _next(found: LedgerRows[T], limit: int) -> int | None:
    return found[-1][0] if len(found) == limit else None


def _month(now: float) -> str:
    """The month that it is."""
    year, month, *_ = gmtime(now)
    return f"{year}-{month:02}"
