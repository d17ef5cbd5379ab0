"""`/ui/loans`: what is lent now; and of a pool its ledger and its statement of a month."""

from __future__ import annotations

from aiohttp import web

from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.routes.accounts import MONTH, PAGES
from daemon.doors.http.sessions import UI
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.pool import NAME
from daemon.doors.web.pagination import PAGE, ROWS, addresses, cut
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.plan import LoanList

OPEN = (Parameter("pool", Label, "Only what it lends or borrows.", default=""), PAGE)

BEFORE = tuple(parameter for parameter in PAGES if parameter.name == "before")


class LoanPages(PageSet):
    """Loans, now and before."""

    menu = ((f"{UI}/loans", "Loans"),)

    def operations(self) -> list[Operation]:
        """All of them."""
        pool = f"{UI}/pools/{{name}}"
        return [
            Operation(
                "GET", f"{UI}/loans", Rule.VIEW, self.loans, "What is lent now.", {200: HTML},
                parameters=OPEN, refusals=(422,),
            ),
            Operation(
                "GET", f"{pool}/ledger", Rule.VIEW, self.ledger, "Its loans, one by one.",
                {200: HTML}, parameters=(NAME, *BEFORE), refusals=(404, 422), of="pool",
            ),
            Operation(
                "GET", f"{pool}/statement", Rule.VIEW, self.statement, "A month of it.",
                {200: HTML}, parameters=(NAME, MONTH), refusals=(404, 422), of="pool",
            ),
        ]  # fmt: skip

    async def loans(self, request: web.Request) -> web.Response:
        """O(jobs alive)."""
        asked, who = query_of(request, OPEN), who_asks(request)
        found: LoanList = await self._pages.api.ask(request, "GET /v1/loans")
        pool = asked["pool"]
        loans = [loan for loan in found.loans if pool in ("", loan.donor, loan.borrower)]
        loans.sort(key=lambda loan: (loan.since, loan.job, loan.donor))
        names = [name for name in sorted({*found.lent, *found.borrowed}) if pool in ("", name)]
        names.sort(key=lambda name: -found.lent.get(name, 0) - found.borrowed.get(name, 0))
        shown = cut(loans, asked["page"])
        return await self._pages.page(
            request, "loans.html", asked=asked, loans=shown.rows, count=len(loans),
            sums=[
                (name, found.lent.get(name, 0), found.borrowed.get(name, 0), who.sees(name))
                for name in names[:ROWS]
            ],
            left=max(0, len(names) - ROWS), total=sum(found.lent.values()),
            count_pages=shown.pages, address=addresses(request),
        )  # fmt: skip

    async def ledger(self, request: web.Request) -> web.Response:
        """A page of it."""
        asked = query_of(request, BEFORE)
        query = {"limit": ROWS, "before": asked["before"]}
        ledger = await self._pages.api.ask(request, "GET /v1/pools/{name}/ledger", query)
        return await self._pages.page(
            request, "ledger.html", pool=request.match_info["name"], ledger=ledger,
            first="before" not in request.query, address=addresses(request),
        )  # fmt: skip

    async def statement(self, request: web.Request) -> web.Response:
        """The first rows of it: all are the API's."""
        asked = query_of(request, (MONTH,))
        query = {"month": asked["month"]}
        made = await self._pages.api.ask(request, "GET /v1/pools/{name}/statement", query)
        return await self._pages.page(
            request, "statement.html", made=made, rows=ROWS, before=month_beside(made.month, -1),
            after=month_beside(made.month, 1), address=addresses(request),
        )  # fmt: skip


def month_beside(month: str, by: int) -> str:
    """The month before or after one, like 2026-11."""
    year, number = map(int, month.split("-"))
    years, number = divmod(year * 12 + number - 1 + by, 12)
    return f"{years}-{number + 1:02}"
