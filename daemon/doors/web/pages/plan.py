"""`/ui/plan`: running jobs with estimated ends, next jobs, and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.gantt import Bar, TimeAxis, of_job, reserved
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses, pages_of
from daemon.doors.web.ranges import page_query
from daemon.model.access import Rule
from daemon.wire.jobs import Label
from daemon.wire.plan import Forecasts, Plan, PoolForecast
from daemon.wire.queue import Queued
from sia.wording import DAY, HOUR, WEEK

SPANS = {"hour": HOUR, "6 hours": 6 * HOUR, "day": DAY, "week": WEEK}

NEXT = 40
"""Pending jobs shown on the page, over all pools or of the selected one."""

QUERY = (
    Parameter("pool", Label, "Only this pool.", default=""),
    Parameter("span", Literal["hour", "6 hours", "day", "week"], "Time span.", default="day"),
    PAGE,
)

PlanRow = tuple[Queued, Sequence[Bar]]


class PlanPages(PageSet):
    """The plan page."""

    menu = ((f"{UI}/plan", "Plan"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", f"{UI}/plan", Rule.VIEW, self.plan, "Running and next jobs over time.",
                {200: HTML}, parameters=QUERY, refusals=(422,),
            )
        ]  # fmt: skip

    async def plan(self, request: web.Request) -> web.Response:
        """Render the plan from the API's plan, queue and forecasts."""
        params, api = page_query(request, QUERY), self._pages.api
        pool = params["pool"] or None
        of = {"what": "running", "pool": pool, "limit": ROWS, "offset": (params["page"] - 1) * ROWS}
        running = await api.ask(request, "GET /v1/queue", of)
        plan = await api.ask(request, "GET /v1/plan", {"next": 0})
        coming = await self._coming(request, plan, pool)
        forecasts = await api.ask(request, "GET /v1/forecasts")
        scale = TimeAxis(plan.time, SPANS[params["span"]])
        held = held_back(forecasts, pool)
        return await self._pages.page(
            request, "plan.html", params=params, scale=scale, spans=list(SPANS), plan=plan,
            running=_drawn(scale, running.jobs), count=running.count, coming=_drawn(scale, coming),
            held=_steps(scale, forecasts.windows, held), windows=forecasts.windows,
            left=max(0, len(held) - ROWS), groups=plan.groups[:ROWS],
            promised=[(each.group, span) for each in plan.groups for span in each.promised][:ROWS],
            count_pages=pages_of(running.count), address=addresses(request),
        )  # fmt: skip

    async def _coming(self, request: web.Request, plan: Plan, pool: str | None) -> list[Queued]:
        """Return the first jobs of the pool's queue, or of each pool in decision order."""
        who = who_asks(request)
        waiting = [
            each.pool for group in plan.groups for each in group.pools if who.sees(each.pool)
        ]
        pools = (waiting if pool is None else [pool])[:NEXT]
        each = NEXT // max(1, len(pools))
        found: list[Queued] = []
        for name in pools:
            of = {"pool": name, "limit": each}
            found += (await self._pages.api.ask(request, "GET /v1/queue", of)).jobs
        return found


def held_back(forecasts: Forecasts, pool: str | None) -> list[PoolForecast]:
    """Return the pools with a reservation, largest first."""
    found = [each for each in forecasts.pools if any(each.held_back) and pool in (None, each.pool)]
    return sorted(found, key=lambda each: (-max(each.held_back), each.pool))


def _drawn(scale: TimeAxis, rows: Sequence[Queued]) -> list[PlanRow]:
    return [(row, of_job(scale, row)) for row in rows]


def _steps(
    scale: TimeAxis, windows: Sequence[float], held: Sequence[PoolForecast]
) -> list[tuple[PoolForecast, Sequence[Bar]]]:
    """Return the first pools' reservations as bars with a common scale."""
    most = max((max(each.held_back) for each in held), default=1)
    return [(each, reserved(scale, windows, each.held_back, most)) for each in held[:ROWS]]
