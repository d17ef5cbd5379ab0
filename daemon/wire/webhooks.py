"""What goes over HTTP of webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.config.webhook_limits import MOST_DEAD
from daemon.wire.jobs import EventView


class Webhook(Struct):
    """A webhook, and how it is. Times are seconds since the epoch, of the wall clock."""

    name: str
    to: Annotated[str, Meta(description="Scheme, host and port of its URL.")]
    events: Annotated[list[str], Meta(description="Kinds it is told of; all where none is named.")]
    pools: Annotated[list[str], Meta(description="Of which pools; of all where none is named.")]
    state: Literal["delivering", "retrying", "gone", "full"]
    why: Annotated[str, Meta(description="Why the last request failed; empty if it did not.")]
    mend: str
    cursor: Annotated[int, Meta(description="The last event that is done with.")]
    lag: Annotated[int, Meta(description="Events after that.")]
    tries: Annotated[int, Meta(description="Of the delivery under way that failed.")]
    status: Annotated[int, Meta(description="The last answer; 0 for none.")]
    asked: Annotated[float | None, Meta(description="When that was.")]
    due: Annotated[float | None, Meta(description="When it is tried again.")]
    delivered: Annotated[int, Meta(description="Deliveries since the daemon's start.")]
    dead: Annotated[int, Meta(description="Deliveries that were given up.")]


class Webhooks(Struct):
    """All of them, in the order of the configuration."""

    webhooks: list[Webhook]


class DeadLetterView(Struct):
    """A delivery that was given up, and its events."""

    number: int
    delivery: str
    time: Annotated[float, Meta(description="When, in seconds since the epoch.")]
    why: str
    events: list[EventView]


class DeadLetterPage(Struct):
    """Dead letters, and the `after` to ask for the next ones with."""

    letters: list[DeadLetterView]
    next: int


class Again(Struct, forbid_unknown_fields=True):
    """Which dead letters are to be sent once more: all where none is named."""

    numbers: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=MOST_DEAD)] = []


class Sending(Struct):
    """How many dead letters are sent once more."""

    letters: int


class Dropped(Struct):
    """How many dead letters are no more."""

    letters: int


class Tested(Struct):
    """What came of a trial."""

    delivered: bool
    status: Annotated[int, Meta(description="The answer; 0 for none.")]
    why: str
    mend: str
