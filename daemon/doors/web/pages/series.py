"""`/ui/series`: the numbers of the charts; `/ui/users/NAME`: the charts of a user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import JSON, Operation, Parameter
from daemon.doors.http.times import range_of
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import addresses
from daemon.doors.web.ranges import KEPT, RANGES, page_query
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.plan import Series

if TYPE_CHECKING:
    from daemon.doors.web.api_client import Api

ROWS = 24
"""Maximum rows of a table of numbers. With eight charts, they make a fifth of the page's size."""

NAME = Parameter("name", str, "Name of the user.", "path")

WHOSE = (
    Parameter("pool", Label, "Only of this pool."), Parameter("user", Label, "Only of this user."),
)  # fmt: skip


async def charts_of(
    api: Api, request: web.Request, params: Mapping[str, Any], **whose: str
) -> dict[str, Any]:
    """Return the values that `charts.html` needs, for the charts of a pool, a user, or the cluster.

    `params` has the range of time.
    """
    asked = {parameter.name: params[parameter.name] or None for parameter in KEPT}
    series = await api.ask(request, "GET /v1/series", {**asked, "points": ROWS, **whose})
    chosen = bool(params["from"] or params["to"])
    given = {name: value for name, value in asked.items() if value is not None}
    return {
        "series": series,
        "words": "this range" if chosen else dict(RANGES)[params["range"]],
        "ranges": RANGES,
        "chosen": chosen,
        "times": range_of(params),
        "address": addresses(request),
        "from": f"{UI}/series?{urlencode({**given, **whose})}",
    }


class SeriesPages(PageSet):
    """The numbers of charts, and the page of a user."""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/series", Rule.VIEW, self.series, "Numbers of charts.", {200: Series},
                parameters=(*WHOSE, *KEPT), refusals=(403, 404, 422),
            ),
            Operation(
                "GET", f"{UI}/users/{{name}}", Rule.VIEW, self.user, "Show a user.", {200: HTML},
                parameters=(NAME, *KEPT), refusals=(422,),
            ),
        ]  # fmt: skip

    async def series(self, request: web.Request) -> web.Response:
        """Return the response of `GET /v1/series`, with the session of a browser."""
        params = page_query(request, WHOSE)
        series = await self._pages.api.ask(request, "GET /v1/series", params)
        return web.Response(body=msgspec.json.encode(series), content_type=JSON)

    async def user(self, request: web.Request) -> web.Response:
        """Render the charts of a user, for jobs in the pools that the reader may see."""
        name, params = request.match_info["name"], page_query(request)
        charts = await charts_of(self._pages.api, request, params, user=name)
        return await self._pages.page(request, "user.html", name=name, charts=charts)
