"""What a job is: its specification and its phase."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

from msgspec import Struct

from sia.model import Regime, StopCost
from sia.state.strl import asks_of

WARN = 60.0
"""Seconds before its time limit at which a job is warned: enough to write a checkpoint."""


EXPERIMENT = "experiment"
"""The tag that replaces the name of a job without one (SIA §5.4.2 groups jobs by it)."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
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
    """The user's estimate of the run time at its own width; requests also call it `estimate`."""
    duration: float | None = None
    """Run time on the simulated backend."""
    preemptible: StopCost | None = None
    """What each stop costs: seconds of work, "restart" for all of it, "never" if the job must not
    be stopped; None if it does not say, and the policy decides."""
    requeue: bool = False
    """Whether it is requeued after a lost node."""
    array: tuple[int, int] | None = None
    """(index, size) of its array, counted from 0. `ID.0` is the first job, and `ID` names the
    array."""
    nodes: int | None = None
    """Nodes that it spreads over, with the same number of GPUs on each; None for any number."""
    min_width: int = 0
    """Fewest GPUs on which it can run; 0 if it cannot run on fewer than `gpus`."""
    max_width: int = 0
    """Most GPUs that it can use; 0 if it cannot use more than `gpus`."""
    demand: tuple[tuple[int, float], ...] = ()
    """Run time in seconds by number of GPUs, ascending; empty if its speed is in proportion."""
    deadline: float | None = None
    """When it should end at the latest, in seconds since the epoch."""
    soft: tuple[tuple[float, float], ...] = ()
    """Later steps of the deadline: multiples of the time from submission to deadline, each with
    what an end by it earns; empty if only an end by the deadline counts."""
    value: float | None = None
    """What an end by the deadline is worth; None for the policy's usual value."""
    budget: float | None = None
    """Its weight against other jobs in policies with budgets; None for 1."""
    prefers: str = ""
    """Attribute of the nodes on which it runs at full speed; empty for any node."""
    slowdown: float | None = None
    """Factor on its run time on other nodes; None if it cannot run there."""
    strl: str = ""
    """Where it may run from when on, how long, and what that is worth; see `sia.state.strl`."""
    checkpoint: str = ""
    """How it is told to save its work before a stop: a signal or a command, which
    `sia.state.checkpoint` parses; empty if it is not told."""
    mode: str = ""
    """How its speed changes while it runs, as in `static`, `accordion` or `gns`."""
    min_run_time: float | None = None
    """Seconds that it should run once it has started; None if it does not say."""
    model: str = ""
    """What it trains."""
    regimes: tuple[Regime, ...] = ()
    """Its configurations in order, with the epochs and seconds of an epoch that it expects."""
    origin: str = ""
    """The backend's id of a job that was submitted there. Clients cannot set it."""

    @property
    def elastic(self) -> bool:
        """Whether it can run on other numbers of GPUs than its own."""
        return bool(self.min_width or self.max_width)

    @property
    def worth(self) -> float | None:
        """The most that it says to be worth; None if it does not say. O(its STRL) once."""
        return self._worth_by_strl if self.strl else self.value

    @cached_property
    def _worth_by_strl(self) -> float:
        return max((ask.value for ask in asks_of(self.strl)), default=0.0)

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
    STOPPING = "stopping"
    """It was told to stop, still has its GPUs, and goes on later as a further attempt."""
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

ON_GPUS = frozenset((JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING, JobPhase.ENDING))
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
