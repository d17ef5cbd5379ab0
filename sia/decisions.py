"""Imperatives: all that the core ever says."""

from __future__ import annotations

from msgspec import Struct

from sia.model import Stream


class StartJob(Struct, frozen=True, gc=False, tag=True):
    """Start this job now. A spare start names its donors: (pool, GPUs), its own pool included."""

    job_id: str
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


class Refused(Struct, frozen=True, gc=False, tag=True):
    """The policy proposed what does not fit. State is unchanged, and the pass ended there."""

    job_id: str
    why: str


Decision = StartJob | MoveLoan | WakeAt | Refused
