"""`/ui/sign-in`, `/ui/sign-out`, and the way there."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from daemon.doors.http.authentication import TokenAuth
from daemon.doors.http.csrf import check_site, form_of
from daemon.doors.http.operations import Operation
from daemon.doors.http.sessions import UI
from daemon.doors.web.page import HTML, Pages
from daemon.model.access import Rule
from daemon.wire.problems import ProblemError

HOME = f"{UI}/"


class SignPages:
    """A token is typed in once, and a session is had for it."""

    def __init__(self, pages: Pages, gate: TokenAuth) -> None:
        """Let in whom the gate lets in."""
        self._pages, self._gate = pages, gate

    def operations(self) -> list[Operation]:
        """All of them."""
        return [
            Operation("GET", "/", Rule.OPEN, self.home, "To the pages.", {303: None}),
            Operation(
                "GET", f"{UI}/sign-in", Rule.OPEN, self.form, "Where a token is typed in.",
                {200: HTML},
            ),
            Operation(
                "POST", f"{UI}/sign-in", Rule.OPEN, self.sign_in, "A session for a token.",
                {303: None},
            ),
            Operation(
                "POST", f"{UI}/sign-out", Rule.VIEW, self.sign_out, "Have the browser forget it.",
                {303: None},
            ),
            Operation(
                "POST", f"{UI}/sign-out-everywhere", Rule.VIEW, self.sign_out_everywhere,
                "Have all browsers forget it.", {303: None},
            ),
        ]  # fmt: skip

    async def home(self, request: web.Request) -> web.Response:
        """To the overview."""
        return see(HOME)

    async def form(self, request: web.Request) -> web.Response:
        """The form."""
        return await self._pages.page(request, "sign_in.html", problem=None, to=HOME)

    async def sign_in(self, request: web.Request) -> web.Response:
        """A session, and back to where it was missed; or the form again, with why not."""
        check_site(request)
        self._gate.knock(request)
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
        """The cookie goes; whoever has copied it is let in until its end, or its token's."""
        response = see(f"{UI}/sign-in")
        self._gate.sessions.end(response)
        return response

    async def sign_out_everywhere(self, request: web.Request) -> web.Response:
        """No cookie of this token counts any more, whoever has it."""
        await self._pages.api.ask(request, "DELETE /v1/sessions")
        return await self.sign_out(request)


def see(path: str) -> web.Response:
    """Have a browser go there."""
    return web.Response(status=303, headers={"Location": path})


def is_ours(path: str) -> bool:
    """Whether it is a page of ours, and no other site's that looks like one."""
    parts = urlsplit(path)
    clean = path.isascii() and path.isprintable() and "\\" not in path
    return clean and not (parts.scheme or parts.netloc) and parts.path.startswith(HOME)
