"""All that comes from outside: what the journal keeps and a replay of it is fed.

Commands come from people and say who (`actor`), observations from the backend, forecasts from the
predictors. A step has several of them and one time, in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from daemon.model.access import Role
from daemon.model.job import JobSpec, PoolMode
from daemon.model.setup import Setup
from sia.model import Estimate, Load


class Submit(Struct, frozen=True, tag=True, omit_defaults=True):
    """A job is asked for. `run_time`: how long the daemon thinks that it will run (seconds)."""

    spec: JobSpec
    run_time: float = 0.0
    actor: str = ""


class Cancel(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job, or a whole array, is not wanted any more: it leaves its queue, or is ended."""

    job: str
    actor: str = ""


class Hold(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A waiting job is to wait until it is released."""

    job: str
    actor: str = ""


class Release(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A held job may start again; it stands at the end of its queue."""

    job: str
    actor: str = ""


class SetPriority(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A waiting job goes before those of its pool with a lower number."""

    job: str
    priority: int
    actor: str = ""


class SetPool(Struct, frozen=True, tag=True, omit_defaults=True):
    """A pool is changed; what is None stays as it is.

    Is `version` not that of the pool at that moment, nothing changes. With `until`, all goes back
    to what it was at that time.
    """

    pool: str
    quota: int | None = None
    cells: Mapping[str, Mapping[str, int]] | None = None
    """With cells: how many of each type it owns, by chain."""
    state: PoolMode | None = None
    lend_limit: int | None = None
    """GPUs of its own that others may hold at a time."""
    borrow_limit: int | None = None
    """GPUs of others that its jobs may hold at a time."""
    weight: float | None = None
    version: int | None = None
    until: float | None = None
    actor: str = ""
    lend_budget_hours: float | None = None
    """GPU-hours that it lends in a month at most; here and below, -1 (`NO_BUDGET`) is no bound."""
    slowed_budget_pct: float | None = None
    """Percent of its jobs that may begin later than in the pool alone."""


class Drain(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Nothing more is placed on a node; what runs there goes on."""

    node: str
    why: str = ""
    actor: str = ""


class Resume(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A node takes jobs again."""

    node: str
    actor: str = ""


class Maintain(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A node will be out from `start` to `end`."""

    id: str
    node: str
    start: float
    end: float
    why: str = ""
    actor: str = ""


class CancelMaintenance(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A node will not be out for that after all, or is back before its time."""

    id: str
    actor: str = ""


class Lending(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """From now on no new loans are made, or they are again.

    With `shadow` none are made, and what would be lent is worked out beside (`daemon.rehearsal`).
    """

    on: bool
    actor: str = ""
    shadow: bool = False


class IssueToken(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Whoever has a token with this digest (SHA-256, in hex) comes in under this name from now on.

    `expires` is a time, in seconds since the epoch; None is never.
    """

    name: str
    role: Role
    digest: str
    pools: tuple[str, ...] = ()
    expires: float | None = None
    actor: str = ""


class RevokeToken(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Nobody comes in by the token of that name any more."""

    name: str
    actor: str = ""


class SignOut(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Browsers that came in by the token of that name are to type it in again."""

    name: str
    actor: str = ""


class AuditNote(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Something that changes nothing here, and is to stand in the audit all the same.

    `status` is what it was answered with, as HTTP has it.
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
    | SetPool
    | Drain
    | Resume
    | Maintain
    | CancelMaintenance
    | Lending
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
    """A job's processes are gone. A code, or the signal that ended it, or neither is known."""

    job: str
    attempt: int
    code: int | None = None
    signal: int | None = None
    why: str = ""
    cancelled: bool = False
    """Whether somebody ended it there who did not want it any more."""
    by_itself: bool = False
    """Whether it is known to have been over before it was told to end, if it was."""


class StartFailed(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job could not be started."""

    job: str
    attempt: int
    why: str


class Lost(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Nobody knows what became of a job that ran; it runs no more."""

    job: str
    attempt: int
    why: str


class Stray(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Something runs that the daemon did not expect to."""

    job: str
    attempt: int


class Requeued(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job is off its GPUs and waits again, where the backend has queued it or held it itself."""

    job: str
    attempt: int
    why: str
    hold: bool = False
    """Whether it is to wait until it is released."""


class Limited(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job may from now on run for so long (seconds), counted from its start."""

    job: str
    limit: float
    believed: bool = False
    """Whether it is thought to run no longer than that, too; journals of old do not say so."""
    shortens: bool = False
    """Whether one that has GPUs already may only lose time by it: who lent them counts on that."""


class NodeDown(Struct, frozen=True, gc=False, tag=True):
    """A node takes no jobs, or takes them no longer, by what the backend says."""

    node: str
    why: str


class NodeUp(Struct, frozen=True, gc=False, tag=True):
    """The backend has nothing against jobs on a node any more."""

    node: str


class Foreseen(Struct, frozen=True, tag=True):
    """These loads are from now on foreseen; those not named stay."""

    loads: Sequence[Load]


class Estimated(Struct, frozen=True, tag=True):
    """These waiting jobs are from now on thought to run for another time."""

    estimates: Sequence[Estimate]


class ModelChanged(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """From now on forecasts come from another model."""

    name: str
    digest: str
    why: str = ""


class ForecastHealth(Struct, frozen=True, tag=True):
    """Forecasts of these pools are not well, and why, by name; those of all others are."""

    why: Mapping[str, str] = {}


Observation = (
    Started
    | Ended
    | StartFailed
    | Lost
    | Stray
    | Requeued
    | Limited
    | NodeDown
    | NodeUp
    | ForecastHealth
)
"""What nobody asked for, and nobody waits for: what a backend saw, and `foresight.unwatched`."""


class Tick(Struct, frozen=True, gc=False, tag=True):
    """Time has passed."""


class Configured(Struct, frozen=True, tag=True):
    """The operator has other settings from now on; a step has nothing else then."""

    setup: Setup
    unseen: int = 0
    """What is foreseen (GPUs) of pools and windows that are new, until anybody says more."""


Input = Command | Observation | Foreseen | Estimated | ModelChanged | Configured | Tick
