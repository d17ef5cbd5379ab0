"""HTTP bodies of the queue endpoint: pending and running jobs with a short explanation each."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.wire.estimates import EstimateView
from daemon.wire.explain import POSITION
from daemon.wire.jobs import JobView


class Queued(Struct, omit_defaults=True):
    """A job of the queue, with one line on why it is pending or when it ends."""

    job: JobView
    position: Annotated[int | None, Meta(description=POSITION)] = None
    waits: Annotated[str, Meta(description="Why the job is pending, in short.")] = ""
    estimate: Annotated[
        EstimateView | None, Meta(description="Estimated start and end, if available.")
    ] = None
    unknown: Annotated[str, Meta(description="Why there is no estimate.")] = ""


class Queue(Struct):
    """A page of pending or running jobs."""

    time: float
    count: Annotated[int, Meta(description="Number of matching jobs on all pages.")]
    jobs: list[Queued]
