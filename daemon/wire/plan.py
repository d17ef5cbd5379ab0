"""HTTP bodies of the loan, lending, usage, forecast and plan endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.job import LendingMode
from daemon.model.names import Name
from daemon.wire.jobs import JobView

MAX_OBJECTIVES = 15
"""Maximum number of objectives of a search: five measures for each of three metrics."""

MAX_LABEL = 1024
"""Maximum characters of a policy's label: sixteen queues with their limits and weights take 400."""


class LoanView(Struct):
    """GPUs that a pool lends to a job of another pool."""

    job: str
    borrower: str
    donor: str
    gpus: int
    since: float


class LoanList(Struct):
    """All open loans, and their sums by pool."""

    loans: list[LoanView]
    lent: dict[str, int]
    borrowed: dict[str, int]


class LendingSwitch(Struct, forbid_unknown_fields=True):
    """Turn lending on, off or to shadow: `mode`, or only `on`."""

    on: bool | None = None
    mode: LendingMode | None = None


class PolicyChange(Struct, forbid_unknown_fields=True):
    """Change the options of the policy, or undo the last change.

    `policy` is its label with other options.
    """

    policy: Annotated[str, Meta(max_length=MAX_LABEL)] = ""
    undo: bool = False


class PolicyView(Struct):
    """The policy in force."""

    policy: Annotated[str, Meta(description="Its label with all options that are set.")]
    configured: Annotated[str, Meta(description="The label of the configuration.")]
    before: Annotated[
        str | None, Meta(description="The label before the last change, for undo; null if none.")
    ]


class FrontQuarter(Struct):
    """The outcome of a point for a quarter of the jobs, ordered by size, on test samples."""

    sizes_up_to: Annotated[
        float | None,
        Meta(
            description="Largest size of the quarter's jobs in GPU-seconds; null for "
            "the last quarter."
        ),
    ]
    jct_s: float
    fifo_jct_s: Annotated[float, Meta(description="Mean JCT of these jobs under FIFO.")]
    pred_err_pct: float


class FrontPoint(Struct):
    """Settings of wfq that a search has found, as in its front.json."""

    number: int
    exact: Annotated[str, Meta(description="The label to set.")]
    sizes: Annotated[list[float], Meta(description="Limits between queues, in GPU-seconds.")]
    weights: list[float]
    words: str
    presets: list[str]
    measures: Annotated[
        dict[str, float], Meta(description="Every measure on test samples, such as avg:jct.")
    ]
    by_size: list[FrontQuarter]


class FrontView(Struct):
    """The front that `sia wfq update` has stored."""

    gpus: int
    objectives: list[str]
    points: list[FrontPoint]
    fifo: FrontPoint
    pool: str = ""
    problem: Annotated[
        str, Meta(description="Why the front does not fit this cluster; empty if it does.")
    ] = ""


class FrontUpdate(Struct, forbid_unknown_fields=True):
    """Search settings of wfq on the daemon's own history, as `sia wfq update` does."""

    pool: Name | None = None
    objectives: Annotated[
        list[str],
        Meta(
            max_length=MAX_OBJECTIVES,
            description="Objectives such as avg:jct; empty: those of the stored front.",
        ),
    ] = []
    simulations: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    arrivals: Annotated[int, Meta(ge=1, le=100_000, description="Number of jobs in a sample.")] = (
        1000
    )
    load: Annotated[float, Meta(gt=0, le=10)] | None = None
    """Load of the samples; null: that of the history."""


class FrontUpdateView(Struct):
    """The latest update of the front since the daemon started."""

    running: bool
    began: Annotated[float | None, Meta(description="Begin of the update; null if there was none.")]
    said: Annotated[str, Meta(description="Latest line of progress, or how the update ended.")]


class WouldLend(Struct):
    """GPU-hours that a pool would have lent to another pool's ended jobs."""

    lender: str
    borrower: str
    gpu_hours: float


