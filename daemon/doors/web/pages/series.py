"""`/ui/series`: the numbers of the charts; `/ui/users/NAME`: the charts of a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import JSON, Operation, Parameter, query_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import addresses
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.plan import Range, Series

if TYPE_CHECKING:
    from daemon.doors.web.api_client import Api

RANGES = (
    ("1h", "an hour"), ("6h", "6 hours"), ("1d", "a day"), ("1w", "a week"), ("30d", "30 days"),
)  # fmt: skip
"""Ranges of time, in words."""

USUAL = "1d"
"""The range of a page whose address names none."""

RANGE = Parameter("range", Range, "How far back the charts go.", default=USUAL)

ROWS = 24
"""Rows of the tables: as many as people read, and with eight charts a fifth of a page's size."""

NAME = Parameter("name", str, "Name of the user.", "path")

WHOSE = (
    Parameter("pool", Label, "Only of this pool."), Parameter("user", Label, "Only of this user."),
)  # fmt: skip


async def charts_of(api: Api, request: web.Request, range_: Range, **whose: str) -> dict[str, Any]:
    """Return what `charts.html` needs for the charts of a page: of a pool, of a user, or of all."""
    series = await api.ask(request, "GET /v1/series", {"range": range_, "points": ROWS, **whose})
    return {
        "series": series,
        "words": dict(RANGES)[range_],
        "ranges": RANGES,
        "address": addresses(request),
        "from": f"{UI}/series?{urlencode({'range': range_, **whose})}",
        "ranged": ranged(range_),
    }


def ranged(range_: Range) -> Callable[[str], str]:
    """Return a function that keeps the range in the address of another page with charts."""
    return lambda path: path if range_ == USUAL else f"{path}?range={range_}"


class SeriesPages(PageSet):
    """The numbers of charts, and the page of a user."""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/series", Rule.VIEW, self.series, "Numbers of charts.", {200: Series},
                parameters=(RANGE, *WHOSE), refusals=(403, 404, 422),
            ),
            Operation(
                "GET", f"{UI}/users/{{name}}", Rule.VIEW, self.user, "Show a user.", {200: HTML},
                parameters=(NAME, RANGE), refusals=(422,),
            ),
        ]  # fmt: skip

    async def series(self, request: web.Request) -> web.Response:
        """Return what `GET /v1/series` does, for the session of a browser."""
        params = query_of(request, (RANGE, *WHOSE))
        series = await self._pages.api.ask(request, "GET /v1/series", params)
        return web.Response(body=msgspec.json.encode(series), content_type=JSON)

    async def user(self, request: web.Request) -> web.Response:
        """Render the charts of a user, of jobs in the pools that the reader sees."""
        name, params = request.match_info["name"], query_of(request, (RANGE,))
        charts = await charts_of(self._pages.api, request, params["range"], user=name)
        return await self._pages.page(request, "user.html", name=name, charts=charts)
