"""Requests and responses of HTTP and MQTT. The OpenAPI document is generated from these structs.

Times are seconds since the epoch, durations seconds, widths GPUs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from daemon.model.job import WARN, JobPhase, PoolMode
from daemon.model.limits import (
    MAX_BUDGET,
    MAX_ID,
    MAX_PRIORITY,
    MAX_TIME_LIMIT,
    MAX_WEIGHT,
)
from daemon.model.names import MAX_NAME, GpuCount, Name
from daemon.wire.estimates import EstimateView
from daemon.wire.explain import POSITION, PlannedView
from daemon.wire.wishes import said_by
from replay.logs.regimes import parse_mode
from sia.limits import (
    MAX_ASK_TEXT,
    MAX_ITERATIONS,
    MAX_JOB_BUDGET,
    MAX_POINTS,
    MAX_QUOTA,
    MAX_REGIME,
    MAX_RESUME_COST,
    MAX_SLOWDOWN,
    MAX_SPEED,
    MAX_TIME,
    MAX_TRIALS,
    MAX_VALUE,
    MIN_SPEED,
    UNKNOWN_RUN_TIME,
)
from sia.model import Regime, StopCost, Stream
from sia.state.steps import parse_steps
from sia.state.strl import StrlError, asks_of

MAX_ARRAY = 10_000
"""Maximum number of jobs of one array. Equal to the limit of a batch."""

MAX_JOBS = 10_000
"""Maximum number of jobs of one batch. The daemon needs one to two seconds for so many."""

MAX_TEXT = 4096
"""Maximum characters of one argument, variable or folder: PATH_MAX of Linux."""

MAX_ARGUMENTS = 1000
"""Maximum number of arguments of a command. Longer input belongs in a file."""

MAX_VARIABLES = 200
"""Maximum number of environment variables, and of tags, of a job."""

Id = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$",
        max_length=MAX_ID - len(f".{MAX_ARRAY}"),
        description="Letters, digits, dots, dashes, underscores. Jobs of an array are ID.NUMBER.",
        examples=["train-17"],
    ),
]
Text = Annotated[str, Meta(pattern=r"^[^\u0000]*$", max_length=MAX_TEXT)]
"""Text without NUL, which would end the string early in the operating system."""
Label = Annotated[str, Meta(pattern=r"^[^\u0000-\u001f\u007f]*(?!\n)$", max_length=MAX_NAME)]
"""One line without control characters: labels are printed on terminals."""
Variable = Annotated[str, Meta(pattern=r"^[^=\u0000]+$", max_length=MAX_NAME)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TimeLimit = Annotated[float, Meta(gt=0, le=MAX_TIME_LIMIT)]
Weight = Annotated[float, Meta(ge=1 / MAX_WEIGHT, le=MAX_WEIGHT)]
BudgetHours = Annotated[float, Meta(ge=0, le=MAX_BUDGET)]
Percent = Annotated[float, Meta(ge=0, le=100)]
BudgetMinutes = Annotated[float, Meta(ge=0, le=MAX_BUDGET)]
Timestamp = Annotated[float, Meta(ge=0, le=1e11)]
"""Latest time that is accepted: the year 5138. A larger number is most likely in milliseconds."""


StopSeconds = Annotated[float, Meta(ge=0, le=MAX_RESUME_COST)]
Width = Annotated[int, Meta(ge=1, le=MAX_QUOTA)]
RunTime = Annotated[float, Meta(gt=0, le=MAX_TIME)]
JobValue = Annotated[float, Meta(ge=0, le=MAX_VALUE)]
JobBudget = Annotated[float, Meta(ge=1 / MAX_JOB_BUDGET, le=MAX_JOB_BUDGET)]
Slowdown = Annotated[float, Meta(ge=1, le=MAX_SLOWDOWN)]


class JobRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to run."""

    pool: Annotated[Name, Meta(description="Pool whose quota the job uses.")]
    gpus: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_QUOTA,
            description="Number of GPUs, allocated all at the same time (a gang).",
        ),
    ]
    id: Annotated[
        Id | None,
        Meta(description="Submitting the same job again under the same id has no effect."),
    ] = None
    command: Annotated[
        tuple[Text, ...],
        Meta(max_length=MAX_ARGUMENTS, description="A program and its arguments; no shell."),
    ] = ()
    env: Annotated[dict[Variable, Text], Meta(max_length=MAX_VARIABLES)] = {}
    cwd: Annotated[Text, Meta(description="Working directory.")] = ""
    user: Label = ""
    name: Annotated[
        Label, Meta(description="Kind of job; forecasts use earlier jobs of the same name.")
    ] = ""
    tags: Annotated[dict[Label, Label], Meta(max_length=MAX_VARIABLES)] = {}
    priority: Annotated[
        Priority,
        Meta(description="Jobs with a higher priority come first in the queue of their pool."),
    ] = 0
    hold: Annotated[bool, Meta(description="Do not start the job until it is released.")] = False
    time_limit: Annotated[
        TimeLimit | None, Meta(description="Seconds after which the daemon ends the job.")
    ] = None
    warn: Annotated[
        float,
        Meta(
            ge=0, le=MAX_TIME_LIMIT, description="Seconds between the warning and the time limit."
        ),
    ] = WARN
    run_time: Annotated[
        TimeLimit | None, Meta(description="The user's estimate of the run time in seconds.")
    ] = None
    duration: Annotated[
        TimeLimit | None, Meta(description="Run time in seconds on the simulated backend.")
    ] = None
    preemptible: Annotated[
        StopSeconds | Literal["restart", "never"] | None,
        Meta(
            description="Cost of a stop: a number of seconds of work; `restart`: all work; "
            "`never`: the job must not be stopped; null: the policy decides."
        ),
    ] = None
    min_run_time: Annotated[
        TimeLimit | None,
        Meta(
            description="Minimum run time in seconds. On GPUs that other pools may need, the "
            "job starts only if it can be expected to keep them for that long."
        ),
    ] = None
    requeue: Annotated[bool, Meta(description="Requeue the job if its node fails.")] = False
    array: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_ARRAY)] | None,
        Meta(description="Submit N jobs, ID.0 to ID.(N-1)."),
    ] = None
    min_width: Annotated[
        Width | None,
        Meta(description="Minimum number of GPUs on which the job can run; null: `gpus`."),
    ] = None
    max_width: Annotated[
        Width | None, Meta(description="Maximum number of GPUs that the job can use; null: `gpus`.")
    ] = None
    demand: Annotated[
        tuple[tuple[Width, RunTime], ...],
        Meta(
            max_length=MAX_POINTS,
            description="Run times as pairs [GPUs, seconds]. GPUs must increase and seconds "
            "must not. Empty: the speed is proportional to the number of GPUs.",
            examples=[[[1, 3600], [2, 1900]]],
        ),
    ] = ()
    deadline: Annotated[
        Timestamp | None,
        Meta(description="Time by which the job should end. It may be in the past."),
    ] = None
    soft: Annotated[
        tuple[tuple[float, float], ...] | str,
        Meta(
            description="Later steps of the deadline: pairs of a multiple of the time from "
            "submission to deadline and the reward of an end by then, 1 to 100. As "
            "text: `paper` or `1.1:80+1.2:50`. Empty: only an end by the deadline "
            "is rewarded.",
            examples=[[[1.1, 80], [1.5, 20]]],
        ),
    ] = ()
    value: Annotated[
        JobValue | None,
        Meta(description="Value of an end by the deadline; null: the policy's usual value."),
    ] = None
    budget: Annotated[
        JobBudget | None,
        Meta(description="Weight relative to other jobs under policies with budgets; null: 1."),
    ] = None
    estimate: Annotated[
        TimeLimit | None,
        Meta(
            description="The user's estimate of the run time in seconds; another name "
            "of `run_time`."
        ),
    ] = None
    prefers: Annotated[
        Label, Meta(description="Attribute of the nodes on which the job runs at full speed.")
    ] = ""
    slowdown: Annotated[
        Slowdown | None,
        Meta(description="Factor on the run time on other nodes; null: the job cannot run there."),
    ] = None
    strl: Annotated[
        Annotated[str, Meta(max_length=MAX_ASK_TEXT)],
        Meta(
            description="STRL expression that says on which nodes the job may start when, how "
            "long it runs there, and its value. It replaces `prefers`, `slowdown` "
            "and `value`.",
            examples=["(max (nck gpu 2 0 60 100) (nck all 2 0 90 100))"],
        ),
    ] = ""
    checkpoint: Annotated[
        Text,
        Meta(
            description="Signal that tells the job to save its work before a stop, or a command "
            "that saves it.",
            examples=["USR1"],
        ),
    ] = ""
    mode: Annotated[
        Label,
        Meta(
            description="Name of the mode that determines how the job's configuration changes "
            "while it runs.",
            examples=["static", "gns"],
        ),
    ] = ""
    model: Annotated[Label, Meta(description="Name of the model that the job trains.")] = ""
    regimes: Annotated[
        tuple[Regime, ...],
        Meta(
            max_length=MAX_REGIME,
            description="Configurations (regimes) of the job in order: name, expected epochs, "
            "seconds per epoch on `gpus` GPUs, and steps per second or null.",
            examples=[[["32", 9, 36.5, None], ["64", 21, 20, None]]],
        ),
    ] = ()
    iterations: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] | None,
        Meta(description="Iterations of its whole work, of which it reports how many are done."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse two different estimates and malformed texts. Raises ValueError."""
        if self.estimate is not None and self.run_time not in (None, self.estimate):
            raise ValueError("estimate and run_time are two names of one value; give one of them")
        if isinstance(self.soft, str):
            try:
                self.soft = parse_steps(self.soft)
            except ValueError as error:
                raise ValueError(f"soft {error}") from None
        if self.mode:
            try:
                parse_mode(self.mode)
            except ValueError as error:
                raise ValueError(f"mode {error}") from None
        if self.strl:
            try:
                asks_of(self.strl)
            except StrlError as error:
                raise ValueError(f"strl: {error}") from None

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """The later steps of the deadline, parsed if they were given as text."""
        return () if isinstance(self.soft, str) else self.soft

    @property
    def expected(self) -> float | None:
        """The user's estimate of the run time in seconds: as stated, or by its STRL or demand."""
        stated = self.run_time if self.estimate is None else self.estimate
        if stated is not None:
            return stated
        return said_by(self.gpus, self.demand, self.strl, has_regimes=bool(self.regimes))


class Batch(Struct, forbid_unknown_fields=True):
    """Jobs to submit; each is accepted or refused on its own."""

    jobs: Annotated[list[JobRequest], Meta(min_length=1, max_length=MAX_JOBS)]


NOTES = "What to know about the accepted job: a missed deadline, a field without effect."


class PromiseView(Struct, omit_defaults=True):
    """What the policy has promised for a job's deadline."""

    guaranteed: Annotated[
        bool,
        Meta(
            description="Whether the policy guarantees that the job ends by the last step of "
            "its deadline."
        ),
    ]
    at: Annotated[float, Meta(description="Time of the policy's answer.")]
    step: Annotated[
        int | None,
        Meta(description="Index, from 0, of the step by which the job ends by the current plan."),
    ] = None
    by: Annotated[float | None, Meta(description="The time of that step.")] = None
    latest: Annotated[
        float | None, Meta(description="Time of the last step: the promised latest end.")
    ] = None
    planned: Annotated[float | None, Meta(description="End by the current plan.")] = None
    soonest: Annotated[
        float | None,
        Meta(
            description="Without a guarantee: the earliest end in the present plan, not promised."
        ),
    ] = None
    why: Annotated[
        str, Meta(description="Why there is no guarantee, or why the step has changed.")
    ] = ""


class Submitted(Struct, omit_defaults=True):
    """An accepted job. It is stored durably."""

    id: str
    estimate: Annotated[
        EstimateView | None,
        Meta(description="Start and end, if they can be estimated at submission."),
    ] = None
    notes: Annotated[list[str], Meta(description=NOTES)] = []
    promise: Annotated[
        PromiseView | None,
        Meta(
            description="Whether the deadline is guaranteed, if the policy has "
            "answered at submission."
        ),
    ] = None
    planned: Annotated[
        PlannedView | None,
        Meta(description="By the policy's present plan, where it plans deadlines; no promise."),
    ] = None


class BatchLine(Struct, omit_defaults=True):
    """Result of one job of a batch."""

    id: str
    status: Annotated[int, Meta(description="Status of a single submission: 201, 200, 409 …")]
    detail: str = ""
    mend: str = ""
    retry_after: Annotated[float, Meta(description="With 429: seconds to wait.")] = 0.0
    estimate: Annotated[
        EstimateView | None,
        Meta(description="Start and end of a new job, if they can be estimated at submission."),
    ] = None
    notes: Annotated[list[str], Meta(description=NOTES)] = []
    promise: Annotated[
        PromiseView | None,
        Meta(
            description="Whether the deadline is guaranteed, if the policy has "
            "answered at submission."
        ),
    ] = None


class BatchAnswer(Struct):
    """Results of all jobs of a batch, in the order of the request."""

    accepted: Annotated[int, Meta(description="Number of new jobs.")]
    known: Annotated[
        int, Meta(description="Number of jobs submitted before with the same content.")
    ]
    refused: int
    jobs: list[BatchLine]


class JobPatch(Struct, forbid_unknown_fields=True):
    """Change of a pending job."""

    priority: Priority


Share = Annotated[float, Meta(ge=0, le=1)]
Speed = Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)]
TrialTime = Annotated[float, Meta(ge=0, le=UNKNOWN_RUN_TIME)]
RegimeNumber = Annotated[int, Meta(ge=0, le=MAX_REGIME)]
Iterations = Annotated[int, Meta(ge=0, le=MAX_ITERATIONS)]
AttemptNumber = Annotated[int, Meta(ge=1, le=2**31)]


