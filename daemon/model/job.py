"""What a job is to the daemon: as it was asked for, and where it is in its life."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

WARN = 60.0
"""Seconds before its time limit at which a job is warned: enough to write a checkpoint."""


EXPERIMENT = "experiment"
"""The tag that stands for a name where there is none (SIA §5.4.2 goes by such tags)."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as it was submitted; it never changes. Times are seconds.

    What is submitted again under the same `id` is the same job if all of this is the same.
    """

    id: str
    pool: str
    gpus: int
    """GPUs that start and end together (a gang), 1 or more."""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    name: str = ""
    tags: dict[str, str] = {}
    priority: int = 0
    hold: bool = False
    """Whether it is held from the start on, until it is released."""
    time_limit: float | None = None
    """How long it may run before it is ended."""
    warn: float = WARN
    """How long before that it is warned."""
    run_time: float | None = None
    """How long its owner thinks that it runs."""
    duration: float | None = None
    """How long it will run on the simulated backend."""
    preemptible: float | None = None
    """Seconds of work lost whenever it is stopped and goes on; None where it must not be."""
    requeue: bool = False
    """Whether it is queued again after its node was lost."""
    array: tuple[int, int] | None = None
    """Which of how many it is, in an array; `ID.0` is the first, and `ID` names them all."""
    nodes: int | None = None
    """Over how many nodes it goes, the same number of GPUs on each; None for any."""
    origin: str = ""
    """What the backend calls it, where it was there first; no client can say so."""

    @property
    def kind(self) -> str:
        """What forecasts take jobs for alike by, of one user: its name, or else its experiment."""
        return self.name or self.tags.get(EXPERIMENT, "")


class JobPhase(Enum):
    """Where a job is in its life."""

    HELD = "held"
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    """It was told to end and has not yet."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self in OVER


OVER = frozenset((JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.LOST))

ON_GPUS = frozenset((JobPhase.STARTING, JobPhase.RUNNING, JobPhase.ENDING))
"""Phases in which a job holds GPUs."""


class LendingMode(Enum):
    """The operator's switch for new loans."""

    ON = "on"
    SHADOW = "shadow"
    """None are made, and what they would come to is worked out."""
    OFF = "off"


class PoolMode(Enum):
    """What a pool does with jobs."""

    OPEN = "open"
    HOLD = "hold"
    """Jobs are taken and wait; none starts."""
    DRAIN = "drain"
    """No more jobs are taken; those that wait go on."""
