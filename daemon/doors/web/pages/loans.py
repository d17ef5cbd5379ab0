"""`/ui/loans`: open loans; and a pool's ledger and monthly statement."""

from __future__ import annotations

from operator import attrgetter

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.routes.accounts import MONTH, PAGES
from daemon.doors.views.html import stamp
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.pool import LEDGER, NAME
from daemon.doors.web.pagination import PAGE, ROWS, addresses
from daemon.doors.web.tables import Column, plain, sort_of, table
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.plan import LoanList

SUMS = (
    Column("pool", "Pool"),
    Column("lent", "Lent GPUs", number=True, term="lent GPUs"),
    Column("borrowed", "Borrowed GPUs", number=True, term="borrowed GPUs"),
    Column("history", "History"),
)
"""Columns of the sums by pool."""

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
"""Months that the page of a statement offers: history is kept for 400 days."""

STATEMENT = (MONTH, sort_of(VERDICTS), PAGE)

BEFORE = tuple(parameter for parameter in PAGES if parameter.name == "before")


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
                {200: HTML}, parameters=(NAME, *BEFORE), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/statement", Rule.VIEW, self.statement, "A monthly statement.",
                {200: HTML}, parameters=(NAME, *STATEMENT), refusals=(404, 422), of="pool",
            ),
        ]  # fmt: skip

    async def loans(self, request: web.Request) -> web.Response:
        """Render the open loans. O(live jobs)."""
        params, who = query_of(request, OPEN), who_asks(request)
        found: LoanList = await self._pages.api.ask(request, "GET /v1/loans")
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
            left=max(0, len(names) - ROWS), total=sum(found.lent.values()),
        )  # fmt: skip

    async def ledger(self, request: web.Request) -> web.Response:
        """Render a page of the ledger."""
        params = query_of(request, BEFORE)
        query = {"limit": ROWS, "before": params["before"]}
        ledger = await self._pages.api.ask(request, "GET /v1/pools/{name}/ledger", query)
        return await self._pages.page(
            request, "loans/ledger.html", pool=request.match_info["name"], ledger=ledger,
            open=plain(LEDGER, ledger.open[:ROWS]), loans=plain(LEDGER, ledger.loans),
            first="before" not in request.query, address=addresses(request),
        )  # fmt: skip

    async def statement(self, request: web.Request) -> web.Response:
        """Render the first rows of a statement; the API has all rows."""
        params = query_of(request, STATEMENT)
        query = {"month": params["month"]}
        made = await self._pages.api.ask(request, "GET /v1/pools/{name}/statement", query)
        return await self._pages.page(
            request, "loans/statement.html", made=made, rows=ROWS,
            found=table(request, VERDICTS, made.verdicts, params),
            loans=plain(LEDGER, made.loans[:ROWS]), months=months_of(made.since, made.made),
            before=month_beside(made.month, -1),
            after=month_beside(made.month, 1), address=addresses(request),
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
    """Return the month at an offset from another one, like 2026-11."""
    year, number = map(int, month.split("-"))
    years, number = divmod(year * 12 + number - 1 + by, 12)
    return f"{years}-{number + 1:02}"