class ProgressReport(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A running job reports its progress: either `done`, `iterations` or `trials`."""

    attempt: Annotated[AttemptNumber, Meta(description="SIA_ATTEMPT of the job.")]
    done: Annotated[
        Share | None,
        Meta(
            description="Share of the whole work that is done, 0 to 1. Within an attempt it "
            "must not fall."
        ),
    ] = None
    speed: Annotated[
        Speed | None,
        Meta(
            description="Speed from now on, relative to the nominal speed on the requested "
            "number of GPUs; null: unchanged."
        ),
    ] = None
    regime: Annotated[
        RegimeNumber | None,
        Meta(description="Index of the current regime, from 0; null: unchanged."),
    ] = None
    trials: Annotated[
        tuple[tuple[Width, TrialTime], ...],
        Meta(
            max_length=MAX_TRIALS,
            description="For a job of several trials, instead of `done`: for each remaining "
            "trial its GPUs, and the seconds that it still needs on them.",
            examples=[[[1, 3600], [1, 1800]]],
        ),
    ] = ()
    iterations: Annotated[
        Iterations | None,
        Meta(
            description="In place of `done`: the iterations that are done, of those that the job "
            "stated at its submission."
        ),
    ] = None


class ProgressView(Struct, omit_defaults=True):
    """The latest progress report of an attempt."""

    at: float
    done: Annotated[float, Meta(description="Share of the whole work that is done, 0 to 1.")]
    speed: float
    regime: int | None = None
    end: Annotated[
        float | None, Meta(description="Expected end at the present speed; null if unknown.")
    ] = None


class JobView(Struct, omit_defaults=True):
    """A job and its state."""

    id: str
    pool: str
    gpus: int
    phase: JobPhase
    submitted: float
    priority: int = 0
    user: str = ""
    name: str = ""
    tags: dict[str, str] = {}
    attempt: Annotated[int, Meta(description="Number of starts so far.")] = 0
    started: float | None = None
    ended: float | None = None
    run_time: Annotated[
        float | None, Meta(description="Estimated run time in seconds; null if unknown.")
    ] = None
    time_limit: float | None = None
    stream: Annotated[
        Stream | None, Meta(description="Dedicated (within the quota) or spare start.")
    ] = None
    reason: Annotated[str, Meta(description="Why the job was started.")] = ""
    nodes: dict[str, list[int]] = {}
    loans: Annotated[
        dict[str, int], Meta(description="GPUs that a spare job uses, by the pool that owns them.")
    ] = {}
    stopping: Annotated[str, Meta(description="Why the job is being ended.")] = ""
    code: int | None = None
    signal: int | None = None
    why: Annotated[str, Meta(description="How the job ended.")] = ""
    ran: Annotated[
        float | None,
        Meta(
            description="Run time in seconds of an ended job, over all attempts whose work it kept."
        ),
    ] = None
    progress: Annotated[
        ProgressView | None, Meta(description="The last progress report of the latest attempt.")
    ] = None
    width: Annotated[
        int, Meta(description="Number of GPUs if it differs from the requested number; else 0.")
    ] = 0
    stops: Annotated[
        int, Meta(description="Number of stops after which the job started again.")
    ] = 0
    preempted: Annotated[str, Meta(description="Reason of the latest stop or change of width.")] = (
        ""
    )
    kept: Annotated[
        float, Meta(description="Seconds of work of earlier attempts that the job has kept.")
    ] = 0.0


class JobDetail(JobView, omit_defaults=True):
    """A job with its command, environment and position in the queue."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    warn: float = WARN
    duration: float | None = None
    preemptible: StopCost | None = None
    min_run_time: float | None = None
    requeue: bool = False
    array: tuple[int, int] | None = None
    min_width: int = 0
    max_width: int = 0
    demand: tuple[tuple[int, float], ...] = ()
    deadline: float | None = None
    soft: tuple[tuple[float, float], ...] = ()
    promise: Annotated[
        PromiseView | None,
        Meta(
            description="Whether the deadline is guaranteed; null if the policy has not answered."
        ),
    ] = None
    value: float | None = None
    budget: float | None = None
    estimate: Annotated[float | None, Meta(description="The user's estimate in seconds.")] = None
    prefers: str = ""
    slowdown: float | None = None
    strl: str = ""
    checkpoint: str = ""
    mode: str = ""
    model: str = ""
    regimes: tuple[Regime, ...] = ()
    iterations: int | None = None
    notes: Annotated[list[str], Meta(description=NOTES)] = []
    position: Annotated[int | None, Meta(description=POSITION)] = None
    waits: Annotated[
        list[str], Meta(description="Summary of why the job is pending; `/why` has the details.")
    ] = []
    alone: Annotated[float | None, Meta(description="Start in the baseline, if known.")] = None


class ArrayDetail(Struct):
    """An array and its jobs."""

    id: str
    size: int
    phases: Annotated[dict[str, int], Meta(description="Number of submitted jobs by phase.")]
    jobs: list[JobView]


class JobPage(Struct):
    """A page of jobs."""

    jobs: list[JobView]
    next: Annotated[str | None, Meta(description="The cursor of the next page, if any.")] = None


class History(Struct):
    """A page of ended jobs, newest first."""

    jobs: list[JobView]
    next: Annotated[int | None, Meta(description="Value of `before` for the next page, if any.")]


class OverrideView(Struct, omit_defaults=True):
    """The values that a pool returns to, and when. A limit of 67108864 means no limit."""

    until: float
    quota: int | None = None
    state: PoolMode | None = None
    lend_limit: int | None = None
    borrow_limit: int | None = None
    weight: float | None = None
    lend_budget_hours: Annotated[float | None, Meta(description="-1: no budget.")] = None
    slowed_budget_pct: Annotated[float | None, Meta(description="-1: no budget.")] = None
    slowed_budget_minutes: Annotated[float | None, Meta(description="-1: no budget.")] = None


class PoolView(Struct):
    """A pool and its usage."""

    name: str
    quota: int
    group: Annotated[str, Meta(description="Sharing group: pools lend within their group.")]
    share: bool
    state: PoolMode
    lend_limit: int | None
    borrow_limit: int | None
    weight: float
    version: Annotated[int, Meta(description="Grows with each change. Also the ETag.")]
    cells: dict[str, dict[str, int]]
    override: OverrideView | None
    running: Annotated[int, Meta(description="GPUs in use by the pool's jobs, owned or borrowed.")]
    dedicated: Annotated[int, Meta(description="GPUs of the quota used by dedicated starts.")]
    borrowed: Annotated[int, Meta(description="GPUs of other pools that the pool's jobs use.")]
    lent: Annotated[int, Meta(description="GPUs of the pool that jobs of other pools use.")]
    idle: Annotated[int, Meta(description="GPUs of the pool that no job uses.")]
    waiting: Annotated[
        int, Meta(description="Pending jobs, including those waiting for their GPUs.")
    ]
    waiting_gpus: int
    lend_budget_hours: Annotated[
        float | None, Meta(description="Limit of GPU-hours lent in a calendar month (UTC).")
    ] = None
    slowed_budget_pct: Annotated[
        float | None, Meta(description="Limit of jobs that start later than in the baseline, in %.")
    ] = None
    slowed_budget_minutes: Annotated[
        float | None,
        Meta(description="Limit of minutes of delay against the baseline in a month (UTC)."),
    ] = None
    lent_hours: Annotated[
        float | None,
        Meta(description="GPU-hours lent this month, counted while there is a budget."),
    ] = None
    delayed_minutes: Annotated[
        float | None,
        Meta(description="Minutes of delay this month, counted while there is such a budget."),
    ] = None
    kept: Annotated[
        dict[str, str],
        Meta(description="Why the pool does not lend now and until when, by kind of reason."),
    ] = {}


class PoolList(Struct):
    """All pools, by name."""

    pools: list[PoolView]


class PoolChange(Struct, forbid_unknown_fields=True):
    """Change of a pool. Fields that are not given stay as they are."""

    quota: GpuCount | None = None
    cells: Annotated[
        dict[Name, dict[Name, GpuCount]] | None,
        Meta(description="Only with cells: number of owned cells by chain and type."),
    ] = None
    state: PoolMode | None = None
    lend_limit: Annotated[
        GpuCount | UnsetType | None, Meta(description="Limit of GPUs lent at a time; null: none.")
    ] = UNSET
    borrow_limit: Annotated[
        GpuCount | UnsetType | None,
        Meta(description="Limit of GPUs borrowed at a time; null: none."),
    ] = UNSET
    weight: Weight | None = None


class PoolPatch(PoolChange, forbid_unknown_fields=True):
    """Change of a pool and of its budgets, permanent or until a time."""

    lend_budget_hours: Annotated[
        BudgetHours | UnsetType | None,
        Meta(description="Limit of GPU-hours lent in a month; null: none."),
    ] = UNSET
    slowed_budget_pct: Annotated[
        Percent | UnsetType | None,
        Meta(description="Limit of jobs that start later than in the baseline, in %; null: none."),
    ] = UNSET
    slowed_budget_minutes: Annotated[
        BudgetMinutes | UnsetType | None,
        Meta(description="Limit of minutes of delay against the baseline in a month; null: none."),
    ] = UNSET
    until: Annotated[
        Timestamp | None, Meta(description="Time at which the earlier values return.")
    ] = None


class NodeView(Struct, omit_defaults=True):
    """A node."""

    name: str
    gpus: int
    used: int
    out: Annotated[
        dict[str, str], Meta(description="Reason by who took it out; empty: in service.")
    ]
    jobs: list[str]
    note: Annotated[str, Meta(description="Hint for the person who made the change.")] = ""
    attributes: Annotated[
        tuple[str, ...], Meta(description="What jobs can prefer, such as rack:r1.")
    ] = ()


class NodeList(Struct):
    """All nodes."""

    nodes: list[NodeView]


class ReasonRequest(Struct, forbid_unknown_fields=True):
    """Reason of a change, stored for later readers."""

    why: Label = ""


class MaintenanceRequest(Struct, forbid_unknown_fields=True):
    """Plan a maintenance window: the node is out of service from `start` to `end`."""

    node: Name
    start: Timestamp
    end: Timestamp
    why: Label = ""
    id: Id | None = None


class MaintenanceView(Struct):
    """A maintenance window of a node."""

    id: str
    node: str
    start: float
    end: float
    why: str
    begun: bool


class Maintenance(Struct):
    """All maintenance windows that are planned or have begun."""

    maintenance: list[MaintenanceView]


class EventView(Struct, omit_defaults=True):
    """A durable event. `seq` grows by 1."""

    seq: int
    time: float
    kind: str
    job: str = ""
    pool: str = ""
    node: str = ""
    data: dict[str, Any] = {}


class EventPage(Struct):
    """A page of events. `next` is the value of `after` for the next page."""

    events: list[EventView]
    next: int


class Health(Struct, omit_defaults=True):
    """Whether the daemon works, and if not, why."""

    status: Literal["ok", "unavailable"]
    time: Annotated[float, Meta(description="Current time of the daemon's clock.")]
    why: str = ""


class LogLevel(Struct, forbid_unknown_fields=True):
    """Log level."""

    level: Literal["debug", "info", "warning", "error"]


class FieldProblem(Struct):
    """One wrong value: a JSON pointer to the value, what is wrong, and the fix."""

    pointer: str
    detail: str
    mend: str


class ProblemDetails(Struct, omit_defaults=True):
    """Problem details (RFC 9457) with the fix as `mend`."""

    type: str
    title: str
    status: int
    detail: str
    mend: str = ""
    errors: list[FieldProblem] = []
