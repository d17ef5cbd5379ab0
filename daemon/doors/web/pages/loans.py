"""`/ui/loans`: open loans; and a pool's ledger and monthly statement."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.http.routes.accounts import BEFORE, JOBS, MONTH, OTHER
from daemon.doors.http.times import TimeRange, range_of
from daemon.doors.views.html import stamp
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.pool import LEDGER, NAME
from daemon.doors.web.pagination import PAGE, ROWS, addresses
from daemon.doors.web.ranges import page_query
from daemon.doors.web.tables import (
    MAX_SORTED,
    SEARCHED_SOME,
    Column,
    ordered_by,
    piece,
    plain,
    sort_of,
    table,
)
from daemon.model.access import Rule
from daemon.wire.accounts import Ledger, LoanRow
from daemon.wire.jobs import Label
from daemon.wire.plan import LendingState, LoanList

SUMS = (
    Column("pool", "Pool"),
    Column("lent", "Lent GPUs", number=True, term="lent GPUs"),
    Column("borrowed", "Borrowed GPUs", number=True, term="borrowed GPUs"),
    Column("history", "History"),
)
"""Columns of the sums by pool."""

TURNS = (
    Column("pool", "Pool"),
    Column("turns", "Turns", number=True, term="turn"),
    Column("late", "Late turns", number=True),
    Column("guests", "Guests", number=True, term="guest"),
    Column("stops", "Stops", number=True),
    Column("wasted", "Wasted GPU-hours", number=True),
)
"""Columns of the turns and guests by pool."""

COLUMNS = (
    Column("lender", "Lender", attrgetter("donor"), term="lender, borrower"),
    Column("borrower", "Borrower", attrgetter("borrower"), term="lender, borrower"),
    Column("job", "Job", attrgetter("job")),
    Column("gpus", "GPUs", attrgetter("gpus"), number=True),
    Column("since", "Since", attrgetter("since")),
)
"""Columns of the open loans."""

VERDICTS = (
    Column("job", "Job", attrgetter("job")),
    Column("gpus", "GPUs", attrgetter("gpus"), number=True, term="width"),
    Column("submitted", "Submitted", attrgetter("submitted")),
    Column("started", "Started", attrgetter("started")),
    Column("alone", "Baseline", attrgetter("alone"), term="virtual start time"),
    Column("later", "Later", attrgetter("later"), number=True),
)
"""Columns of the jobs of a statement."""

OPEN = (
    Parameter("pool", Label, "Only loans of this pool.", default=""),
    sort_of(COLUMNS, "since"),
    PAGE,
)

MONTHS = 24
"""Maximum number of months that the page of a statement offers: history is kept for 400 days."""

STATEMENT = (MONTH, JOBS, sort_of(VERDICTS), PAGE)

LEDGER_PAGE = (BEFORE, OTHER, sort_of(LEDGER), PAGE)

PIECE = 500
"""Loans requested from the API at a time. One request blocks the event loop for a few
milliseconds."""


class LoanPages(PageSet):
    """The pages of open loans, ledgers and statements."""

    menu = ((f"{UI}/loans", "Loans"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        pool = f"{UI}/pools/{{name}}"
        return [
            Operation(
                "GET", f"{UI}/loans", Rule.VIEW, self.loans, "Open loans.", {200: HTML},
                parameters=OPEN, refusals=(422,),
            ),
            Operation(
                "GET", f"{pool}/ledger", Rule.VIEW, self.ledger, "A pool's ledger.",
                {200: HTML}, parameters=(NAME, *LEDGER_PAGE), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/statement", Rule.VIEW, self.statement, "A monthly statement.",
                {200: HTML}, parameters=(NAME, *STATEMENT), refusals=(404, 422), of="pool",
            ),
        ]  # fmt: skip

    async def loans(self, request: web.Request) -> web.Response:
        """Render the open loans. O(live jobs)."""
        params, who = page_query(request, OPEN), who_asks(request)
        found: LoanList = await self._pages.api.ask(request, "GET /v1/loans")
        lending: LendingState = await self._pages.api.ask(request, "GET /v1/lending")
        pool = params["pool"]
        loans = [loan for loan in found.loans if pool in ("", loan.donor, loan.borrower)]
        loans.sort(key=lambda loan: (loan.since, loan.job, loan.donor))
        names = [name for name in sorted({*found.lent, *found.borrowed}) if pool in ("", name)]
        names.sort(key=lambda name: -found.lent.get(name, 0) - found.borrowed.get(name, 0))
        return await self._pages.page(
            request, "loans/loans.html", params=params,
            found=table(request, COLUMNS, loans, params),
            sums=plain(SUMS, [
                (name, found.lent.get(name, 0), found.borrowed.get(name, 0), who.sees(name))
                for name in names[:ROWS]
            ]),
            turns=plain(TURNS, [
                each for each in lending.pools if pool in ("", each.pool)
            ][:ROWS]),
            left=max(0, len(names) - ROWS), total=sum(found.lent.values()),
        )  # fmt: skip

    async def ledger(self, request: web.Request) -> web.Response:
        """Render a page of the ledger; a sorted one has the newest `MAX_SORTED` matches."""
        params = page_query(request, LEDGER_PAGE)
        asked = {name: params[name] or None for name in ("other", "from", "to")}
        before, most = params["before"], MAX_SORTED if params["sort"] else ROWS
        if params["sort"]:
            before = None
        ledger, loans = await self._loans(request, asked | {"before": before}, most)
        if params["sort"]:
            note = SEARCHED_SOME.format(MAX_SORTED, "the closed loans") if ledger.next else ""
            found = table(request, LEDGER, loans, params, note=note)
        else:
            found = piece(request, LEDGER, loans, params, None)
        open_ = ordered_by(LEDGER, ledger.open, params["sort"])
        return await self._pages.page(
            request, "loans/ledger.html", pool=request.match_info["name"], ledger=ledger,
            open=piece(request, LEDGER, open_[:ROWS], params, None), loans=found, params=params,
            range=range_of(params), first=not request.query.get("before") and params["page"] == 1,
            address=addresses(request),
        )  # fmt: skip

    async def _loans(
        self, request: web.Request, query: Mapping[str, Any], most: int
    ) -> tuple[Ledger, list[LoanRow]]:
        """Return closed loans, newest first, and the last page of the API with them."""
        found: list[LoanRow] = []
        while True:
            more = {**query, "limit": min(PIECE, most - len(found))}
            some: Ledger = await self._pages.api.ask(request, "GET /v1/pools/{name}/ledger", more)
            found += some.loans
            if some.next is None or len(found) == most:
                return some, found
            query = {**query, "before": some.next}
            await asyncio.sleep(0)  # let other requests run between two pieces

    async def statement(self, request: web.Request) -> web.Response:
        """Render the first rows of a statement; the API has all rows."""
        params = page_query(request, STATEMENT)
        month = params["month"]
        query = {"month": month, "jobs": params["jobs"]}
        if not month:
            query |= {name: params[name] or None for name in ("from", "to")}
        made = await self._pages.api.ask(request, "GET /v1/pools/{name}/statement", query)
        return await self._pages.page(
            request, "loans/statement.html", made=made, rows=ROWS,
            found=table(request, VERDICTS, made.verdicts, params),
            loans=plain(LEDGER, made.loans[:ROWS]), months=months_of(made.since, made.made),
            before=made.month and month_beside(made.month, -1),
            after=made.month and month_beside(made.month, 1), address=addresses(request),
            params=params, range=TimeRange(made.start or None, made.end),
        )  # fmt: skip


def months_of(since: float, until: float) -> list[str]:
    """Return the months from one time to another, newest first, at most `MONTHS`."""
    first, month = month_of(since), month_of(until)
    found = [month]
    while found[-1] > first and len(found) < MONTHS:
        found.append(month_beside(found[-1], -1))
    return found


def month_of(time: float) -> str:
    """Return the month (UTC) of a time."""
    return stamp(time)[:7]


def month_beside(month: str, by: int) -> str:
    """Return the month that is `by` months after another one, like 2026-11."""
    year, number = map(int, month.split("-"))
    years, number = divmod(year * 12 + number - 1 + by, 12)
    return f"{years}-{number + 1:02}"
