"""`/v1/webhooks`: state of the webhooks, and their dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.config.webhook_limits import DEAD_PAGE
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, body_of, query_of
from daemon.doors.webhooks.delivery import opened
from daemon.doors.webhooks.http_post import DeliveryVerdict
from daemon.doors.webhooks.webhook import WebhookSender
from daemon.journal.journal import DeadLetter
from daemon.model.access import Rule
from daemon.model.inputs import AuditNote
from daemon.wire.bodies import decoded
from daemon.wire.jobs import EventView
from daemon.wire.limits import MAX_SEQ
from daemon.wire.problems import ProblemError
from daemon.wire.webhooks import (
    Again,
    DeadLetterPage,
    DeadLetterView,
    Dropped,
    Sending,
    Tested,
    Webhook,
    Webhooks,
)

if TYPE_CHECKING:
    from daemon.doors.webhooks.webhooks import Hooks
    from daemon.service.service import Service

NAME = Parameter("name", str, "Name of the webhook.", "path")
LetterNumber = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
PAGE = (
    Parameter("after", LetterNumber, "Only dead letters after this number.", default=0),
    Parameter("limit", Annotated[int, Meta(ge=1, le=DEAD_PAGE)], "Page size.", default=DEAD_PAGE),
)
NAMED = 20
"""Maximum dead letters listed in one audit record."""

NUMBER = (Parameter("number", LetterNumber, "Number of one dead letter; default: all."),)


class HookRoutes:
    """Handlers of webhooks."""

    def __init__(self, hooks: Hooks, service: Service) -> None:
        """Serve the webhooks of a service."""
        self._hooks, self._letters, self._service = hooks, service.letters, service
        self._again = msgspec.json.Decoder(Again)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        one = "/v1/webhooks/{name}"
        return [
            Operation("GET", "/v1/webhooks", Rule.OPERATE, self.webhooks,
                      "List webhooks and their delivery state.",
                      {200: Webhooks}),
            Operation("GET", f"{one}/dead", Rule.OPERATE, self.dead,
                      "List dead letters.",
                      {200: DeadLetterPage}, None, (NAME, *PAGE), (404, 422)),
            Operation("DELETE", f"{one}/dead", Rule.OPERATE, self.drop,
                      "Delete one dead letter, or all.",
                      {200: Dropped}, None, (NAME, *NUMBER), (404, 422)),
            Operation("POST", f"{one}/retry", Rule.OPERATE, self.retry,
                      "Try the current delivery at once, and send "
                      "dead letters again.", {202: Sending}, Again, (NAME,), (404, 413, 422)),
            Operation("POST", f"{one}/test", Rule.OPERATE, self.test,
                      "Send a test event.",
                      {200: Tested}, None, (NAME,), (404,)),
        ]  # fmt: skip

    async def webhooks(self, request: web.Request) -> web.Response:
        """List webhooks. O(webhooks)."""
        return answer(Webhooks([*map(_view, self._hooks)]))

    async def dead(self, request: web.Request) -> web.Response:
        """Return a page of dead letters, oldest first."""
        hook, params = self._named(request), query_of(request, PAGE)
        found = await self._letters.dead(hook.config.name, params["after"], params["limit"])
        following = found[-1].number if found else params["after"]
        return answer(DeadLetterPage([*map(_letter, found)], following))

    async def drop(self, request: web.Request) -> web.Response:
        """Delete dead letters. The deletion is durable before the response."""
        hook, params = self._named(request), query_of(request, NUMBER)
        numbers = await self._letters.numbers(hook.config.name)
        if params["number"] is not None:
            numbers = [self._known(params["number"], numbers)]
        await self._remember(request, "webhook drop", hook, numbers)
        await hook.drop(numbers)
        return answer(Dropped(len(numbers)))

    async def retry(self, request: web.Request) -> web.Response:
        """Send dead letters again after the response; each is deleted once it is delivered."""
        hook, body = self._named(request), await body_of(request)
        payload = decoded(body, self._again, Again) if body else Again()
        numbers = await self._letters.numbers(hook.config.name)
        if payload.numbers:
            numbers = [self._known(number, numbers) for number in dict.fromkeys(payload.numbers)]
        await self._remember(request, "webhook retry", hook, numbers)
        hook.resume()
        hook.again(numbers)
        return answer(Sending(len(numbers)), 202)

    async def test(self, request: web.Request) -> web.Response:
        """Send a test event, and answer with its result."""
        outcome = await self._named(request).test()
        delivered = outcome.verdict is DeliveryVerdict.DELIVERED
        return answer(Tested(delivered, outcome.status, outcome.why, outcome.mend))

    async def _remember(
        self, request: web.Request, what: str, hook: WebhookSender, numbers: list[int]
    ) -> None:
        """Write an audit record before the action. Raises UnavailableError."""
        shown = ", ".join(map(str, numbers[:NAMED]))
        more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
        note = f"dead letters {shown}{more}" if numbers else ""
        audit_note = AuditNote(what, hook.config.name, 200, note, who_asks(request).name)
        await self._service.submit([audit_note], request.remote or "")

    def _named(self, request: web.Request) -> WebhookSender:
        name = request.match_info["name"]
        hook = self._hooks.get(name)
        if hook is None:
            raise ProblemError(
                404,
                "no such webhook",
                f"there is no webhook {name!r}",
                "list webhooks: sia webhook list",
            )
        return hook

    @staticmethod
    def _known(number: int, numbers: list[int]) -> int:
        if number not in numbers:
            raise ProblemError(
                404,
                "no such letter",
                f"there is no dead letter {number}",
                "list dead letters: sia webhook dead",
            )
        return number


def _view(hook: WebhookSender) -> Webhook:
    config, place, last = hook.config, hook.place, hook.last
    return Webhook(
        config.name, config.origin, sorted(config.events), sorted(config.pools), hook.state,
        last.why if last is not None else "", last.mend if last is not None else "",
        place.cursor, hook.lag, place.tries, last.status if last is not None else 0,
        hook.asked or None, hook.due or None, hook.counts.delivered, hook.dead,
    )  # fmt: skip


def _letter(letter: DeadLetter) -> DeadLetterView:
    body = opened(letter)
    events = [EventView(e.seq, e.time, e.kind, e.job, e.pool, e.node, e.data) for e in body.events]
    return DeadLetterView(letter.number, body.delivery, letter.time, letter.why, events)
