"""`/ui/`: who owns, lends, borrows and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.sessions import UI
from daemon.doors.web.chart import chart_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, addresses, cut
from daemon.model.access import Rule
from daemon.wire.jobs import PoolView

SUMS = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting", "waiting_gpus")

SortKey = Literal["name", "quota", "dedicated", "lent", "borrowed", "idle", "waiting"]

QUERY = (
    Parameter("q", Annotated[str, Meta(max_length=64)], "What a pool's name has.", default=""),
    Parameter("sort", SortKey, "What they are ordered by.", default="name"),
    PAGE,
)


class OverviewPages(PageSet):
    """The page that one begins with."""

    menu = ((f"{UI}/", "Overview"),)

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", f"{UI}/", Rule.VIEW, self.overview, "All pools.", {200: HTML},
                parameters=QUERY,
            )
        ]  # fmt: skip

    async def overview(self, request: web.Request) -> web.Response:
        """O(pools)."""
        asked = query_of(request, QUERY)
        pools = (await self._pages.api.ask(request, "GET /v1/pools")).pools
        usage = await self._pages.api.ask(request, "GET /v1/usage")
        found = [pool for pool in pools if asked["q"].lower() in pool.name.lower()]
        found.sort(key=_order(asked["sort"]))
        shown = cut(found, asked["page"])
        return await self._pages.page(
            request, "overview.html", asked=asked, total=totals(pools), shown=shown,
            address=addresses(request), chart=chart_of(usage.samples),
        )  # fmt: skip


def totals(pools: Sequence[PoolView]) -> dict[str, int]:
    """Sums over pools; `spare`: what they own that their own spare jobs are on."""
    total = {what: sum(getattr(pool, what) for pool in pools) for what in SUMS}
    taken = total["dedicated"] + total["lent"] + total["idle"]
    return {**total, "spare": max(0, total["quota"] - taken)}


def _order(what: str) -> Callable[[PoolView], Any]:
    """Names as they are; of numbers the greatest first, and names where they are equal."""
    if what == "name":
        return lambda pool: pool.name
    return lambda pool: (-getattr(pool, what), pool.name)
