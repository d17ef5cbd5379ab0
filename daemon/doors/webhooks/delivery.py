"""Group events into deliveries: a JSON body with some events, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from daemon.config.webhook_limits import BODY
from daemon.config.webhooks import WebhookConfig
from daemon.journal.journal import DeadLetter
from daemon.model.access import MACHINE, Principal, Role, closed_loan, visible_to
from daemon.model.outputs import Notice

Page = Callable[[int], Awaitable[Sequence[Notice]]]
"""Returns the next events after a number, and waits for the first one; empty at the end."""

TEST = "test"
"""Type of the test event; its number is 0."""

_encode = msgspec.json.Encoder().encode


class Body(Struct):
    """Body of a delivery. A repeated event keeps its number (`seq`), for deduplication."""

    delivery: str
    hook: str
    events: list[Notice]


_read = msgspec.json.Decoder(Body).decode


class Delivery(NamedTuple):
    """Events up to number `until`, filtered. `body` is empty if no event passed the filter."""

    id: str
    first: int
    until: int
    body: bytes


class DeliveryBatcher:
    """Splits the events into deliveries for one webhook; buffers at most one page.

    Attributes:
        gone: First and last event of the newest gap: events deleted before they were read.
    """

    def __init__(self, config: WebhookConfig, page: Page) -> None:
        """Create deliveries from the events that `page` returns."""
        self._config, self._page = config, page
        self._who = Principal(config.name, Role.VIEWER, config.pools) if config.pools else MACHINE
        self._held: Sequence[Notice] = ()
        self._after = 0  # number of the event before `_held`
        self.gone: tuple[int, int] | None = None

    async def next(self, after: int, last: int = 0) -> Delivery | None:
        """Return the next delivery after an event; up to event `last` if it is a retry.

        None if there are no more events. Raises JournalError.
        """
        if not self._held or self._after != after:
            self._held = await self._page(after)
        if not self._held:
            return None
        if self._held[0].seq > after + 1:
            self.gone = after + 1, self._held[0].seq - 1
        last = last if last >= self._held[0].seq else 0  # it may have been deleted
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
        """Return the event as the receiver may see it, or None."""
        events, pools = self._config.events, self._config.pools
        shown = visible_to(self._who, notice)
        if shown is not None and pools and shown.pool not in pools:  # visible to its borrower
            shown = closed_loan(shown)
        if shown is None or (pools and shown.pool not in pools):
            return None
        return shown if not events or shown.kind in events else None


def made(hook: str, events: Sequence[Notice], until: int) -> Delivery:
    """Build a delivery. The same events give the same body."""
    if not events:
        return Delivery("", 0, until, b"")
    first, last = events[0].seq, events[-1].seq
    name = f"{hook}-{first}-{last}"
    return Delivery(name, first, until, _encode(Body(name, hook, [*events])))


def revived(letter: DeadLetter) -> Delivery:
    """Return the delivery of a dead letter."""
    body = letter.body.encode()
    return Delivery(_read(body).delivery, letter.seq, 0, body)


def opened(letter: DeadLetter) -> Body:
    """Decode a dead letter."""
    return _read(letter.body)


def trial(hook: str, now: float) -> Delivery:
    """Return a test delivery."""
    event = Notice(0, now, TEST)
    name = f"{hook}-test"
    return Delivery(name, 0, 0, _encode(Body(name, hook, [event])))
