"""What goes over MQTT, where it is not what goes over HTTP (`daemon/wire/jobs.py`).

The AsyncAPI document is made of these. Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.names import Name
from daemon.wire.jobs import MAX_JOBS, BatchLine, FieldProblem, Id, JobRequest, Priority

JobId = Annotated[Id, Meta(description="Of a job, or of an array: all of its jobs are meant.")]


TopicsPool = Annotated[Name | None, Meta(description="If given, the topic's.")]


class PoolJob(JobRequest, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job to run in the pool of the topic. It has an id, or the message a UUID to go by."""

    pool: TopicsPool = None  # type: ignore[assignment]


class PoolJobs(Struct, forbid_unknown_fields=True):
    """Jobs to run in the pool of the topic; each is taken or refused by itself."""

    jobs: Annotated[list[PoolJob], Meta(min_length=1, max_length=MAX_JOBS)]


class CancelCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="cancel"):
    """A job is not wanted any more."""

    job: JobId


class HoldCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="hold"):
    """A waiting job is to wait until it is released."""

    job: JobId


class ReleaseCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="release"):
    """A held job may start."""

    job: JobId


class PriorityCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="priority"):
    """A waiting job goes before those of its pool with a lower number."""

    job: JobId
    priority: Priority


PoolCommand = CancelCommand | HoldCommand | ReleaseCommand | PriorityCommand


class Reply(Struct, omit_defaults=True):
    """What became of a message; durable when it is said."""

    status: Annotated[
        int, Meta(description="200 where `jobs` say more; else as a problem over HTTP has it.")
    ]
    jobs: Annotated[list[BatchLine], Meta(description="In the order of the message.")] = []
    detail: str = ""
    mend: str = ""
    errors: Annotated[list[FieldProblem], Meta(description="Each value that is wrong.")] = []


class _Order(Struct, kw_only=True, omit_defaults=True):
    """Something that a cluster manager is to do."""

    epoch: Annotated[
        int, Meta(description="The daemon's. Orders of a lower one than was ever seen are void.")
    ]


class StartOrder(_Order, kw_only=True, tag_field="do", tag="start", omit_defaults=True):
    """A job is to start, unless this attempt of it ever did."""

    job: str
    attempt: int
    pool: str
    gpus: int
    nodes: Annotated[dict[str, list[int]], Meta(description="Which GPUs, by node.")] = {}
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    name: str = ""
    time_limit: float | None = None
    array: tuple[int, int] | None = None
    duration: Annotated[
        float | None, Meta(description="Seconds that it lasts where it is simulated.")
    ] = None


class StopOrder(_Order, kw_only=True, tag_field="do", tag="stop"):
    """A job is to be warned of its end, or ended. One that is gone is let be."""

    job: str
    attempt: int
    kind: Literal["warn", "end"]


class AttemptRef(Struct, array_like=True):
    """An attempt of a job."""

    job: str
    attempt: int


class Sync(_Order, kw_only=True, tag_field="do", tag="sync", omit_defaults=True):
    """The daemon believes that these run: the manager reports each, whatever it said before.

    After the last part (`more` is false) it reports what `also` runs here, and then `synced`.
    """

    number: Annotated[int, Meta(description="Of this question; it comes back with `synced`.")]
    jobs: list[AttemptRef] = []
    more: bool = False
    some: Annotated[
        bool, Meta(description="The daemon asks after these alone: nothing is said of `also`.")
    ] = False


Order = StartOrder | StopOrder | Sync


class _Report(Struct, kw_only=True, omit_defaults=True):
    """Something that a cluster manager has seen."""

    manager: Annotated[int, Meta(ge=1, le=2**53, description="Its epoch: see its state.")]


class _JobReport(_Report, kw_only=True, omit_defaults=True):
    """Of an attempt of a job."""

    job: Annotated[str, Meta(min_length=1, max_length=255)]
    attempt: Annotated[int, Meta(ge=1, le=2**31)]


Words = Annotated[str, Meta(max_length=1000)]


class StartedReport(_JobReport, kw_only=True, tag_field="say", tag="started", omit_defaults=True):
    """It runs."""


class EndedReport(_JobReport, kw_only=True, tag_field="say", tag="ended", omit_defaults=True):
    """It is gone from its GPUs, with a code or by a signal, or neither is known."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None
    why: Words = ""


class LostReport(_JobReport, kw_only=True, tag_field="say", tag="lost", omit_defaults=True):
    """It runs no more, and nobody knows how it ended."""

    why: Words = ""


class Failed(_JobReport, kw_only=True, tag_field="say", tag="failed", omit_defaults=True):
    """It could not be started."""

    why: Words = ""


class Unknown(_JobReport, kw_only=True, tag_field="say", tag="unknown", omit_defaults=True):
    """It was asked for by `sync`, and never started here."""

    number: int


class UnexpectedReport(_JobReport, kw_only=True, tag_field="say", tag="also", omit_defaults=True):
    """It runs here, and `sync` did not name it."""


class Synced(_Report, kw_only=True, tag_field="say", tag="synced", omit_defaults=True):
    """All of a `sync` is answered."""

    number: int


Report = StartedReport | EndedReport | LostReport | Failed | Unknown | UnexpectedReport | Synced


class ManagerState(Struct, omit_defaults=True):
    """A manager's heartbeat, retained, every few seconds; its last will says `here` = false."""

    epoch: Annotated[
        int,
        Meta(ge=1, le=2**53, description="Greater with each start of a manager; reports of a lower "
             "one are void."),
    ]  # fmt: skip
    here: bool = True
    daemon: Annotated[
        int,
        Meta(ge=0, le=2**53, description="The greatest epoch of orders that it has heard of."),
    ] = 0