class LendingShadow(Struct):
    """Result of a period of shadow lending: loans that were simulated but not made."""

    since: float
    until: Annotated[float | None, Meta(description="Null while shadow lending is active.")]
    jobs: Annotated[int, Meta(description="Starts that would have borrowed GPUs.")]
    gpu_hours: Annotated[float, Meta(description="GPU-hours of simulated loans that have ended.")]
    sooner: Annotated[int, Meta(description="Jobs that would have started earlier.")]
    later: int
    gained_s: Annotated[float, Meta(description="Sum of seconds that jobs would start earlier.")]
    lost_s: float
    unknown: Annotated[int, Meta(description="Borrowing jobs that never ran in reality.")]
    renewed: Annotated[int, Meta(description="Times the simulation was restarted from reality.")]
    lent: Annotated[list[WouldLend], Meta(description="Only of pools visible to the caller.")]
    pending: Annotated[
        int,
        Meta(
            description="Starts that would have borrowed and whose job has not ended (before "
            "`until`, if set)."
        ),
    ] = 0


class LendingRecalls(Struct):
    """Gains and costs of stops of spare jobs for other jobs, since the daemon's first start."""

    stops: Annotated[int, Meta(description="Number of stops of spare jobs.")]
    gpu_hours: Annotated[
        float, Meta(description="GPU-hours for which the stopped attempts had held spare GPUs.")
    ]
    lost_gpu_hours: Annotated[float, Meta(description="GPU-hours of work lost by these stops.")]
    left_s: Annotated[
        float,
        Meta(
            description="Sum of the seconds for which the stopped attempts would have "
            "continued, by estimated run times. Jobs without an estimate do not "
            "count."
        ),
    ]


class PoolTurns(Struct):
    """The turns of a pool's jobs, and their runs as guests, since the first start of the daemon."""

    pool: str
    turns: Annotated[
        int,
        Meta(description="Number of jobs whose turn has come; 0 under a policy that has no turns."),
    ]
    late_turns: Annotated[
        int,
        Meta(
            description="Number of these jobs that got their GPUs more than a second "
            "after their turn."
        ),
    ]
    latest_s: Annotated[float, Meta(description="Longest such delay in seconds.")]
    guests: Annotated[int, Meta(description="Number of starts before the turn, on spare GPUs.")]
    stops: Annotated[int, Meta(description="Number of stops of the pool's guests for other jobs.")]
    wasted_gpu_s: Annotated[
        float, Meta(description="GPU-seconds of work of the pool lost by these stops.")
    ]


class LendingState(Struct):
    """Whether the daemon makes new loans."""

    on: bool
    mode: LendingMode
    shadow: Annotated[
        LendingShadow | None, Meta(description="Result of the latest period of shadow lending.")
    ] = None
    recalls: Annotated[
        LendingRecalls | None, Meta(description="Null if no spare job was stopped for others.")
    ] = None
    pools: Annotated[
        list[PoolTurns],
        Meta(description="Pools with turns or guests, among those that the caller may see."),
    ] = []


class PoolForecast(Struct, omit_defaults=True):
    """Forecast of a pool's new load and the reservation for it, in GPUs by window."""

    pool: str
    load: list[int]
    held_back: list[int]
    judged: Annotated[
        list[int], Meta(description="Number of recent forecasts whose window has ended, by window.")
    ] = []
    missed: Annotated[
        list[int], Meta(description="Number of these forecasts that were too low, by window.")
    ] = []


Metric = Literal["gpus", "pending", "wait", "saved", "jobs", "forecast", "lenders", "borrowers"]

Range = Literal["1h", "6h", "1d", "1w", "30d"]


class SeriesLine(Struct):
    """One line of a chart: a value for each of the times; null where there is none."""

    name: str
    values: list[float | None]


class SeriesChart(Struct):
    """Lines of one unit. If they are stacked, they add up."""

    metric: Metric
    title: str
    unit: Annotated[str, Meta(description="GPUs, jobs, seconds or hours.")]
    stacked: bool
    lines: list[SeriesLine]


