"""What a job is: its specification and its phase."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

WARN = 60.0
"""Seconds before its time limit at which a job is warned: enough to write a checkpoint."""


EXPERIMENT = "experiment"
"""The tag that replaces the name of a job without one (SIA §5.4.2 groups jobs by it)."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as it was submitted; it never changes. Times are seconds.

    A resubmission with the same `id` is the same job if every field is equal.
    """

    id: str
    pool: str
    gpus: int
    """GPUs, 1 or more. They start and end together (a gang)."""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    name: str = ""
    tags: dict[str, str] = {}
    priority: int = 0
    hold: bool = False
    """Whether it is submitted on hold."""
    time_limit: float | None = None
    """Run time after which it is ended."""
    warn: float = WARN
    """Time before that at which it is warned."""
    run_time: float | None = None
    """Run time that its owner expects."""
    duration: float | None = None
    """Run time on the simulated backend."""
    preemptible: float | None = None
    """Seconds of work lost at each preemption; None if it must not be preempted."""
    requeue: bool = False
    """Whether it is requeued after a lost node."""
    array: tuple[int, int] | None = None
    """(index, size) of its array, counted from 0. `ID.0` is the first job, and `ID` names the
    array."""
    nodes: int | None = None
    """Nodes that it spreads over, with the same number of GPUs on each; None for any number."""
    origin: str = ""
    """The backend's id of a job that was submitted there. Clients cannot set it."""

    @property
    def kind(self) -> str:
        """The key by which forecasts group a user's jobs: the name, or else the experiment."""
        return self.name or self.tags.get(EXPERIMENT, "")


class JobPhase(Enum):
    """The phase of a job."""

    HELD = "held"
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    """The backend has the order to end it."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self in OVER


OVER = frozenset((JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.LOST))

ON_GPUS = frozenset((JobPhase.STARTING, JobPhase.RUNNING, JobPhase.ENDING))
"""Phases in which a job has GPUs."""


class LendingMode(Enum):
    """The lending mode, which operators set."""

    ON = "on"
    SHADOW = "shadow"
    """Loans are simulated, and none are made."""
    OFF = "off"


class PoolMode(Enum):
    """The state of a pool."""

    OPEN = "open"
    HOLD = "hold"
    """The pool accepts jobs and starts none."""
    DRAIN = "drain"
    """The pool accepts no jobs; pending jobs still start."""
