"""The proposals of policies and their results. The set is closed: `Core` handles each type.

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
    """The result of a proposal."""

    DONE = "done"
    """It was carried out, and the state shows it."""
    NO_CELLS = "no cells"
    """In a cluster with cells: no cells are available for the job now."""
    OVER_LIMIT = "over limit"
    """Limits on loans, or GPUs that are out, allow no spare start of that width now."""
    REFUSED = "refused"
    """It contradicts the state. Nothing changed, and a `ProposalRefused` says why."""


class Start(Struct, frozen=True, gc=False):
    """Start a pending job now, or resume it, with its own width if `width` is 0."""

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
    spread: tuple[int, int] = (1, 1)
    """The number of nodes of the trial, and the number that the job would use by itself: live, they
    say what the measured speed means for it."""


class Record(Struct, frozen=True, gc=False):
    """Add a row to a table that replays write."""

    table: str
    row: tuple[float | str, ...]


class Preempt(Struct, frozen=True, gc=False):
    """Stop a running job. It becomes pending again and keeps its work except the cost of a stop.

    Later proposals of the same pass may use its GPUs. In a daemon, jobs that start on them wait
    until the stopped job has left them.
    """

    job: JobStateView
    reason: str
    kill: bool = False
    """Whether all of its work is lost, unless the job states the cost of a stop."""


class Resize(Struct, frozen=True, gc=False):
    """Continue a running job on another number of GPUs.

    A spare job may keep its width if limits do not let its pool borrow more (`OVER_LIMIT`).
    """

    job: JobStateView
    width: int
    stream: Stream
    reason: str


class Dedicate(Struct, frozen=True, gc=False):
    """Count a running spare job within its own pool's quota from now on; its loans end.

    The job continues on the same GPUs. Other jobs' loans of that quota move to other lenders.
    """

    job: JobStateView
    reason: str


class Lease(Struct, frozen=True, gc=False):
    """Give a running job a lease until this time (seconds), or take the lease away with None.

    When the lease is over the policy finds the job in `Changes.expired`. The job continues until
    the policy stops it.
    """

    job: JobStateView
    until: float | None


class ReserveCells(Struct, frozen=True, gc=False):
    """Reserve cells of its pool for a job that started in spare cells (§5.5).

    If the pool has no such cells now, nothing is reserved. For a dedicated job the cells in which
    it runs stay reserved after its end. A dedicated start gets the cells reserved for the job.
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
    """Promise that a job ends by a step of its deadline, given by its number from 0."""

    job: JobStateView
    step: int
    planned: float
    """The planned end, in seconds."""
    why: str = ""
    """Why the step differs from the one promised before; empty for a first promise."""


class Reject(Struct, frozen=True, gc=False):
    """State that a request of a job, such as its deadline, is not or no longer promised.

    The job stays where it is.
    """

    job: JobStateView
    why: str
    soonest: float | None = None
    """The earliest end that the present plan allows, in seconds; None if unknown."""


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
"""The type of `Policy.propose`, which yields proposals and receives the result of each."""
