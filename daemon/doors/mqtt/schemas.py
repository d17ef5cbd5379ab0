"""MQTT messages that differ from the HTTP bodies (`daemon/wire/jobs.py`).

The AsyncAPI document is generated from these. Times are seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.names import Name
from daemon.wire.jobs import (
    MAX_JOBS,
    BatchLine,
    FieldProblem,
    Id,
    JobRequest,
    Priority,
    ProgressReport,
)

JobId = Annotated[Id, Meta(description="Id of a job, or of an array for all of its jobs.")]


TopicsPool = Annotated[Name | None, Meta(description="Optional; must match the topic.")]


class PoolJob(JobRequest, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job for the topic's pool. Needs an id, or a message with a UUID as correlation data."""

    pool: TopicsPool = None  # type: ignore[assignment]


class PoolJobs(Struct, forbid_unknown_fields=True):
    """Jobs for the topic's pool; each is accepted or refused on its own."""

    jobs: Annotated[list[PoolJob], Meta(min_length=1, max_length=MAX_JOBS)]


class CancelCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="cancel"):
    """Cancel a job."""

    job: JobId


class HoldCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="hold"):
    """Hold a pending job until it is released."""

    job: JobId


class ReleaseCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="release"):
    """Release a held job."""

    job: JobId


class PriorityCommand(Struct, forbid_unknown_fields=True, tag_field="do", tag="priority"):
    """Set the priority of a pending job: higher first within its pool."""

    job: JobId
    priority: Priority


PoolCommand = CancelCommand | HoldCommand | ReleaseCommand | PriorityCommand


class JobProgress(ProgressReport, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A running job of the pool reports its progress."""

    job: Annotated[Id, Meta(description="SIA_JOB_ID of the job.")]


class Reply(Struct, omit_defaults=True):
    """Result of a message. The effect is durable when the reply is sent."""

    status: Annotated[
        int,
        Meta(description="200 with a result for each job; otherwise an error status as in HTTP."),
    ]
    jobs: Annotated[list[BatchLine], Meta(description="In the order of the message.")] = []
    detail: str = ""
    mend: str = ""
    errors: Annotated[list[FieldProblem], Meta(description="Each wrong value.")] = []


class _Order(Struct, kw_only=True, omit_defaults=True):
    """An order to a cluster manager."""

    epoch: Annotated[
        int, Meta(description="Epoch of the daemon. Ignore orders below the highest epoch seen.")
    ]


class StartOrder(_Order, kw_only=True, tag_field="do", tag="start", omit_defaults=True):
    """Start an attempt of a job, unless it was started before."""

    job: str
    attempt: int
    pool: str
    gpus: int
    nodes: Annotated[dict[str, list[int]], Meta(description="GPU indices by node.")] = {}
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    name: str = ""
    time_limit: float | None = None
    array: tuple[int, int] | None = None
    duration: Annotated[
        float | None, Meta(description="Run time in seconds on a simulated cluster.")
    ] = None


class StopOrder(_Order, kw_only=True, tag_field="do", tag="stop"):
    """Warn or end an attempt; no effect if it is gone."""

    job: str
    attempt: int
    kind: Literal["warn", "end"]


class AttemptRef(Struct, array_like=True):
    """An attempt of a job."""

    job: str
    attempt: int


class Sync(_Order, kw_only=True, tag_field="do", tag="sync", omit_defaults=True):
    """Attempts that the daemon expects to run. The manager reports the state of each again.

    After the last part (`more` is false) it reports unexpected attempts (`also`), then `synced`.
    """

    number: Annotated[int, Meta(description="Number of this sync, returned in `synced`.")]
    jobs: list[AttemptRef] = []
    more: bool = False
    some: Annotated[
        bool, Meta(description="Only these attempts are asked about: do not report `also`.")
    ] = False


Order = StartOrder | StopOrder | Sync


class _Report(Struct, kw_only=True, omit_defaults=True):
    """A report of a cluster manager."""

    manager: Annotated[int, Meta(ge=1, le=2**53, description="Epoch of the manager's state.")]


class _JobReport(_Report, kw_only=True, omit_defaults=True):
    """A report about an attempt of a job."""

    job: Annotated[str, Meta(min_length=1, max_length=255)]
    attempt: Annotated[int, Meta(ge=1, le=2**31)]


Words = Annotated[str, Meta(max_length=1000)]


class StartedReport(_JobReport, kw_only=True, tag_field="say", tag="started", omit_defaults=True):
    """The attempt is running."""


class EndedReport(_JobReport, kw_only=True, tag_field="say", tag="ended", omit_defaults=True):
    """The attempt has ended, with an exit code, by a signal, or in an unknown way."""

    code: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None
    why: Words = ""


class LostReport(_JobReport, kw_only=True, tag_field="say", tag="lost", omit_defaults=True):
    """The attempt no longer runs, and how it ended is not known."""

    why: Words = ""


class Failed(_JobReport, kw_only=True, tag_field="say", tag="failed", omit_defaults=True):
    """The attempt could not be started."""

    why: Words = ""


class Unknown(_JobReport, kw_only=True, tag_field="say", tag="unknown", omit_defaults=True):
    """Answer to `sync`: the attempt was never started here."""

    number: int


class UnexpectedReport(_JobReport, kw_only=True, tag_field="say", tag="also", omit_defaults=True):
    """An attempt runs here that `sync` did not name."""


class Synced(_Report, kw_only=True, tag_field="say", tag="synced", omit_defaults=True):
    """A `sync` has been answered completely."""

    number: int


Report = StartedReport | EndedReport | LostReport | Failed | Unknown | UnexpectedReport | Synced


class ManagerState(Struct, omit_defaults=True):
    """Retained heartbeat of a manager, every few seconds; its last will has `here` = false."""

    epoch: Annotated[
        int,
        Meta(ge=1, le=2**53, description="Grows with each start of a manager; reports with a "
             "lower epoch are ignored."),
    ]  # fmt: skip
    here: bool = True
    daemon: Annotated[
        int,
        Meta(ge=0, le=2**53, description="Highest daemon epoch seen in orders."),
    ] = 0
