"""`/v1/webhooks`: how each is, and what could not be delivered."""

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

NAME = Parameter("name", str, "Of the webhook.", "path")
LetterNumber = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
PAGE = (
    Parameter("after", LetterNumber, "Only letters after this number.", default=0),
    Parameter("limit", Annotated[int, Meta(ge=1, le=DEAD_PAGE)], "Of a page.", default=DEAD_PAGE),
)
NAMED = 20
"""Dead letters that the audit names, of those that are dropped or sent once more together."""

NUMBER = (Parameter("number", LetterNumber, "The one; all without it."),)


class HookRoutes:
    """Handlers of all that."""

    def __init__(self, hooks: Hooks, service: Service) -> None:
        """Serve these."""
        self._hooks, self._letters, self._service = hooks, service.letters, service
        self._again = msgspec.json.Decoder(Again)

    def operations(self) -> list[Operation]:
        """All of them."""
        one = "/v1/webhooks/{name}"
        return [
            Operation("GET", "/v1/webhooks", Rule.OPERATE, self.webhooks,
                      "Webhooks, and how they are.",
                      {200: Webhooks}),
            Operation("GET", f"{one}/dead", Rule.OPERATE, self.dead,
                      "Deliveries that were given up.",
                      {200: DeadLetterPage}, None, (NAME, *PAGE), (404, 422)),
            Operation("DELETE", f"{one}/dead", Rule.OPERATE, self.drop,
                      "Forget one of them, or all.",
                      {200: Dropped}, None, (NAME, *NUMBER), (404, 422)),
            Operation("POST", f"{one}/retry", Rule.OPERATE, self.retry,
                      "Try again at once, and send what was "
                      "given up once more.", {202: Sending}, Again, (NAME,), (404, 413, 422)),
            Operation("POST", f"{one}/test", Rule.OPERATE, self.test,
                      "Send an event that nothing stands for.",
                      {200: Tested}, None, (NAME,), (404,)),
        ]  # fmt: skip

    async def webhooks(self, request: web.Request) -> web.Response:
        """All. O(1) for each."""
        return answer(Webhooks([*map(_view, self._hooks)]))

    async def dead(self, request: web.Request) -> web.Response:
        """A page, oldest first."""
        hook, asked = self._named(request), query_of(request, PAGE)
        found = await self._letters.dead(hook.config.name, asked["after"], asked["limit"])
        following = found[-1].number if found else asked["after"]
        return answer(DeadLetterPage([*map(_letter, found)], following))

    async def drop(self, request: web.Request) -> web.Response:
        """Durable when it is answered."""
        hook, asked = self._named(request), query_of(request, NUMBER)
        numbers = await self._letters.numbers(hook.config.name)
        if asked["number"] is not None:
            numbers = [self._known(asked["number"], numbers)]
        await self._remember(request, "webhook drop", hook, numbers)
        await hook.drop(numbers)
        return answer(Dropped(len(numbers)))

    async def retry(self, request: web.Request) -> web.Response:
        """They are sent after the answer; what is delivered is no more."""
        hook, body = self._named(request), await body_of(request)
        asked = decoded(body, self._again, Again) if body else Again()
        numbers = await self._letters.numbers(hook.config.name)
        if asked.numbers:
            numbers = [self._known(number, numbers) for number in dict.fromkeys(asked.numbers)]
        await self._remember(request, "webhook retry", hook, numbers)
        hook.resume()
        hook.again(numbers)
        return answer(Sending(len(numbers)), 202)

    async def test(self, request: web.Request) -> web.Response:
        """One request, answered when that is."""
        outcome = await self._named(request).test()
        delivered = outcome.verdict is DeliveryVerdict.DELIVERED
        return answer(Tested(delivered, outcome.status, outcome.why, outcome.mend))

    async def _remember(
        self, request: web.Request, what: str, hook: WebhookSender, numbers: list[int]
    ) -> None:
        """Have it stand in the audit before it is done. Raises UnavailableError."""
        shown = ", ".join(map(str, numbers[:NAMED]))
        more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
        note = f"dead letters {shown}{more}" if numbers else ""
        asked = AuditNote(what, hook.config.name, 200, note, who_asks(request).name)
        await self._service.submit([asked], request.remote or "")

    def _named(self, request: web.Request) -> WebhookSender:
        name = request.match_info["name"]
        hook = self._hooks.get(name)
        if hook is None:
            raise ProblemError(
                404, "no such webhook", f"there is no webhook {name!r}", "see: sia webhook list"
            )
        return hook

    @staticmethod
    def _known(number: int, numbers: list[int]) -> int:
        if number not in numbers:
            raise ProblemError(
                404, "no such letter", f"there is no dead letter {number}", "see: sia webhook dead"
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
