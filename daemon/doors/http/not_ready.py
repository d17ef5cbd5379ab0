"""HTTP application of a daemon that does not serve yet: a standby, or one that is recovering."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from aiohttp import web

from daemon.wire.jobs import Health
from daemon.wire.problems import ProblemError

METRICS = """# TYPE sia_leader gauge
sia_leader {}
# TYPE sia_epoch gauge
sia_epoch {}
"""

RETRY = {"Retry-After": "1"}


def waiting(
    why: Callable[[], ProblemError], leads: Callable[[], tuple[bool, int]]
) -> web.Application:
    """Answer health and metrics. `why` answers all else; `leads` returns leadership and epoch."""

    async def health(_: web.Request) -> web.Response:
        body = msgspec.json.encode(Health("ok", time.time()))
        return web.Response(body=body, content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        acts, epoch = leads()
        return web.Response(text=METRICS.format(int(acts), epoch))

    async def elsewhere(_: web.Request) -> web.Response:
        return why().response()

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_route("*", "/{path:.*}", elsewhere)
    return app
