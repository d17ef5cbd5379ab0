"""HTTP bodies of the webhook endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.config.webhook_limits import MOST_DEAD
from daemon.wire.jobs import EventView


class Webhook(Struct):
    """A webhook and its delivery state. Times are seconds since the epoch, by the wall clock."""

    name: str
    to: Annotated[str, Meta(description="Scheme, host and port of its URL.")]
    events: Annotated[list[str], Meta(description="Event types it receives; empty: all.")]
    pools: Annotated[list[str], Meta(description="Pools whose events it receives; empty: all.")]
    state: Literal["delivering", "retrying", "gone", "full"]
    why: Annotated[str, Meta(description="Why the last request failed; empty if it succeeded.")]
    mend: str
    cursor: Annotated[int, Meta(description="Last event that was delivered or given up.")]
    lag: Annotated[int, Meta(description="Number of events after the cursor.")]
    tries: Annotated[int, Meta(description="Failed tries of the current delivery.")]
    status: Annotated[int, Meta(description="Status of the last response; 0: no response.")]
    asked: Annotated[float | None, Meta(description="Time of the last request.")]
    due: Annotated[float | None, Meta(description="Time of the next try.")]
    delivered: Annotated[int, Meta(description="Deliveries since the daemon started.")]
    dead: Annotated[int, Meta(description="Number of dead letters.")]


class Webhooks(Struct):
    """All webhooks, in the order of the configuration."""

    webhooks: list[Webhook]


class DeadLetterView(Struct):
    """A dead letter: a delivery that was given up, with its events."""

    number: int
    delivery: str
    time: Annotated[float, Meta(description="Time of giving up, in seconds since the epoch.")]
    why: str
    events: list[EventView]


class DeadLetterPage(Struct):
    """A page of dead letters. `next` is the value of `after` for the next page."""

    letters: list[DeadLetterView]
    next: int


class Again(Struct, forbid_unknown_fields=True):
    """Dead letters to send again: the given numbers, or all if none is given."""

    numbers: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=MOST_DEAD)] = []


class Sending(Struct):
    """Number of dead letters that are being sent again."""

    letters: int


class Dropped(Struct):
    """Number of dead letters that were deleted."""

    letters: int


class Tested(Struct):
    """Result of a test delivery."""

    delivered: bool
    status: Annotated[int, Meta(description="Status of the response; 0: no response.")]
    why: str
    mend: str
