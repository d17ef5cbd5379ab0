"""What goes over the wire: each request and each answer, from which the OpenAPI document is made.

Times are seconds since the epoch, durations seconds, widths GPUs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from daemon.model.job import WARN, JobPhase, PoolMode
from daemon.model.limits import MAX_BUDGET, MAX_ID, MAX_PRIORITY, MAX_TIME_LIMIT, MAX_WEIGHT
from daemon.model.names import MAX_NAME, GpuCount, Name
from daemon.wire.estimates import EstimateView
from sia.limits import MAX_QUOTA, MAX_RESUME_COST
from sia.model import Stream

MAX_ARRAY = 10_000
"""Jobs of one array: as many as one batch may hold."""

MAX_JOBS = 10_000
"""Jobs of one batch: they are one to two seconds of the daemon's work."""

MAX_TEXT = 4096
"""Characters of one argument, variable or folder: Linux knows no longer path."""

MAX_ARGUMENTS = 1000
"""Of a command; whatever is longer belongs into a file."""

MAX_VARIABLES = 200
"""Of an environment, and tags of a job."""

Id = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$",
        max_length=MAX_ID - len(f".{MAX_ARRAY}"),
        description="Letters, digits, dots, dashes, underscores; a job of an array is ID.NUMBER.",
        examples=["train-17"],
    ),
]
Text = Annotated[str, Meta(pattern=r"^[^\u0000]*$", max_length=MAX_TEXT)]
"""NUL would end it early for the system."""
Label = Annotated[str, Meta(pattern=r"^[^\u0000-\u001f\u007f]*(?!\n)$", max_length=MAX_NAME)]
"""Shown on terminals: nothing that steers one."""
Variable = Annotated[str, Meta(pattern=r"^[^=\u0000]+$", max_length=MAX_NAME)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TimeLimit = Annotated[float, Meta(gt=0, le=MAX_TIME_LIMIT)]
Weight = Annotated[float, Meta(ge=1 / MAX_WEIGHT, le=MAX_WEIGHT)]
BudgetHours = Annotated[float, Meta(ge=0, le=MAX_BUDGET)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Timestamp = Annotated[float, Meta(ge=0, le=1e11)]
"""Up to the year 5138; a later one is more likely in milliseconds."""


class JobRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to run."""

    pool: Annotated[Name, Meta(description="Whose quota it counts against.")]
    gpus: Annotated[
        int, Meta(ge=1, le=MAX_QUOTA, description="They start and end together (a gang).")
    ]
    id: Annotated[
        Id | None, Meta(description="Submitting it again under one id is submitting it once.")
    ] = None
    command: Annotated[
        tuple[Text, ...],
        Meta(max_length=MAX_ARGUMENTS, description="A program and its arguments; no shell."),
    ] = ()
    env: Annotated[dict[Variable, Text], Meta(max_length=MAX_VARIABLES)] = {}
    cwd: Annotated[Text, Meta(description="Folder that it runs in.")] = ""
    user: Label = ""
    name: Annotated[Label, Meta(description="What it is; forecasts compare jobs of one name.")] = ""
    tags: Annotated[dict[Label, Label], Meta(max_length=MAX_VARIABLES)] = {}
    priority: Annotated[Priority, Meta(description="Higher goes first, within its pool.")] = 0
    hold: Annotated[bool, Meta(description="Wait until it is released.")] = False
    time_limit: Annotated[
        TimeLimit | None, Meta(description="Seconds after which it is ended.")
    ] = None
    warn: Annotated[
        float,
        Meta(ge=0, le=MAX_TIME_LIMIT, description="Seconds before its limit at which it is told."),
    ] = WARN
    run_time: Annotated[
        TimeLimit | None, Meta(description="Seconds that its owner thinks it runs.")
    ] = None
    duration: Annotated[
        TimeLimit | None, Meta(description="Seconds that it runs on the simulated backend.")
    ] = None
    preemptible: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_RESUME_COST)] | None,
        Meta(description="Seconds of work lost when it is stopped; null: never stop it."),
    ] = None
    requeue: Annotated[bool, Meta(description="Queue it again if its node is lost.")] = False
    array: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_ARRAY)] | None,
        Meta(description="Submit so many, ID.0 to ID.(N-1)."),
    ] = None


class Batch(Struct, forbid_unknown_fields=True):
    """Jobs to run; each is taken or refused by itself."""

    jobs: Annotated[list[JobRequest], Meta(min_length=1, max_length=MAX_JOBS)]


class Submitted(Struct, omit_defaults=True):
    """A job is safe: it will run, whatever happens to the daemon."""

    id: str
    estimate: Annotated[
        EstimateView | None,
        Meta(description="When it starts and ends, where that can be said at once."),
    ] = None


class BatchLine(Struct, omit_defaults=True):
    """What became of one job of a batch."""

    id: str
    status: Annotated[int, Meta(description="As if it had been submitted alone: 201, 200, 409 …")]
    detail: str = ""
    mend: str = ""
    retry_after: Annotated[float, Meta(description="With 429: seconds until it may be.")] = 0.0
    estimate: Annotated[
        EstimateView | None,
        Meta(description="Of a new job: when it starts and ends, where that can be said at once."),
    ] = None


class BatchAnswer(Struct):
    """What became of the jobs of a batch, in its order."""

    accepted: Annotated[int, Meta(description="New ones.")]
    known: Annotated[int, Meta(description="Submitted before, with the same content.")]
    refused: int
    jobs: list[BatchLine]


class JobPatch(Struct, forbid_unknown_fields=True):
    """What may change of a job that waits."""

    priority: Priority


class JobView(Struct, omit_defaults=True):
    """A job and where it is in its life."""

    id: str
    pool: str
    gpus: int
    phase: JobPhase
    submitted: float
    priority: int = 0
    user: str = ""
    name: str = ""
    tags: dict[str, str] = {}
    attempt: Annotated[int, Meta(description="Starts so far.")] = 0
    started: float | None = None
    ended: float | None = None
    run_time: Annotated[
        float | None, Meta(description="Seconds that it is thought to run; null if unknown.")
    ] = None
    time_limit: float | None = None
    stream: Annotated[
        Stream | None, Meta(description="In its pool's quota, or on what others do not need.")
    ] = None
    reason: Annotated[str, Meta(description="Why it was started.")] = ""
    nodes: dict[str, list[int]] = {}
    loans: Annotated[dict[str, int], Meta(description="Whose GPUs it uses, spare jobs only.")] = {}
    stopping: Annotated[str, Meta(description="Why it is being ended.")] = ""
    code: int | None = None
    signal: int | None = None
    why: Annotated[str, Meta(description="How it ended.")] = ""
    ran: Annotated[float | None, Meta(description="Seconds that it ran, once it is over.")] = None


class JobDetail(JobView, omit_defaults=True):
    """A job, with all that is known of it."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    warn: float = WARN
    duration: float | None = None
    preemptible: float | None = None
    requeue: bool = False
    array: tuple[int, int] | None = None
    position: Annotated[int | None, Meta(description="In its pool's queue; 1 is the first.")] = None
    waits: Annotated[
        list[str], Meta(description="Why it waits, at first sight; `/why` has all of it.")
    ] = []
    alone: Annotated[
        float | None, Meta(description="When it would have started in its pool alone, if known.")
    ] = None


class ArrayDetail(Struct):
    """An array, by its jobs."""

    id: str
    size: int
    phases: Annotated[dict[str, int], Meta(description="Jobs in each phase that are known yet.")]
    jobs: list[JobView]


class JobPage(Struct):
    """A page of jobs."""

    jobs: list[JobView]
    next: Annotated[str | None, Meta(description="The cursor of the next page, if any.")] = None


class History(Struct):
    """Jobs that have ended, the latest first."""

    jobs: list[JobView]
    next: Annotated[int | None, Meta(description="`before` of the next page, if any.")]


class OverrideView(Struct, omit_defaults=True):
    """What a pool goes back to, and when; a limit of 67108864 is none."""

    until: float
    quota: int | None = None
    state: PoolMode | None = None
    lend_limit: int | None = None
    borrow_limit: int | None = None
    weight: float | None = None
    lend_budget_hours: Annotated[float | None, Meta(description="-1 is none.")] = None
    slowed_budget_pct: Annotated[float | None, Meta(description="-1 is none.")] = None


class PoolView(Struct):
    """A pool and what is in use of it."""

    name: str
    quota: int
    group: Annotated[str, Meta(description="Pools lend within it.")]
    share: bool
    state: PoolMode
    lend_limit: int | None
    borrow_limit: int | None
    weight: float
    version: Annotated[int, Meta(description="Grows with each change; also the ETag.")]
    cells: dict[str, dict[str, int]]
    override: OverrideView | None
    running: Annotated[int, Meta(description="GPUs that its jobs are on, its own and borrowed.")]
    dedicated: Annotated[int, Meta(description="GPUs of its quota that its jobs have been given.")]
    borrowed: Annotated[int, Meta(description="GPUs of other pools that its jobs use.")]
    lent: Annotated[int, Meta(description="GPUs of its own that other pools' jobs use.")]
    idle: Annotated[int, Meta(description="GPUs of its own that nobody uses.")]
    waiting: Annotated[int, Meta(description="Jobs that wait, for GPUs given to them too.")]
    waiting_gpus: int
    lend_budget_hours: Annotated[
        float | None, Meta(description="GPU-hours that it lends in a calendar month (UTC) at most.")
    ] = None
    slowed_budget_pct: Annotated[
        float | None, Meta(description="Percent of its jobs that may begin later than alone.")
    ] = None
    lent_hours: Annotated[
        float | None,
        Meta(description="GPU-hours lent this month since there is a budget."),
    ] = None
    kept: Annotated[
        dict[str, str],
        Meta(description="Why it lends nothing now, by kind of reason, and until when."),
    ] = {}


class PoolList(Struct):
    """All pools, by name."""

    pools: list[PoolView]


class PoolChange(Struct, forbid_unknown_fields=True):
    """What of a pool may be otherwise; what is not named stays."""

    quota: GpuCount | None = None
    cells: Annotated[
        dict[Name, dict[Name, GpuCount]] | None,
        Meta(description="With cells: how many of each type it owns, by chain."),
    ] = None
    state: PoolMode | None = None
    lend_limit: Annotated[
        GpuCount | UnsetType | None, Meta(description="GPUs lent at a time; null: no limit.")
    ] = UNSET
    borrow_limit: Annotated[
        GpuCount | UnsetType | None, Meta(description="GPUs borrowed at a time; null: no limit.")
    ] = UNSET
    weight: Weight | None = None


class PoolPatch(PoolChange, forbid_unknown_fields=True):
    """What is to change of a pool."""

    lend_budget_hours: Annotated[
        BudgetHours | UnsetType | None,
        Meta(description="GPU-hours lent in a month; null: no bound."),
    ] = UNSET
    slowed_budget_pct: Annotated[
        Percent | UnsetType | None,
        Meta(description="Percent of its jobs that may begin later than alone; null: no bound."),
    ] = UNSET
    until: Annotated[
        Timestamp | None, Meta(description="When all goes back to what it was before.")
    ] = None


class NodeView(Struct, omit_defaults=True):
    """A node."""

    name: str
    gpus: int
    used: int
    out: Annotated[dict[str, str], Meta(description="Who takes it out, and why; empty: it is in.")]
    jobs: list[str]
    note: Annotated[str, Meta(description="What whoever changed it should know.")] = ""


class NodeList(Struct):
    """All nodes."""

    nodes: list[NodeView]


class ReasonRequest(Struct, forbid_unknown_fields=True):
    """A reason, for those who look later."""

    why: Label = ""


class MaintenanceRequest(Struct, forbid_unknown_fields=True):
    """A node is to be out from `start` to `end`."""

    node: Name
    start: Timestamp
    end: Timestamp
    why: Label = ""
    id: Id | None = None


class MaintenanceView(Struct):
    """A node's maintenance."""

    id: str
    node: str
    start: float
    end: float
    why: str
    begun: bool


class Maintenance(Struct):
    """All that is planned or goes on."""

    maintenance: list[MaintenanceView]


class EventView(Struct, omit_defaults=True):
    """Something that happened, durably. `seq` grows by 1."""

    seq: int
    time: float
    kind: str
    job: str = ""
    pool: str = ""
    node: str = ""
    data: dict[str, Any] = {}


class EventPage(Struct):
    """Events, and the `after` to ask for the next ones with."""

    events: list[EventView]
    next: int


class Health(Struct, omit_defaults=True):
    """Whether the daemon works; `why` if not."""

    status: Literal["ok", "unavailable"]
    time: Annotated[float, Meta(description="What time it is for the daemon.")]
    why: str = ""


class LogLevel(Struct, forbid_unknown_fields=True):
    """How much is logged."""

    level: Literal["debug", "info", "warning", "error"]


class FieldProblem(Struct):
    """One wrong value: a JSON pointer to it, what is wrong, the mend."""

    pointer: str
    detail: str
    mend: str


class ProblemDetails(Struct, omit_defaults=True):
    """Why not (RFC 9457), with the mend."""

    type: str
    title: str
    status: int
    detail: str
    mend: str = ""
    errors: list[FieldProblem] = []
