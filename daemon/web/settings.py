"""`/ui/settings`: the lending switch."""

from __future__ import annotations

from aiohttp import web

from daemon.access import Rule, allows
from daemon.http.forms import form_of
from daemon.http.guard import who_asks
from daemon.http.operations import Operation
from daemon.http.problems import ProblemError
from daemon.http.sessions import UI
from daemon.jobs import LendingMode
from daemon.web.pages import HTML, Pages
from daemon.web.sign import see

HERE = f"{UI}/settings"


class SettingsPages:
    """What an operator switches here; the daemon's file has the rest."""

    def __init__(self, pages: Pages) -> None:
        """Made by these."""
        self._pages = pages

    def operations(self) -> list[Operation]:
        """Both."""
        return [
            Operation(
                "GET", HERE, Rule.VIEW, self.settings, "How the daemon is set.", {200: HTML}
            ),
            Operation(
                "POST", f"{HERE}/lending", Rule.OPERATE, self.set_lending, "Lend, or not.",
                {303: None}, refusals=(422,),
            ),
        ]  # fmt: skip

    async def settings(self, request: web.Request) -> web.Response:
        """Whoever may look sees it; the form is for those who may switch."""
        api = self._pages.api
        return await self._pages.page(
            request, "settings.html", modes=[mode.value for mode in LendingMode],
            state=await api.ask(request, "GET /v1/lending"),
            daemon=await api.ask(request, "GET /v1/status"),
            may=allows(who_asks(request), Rule.OPERATE),
        )  # fmt: skip

    async def set_lending(self, request: web.Request) -> web.Response:
        """As `PUT /v1/lending`, and back to the page."""
        mode = (await form_of(request)).get("mode")
        if mode is None:
            raise ProblemError(422, "invalid", "no mode was chosen", "choose one")
        await self._pages.api.ask(request, "PUT /v1/lending", body={"mode": mode})
        return see(HERE)
