"""Render pages: a template, the answers of the API, and the frame around them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
from aiohttp import web

from daemon.doors.http.authentication import UI, Sessions
from daemon.doors.http.authorization import WHO
from daemon.doors.http.operations import Operation
from daemon.doors.views.html import environment
from daemon.doors.web.ranges import keeping, kept_of
from daemon.doors.web.static import Assets
from daemon.doors.web.terms import explain, term
from daemon.model.access import Principal, Rule, allows
from daemon.wire.jobs import ProblemDetails
from daemon.wire.problems import PROBLEM_JSON

if TYPE_CHECKING:
    from daemon.doors.web.api_client import Api
    from daemon.service.service import Service

HTML = "text/html"
TEMPLATES = "daemon.doors.web"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of all responses below `/ui/`: no foreign content and no inline scripts."""


class MenuEntry(NamedTuple):
    """A menu entry, shown to users with the permission for its page."""

    path: str
    title: str
    rule: Rule


class Pages:
    """Renders pages.

    Attributes:
        api: The API client; set before the first request.
        menu: The entries of the menu in order; set before the first request.
    """

    api: Api
    menu: Sequence[MenuEntry] = ()

    def __init__(self, service: Service, sessions: Sessions, cluster: str) -> None:
        """Render pages of a service for browsers with these sessions."""
        self._service, self._sessions, self._cluster = service, sessions, cluster
        self.assets = Assets()

    async def page(
        self, request: web.Request, template: str, *, status: int = 200, **values: Any
    ) -> web.Response:
        """Render a page on a thread. The values must not be shared with the event loop."""
        who: Principal | None = request.get(WHO)
        how = self._service.status()
        kept = {} if status >= 400 else kept_of(request)
        frame = {
            "asset": self.assets.address,
            "cluster": self._cluster,
            "explain": explain,
            "explained": {},
            "form": self._sessions.form(request),
            "here": request.path,
            "kept": kept,
            "link": keeping(kept),
            "lending": self._service.book.mode.value,
            "menu": [entry for entry in self.menu if allows(who, entry.rule)],
            "pools": [] if who is None else sorted(filter(who.sees, self._service.book.pools)),
            "now": self._service.clock.now(),
            "speed": self._service.clock.speed,
            "serving": how.serving,
            "term": term,
            "who": who,
        }
        made = environment(TEMPLATES).get_template(template)
        text = await asyncio.to_thread(made.render, **frame, **values)
        return web.Response(text=text, status=status, content_type=HTML)

    async def finish(
        self, request: web.Request, response: web.StreamResponse
    ) -> web.StreamResponse:
        """Add the common headers below `/ui/`, and render problems as pages for browsers."""
        if response.prepared or not request.path.startswith(UI + "/"):
            return response
        if response.content_type == PROBLEM_JSON and HTML in request.headers.get("Accept", ""):
            assert isinstance(response, web.Response), "problems are no streams"
            assert isinstance(response.body, bytes), "problems are encoded as JSON"
            problem = msgspec.json.decode(response.body, type=ProblemDetails)
            response = await self._problem(request, problem, response.headers)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _problem(
        self, request: web.Request, problem: ProblemDetails, headers: Mapping[str, str]
    ) -> web.Response:
        """Render a problem; without a session, render the sign-in form at the same address.

        A visitor who has not tried to sign in yet has done nothing wrong, so the form is blank.
        """
        template = "sign_in.html" if problem.status == 401 else "problem.html"
        to = request.path_qs if request.method == "GET" else f"{UI}/"
        new = problem.status == 401 and not self._sessions.cookie_of(request)
        shown = None if new else problem
        seconds = headers.get("Retry-After", "") if request.method == "GET" else ""
        page = await self.page(
            request, template, status=problem.status, problem=shown, to=to,
            advice=_advice(problem), again=seconds,
            plain=problem.status == 422 and request.method == "GET" and bool(request.query),
        )  # fmt: skip
        page.headers.update((name, headers[name]) for name in KEPT if name in headers)
        return page


def _advice(problem: ProblemDetails) -> str:
    """Return what a reader can do: the API's fix if it applies to people, else one for pages."""
    close, _, _ = problem.mend.partition("?")
    if close.startswith("did you mean"):
        return f"{close}?"
    for_scripts = problem.status == 405 or "/v1/" in problem.mend or "sia " in problem.mend
    return ADVICE.get(problem.status, problem.mend) if for_scripts else problem.mend


class PageSet:
    """Base of the pages about one subject; `pages/table.py` lists all classes derived from it."""

    menu: ClassVar[Sequence[tuple[str, str]]] = ()
    """Paths of pages in the menu, with their titles. Other pages are reached by links."""

    def __init__(self, pages: Pages) -> None:
        """Render with these."""
        self._pages = pages

    def operations(self) -> list[Operation]:
        """Return the operations: what is served at which path, and who may use it."""
        raise NotImplementedError


ADVICE = {
    404: "check the address, or look for it in a list",
    405: "open the page that has this form, and submit it there",
    422: "go back, and correct what you typed",
    500: "if it happens again, see the daemon's log and report it",
}
"""What a reader of a page can do, by status, where the API's fix is meant for scripts."""

KEPT = ("WWW-Authenticate", "Retry-After", "Allow")
"""Headers of a problem response that its page keeps."""
