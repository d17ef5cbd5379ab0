"""`/ui/settings`: the lending mode, sessions, and the state of the daemon."""

from __future__ import annotations

from operator import attrgetter

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS
from daemon.doors.web.ranges import page_query
from daemon.doors.web.sign_in import see
from daemon.doors.web.tables import Column, plain, sort_of, table
from daemon.model.access import OPERATOR_NAME, Rule, allows
from daemon.model.job import LendingMode
from daemon.wire.problems import ProblemError

HERE = f"{UI}/settings"


TOKENS = (
    Column("name", "Token", attrgetter("name")),
    Column("role", "Role", attrgetter("role.value"), term="role, permission"),
    Column("pools", "Pools"),
    Column("expires", "Expires", attrgetter("expires")),
    Column("end", "Sessions"),
)
"""Columns of the tokens."""

GRANTS = (
    Column("user", "User"),
    Column("pool", "Pool"),
    Column("max_value", "Value of a job", number=True),
    Column("never_jobs", "Jobs never stopped", number=True),
    Column("never_gpus", "Their GPUs", number=True),
    Column("extra_budget", "Extra budget", number=True),
    Column("gpu_hours", "GPU-hours by deadline", number=True),
)
"""Columns of the grants."""

USED = (
    Column("user", "User"),
    Column("pool", "Pool"),
    Column("jobs", "Jobs", number=True),
    Column("value", "Sum of values", number=True),
    Column("top_value", "Highest", number=True),
    Column("never_jobs", "Never stopped", number=True),
    Column("never_gpus", "Their GPUs", number=True),
    Column("extra_budget", "Extra budget", number=True),
    Column("all_jobs", "All jobs", number=True),
    Column("deadline_jobs", "With a deadline", number=True),
    Column("promised_jobs", "Promised", number=True),
    Column("gpu_hours", "GPU-hours by deadline", number=True),
)
"""Columns of the use of the grants."""

QUERY = (sort_of(TOKENS), PAGE)

NAME = Parameter("name", str, "Name of the token.", "path")


class SettingsPages(PageSet):
    """The settings page. All other settings are in the configuration file."""

    menu = ((HERE, "Settings"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", HERE, Rule.VIEW, self.settings, "Show the settings.", {200: HTML},
                parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "POST", f"{HERE}/lending", Rule.OPERATE, self.set_lending, "Set the lending mode.",
                {303: None}, refusals=(422,),
            ),
            Operation(
                "POST", f"{HERE}/tokens/{{name}}/sign-out", Rule.OPERATE, self.sign_out,
                "End all sessions of a token.", {303: None}, None, (NAME,), (404,),
            ),
        ]  # fmt: skip

    async def settings(self, request: web.Request) -> web.Response:
        """Render the page; only operators get the forms."""
        api, params = self._pages.api, page_query(request, QUERY)
        tokens = await api.ask_if_allowed(request, "GET /v1/tokens")
        shown = None if tokens is None else table(request, TOKENS, tokens.tokens, params)
        granted = await api.ask(request, "GET /v1/grants")
        return await self._pages.page(
            request, "settings/settings.html", modes=[mode.value for mode in LendingMode],
            state=await api.ask(request, "GET /v1/lending"),
            daemon=await api.ask(request, "GET /v1/status"),
            granted=granted, grants=plain(GRANTS, granted.grants),
            used=plain(USED, granted.used[:ROWS]),
            may=allows(who_asks(request), Rule.OPERATE), tokens=shown, machine=OPERATOR_NAME,
        )  # fmt: skip

    async def set_lending(self, request: web.Request) -> web.Response:
        """Set the lending mode through the API, then redirect to the page."""
        mode = (await form_of(request)).get("mode")
        if mode is None:
            raise ProblemError(422, "invalid", "no mode was selected", "select a mode")
        await self._pages.api.ask(request, "PUT /v1/lending", body={"mode": mode})
        return see(HERE)

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the sessions of a token through the API, then redirect to the page."""
        await self._pages.api.ask(request, "DELETE /v1/tokens/{name}/sessions")
        return see(HERE)
