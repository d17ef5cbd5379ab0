"""`/ui/`: all pools and their usage."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pages.series import charts_of
from daemon.doors.web.pagination import PAGE
from daemon.doors.web.ranges import page_query
from daemon.doors.web.tables import Column, plain, sort_of, table
from daemon.model.access import Rule
from daemon.wire.jobs import PoolView

SUMS = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting", "waiting_gpus")

POOLS = (
    Column("name", "Pool", attrgetter("name")),
    Column("quota", "GPUs", attrgetter("quota"), number=True, term="quota"),
    Column("use", "Use"),
    Column("dedicated", "Dedicated", attrgetter("dedicated"), number=True, term="dedicated GPUs"),
    Column("lent", "Lent", attrgetter("lent"), number=True, term="lent GPUs"),
    Column("borrowed", "Borrowed", attrgetter("borrowed"), number=True, term="borrowed GPUs"),
    Column("idle", "Idle", attrgetter("idle"), number=True, term="idle GPUs"),
    Column("waiting", "Pending jobs", attrgetter("waiting"), number=True, term="pending jobs"),
    Column("state", "State", attrgetter("state.value")),
)

QUERY = (
    Parameter("q", Annotated[str, Meta(max_length=64)], "Part of a pool's name.", default=""),
    sort_of(POOLS, "name"),
    PAGE,
)

GAINS = (
    Column("pool", "Pool"),
    Column("sooner", "Hours saved", number=True, term="earlier starts"),
    Column("jobs", "Jobs compared", number=True, term="jobs compared"),
    Column("slowed", "Jobs slowed", number=True, term="delayed, slowed"),
    Column("later", "Hours later", number=True, term="later starts"),
)

GAINERS = 10
"""Pools in the list of who gained most."""


class OverviewPages(PageSet):
    """The overview page."""

    menu = ((f"{UI}/", "Overview"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/", Rule.VIEW, self.overview, "Overview of all pools.", {200: HTML},
                parameters=QUERY,
            )
        ]  # fmt: skip

    async def overview(self, request: web.Request) -> web.Response:
        """Render the overview. O(pools log pools)."""
        params = page_query(request, QUERY)
        pools = (await self._pages.api.ask(request, "GET /v1/pools")).pools
        charts = await charts_of(self._pages.api, request, params)
        gains = charts["series"].gains
        found = [pool for pool in pools if params["q"].lower() in pool.name.lower()]
        found.sort(key=attrgetter("name"))
        shown = table(request, POOLS, found, params)
        return await self._pages.page(
            request, "overview.html", params=params, total=totals(pools), shown=shown,
            charts=charts, gains=plain(GAINS, gains[:GAINERS]), more=max(0, len(gains) - GAINERS),
        )  # fmt: skip


def totals(pools: Sequence[PoolView]) -> dict[str, int]:
    """Return sums over pools; `spare` counts GPUs of a pool used by its own spare jobs."""
    total = {what: sum(getattr(pool, what) for pool in pools) for what in SUMS}
    taken = total["dedicated"] + total["lent"] + total["idle"]
    return {**total, "spare": max(0, total["quota"] - taken)}
