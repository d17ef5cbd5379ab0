"""`/ui/`: all pools and their usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.web.chart import chart_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, addresses, cut
from daemon.model.access import Rule
from daemon.wire.jobs import PoolView

SUMS = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting", "waiting_gpus")

SortKey = Literal["name", "quota", "dedicated", "lent", "borrowed", "idle", "waiting"]

QUERY = (
    Parameter("q", Annotated[str, Meta(max_length=64)], "Part of a pool's name.", default=""),
    Parameter("sort", SortKey, "Sort order.", default="name"),
    PAGE,
)


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
        params = query_of(request, QUERY)
        pools = (await self._pages.api.ask(request, "GET /v1/pools")).pools
        usage = await self._pages.api.ask(request, "GET /v1/usage")
        found = [pool for pool in pools if params["q"].lower() in pool.name.lower()]
        found.sort(key=_order(params["sort"]))
        shown = cut(found, params["page"])
        return await self._pages.page(
            request, "overview.html", params=params, total=totals(pools), shown=shown,
            address=addresses(request), chart=chart_of(usage.samples),
        )  # fmt: skip


def totals(pools: Sequence[PoolView]) -> dict[str, int]:
    """Return sums over pools; `spare` counts GPUs of a pool used by its own spare jobs."""
    total = {what: sum(getattr(pool, what) for pool in pools) for what in SUMS}
    taken = total["dedicated"] + total["lent"] + total["idle"]
    return {**total, "spare": max(0, total["quota"] - taken)}


def _order(what: str) -> Callable[[PoolView], Any]:
    """Return the sort key: by name ascending, or by a number descending, then by name."""
    if what == "name":
        return lambda pool: pool.name
    return lambda pool: (-getattr(pool, what), pool.name)
