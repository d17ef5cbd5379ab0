"""Decisions: orders, the only output of the core."""

from __future__ import annotations

from msgspec import Struct

from sia.model import Nodes, Stream
from sia.program import Program, SolveLimit


class StartJob(Struct, frozen=True, gc=False, tag=True):
    """Start this job now, or resume it after a preemption.

    A spare start names its lenders as (pool, GPUs), its own pool included.
    """

    job_id: str
    stream: Stream
    reason: str
    loans: tuple[tuple[str, int], ...] = ()
    width: int = 0
    """The number of GPUs if it is not the job's own width, else 0."""
    nodes: Nodes = ()
    """The GPUs, in a cluster with cells or with nodes that differ."""


class JobTried(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The next `StartJob` of this job is a trial: if the job is stopped, it keeps no work."""

    job_id: str
    nodes: int = 1
    """The number of nodes of the trial."""
    wants: int = 1
    """The number of nodes that the job would use by itself."""


class RowRecorded(Struct, frozen=True, gc=False, tag=True):
    """A row of a table that the policy keeps, which replays write to a file of that name."""

    table: str
    row: tuple[float | str, ...]


class PreemptJob(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Stop this running job and return it to its queue, with its work unless that is lost.

    Later decisions of the same step use its GPUs: the driver must wait for the stop first.
    """

    job_id: str
    reason: str
    kill: bool = False
    """Whether its work is lost, because the job does not state the cost of a stop."""


class ResizeJob(Struct, frozen=True, gc=False, tag=True):
    """Change the width of this running job; `stream` and `loans` are as in `StartJob`."""

    job_id: str
    width: int
    stream: Stream
    reason: str
    loans: tuple[tuple[str, int], ...] = ()


class DedicateJob(Struct, frozen=True, gc=False, tag=True):
    """Count this running spare job within its own pool's quota: its loans end, and it runs on."""

    job_id: str
    reason: str


class MoveLoan(Struct, frozen=True, gc=False, tag=True):
    """Let `donor` lend a running spare job the GPUs that `previous` lent it."""

    job_id: str
    previous: str
    donor: str
    gpus: int


class SolveProgram(Struct, frozen=True, tag=True):
    """Solve this program outside the loop, and answer with `ProgramSolved` for the same request.

    A core has at most one request open; a new one replaces it.
    """

    request: int
    program: Program
    limit: SolveLimit
    start: tuple[float, ...] = ()
    """A feasible solution to begin from, if one is known."""


class JobPromised(Struct, frozen=True, gc=False, tag=True):
    """The policy promises that this job ends by a step of its deadline, if its estimate is right.

    A `JobRejected` for the same job takes the promise back.
    """

    job_id: str
    step: int
    """The number of the step, from 0."""
    planned: float
    """The end of the job in the present plan, in seconds."""
    why: str = ""
    """Why the step differs from the one promised before; empty for a first promise."""


class JobRejected(Struct, frozen=True, gc=False, tag=True):
    """The policy does not, or no longer, promise what the job requested, such as its deadline.

    The job stays in its queue.
    """

    job_id: str
    why: str
    soonest: float | None = None
    """The earliest end that the present plan allows, in seconds, if known. It is not promised."""


class WakeAt(Struct, frozen=True, gc=False, tag=True):
    """Call `step` again at this time (seconds) at the latest; replaces the previous request."""

    time: float


class ProposalRefused(Struct, frozen=True, gc=False, tag=True):
    """The committer refused a proposal. Nothing changed, and the pass continued."""

    job_id: str
    why: str
    impossible: bool = False
    """Whether the proposal could not have been valid in any state of the cluster."""


Decision = (
    StartJob
    | JobTried
    | RowRecorded
    | PreemptJob
    | ResizeJob
    | DedicateJob
    | MoveLoan
    | SolveProgram
    | JobPromised
    | JobRejected
    | WakeAt
    | ProposalRefused
)
