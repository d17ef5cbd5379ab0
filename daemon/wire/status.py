"""HTTP bodies of the status endpoints. Times are seconds since the epoch (daemon's clock)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.job import LendingMode


class ComponentHealth(Struct, omit_defaults=True):
    """Health of one component. Operators also get `why` and `mend` (the fix) if it is unhealthy."""

    name: str
    ok: bool
    since: Annotated[float, Meta(description="Time of the last change of `ok`.")]
    why: str = ""
    mend: str = ""


class Ready(Struct, omit_defaults=True):
    """Whether the daemon accepts submissions, `why` not, and which components are unhealthy."""

    status: Literal["ok", "unavailable"]
    time: Annotated[float, Meta(description="Current time of the daemon's clock.")]
    why: str = ""
    parts: list[ComponentHealth] = []


class Status(Struct):
    """State of the daemon and of its components."""

    time: float
    version: str
    serving: Annotated[bool, Meta(description="Whether the daemon accepts commands.")]
    why: Annotated[str, Meta(description="Why it accepts none; empty if it does.")]
    since: Annotated[float, Meta(description="Time of the last change of `serving`.")]
    last_commit: Annotated[float | None, Meta(description="Time of the last durable step.")]
    waiting: Annotated[int, Meta(description="Inputs that are not durable yet.")]
    jobs: Annotated[int, Meta(description="Jobs that have not ended.")]
    lending: bool
    parts: list[ComponentHealth]
    lending_mode: Annotated[
        LendingMode,
        Meta(description="In shadow mode the daemon simulates and reports loans but makes none."),
    ]
    kept: Annotated[
        dict[str, list[str]],
        Meta(
            description="Pools that do not lend because of a guard rail, with the kinds of reason."
        ),
    ] = {}
    starting: Annotated[
        int, Meta(description="Jobs that were started and whose GPUs are not free yet.")
    ] = 0
