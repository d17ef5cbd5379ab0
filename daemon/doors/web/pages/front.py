"""`/ui/policy`: options of the current policy, and the front of other settings.

Each point of the picture or of the table shows the outcome for jobs of each size. An admin can set
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.ranges import page_query
from daemon.doors.web.sign_in import see
from daemon.doors.web.tables import Column, plain
from daemon.model.access import Rule
from daemon.wire.plan import FrontPoint, FrontView
from daemon.wire.problems import ProblemError
from replay.search.front import shown_value
from replay.search.objectives import DEFAULT

HERE = f"{UI}/policy"

NO_POINT = -1

QUERY = (Parameter("point", int, "Show this point of the front.", default=NO_POINT),)

WIDTH, HEIGHT, EDGE = 640, 300, 30
"""Size of the picture, and the margin around its points, in pixels."""

QUEUES = (Column("upto", "Jobs up to"), Column("share", "Share if all queues have jobs"))

SIZES = (
    Column("upto", "Quarter of the jobs, up to"),
    Column("jct", "Mean completion time"),
    Column("fifo", "Under FIFO"),
    Column("error", "Mean error"),
)


class Dot(NamedTuple):
    """A point in the picture, in pixels."""

    x: float
    y: float
    point: FrontPoint


class FrontPages(PageSet):
    """The page of the policy, linked from the settings."""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", HERE, Rule.OPERATE, self.policy, "Show the policy and the front.",
                {200: HTML}, parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "POST", HERE, Rule.OPERATE, self.set_policy,
                "Set a point, undo, or begin or stop an update of the front.",
                {303: None}, refusals=(404, 409, 422),
            ),
        ]  # fmt: skip

    async def policy(self, request: web.Request) -> web.Response:
        """Render the page."""
        api, chosen = self._pages.api, page_query(request, QUERY)["point"]
        now = await api.ask(request, "GET /v1/policy")
        try:
            front: FrontView | None = await api.ask(request, "GET /v1/policy/front")
        except ProblemError:
            front = None
        update = await api.ask(request, "GET /v1/policy/front/update")
        points = [] if front is None else points_of(front)
        objectives = [] if front is None else front.objectives
        columns = [
            Column("number", "Point"), *(Column(each, each) for each in objectives),
            Column("presets", "Preset"), Column("words", "In plain words"),
        ]  # fmt: skip
        point = next((each for each in points if each.number == chosen), None)
        return await self._pages.page(
            request, "settings/front.html", policy=now, front=front, shown=shown_value, point=point,
            update=update, usual=DEFAULT,
            points=plain(columns, points), objectives=objectives,
            dots=dots_of(points, objectives), width=WIDTH, height=HEIGHT,
            queues=plain(QUEUES, [] if point is None else queues_of(point)),
            sizes=plain(SIZES, [] if point is None else point.by_size),
        )  # fmt: skip

    async def set_policy(self, request: web.Request) -> web.Response:
        """Set the label of a point, undo, or begin or stop an update; then show the page again."""
        form, api = await form_of(request), self._pages.api
        if form.get("cancel"):
            await api.ask(request, "DELETE /v1/policy/front/update")
        elif form.get("update"):
            objectives = str(form.get("objectives", "")).replace(",", " ").split()
            wanted = {"objectives": objectives, "pool": str(form.get("pool", "")) or None}
            await api.ask(request, "POST /v1/policy/front/update", body=wanted)
        else:
            body = {"undo": True} if form.get("undo") else {"policy": str(form.get("policy", ""))}
            await api.ask(request, "PUT /v1/policy", body=body)
        return see(HERE)


def points_of(front: FrontView) -> list[FrontPoint]:
    """Return the points of the front, and FIFO if it is not one of them."""
    numbers = {point.number for point in front.points}
    return [*front.points, *([] if front.fifo.number in numbers else [front.fifo])]


def queues_of(point: FrontPoint) -> list[tuple[float | None, float]]:
    """Return the limit of each queue and its share in percent."""
    total = sum(point.weights) or 1.0
    shares = [100 * weight / total for weight in point.weights]
    return list(zip_longest(point.sizes, shares))


def dots_of(points: Sequence[FrontPoint], objectives: Sequence[str]) -> list[Dot]:
    """Place the points by the first two objectives; smaller values are at the left and below."""
    if len(objectives) < 2:
        return []
    across, up = (
        _places([point.measures.get(each, 0.0) for point in points], length)
        for each, length in zip(objectives, (WIDTH, HEIGHT), strict=False)
    )
    return [Dot(x, HEIGHT - y, point) for x, y, point in zip(across, up, points, strict=True)]


def _places(values: Sequence[float], length: int) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = (length - 2 * EDGE) / ((high - low) or 1.0)
    return [round(EDGE + (value - low) * room, 1) for value in values]
