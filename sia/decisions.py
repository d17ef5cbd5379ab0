"""Imperatives: all that the core ever says."""

from __future__ import annotations

from msgspec import Struct

from sia.model import Nodes, Stream


class StartJob(Struct, frozen=True, gc=False, tag=True):
    """Start this job now, or let it go on after a preemption.

    A spare start names its donors: (pool, GPUs), its own pool included.
    """

    job_id: str
    stream: Stream
    reason: str
    loans: tuple[tuple[str, int], ...] = ()
    width: int = 0
    """GPUs, where they are not the job's own number."""
    nodes: Nodes = ()
    """Which GPUs, where the cluster has cells."""


class PreemptJob(Struct, frozen=True, gc=False, tag=True):
    """Stop this running job, keep its work, and put it back into its queue.

    Its GPUs are given out by the decisions after this one: whoever carries them out waits for it.
    """

    job_id: str
    reason: str


class ResizeJob(Struct, frozen=True, gc=False, tag=True):
    """Go on with this running job on so many GPUs; stream and loans are as in `StartJob`."""

    job_id: str
    width: int
    stream: Stream
    reason: str
    loans: tuple[tuple[str, int], ...] = ()


class MoveLoan(Struct, frozen=True, gc=False, tag=True):
    """From now on `donor` lends a running spare job the GPUs that `previous` lent it."""

    job_id: str
    previous: str
    donor: str
    gpus: int


class WakeAt(Struct, frozen=True, gc=False, tag=True):
    """Call again at this time (seconds) at the latest; replaces any earlier wish."""

    time: float


class ProposalRefused(Struct, frozen=True, gc=False, tag=True):
    """The policy proposed what does not fit. State is unchanged, and the pass ended there."""

    job_id: str
    why: str


Decision = StartJob | PreemptJob | ResizeJob | MoveLoan | WakeAt | ProposalRefused
