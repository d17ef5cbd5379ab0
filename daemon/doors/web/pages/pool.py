"""`/ui/pools/NAME`: usage, limits, account, forecasts and loans of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.series import charts_of
from daemon.doors.web.ranges import KEPT, page_query
from daemon.doors.web.tables import Column, plain
from daemon.model.access import Rule
from daemon.wire.plan import PoolForecast

NAME = Parameter("name", str, "Name of the pool.", "path")

LEDGER = (
    Column("lender", "Lender", attrgetter("lender"), term="lender, borrower"),
    Column("borrower", "Borrower", attrgetter("borrower"), term="lender, borrower"),
    Column("job", "Job", attrgetter("job")),
    Column("gpus", "GPUs", attrgetter("gpus"), number=True),
    Column("start", "From", attrgetter("start")),
    Column("end", "To", attrgetter("end")),
    Column("hours", "GPU-hours", attrgetter("gpu_hours"), number=True, term="GPU-hours"),
)
"""Columns of loans of a ledger."""

LATEST = 10
"""Loans shown on the page."""


class PoolPages(PageSet):
    """The page of a pool."""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/pools/{{name}}", Rule.VIEW, self.pool, "Show a pool.", {200: HTML},
                parameters=(NAME, *KEPT), refusals=(404, 422),
            )
        ]  # fmt: skip

    async def pool(self, request: web.Request) -> web.Response:
        """Render a pool. Its account and loans are shown only to users who may see its jobs."""
        api, name = self._pages.api, request.match_info["name"]
        params = page_query(request)
        pool = await api.ask(request, "GET /v1/pools/{name}")
        one = "GET /v1/pools/{name}"
        account = await api.ask_if_allowed(request, f"{one}/account")
        ledger = await api.ask_if_allowed(request, f"{one}/ledger", {"limit": LATEST})
        forecasts = await api.ask(request, "GET /v1/forecasts")
        estimates = await api.ask(request, "GET /v1/estimates", {"pool": name})
        charts = await charts_of(api, request, params, pool=name)
        foreseen = next((each for each in forecasts.pools if each.pool == name), None)
        windows = [] if foreseen is None else windows_of(forecasts.windows, foreseen)
        return await self._pages.page(
            request, "pool.html", pool=pool, account=account, ledger=ledger, estimates=estimates,
            loans=ledger and plain(LEDGER, (ledger.open + ledger.loans)[:LATEST]),
            windows=windows, judged=any(row.judged for row in windows),
            charts=charts, forecast=forecasts,
        )  # fmt: skip


class ForecastWindow(NamedTuple):
    """A pool's forecast for one window (seconds), and how earlier forecasts did."""

    window: float
    load: int
    held_back: int
    judged: int
    missed: int


def windows_of(windows: Sequence[float], foreseen: PoolForecast) -> list[ForecastWindow]:
    """Return a pool's forecasts by window; the counts are 0 where none were judged."""
    nothing = [0] * len(windows)
    columns = (
        windows, foreseen.load, foreseen.held_back, foreseen.judged or nothing,
        foreseen.missed or nothing,
    )  # fmt: skip
    return [ForecastWindow(*row) for row in zip(*columns, strict=True)]