class PoolGain(Struct):
    """What jobs gained and lost by sharing: their starts compared with the baseline."""

    pool: Annotated[str, Meta(description="Empty: several pools.")]
    jobs: Annotated[int, Meta(description="Jobs whose start in the baseline is known.")]
    slowed: Annotated[int, Meta(description="Jobs that started later than in the baseline.")]
    sooner_hours: Annotated[float, Meta(description="Sum of the hours that jobs started earlier.")]
    later_hours: Annotated[float, Meta(description="Sum of the hours that jobs started later.")]


class Series(Struct):
    """Use, waits and loans over time, oldest first, in the journal and so across restarts.

    GPUs and pending jobs are means of the samples of a period. Jobs count in the period in which
    their start in the baseline was known, which is when they had ended, or later.
    """

    pool: Annotated[str, Meta(description="Empty: of all pools.")]
    user: Annotated[str, Meta(description="Empty: of all users.")]
    range: Annotated[
        Range | None,
        Meta(description="The range that was asked for; null: the request gave `from`."),
    ]
    since: Annotated[float, Meta(description="Begin of the first period.")]
    until: Annotated[float, Meta(description="End of the last period, or what is known.")]
    newest: Annotated[float | None, Meta(description="Time of the newest sample.")]
    step: Annotated[int, Meta(description="Length of a period in seconds.")]
    times: Annotated[list[int], Meta(description="Begin of each period that has a sample.")]
    charts: list[SeriesChart]
    gained: Annotated[PoolGain, Meta(description="From `since` until before `until`.")]
    gains: Annotated[
        list[PoolGain],
        Meta(description="By pool; those whose jobs you may not see are in a row without a name."),
    ]


class Forecasts(Struct):
    """Current forecasts and the model behind them."""

    policy: str
    forecast: str
    ready: Annotated[bool, Meta(description="Whether there is a forecast yet.")]
    model: Annotated[str, Meta(description="Digest of the trained model, if there is one.")]
    learned: Annotated[str, Meta(description="Result of the last training, if any.")]
    windows: Annotated[list[float], Meta(description="Window lengths in seconds.")]
    pools: list[PoolForecast]


class PlanWindow(Struct):
    """GPUs that a sharing group could lend for one window."""

    window: float
    idle: int
    held_back: int
    usable: int


class PlanPool(Struct):
    """A pool's next jobs, in the order in which a decision pass considers them."""

    pool: str
    ratio: Annotated[float | None, Meta(description="GPUs in use / (quota · weight).")]
    waiting: int
    next: list[JobView]


class PlanStep(Struct):
    """GPUs that are expected to be idle from a time on."""

    time: float
    idle: int


class PlanStart(Struct):
    """A start that the policy intends."""

    job: str
    start: float
    end: Annotated[float | None, Meta(description="Null if the end is not known.")]
    gpus: int


class PromisedGpus(Struct):
    """GPUs reserved for jobs with a guaranteed deadline. Times are seconds since the epoch."""

    start: float
    end: float
    gpus: int


class PlanGroup(Struct):
    """A sharing group's pools, in the order in which a decision pass considers them."""

    group: str
    idle: int
    windows: list[PlanWindow]
    pools: list[PlanPool]
    ahead: Annotated[
        list[PlanStep],
        Meta(
            description="GPUs expected to be idle, from estimated ends of running jobs, planned "
            "starts and maintenance. A job that has outrun its estimate counts as "
            "running until just after now."
        ),
    ]
    starts: Annotated[
        list[PlanStart], Meta(description="Planned starts of jobs that the caller may see.")
    ]
    promised: Annotated[
        list[PromisedGpus],
        Meta(
            description="Numbers of GPUs promised to guaranteed jobs; at other times "
            "none are promised."
        ),
    ] = []


class Plan(Struct):
    """Jobs that would start next if GPUs became idle."""

    time: float
    lending: bool
    groups: list[PlanGroup]
