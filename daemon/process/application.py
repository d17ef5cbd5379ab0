"""The HTTP application: all operations behind one middleware."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from daemon.answers.front import FrontUpdates
from daemon.config.config import Address, Config
from daemon.doors.http.authentication import Sessions, TokenAuth
from daemon.doors.http.authorization import AccessMiddleware, is_operator
from daemon.doors.http.event_stream import EventRoutes
from daemon.doors.http.metrics.accounts import AccountMetrics
from daemon.doors.http.metrics.estimates import EtaMetrics
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.doors.http.metrics.webhooks import HookMetrics
from daemon.doors.http.operations import Handler, Operation
from daemon.doors.http.routes.accounts import AccountRoutes
from daemon.doors.http.routes.audit import AuditRoutes
from daemon.doors.http.routes.cells import CellRoutes
from daemon.doors.http.routes.estimates import EtaRoutes
from daemon.doors.http.routes.explain import WhyRoutes
from daemon.doors.http.routes.jobs import JobRoutes
from daemon.doors.http.routes.logs import LogRoutes
from daemon.doors.http.routes.lookups import ViewRoutes
from daemon.doors.http.routes.pools import PoolRoutes
from daemon.doors.http.routes.queue import QueueRoutes
from daemon.doors.http.routes.status import StatusRoutes
from daemon.doors.http.routes.tokens import TokenRoutes
from daemon.doors.http.routes.webhooks import HookRoutes
from daemon.doors.http.routes.whatif import WhatIfRoutes
from daemon.doors.web.api_client import Api
from daemon.doors.web.page import Pages
from daemon.doors.web.pages.table import operations_of
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.limits import PROBE_EVERY
from daemon.process.build import Daemon
from daemon.runtime.logs import log
from daemon.wire.limits import MAX_BODY
from daemon.wire.problems import ProblemError, of_http
from sia.console.errors import UserError
from sia.core.guard import PolicyFailedError

STEP = ":[^/]+}"
"""Pattern of a path parameter: aiohttp's default does not match names with braces."""

BACKLOG = 1024
"""Length of the accept queue: a burst of clients is not refused."""


def make_app(
    daemon: Daemon, config: Config, token: str, metrics: PrometheusMetrics
) -> web.Application:
    """Build the application: `/v1`, the pages, health and metrics."""
    service = daemon.service
    metrics.watch(service)
    metrics.window_ended = daemon.usage.window_ended
    metrics.registry.register(HookMetrics(daemon.hooks))
    metrics.registry.register(AccountMetrics(service))
    metrics.registry.register(EtaMetrics(daemon.eta))
    secure = config.tls.on or config.tls.terminated_by_proxy
    sessions = Sessions(token, config.cluster, secure=secure)
    gate = TokenAuth(service, token, config.cluster, sessions)
    views = ViewRoutes(service, config, metrics, daemon.foresight, daemon.retraining, daemon.usage)
    events = EventRoutes(service, gate)
    updates = FrontUpdates(config, service.clock)
    routes = (
        JobRoutes(service, daemon.admission, daemon.eta),
        LogRoutes(service),
        WhyRoutes(service),
        QueueRoutes(service, daemon.eta),
        PoolRoutes(service, config.front, updates),
        CellRoutes(service),
        AccountRoutes(service),
        TokenRoutes(service, config.cluster),
        AuditRoutes(service),
        HookRoutes(daemon.hooks, service),
        StatusRoutes(service),
        WhatIfRoutes(service, daemon.foresight, daemon.eta),
        EtaRoutes(service, daemon.eta),
        views,
        events,
    )
    operations = [operation for part in routes for operation in part.operations()]
    pages = Pages(service, sessions, config.cluster)
    served = [*operations, *operations_of(pages, gate, events)]
    guard = AccessMiddleware(service, gate, served)
    pages.api = Api(operations, guard)
    app = web.Application(middlewares=[_door(guard, metrics, pages)], client_max_size=MAX_BODY)
    _add(app, served)
    views.described = operations
    app.on_shutdown.append(events.close)
    app.on_shutdown.append(updates.close)
    return app


def _add(app: web.Application, operations: Sequence[Operation]) -> None:
    for operation in operations:
        path = operation.path.replace("}", STEP)
        app.router.add_route(operation.method, path, operation.handler)


def _door(guard: AccessMiddleware, metrics: PrometheusMetrics, pages: Pages) -> Middleware:
    """Return the middleware that authorises requests and turns errors into problem details."""

    @web.middleware
    async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            await guard.check(request)
            response = await handler(request)
        except ProblemError as problem:
            response = problem.response()
        except UnavailableError as error:
            response = _unavailable(error, request)
        except JournalError as error:
            response = _unavailable(UnavailableError(503, str(error), PROBE_EVERY), request)
        except web.HTTPException as error:
            response = of_http(error)
        except PolicyFailedError as error:
            log().error("policy failed", why=str(error), path=request.path)
            response = ProblemError(500, "policy failed", str(error), _REPAIR).response()
        except Exception:  # noqa: BLE001  a defect in one request must not affect others
            log().exception("request failed", method=request.method, path=request.path)
            response = _FAILED.response()
        await guard.remember(request)
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        if response.status >= 400:
            log().debug(
                "refused request", operation=f"{request.method} {path}", status=response.status
            )
        metrics.asked(f"{request.method} {path}", response.status)
        return await pages.finish(request, response)

    return door


_REPAIR = "repair the policy, or name another one in daemon.policy; running jobs continue"

_FAILED = ProblemError(
    500, "internal error", "the daemon failed to answer", "see the daemon's log and report it"
)


def _unavailable(error: UnavailableError, request: web.Request) -> web.Response:
    title = "too many requests" if error.status == 429 else "unavailable"
    detail = error.shown(whole=is_operator(request))
    seconds = max(1, round(error.retry_after))
    headers = {"Retry-After": str(seconds)}
    return ProblemError(
        error.status, title, detail, f"try again in {seconds} s", headers=headers
    ).response()


def bind(address: Address) -> socket.socket:
    """Bind and listen on the address. Raises UserError if that fails."""
    where = f"{address.host}:{address.port}"
    try:
        kind, _, _, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        bound = socket.socket(kind, socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}; change daemon.listen") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"{where}: address already in use; stop the other process or change daemon.listen"
            ) from None
        raise UserError(f"{where}: {error.strerror}; change daemon.listen") from None
    return bound
