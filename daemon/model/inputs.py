"""Inputs of the engine. The journal stores them, and recovery passes them to the engine again.

Commands come from clients (`actor` is the client), observations from the backend, and forecasts
from the predictors. A step has one time, in seconds since the epoch, and several inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from daemon.model.access import Role
from daemon.model.job import JobSpec, PoolMode
from daemon.model.setup import Setup
from sia.events import SolveStatus
from sia.model import Estimate, Load, Nodes


class Submit(Struct, frozen=True, tag=True, omit_defaults=True):
    """Submit a job. `run_time` is the daemon's estimate in seconds; 0 without one."""

    spec: JobSpec
    run_time: float = 0.0
    actor: str = ""


class Cancel(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Cancel a pending job or end a running one; or every job of an array."""

    job: str
    actor: str = ""


class Hold(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Hold a pending job until it is released."""

    job: str
    actor: str = ""


class Release(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Release a held job. It goes to the end of its queue."""

    job: str
    actor: str = ""


class SetPriority(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Change the priority of a pending job. Higher numbers go first."""

    job: str
    priority: int
    actor: str = ""


class Reported(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job reports its progress: `done` is the share of its whole work that is done, from 0 to 1.

    `speed` is the speed from now on, relative to the nominal speed on the job's own number of GPUs;
    None if it has not changed. `regime` is the index of the current regime, from 0. A job that has
    stated its number of iterations may report `iterations` instead of `done`: how many are done. A
    job of several trials reports `trials`: for each remaining trial its GPUs, and the seconds that
    it still needs on them.
    """

    job: str
    attempt: int
    done: float | None = None
    speed: float | None = None
    regime: int | None = None
    actor: str = ""
    trials: tuple[tuple[int, float], ...] = ()
    iterations: int | None = None


class SetPool(Struct, frozen=True, tag=True, omit_defaults=True):
    """Change a pool. A field that is None does not change.

    With `version`, the change is made only if this is the pool's current version. With `until`, the
    old values return at that time.
    """

    pool: str
    quota: int | None = None
    cells: Mapping[str, Mapping[str, int]] | None = None
    """The number of cells of each type that the pool owns, by chain; None without cells."""
    state: PoolMode | None = None
    lend_limit: int | None = None
    """Maximum number of its own GPUs that other pools may use at a time."""
    borrow_limit: int | None = None
    """Maximum number of GPUs of other pools that its jobs may use at a time."""
    weight: float | None = None
    version: int | None = None
    until: float | None = None
    actor: str = ""
    lend_budget_hours: float | None = None
    """Maximum GPU-hours lent in a calendar month (UTC). Here and below, -1 (`NO_BUDGET`) removes
    the budget."""
    slowed_budget_pct: float | None = None
    """Maximum percentage of its jobs that may start later than without sharing."""
    slowed_budget_minutes: float | None = None
    """Maximum sum of the minutes by which the jobs that it starts in a calendar month (UTC) may
    start later than without sharing."""


class Drain(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Drain a node: no more jobs start on it, and running jobs continue."""

    node: str
    why: str = ""
    actor: str = ""


class Resume(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Undrain a node: jobs may start on it again."""

    node: str
    actor: str = ""


class Maintain(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Plan a maintenance window, during which the node is out."""

    id: str
    node: str
    start: float
    end: float
    why: str = ""
    actor: str = ""


class CancelMaintenance(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Cancel a maintenance window, or end it early."""

    id: str
    actor: str = ""


class Lending(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Turn new loans on or off.

    With `shadow`, the daemon makes no loans but simulates them (`daemon.lending.shadow`).
    """

    on: bool
    actor: str = ""
    shadow: bool = False


class SetPolicy(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Change the options of the policy in force.

    `policy` is its label with other options; empty for the label before the last change.
    """

    policy: str = ""
    actor: str = ""


class IssueToken(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Issue a token: its SHA-256 digest (hex), name, role and pools.

    `expires` is in seconds since the epoch; None for never.
    """

    name: str
    role: Role
    digest: str
    pools: tuple[str, ...] = ()
    expires: float | None = None
    actor: str = ""


class RevokeToken(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Revoke the token of this name."""

    name: str
    actor: str = ""


class SignOut(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """End all browser sessions of the token of this name."""

    name: str
    actor: str = ""


class AuditNote(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Record an action in the audit that does not change the engine.

    `status` is the HTTP status of the answer that the client got.
    """

    what: str
    target: str
    status: int
    note: str = ""
    actor: str = ""


Command = (
    Submit
    | Cancel
    | Hold
    | Release
    | SetPriority
    | Reported
    | SetPool
    | Drain
    | Resume
    | Maintain
    | CancelMaintenance
    | Lending
    | SetPolicy
    | IssueToken
    | RevokeToken
    | SignOut
    | AuditNote
)


class Started(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job runs."""

    job: str
    attempt: int


class Ended(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job's processes have ended: with an exit code, by a signal, or in an unknown way."""

    job: str
    attempt: int
    code: int | None = None
    signal: int | None = None
    why: str = ""
    cancelled: bool = False
    """Whether a user cancelled the job in the backend."""
    by_itself: bool = False
    """Whether the job is known to have ended before the order to end it arrived."""


class StartFailed(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The backend could not start a job."""

    job: str
    attempt: int
    why: str


class Lost(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A running job has disappeared; how it ended is unknown."""

    job: str
    attempt: int
    why: str


class Stray(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The backend runs a job that the daemon did not expect to run."""

    job: str
    attempt: int


class Requeued(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The backend itself has requeued a job, or holds it; the job has left its GPUs."""

    job: str
    attempt: int
    why: str
    hold: bool = False
    """Whether the job is held until it is released."""


class Stopped(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """An attempt that was told to stop (`PreemptEffect`) has no process left.

    A backend that knows how the attempt ended may report `Ended` instead: a job that exits with 0
    has finished, and any other end counts as `Stopped`.
    """

    job: str
    attempt: int
    why: str = ""
    lost: bool = False
    """Whether the job is known to have saved nothing since its start, for example without a
    checkpoint."""


class Resized(Struct, frozen=True, tag=True, omit_defaults=True):
    """A running attempt has carried out a `ResizeEffect`, and the GPUs that it left are free.

    If the width is not the ordered one, the backend could not change it. The engine then stops the
    job and starts it on the new width.
    """

    job: str
    attempt: int
    width: int
    nodes: Nodes = ()
    """GPUs that the attempt has now, if the engine assigns GPUs."""


class Limited(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job has a new time limit, in seconds from its start."""

    job: str
    limit: float
    believed: bool = False
    """Whether the limit also bounds the estimate of its run time."""
    shortens: bool = False
    """Whether a job on GPUs can only get a shorter limit, because its lenders rely on the old
    one."""


class NodeDown(Struct, frozen=True, gc=False, tag=True):
    """The backend reports a node that takes no jobs."""

    node: str
    why: str


class NodeUp(Struct, frozen=True, gc=False, tag=True):
    """The backend reports that a node takes jobs again."""

    node: str


class Foreseen(Struct, frozen=True, tag=True):
    """New load forecasts. The forecasts of other pools do not change."""

    loads: Sequence[Load]


class Estimated(Struct, frozen=True, tag=True):
    """New run time estimates of pending jobs."""

    estimates: Sequence[Estimate]


class ModelChanged(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The forecasts come from another model from now on.

    `label` is the forecast that a backtest has chosen; "" for the configured forecast.
    """

    name: str
    digest: str
    why: str = ""
    label: str = ""


class ForecastHealth(Struct, frozen=True, tag=True, omit_defaults=True):
    """The pools whose forecasts are unreliable, and why.

    The forecasts of all other pools are reliable.
    """

    why: Mapping[str, str] = {}
    lend: bool = False
    """Whether these pools may lend nevertheless."""
    since: Mapping[str, float] = {}
    """Pools whose forecasts use only loads from this time on."""


class Answered(Struct, frozen=True, tag=True, omit_defaults=True):
    """A solver has answered the core's request of this number, or failed to."""

    request: int
    status: SolveStatus
    values: Sequence[float] = ()
    """Values of the program's columns, if there is a solution."""
    bound: float | None = None
    """Bound on the objective of any solution, if the solver knows one."""
    shadow: bool = False
    """Whether the request is one of the shadow core, which simulates lending."""


Observation = (
    Started
    | Ended
    | StartFailed
    | Lost
    | Stray
    | Requeued
    | Stopped
    | Resized
    | Limited
    | NodeDown
    | NodeUp
    | ForecastHealth
    | Answered
    | Reported
)
"""Inputs that no client waits for: what a backend or a solver reports, and `ForecastHealth`."""


class Tick(Struct, frozen=True, gc=False, tag=True):
    """Time has passed, and nothing else has happened."""


class Configured(Struct, frozen=True, tag=True):
    """The operator has changed the configuration. Its step has no other input."""

    setup: Setup
    unseen: int = 0
    """Load forecast (GPUs) of new pools and windows until a predictor has a better one."""


Input = Command | Observation | Foreseen | Estimated | ModelChanged | Configured | Tick
