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


HEADERS = {"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"}
"""Headers of a page that loads nothing."""


def _page(problem: ProblemError) -> str:
    """Return a page that says why the daemon does not serve yet, and reloads itself."""
    from daemon.doors.views.html import environment  # noqa: PLC0415  jinja2 loads slowly

    template = environment("daemon.doors.views").get_template("not_ready.html")
    return template.render(problem=problem.details, again=RETRY["Retry-After"])


def waiting(
    why: Callable[[], ProblemError], leads: Callable[[], tuple[bool, int]]
) -> web.Application:
    """Answer health and metrics only; `why` gives the problem for all other requests.

    `leads` returns whether this daemon is the leader, and the epoch.
    """

    async def health(_: web.Request) -> web.Response:
        body = msgspec.json.encode(Health("ok", time.time()))
        return web.Response(body=body, content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        acts, epoch = leads()
        return web.Response(text=METRICS.format(int(acts), epoch))

    async def elsewhere(request: web.Request) -> web.Response:
        problem = why()
        if "text/html" not in request.headers.get("Accept", ""):
            return problem.response()
        return web.Response(
            text=_page(problem), status=problem.status, content_type="text/html",
            headers=problem.headers | HEADERS,
        )  # fmt: skip

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_route("*", "/{path:.*}", elsewhere)
    return app
