"""Read-only operations: loans, forecasts, plan, usage, health, metrics and API documents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.answers.simulate.plan_ahead import PlanAhead, plans_ahead
from daemon.config.config import Config
from daemon.doors.http.authorization import demand, who_asks
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.doors.http.openapi import document
from daemon.doors.http.operations import JSON, Operation, Parameter, answer, body_of, query_of
from daemon.doors.http.routes.status import parts_of
from daemon.doors.http.times import FROM, TO, range_of
from daemon.doors.mqtt import asyncapi
from daemon.doors.views.grants import grants_view
from daemon.doors.views.resources import job_view, loans_view
from daemon.doors.views.series.charts import PUBLIC, charts_of, gains_of
from daemon.doors.views.series.sampler import UsageHistory
from daemon.doors.views.series.sums import Key
from daemon.forecasts.forecaster import ForecastService
from daemon.forecasts.retraining import Retraining
from daemon.model.access import Principal, Rule
from daemon.model.book import job_of
from daemon.model.errors import UnavailableError
from daemon.model.inputs import AuditNote
from daemon.runtime.logs import log
from daemon.service.service import Service
from daemon.wire.access import GrantList
from daemon.wire.bodies import decoded
from daemon.wire.jobs import Health, Label, LogLevel
from daemon.wire.limits import MAX_POINTS, NEXT_SHOWN
from daemon.wire.plan import (
    Forecasts,
    LoanList,
    Metric,
    Plan,
    PlanGroup,
    PlanPool,
    PlanStart,
    PlanStep,
    PlanWindow,
    PoolForecast,
    PromisedGpus,
    Range,
    Series,
)
from daemon.wire.problems import no_pool
from daemon.wire.status import Ready
from sia.state.state import GroupState, PoolState
from sia.wording import parse_seconds

UNREADY = "commands are refused; see sia status and the daemon's log"
"""Shown without authentication, so without the reason: it may name files, hosts and users."""

NEXT = (
    Parameter(
        "next",
        Annotated[int, Meta(ge=0, le=NEXT_SHOWN)],
        "Number of pending jobs to list per pool.",
        default=NEXT_SHOWN,
    ),
)
SERIES = (
    Parameter("metric", Metric, "Only this chart."),
    Parameter("pool", Label, "Only of this pool."),
    Parameter("user", Label, "Only of this user, in the pools whose jobs you may see."),
    Parameter("range", Range, "How far back from `to`, without `from`.", default="1d"),
    FROM,
    TO,
    Parameter(
        "points", Annotated[int, Meta(ge=2, le=MAX_POINTS)], "Maximum number of periods.",
        default=MAX_POINTS,
    ),
)  # fmt: skip

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ViewRoutes:
    """Handlers of the read-only operations."""

    def __init__(
        self,
        service: Service,
        config: Config,
        metrics: PrometheusMetrics,
        foresight: ForecastService | None,
        retraining: Retraining | None,
        usage: UsageHistory,
    ) -> None:
        """Serve a service, its forecasts and its metrics."""
        self._service, self._config, self._metrics = service, config, metrics
        self._foresight, self._retraining, self._usage = foresight, retraining, usage
        self._level = msgspec.json.Decoder(LogLevel)
        self.described: Sequence[Operation] = ()
        """All operations, of which `openapi` returns the document."""
        self._openapi = self._asyncapi = b""

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation("GET", "/v1/loans", Rule.VIEW, self.loans, "Open loans.", {200: LoanList}),
            Operation("GET", "/v1/forecasts", Rule.VIEW, self.forecasts,
            "Load forecasts and the "
                      "reservations for them.", {200: Forecasts}),
            Operation("GET", "/v1/series", Rule.VIEW, self.series,
                      "Use, waits, loans and forecasts over time.", {200: Series},
                      parameters=SERIES, refusals=(403, 404, 422)),
            Operation("GET", "/v1/grants", Rule.VIEW, self.grants,
                      "What is granted to users and pools, and who uses how much of it.",
                      {200: GrantList}),
            Operation("GET", "/v1/plan", Rule.VIEW, self.plan, "Jobs that would start next.",
                      {200: Plan}, parameters=NEXT, refusals=(422,)),
            Operation("GET", "/healthz", Rule.OPEN, self.health, "Liveness.",
                      {200: Health}),
            Operation("GET", "/readyz", Rule.OPEN, self.ready,
                      "Readiness, and the unhealthy components.",
                      {200: Ready, 503: Ready}),
            Operation("GET", "/metrics", Rule.VIEW, self.metrics, "Metrics in Prometheus' format.",
                      {200: "text/plain"}),
            Operation("GET", "/v1/asyncapi.json", Rule.VIEW, self.asyncapi, "Topics of MQTT.",
                      {200: dict}),
            Operation("GET", "/v1/openapi.json", Rule.VIEW, self.openapi, "This document.",
                      {200: dict}),
            Operation("GET", "/v1/log-level", Rule.VIEW, self.log_level, "Show the log level.",
                      {200: LogLevel}),
            Operation("PUT", "/v1/log-level", Rule.OPERATE, self.set_log_level,
                      "Set the log level.",
                      {200: LogLevel}, LogLevel, refusals=(413, 422)),
        ]  # fmt: skip

    async def loans(self, request: web.Request) -> web.Response:
        """List open loans. O(live jobs)."""
        await self._service.settled()
        return answer(loans_view(self._service.book.loans(), who_asks(request)))

    async def forecasts(self, request: web.Request) -> web.Response:
        """Return forecasts and reservations. O(pools · windows)."""
        await self._service.settled()
        state = self._service.engine.core.state
        config, windows = self._config, list(state.options.windows)
        foresight, retraining = self._foresight, self._retraining
        pools = []
        plan = self._service.engine.core.policy.plan
        for name, pool in state.pools.items():
            held = [*plan[pool.group].held[pool]]
            record = [] if foresight is None else foresight.record(name)
            judged, missed = [each[0] for each in record], [each[1] for each in record]
            pools.append(PoolForecast(name, list(pool.load), held, judged, missed))
        ready = foresight is not None and foresight.ready
        learned = retraining.last.why if retraining is not None and retraining.last else ""
        book, label = self._service.book, config.forecast
        if foresight is not None:
            label = foresight.predictors.adopting(book.adopted).label
        return answer(Forecasts(config.policy, label, ready, book.model, learned, windows, pools))

    async def grants(self, request: web.Request) -> web.Response:
        """Show the grants and their use."""
        return answer(grants_view(self._service.book, who_asks(request)))

    async def series(self, request: web.Request) -> web.Response:
        """Return time series. O(points · lines), and a few milliseconds of the journal's thread."""
        params, who = query_of(request, SERIES), who_asks(request)
        pool, user, metric = params["pool"] or "", params["user"] or "", params["metric"]
        key = Key("" if user else pool, user)
        if pool and pool not in self._service.book.pools:
            raise no_pool(pool, self._service.book.pools)
        whole = bool(user) or not pool or who.sees(pool)
        if pool and (user or metric not in (None, *PUBLIC)):
            demand(request, Rule.VIEW, pool)
        seen = {pool} if pool else None if who.sees_all else who.pools
        usage, asked = self._usage, range_of(params)
        end = self._service.clock.now() if asked.end is None else asked.end
        back = parse_seconds(params["range"])
        start = end - back if asked.start is None else asked.start
        step, since, until, found = await usage.periods(
            key, start, asked.end, params["points"],
            frozenset(seen) if user and seen is not None else None,
        )  # fmt: skip
        newest = usage.newest or (float(found[-1][0]) if found else None)

        def build() -> Series:
            parts = [sums for _, sums in found]
            charts = charts_of(key, parts, usage.window, whole=whole)
            return Series(
                pool, user, params["range"] if asked.start is None else None, since, until,
                newest, step, [begin for begin, _ in found],
                [chart for chart in charts if metric in (None, chart.metric)],
                *gains_of(parts if whole else [], who),
            )  # fmt: skip

        return answer(await asyncio.to_thread(build))

    async def plan(self, request: web.Request) -> web.Response:
        """Return the next jobs of each pool. O(pending jobs); with `next=0` O(pools · windows)."""
        service, count = self._service, query_of(request, NEXT)["next"]
        await service.settled()
        state = service.engine.core.state
        who = who_asks(request)
        now = service.clock.now()
        ahead = plans_ahead(service.engine, now)
        groups = [self._group(group, who, count, ahead[group]) for group in state.groups]
        return answer(Plan(now, service.book.lending, groups))

    def _group(self, group: GroupState, who: Principal, count: int, ahead: PlanAhead) -> PlanGroup:
        core = self._service.engine.core
        reserved = core.policy.plan[group].reserved
        windows = [
            PlanWindow(window, group.idle, held, max(0, group.idle - held))
            for window, held in zip(core.state.options.windows, reserved, strict=True)
        ]
        waiting = [pool for pool in group.pools if pool.pending_width]
        waiting.sort(key=lambda pool: (pool.ratio, pool.name))
        return PlanGroup(
            group.name, group.idle, windows, [self._next(pool, who, count) for pool in waiting],
            [PlanStep(step.time, step.idle) for step in ahead.idle], self._starts(who, ahead),
            [PromisedGpus(*span) for span in ahead.promised],
        )  # fmt: skip

    def _starts(self, who: Principal, ahead: PlanAhead) -> list[PlanStart]:
        jobs = self._service.book.jobs
        found = []
        for planned in ahead.starts:
            record = jobs.get(job_of(planned.job_id))
            if record is not None and who.sees(record.spec.pool):
                end = None if planned.end == inf else planned.end
                found.append(PlanStart(record.spec.id, planned.start, end, planned.gpus))
        return found

    def _next(self, pool: PoolState, who: Principal, shown: int) -> PlanPool:
        jobs = self._service.book.jobs
        waiting = pool.waiting() if shown and who.sees(pool.name) else ()
        records = (jobs.get(job_of(job.job.id)) for job in islice(waiting, shown))
        views = [job_view(record) for record in records if record is not None]
        ratio = pool.ratio if pool.quota else None
        return PlanPool(pool.name, ratio, pool.length, views)

    async def health(self, request: web.Request) -> web.Response:
        """Answer 200: the event loop is alive."""
        return answer(Health("ok", self._service.clock.now()))

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200 if submissions are accepted. Unhealthy components alone do not refuse them."""
        service, now = self._service, self._service.clock.now()
        unwell = [part for part in parts_of(service) if not part.ok]
        if service.ready:
            return answer(Ready("ok", now, parts=unwell))
        return answer(Ready("unavailable", now, UNREADY, unwell), 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Return all metrics, even while the journal is unavailable: alerts need them. O(pools)."""
        with suppress(UnavailableError):
            await self._service.settled()
        return web.Response(body=self._metrics.text(), headers={"Content-Type": TEXT})

    async def asyncapi(self, request: web.Request) -> web.Response:
        """Return the AsyncAPI document, which a thread generates once, as it takes 50 ms."""
        if not self._asyncapi:
            made = await asyncio.to_thread(asyncapi.document, self._config.mqtt)
            self._asyncapi = msgspec.json.encode(made)
        return web.Response(body=self._asyncapi, content_type=JSON)

    async def openapi(self, request: web.Request) -> web.Response:
        """Return the OpenAPI document, which a thread generates once: a tenth of a second."""
        if not self._openapi:
            self._openapi = await asyncio.to_thread(_described, self.described)
        return web.Response(body=self._openapi, content_type=JSON)

    async def log_level(self, request: web.Request) -> web.Response:
        """Return the log level."""
        name = logging.getLevelName(logging.getLogger("sia").getEffectiveLevel()).lower()
        return answer({"level": name})

    async def set_log_level(self, request: web.Request) -> web.Response:
        """Set the log level. The change is logged if the old or the new level allows it."""
        payload = decoded(await body_of(request), self._level, LogLevel)
        logger = logging.getLogger("sia")
        wanted = logging.getLevelNamesMapping()[payload.level.upper()]
        logger.setLevel(min(wanted, logger.getEffectiveLevel()))
        log().info("log level", new=payload.level)
        with suppress(UnavailableError):  # debugging an unavailable journal may need more logging
            witness = AuditNote("log level", payload.level, 200, actor=who_asks(request).name)
            await self._service.submit([witness], request.remote or "")
        logger.setLevel(wanted)
        return answer(payload)


def _described(operations: Sequence[Operation]) -> bytes:
    return msgspec.json.encode(document(operations))
