"""`/ui/sign-in`, `/ui/sign-out` and the redirect from `/`."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from daemon.doors.http.authentication import UI, TokenAuth
from daemon.doors.http.csrf import check_site, form_of
from daemon.doors.http.operations import Operation
from daemon.doors.web.page import HTML, Pages
from daemon.model.access import Rule
from daemon.wire.problems import ProblemError

HOME = f"{UI}/"


class SignPages:
    """Exchange a token for a session, and end sessions."""

    def __init__(self, pages: Pages, gate: TokenAuth) -> None:
        """Authenticate with `gate`."""
        self._pages, self._gate = pages, gate

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation("GET", "/", Rule.OPEN, self.home, "Redirect to the overview.", {303: None}),
            Operation(
                "GET", f"{UI}/sign-in", Rule.OPEN, self.form, "Sign-in form.",
                {200: HTML},
            ),
            Operation(
                "POST", f"{UI}/sign-in", Rule.OPEN, self.sign_in, "Start a session.",
                {303: None},
            ),
            Operation(
                "POST", f"{UI}/sign-out", Rule.VIEW, self.sign_out, "End the session.",
                {303: None},
            ),
            Operation(
                "POST", f"{UI}/sign-out-everywhere", Rule.VIEW, self.sign_out_everywhere,
                "End all sessions of the token.", {303: None},
            ),
        ]  # fmt: skip

    async def home(self, request: web.Request) -> web.Response:
        """Redirect to the overview."""
        return see(HOME)

    async def form(self, request: web.Request) -> web.Response:
        """Render the sign-in form."""
        return await self._pages.page(request, "sign_in.html", problem=None, to=HOME)

    async def sign_in(self, request: web.Request) -> web.Response:
        """Start a session and redirect to the requested page, or show the form with the problem."""
        check_site(request)
        self._gate.count_wrong_token(request)
        fields = await form_of(request)
        to = fields.get("to", "")
        try:
            session = self._gate.enter(fields.get("token", "").strip())
        except ProblemError as problem:
            if problem.status != 401:
                raise
            page = await self._pages.page(
                request, "sign_in.html", status=401, problem=problem.details, to=to
            )
            page.headers.update(problem.headers)
            return page
        response = see(to if is_ours(to) else HOME)
        self._gate.sessions.begin(response, session)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """Delete the cookie. A copy of the cookie stays valid until the session expires."""
        response = see(f"{UI}/sign-in")
        self._gate.sessions.end(response)
        return response

    async def sign_out_everywhere(self, request: web.Request) -> web.Response:
        """End all sessions of the user's token, in all browsers."""
        await self._pages.api.ask(request, "DELETE /v1/sessions")
        return await self.sign_out(request)


def see(path: str) -> web.Response:
    """Redirect to a path (303)."""
    return web.Response(status=303, headers={"Location": path})


def is_ours(path: str) -> bool:
    """Return whether a path is a page of this daemon, to prevent open redirects."""
    parts = urlsplit(path)
    clean = path.isascii() and path.isprintable() and "\\" not in path
    return clean and not (parts.scheme or parts.netloc) and parts.path.startswith(HOME)
