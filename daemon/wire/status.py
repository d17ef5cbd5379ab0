"""What goes over HTTP of how the daemon is. Times are the daemon's, in seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.job import LendingMode


class ComponentHealth(Struct, omit_defaults=True):
    """A part of the daemon beside its heart; `why` and `mend`, for operators, where not well."""

    name: str
    ok: bool
    since: Annotated[float, Meta(description="When it became so.")]
    why: str = ""
    mend: str = ""


class Ready(Struct, omit_defaults=True):
    """Whether submissions are taken, `why` if not; and which parts are not well."""

    status: Literal["ok", "unavailable"]
    time: Annotated[float, Meta(description="What time it is for the daemon.")]
    why: str = ""
    parts: list[ComponentHealth] = []


class Status(Struct):
    """How the daemon is."""

    time: float
    version: str
    serving: Annotated[bool, Meta(description="Whether commands are taken.")]
    why: Annotated[str, Meta(description="Why not; empty if they are.")]
    since: Annotated[float, Meta(description="When that became so.")]
    last_commit: Annotated[float | None, Meta(description="When a step last became durable.")]
    waiting: Annotated[int, Meta(description="Inputs that are not durable yet.")]
    jobs: Annotated[int, Meta(description="That are not over.")]
    lending: bool
    parts: list[ComponentHealth]
    lending_mode: Annotated[
        LendingMode,
        Meta(description="On shadow no loans are made, and what they would be is told."),
    ]
    kept: Annotated[
        dict[str, list[str]],
        Meta(description="Pools that guard rails keep from lending, and by what kinds of reason."),
    ] = {}
    starting: Annotated[
        int, Meta(description="Jobs that have their turn, and whose GPUs are not free.")
    ] = 0
