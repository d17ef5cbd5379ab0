"""`/v1/pools/NAME/account`, `/ledger`, `/verdicts`, `/statement`: gains and costs of sharing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import gmtime
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authorization import demand, who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.doors.http.times import FROM, TO, TimeRange, range_of
from daemon.doors.views.statements import (
    StatementPeriod,
    StatementTally,
    account_view,
    loan_row,
    month_of,
    open_loans,
    statement,
    statement_page,
    verdict_row,
)
from daemon.journal.account_tables import LedgerTable
from daemon.journal.journal import Journal
from daemon.model.access import Rule
from daemon.wire.accounts import AccountView, Ledger, Statement, Verdicts
from daemon.wire.jobs import Label
from daemon.wire.limits import MAX_PAGE, MAX_SEQ, PAGE
from daemon.wire.problems import ProblemError, no_pool

if TYPE_CHECKING:
    from daemon.service.service import Service

T = TypeVar("T")

NAME = Parameter("name", str, "Name of the pool.", "path")
BEFORE = Parameter(
    "before", Annotated[int, Meta(ge=1, le=MAX_SEQ)], "`next` of the previous page.",
    default=MAX_SEQ,
)  # fmt: skip
PAGES = (
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Page size.", default=PAGE),
    BEFORE,
)
MONTH = Parameter(
    "month",
    Annotated[str, Meta(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")],
    "Month (UTC) like 2026-11; default: the current month.",
)
OTHER = Parameter("other", Label, "Only loans from or to this pool.", default="")
LEDGER = (*PAGES, OTHER, FROM, TO)
JOBS = Parameter(
    "jobs", Literal["all", "slowed"], "Which jobs to list; sums are of all.", default="all"
)
STATEMENT = (MONTH, FROM, TO, JOBS)
HTML = "text/html"

LedgerRows = list[tuple[int, float, T]]


class AccountRoutes:
    """Handlers of accounts, ledgers, verdicts and statements."""

    def __init__(self, service: Service) -> None:
        """Serve the accounts of a service."""
        self._service = service
        self._one = asyncio.Lock()  # statements read many rows, so only one is built at a time

    def operations(self) -> list[Operation]:
        """Return the operations."""
        pool = "/v1/pools/{name}"
        return [
            Operation(
                "GET", f"{pool}/account", Rule.VIEW, self.account,
                "A pool's account: what it gained and lost by sharing.", {200: AccountView},
                parameters=(NAME,), refusals=(404,), of="pool",
            ),
            Operation(
                "GET", f"{pool}/ledger", Rule.VIEW, self.ledger,
                "A pool's loans, newest first.", {200: Ledger},
                parameters=(NAME, *LEDGER), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/verdicts", Rule.VIEW, self.verdicts,
                "Start of each job of a pool, really and in the baseline.", {200: Verdicts},
                parameters=(NAME, *PAGES), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/statement", Rule.VIEW, self.statement,
                "A pool's statement of a month or of another range of time; with Accept: text/html "
                "as a self-contained page.",
                {200: Statement}, parameters=(NAME, *STATEMENT), refusals=(404, 422), of="pool",
            ),
        ]  # fmt: skip

    async def _pool(self, request: web.Request) -> str:
        """Return the pool in the path, after checking that the caller may see it."""
        name = request.match_info["name"]
        demand(request, Rule.VIEW, name)
        await self._service.settled()
        self._service.engine.settle_accounts()
        if name not in self._service.book.pools:
            raise no_pool(name, self._service.book.pools)
        if name not in self._service.book.accounts:
            why = f"the account of pool {name} opens with the first event"
            raise ProblemError(404, "no account yet", why, "submit a job, or try again later")
        return name

    async def account(self, request: web.Request) -> web.Response:
        """Return a pool's account. O(open loans + jobs of the pool)."""
        pool = await self._pool(request)
        return answer(account_view(self._service.book, pool, self._service.clock.now()))

    async def ledger(self, request: web.Request) -> web.Response:
        """Return a page of the ledger. O(open loans + limit)."""
        params = query_of(request, LEDGER)
        start, end = range_of(params)
        pool, who = await self._pool(request), who_asks(request)
        now, other = self._service.clock.now(), params["other"]
        under_way = [
            row for row in open_loans(self._service.book, pool, now, who.sees)
            if other in ("", row.lender, row.borrower) and (end is None or row.start < end)
        ]  # fmt: skip
        first = 0 if start is None else await self._read(lambda j: j.booked_since("lent", start))
        before = params["before"]
        if end is not None:
            before = min(before, await self._read(lambda j: j.booked_since("lent", end)))
        limit = params["limit"]
        found = await self._read(lambda j: j.lent(pool, before, limit, first, other))
        rows = [loan_row(number, row, who.sees) for number, _, row in found]
        return answer(Ledger(rows, under_way, _next(found, params["limit"])))

    async def verdicts(self, request: web.Request) -> web.Response:
        """Return a page of verdicts. O(limit)."""
        params = query_of(request, PAGES)
        pool = await self._pool(request)
        found = await self._read(lambda j: j.verdicts(pool, params["before"], params["limit"]))
        rows = [verdict_row(number, verdict) for number, _, verdict in found]
        return answer(Verdicts(rows, _next(found, params["limit"])))

    async def statement(self, request: web.Request) -> web.Response:
        """Build a statement. O(rows of its time), in pages so that commits are not blocked."""
        params = query_of(request, STATEMENT)
        span = range_of(params)
        pool, who, now = await self._pool(request), who_asks(request), self._service.clock.now()
        month, start, end = _period(params["month"], span, now)
        tally = StatementTally(pool, only_slowed=params["jobs"] == "slowed")
        async with self._one:
            await self._within(
                "verdicts", start, end, lambda j, before: j.verdicts(pool, before, MAX_PAGE),
                tally.add_verdicts,
            )  # fmt: skip
            await self._within(
                "lent", start, end, lambda j, before: j.lent(pool, before, MAX_PAGE),
                tally.add_loans,
            )  # fmt: skip
        period = StatementPeriod(start, end, month)
        made = statement(self._service.book, tally, pool, period, now, who.sees)
        if HTML not in request.headers.get("Accept", ""):
            return answer(made)
        text = await asyncio.to_thread(statement_page, made)
        return web.Response(text=text, content_type=HTML, headers={"Vary": "Accept"})

    async def _within(
        self,
        table: LedgerTable,
        start: float,
        end: float,
        read: Callable[[Journal, int], LedgerRows[T]],
        take: Callable[[list[tuple[int, T]]], None],
    ) -> None:
        """Pass all rows booked in [start, end) to `take`, page by page, newest first."""
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


def _period(month: str | None, span: TimeRange, now: float) -> tuple[str, float, float]:
    """Return the month, or "", and the range of a statement. Raises ProblemError."""
    if span == (None, None):
        month = month or _month(now)
        start, end = month_of(month)
        if start > now:
            mend = f"use {_month(now)} or an earlier month"
            raise ProblemError(422, "no such month yet", f"{month} is in the future (UTC)", mend)
        return month, start, end
    if month:
        what = "month and from or to were given"
        raise ProblemError(422, "invalid query", what, "give a month, or from and to")
    return "", span.start or 0.0, now if span.end is None else span.end


def _month(now: float) -> str:
    """Return the current month."""
    year, month, *_ = gmtime(now)
    return f"{year}-{month:02}"
