"""What a policy may propose, and what comes of it. The set is closed: `Core` handles each type.

A policy yields a proposal and receives its `ProposalResult`:

    result = yield Start(job, Stream.DEDICATED, "head of its pool")
    if result is not ProposalResult.DONE: ...
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum

from msgspec import Struct

from cells.placement.placing import Price, equal_price
from cells.placement.reservations import ReservedGpus
from sia.contract.views import JobStateView, PoolStateView
from sia.model import Stream
from sia.program import Program, SolveLimit
from sia.state.nodes import NodeCounts


class ProposalResult(Enum):
    """What came of a proposal."""

    DONE = "done"
    """It was carried out, and the state shows it."""
    NO_CELLS = "no cells"
    """In a cluster with cells: none are available for the job now."""
    OVER_LIMIT = "over limit"
    """Limits on loans, or GPUs that are out, allow no spare start of that width now."""
    REFUSED = "refused"
    """It contradicts the state. Nothing changed, and a `ProposalRefused` says why."""


class Start(Struct, frozen=True, gc=False):
    """Start a pending job now, or resume it, on its own width if `width` is 0."""

    job: JobStateView
    stream: Stream
    reason: str
    width: int = 0
    holds: ReservedGpus | None = None
    """In a cluster with cells: the reservations that a spare start must respect."""
    until: float | None = None
    """When its lease ends, in seconds; see `Lease`."""
    inside: str = ""
    """In a cluster with cells: the id of a job that has ended, in whose reserved cells a spare job
    starts."""
    nodes: NodeCounts = ()
    """In a cluster whose nodes differ: the GPUs of each node."""


class Try(Struct, frozen=True, gc=False):
    """Start a pending job as a trial, on any number of GPUs and at speed 1.

    If it is stopped it keeps no work. Not in clusters with cells.
    """

    job: JobStateView
    gpus: int
    reason: str
    until: float
    nodes: NodeCounts = ()
    """In a cluster whose nodes differ: the GPUs of each node."""


class Record(Struct, frozen=True, gc=False):
    """Add a row to a table that replays write."""

    table: str
    row: tuple[float | str, ...]


class Preempt(Struct, frozen=True, gc=False):
    """Stop a running job, which becomes pending again and keeps its work, less what a stop costs.

    Its GPUs may be used by later proposals of the same pass. Live, what starts on them waits until
    the job is gone.
    """

    job: JobStateView
    reason: str
    kill: bool = False
    """Whether all of its work is lost, unless the job says what a stop costs."""


class Resize(Struct, frozen=True, gc=False):
    """Continue a running job on another number of GPUs.

    A spare job may keep its width if limits do not let its pool borrow more (`OVER_LIMIT`).
    """

    job: JobStateView
    width: int
    stream: Stream
    reason: str


class Dedicate(Struct, frozen=True, gc=False):
    """Count a running spare job within its own pool's quota from now on: its loans are given back.

    The job runs on, on the same GPUs. Loans of others on that quota move to other lenders.
    """

    job: JobStateView
    reason: str


class Lease(Struct, frozen=True, gc=False):
    """Give a running job a lease until this time (seconds), or take the lease away with None.

    When the lease is over the policy finds the job in `Changes.expired`. The job goes on until the
    policy stops it.
    """

    job: JobStateView
    until: float | None


class ReserveCells(Struct, frozen=True, gc=False):
    """Reserve cells of its pool for a job that started in spare cells (§5.5).

    If the pool has no such cells now, nothing is reserved. The cells in which a dedicated job runs
    are reserved beyond its end. A dedicated start gets the cells that are reserved for the job.
    """

    job: JobStateView
    price: Price = equal_price
    """The price of a cell in which spare jobs run; the cheapest cells are reserved first."""
    around: bool = False
    """Whether only the cells in which the job runs may be reserved: the pool binds these."""


class ReleaseCells(Struct, frozen=True, gc=False):
    """Release the cells reserved for a job."""

    job: JobStateView


class Solve(Struct, frozen=True, gc=False):
    """Have a program solved outside the loop; `Policy.solved` gets the answer at a later step.

    A core has one open request: a new one replaces it.
    """

    program: Program
    limit: SolveLimit
    start: tuple[float, ...] = ()
    """A feasible solution to begin from, if one is known."""


class Promise(Struct, frozen=True, gc=False):
    """Tell a job that it ends by a step of its deadline, given by its number from 0."""

    job: JobStateView
    step: int
    planned: float
    """When it ends by the plan, in seconds."""
    why: str = ""
    """Why the step is another one than the job was told before; empty if it was told none."""


class Reject(Struct, frozen=True, gc=False):
    """Tell a job that what it asked for, such as its deadline, is not or no longer promised.

    It stays where it is.
    """

    job: JobStateView
    why: str
    soonest: float | None = None
    """When it could end at the soonest by the plan of now, in seconds; None if that is unknown."""


class Reconsider(Struct, frozen=True, gc=False):
    """Count a pool as changed in the next pass."""

    pool: PoolStateView


class Wake(Struct, frozen=True, gc=False):
    """Call the policy again at this time (seconds) at the latest; replaces the previous request."""

    time: float


Proposal = (
    Start
    | Try
    | Record
    | Preempt
    | Resize
    | Dedicate
    | Lease
    | ReserveCells
    | ReleaseCells
    | Solve
    | Promise
    | Reject
    | Reconsider
    | Wake
)

Proposals = Generator[Proposal, ProposalResult, None]
"""What `Policy.propose` is: it yields proposals one by one and receives the result of each."""
