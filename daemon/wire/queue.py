"""What goes over HTTP of queues: who waits where, who runs, and until when as is thought."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.wire.estimates import EstimateView
from daemon.wire.jobs import JobView


class Queued(Struct, omit_defaults=True):
    """A job, and what is to be said of it in a line."""

    job: JobView
    position: Annotated[int | None, Meta(description="In its pool's queue; 1 is the first.")] = None
    waits: Annotated[str, Meta(description="Why it waits, in short.")] = ""
    estimate: Annotated[
        EstimateView | None, Meta(description="When it starts and ends, if anybody can say.")
    ] = None
    unknown: Annotated[str, Meta(description="Why there is no estimate.")] = ""


class Queue(Struct):
    """A piece of all that wait, or run."""

    time: float
    count: Annotated[int, Meta(description="Of all that were asked for, on every page.")]
    jobs: list[Queued]
