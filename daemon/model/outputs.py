"""Outputs of the engine: answers to commands, effects for the backend, notices for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from daemon.model.job import JobSpec
from sia.model import Nodes
from sia.wording import nearest


class Accepted(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The command was carried out."""

    new: bool = True
    """False if the command had no effect, because it had been carried out before."""
    version: int = 0
    """Version of the pool that the command changed."""


class Refused(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The command was refused: an HTTP status, a title, what is wrong, and how to fix it."""

    status: int
    title: str
    detail: str
    mend: str
    retry_after: float = 0.0
    """Seconds after which a retry may succeed; 0 if time alone does not help."""


Answer = Accepted | Refused


def unknown_pool(pool: str, known: Iterable[str]) -> Refused:
    """Refuse a pool that does not exist, and name the nearest one."""
    return Refused(404, "no such pool", f"there is no pool {pool!r}", name_a_pool(pool, known))


def name_a_pool(pool: str, known: Iterable[str]) -> str:
    """Return the fix for the name of a pool that does not exist."""
    close = nearest(pool, known)
    return "see: sia pools" if close is None else f"did you mean {close!r}? see: sia pools"


class StartEffect(Struct, frozen=True, tag=True, omit_defaults=True):
    """Start a job on these GPUs, or a further attempt of a job that was stopped. Idempotent."""

    job: str
    attempt: int
    spec: JobSpec
    nodes: Nodes
    area: str = ""
    """The pool whose area the nodes are in; empty where there are no areas."""
    width: int = 0
    """Number of GPUs if it differs from the job's own number; else 0."""
    done: float = 0.0
    """The work that earlier attempts have done, in seconds at the job's own width."""
    overhead: float = 0.0
    """Seconds without progress at the start of a further attempt, which loads its work. The core
    counts on this number and on `speed`; only the simulated backend uses them."""
    speed: float = 1.0
    """Seconds of work per second on these GPUs."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.width or self.spec.gpus


class StopEffect(Struct, frozen=True, gc=False, tag=True):
    """Warn a job of its end, or end it. Idempotent."""

    job: str
    attempt: int
    kind: Literal["warn", "end"]


class PreemptEffect(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Tell a job to stop, so that a further attempt can start later. Idempotent.

    The job is told to save its work and has `grace` seconds for it. After that the engine sends the
    order again with `force`, and the backend ends the attempt at once.
    """

    job: str
    attempt: int
    grace: float
    """Seconds that the job has from the first order on."""
    checkpoint: str = ""
    """Signal or command for saving the job's work (`JobSpec.checkpoint`)."""
    force: bool = False
    """Whether the grace time is over."""


class ResizeEffect(Struct, frozen=True, gc=False, tag=True):
    """Change the number of GPUs of a running attempt, for backends that can. Idempotent."""

    job: str
    attempt: int
    width: int
    nodes: Nodes = ()
    """GPUs that the attempt may use from now on, if the engine assigns GPUs. If the width is
    smaller, these are all earlier GPUs, and the backend chooses which of them the attempt
    leaves."""


Effect = StartEffect | StopEffect | PreemptEffect | ResizeEffect


class Notice(Struct, frozen=True, omit_defaults=True):
    """One entry of the event stream. `seq` counts notices from 1."""

    seq: int
    time: float
    kind: str
    job: str = ""
    pool: str = ""
    node: str = ""
    data: dict[str, Any] = {}
