"""What is sent at a time: some events, in order, as one JSON body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from daemon.config.webhook_limits import BODY
from daemon.config.webhooks import WebhookConfig
from daemon.journal.journal import DeadLetter
from daemon.model.access import MACHINE, Principal, Role
from daemon.model.outputs import Notice
from daemon.model.visibility import closed_loan, visible_to

Page = Callable[[int], Awaitable[Sequence[Notice]]]
"""The events that come next after one, some of them; waits for the first; none at the end."""

TEST = "test"
"""The kind of the event with which an operator tries a hook; its number is 0."""

_encode = msgspec.json.Encoder().encode


class Body(Struct):
    """Of a delivery. An event that comes again has the number (`seq`) that it had."""

    delivery: str
    hook: str
    events: list[Notice]


_read = msgspec.json.Decoder(Body).decode


class Delivery(NamedTuple):
    """Events up to the number `until`, those that nobody wants left out; `body` empty: all."""

    id: str
    first: int
    until: int
    body: bytes


class DeliveryBatcher:
    """Cuts what happens into deliveries to one hook; holds a page of events at most.

    Attributes:
        gone: The first and the last event of the newest gap: they were too old to be kept.
    """

    def __init__(self, config: WebhookConfig, page: Page) -> None:
        """Of these events."""
        self._config, self._page = config, page
        self._who = Principal(config.name, Role.VIEWER, config.pools) if config.pools else MACHINE
        self._held: Sequence[Notice] = ()
        self._after = 0  # the event after which they come
        self.gone: tuple[int, int] | None = None

    async def next(self, after: int, last: int = 0) -> Delivery | None:
        """What comes after an event; up to `last` where a delivery is made once more.

        None where nothing will come any more. Raises JournalError.
        """
        if not self._held or self._after != after:
            self._held = await self._page(after)
        if not self._held:
            return None
        if self._held[0].seq > after + 1:
            self.gone = after + 1, self._held[0].seq - 1
        last = last if last >= self._held[0].seq else 0  # it may be too old to be kept
        taken: list[Notice] = []
        looked = size = 0
        for notice in self._held:
            if last and notice.seq > last:
                break
            shown = self._shown(notice)
            if shown is not None:
                size += len(_encode(shown))
                if taken and (len(taken) == self._config.batch or size > BODY):
                    break
                taken.append(shown)
            looked += 1
        self._after = self._held[looked - 1].seq
        self._held = self._held[looked:]
        return made(self._config.name, taken, self._after)

    def _shown(self, notice: Notice) -> Notice | None:
        """As the receiver is told of it; None where it is not."""
        events, pools = self._config.events, self._config.pools
        shown = visible_to(self._who, notice)
        if shown is not None and pools and shown.pool not in pools:  # it may see the borrower's
            shown = closed_loan(shown)
        if shown is None or (pools and shown.pool not in pools):
            return None
        return shown if not events or shown.kind in events else None


def made(hook: str, events: Sequence[Notice], until: int) -> Delivery:
    """A delivery of these, which is the same as often as it is made."""
    if not events:
        return Delivery("", 0, until, b"")
    first, last = events[0].seq, events[-1].seq
    name = f"{hook}-{first}-{last}"
    return Delivery(name, first, until, _encode(Body(name, hook, [*events])))


def revived(letter: DeadLetter) -> Delivery:
    """A delivery that was given up."""
    body = letter.body.encode()
    return Delivery(_read(body).delivery, letter.seq, 0, body)


def opened(letter: DeadLetter) -> Body:
    """What is in it."""
    return _read(letter.body)


def trial(hook: str, now: float) -> Delivery:
    """With which an operator looks whether anybody is there."""
    event = Notice(0, now, TEST)
    name = f"{hook}-test"
    return Delivery(name, 0, 0, _encode(Body(name, hook, [event])))
