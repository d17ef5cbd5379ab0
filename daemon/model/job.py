"""What a job is: its specification and its phase."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

from msgspec import Struct

from sia.model import Regime, StopCost
from sia.state.strl import asks_of

WARN = 60.0
"""Default seconds before the time limit at which a job is warned: enough to write a checkpoint."""


EXPERIMENT = "experiment"
"""Tag that replaces the name of a job without one (SIA §5.4.2 groups jobs by it)."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """A job as it was submitted; it never changes. Times are seconds.

    A resubmission with the same `id` is the same job if every field is equal.
    """

    id: str
    pool: str
    gpus: int
    """Number of GPUs, 1 or more. They are allocated and released together (a gang)."""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    name: str = ""
    tags: dict[str, str] = {}
    priority: int = 0
    hold: bool = False
    """Whether the job is submitted on hold."""
    time_limit: float | None = None
    """Run time after which the daemon ends the job, in seconds."""
    warn: float = WARN
    """Seconds between the warning and the time limit."""
    run_time: float | None = None
    """The user's estimate of the run time at the job's own width; requests also call it
    `estimate`."""
    duration: float | None = None
    """Run time on the simulated backend."""
    preemptible: StopCost | None = None
    """Cost of each stop: seconds of work; "restart": all work; "never": the job must not be
    stopped; None: the policy decides."""
    requeue: bool = False
    """Whether the job is requeued after the loss of a node."""
    array: tuple[int, int] | None = None
    """(index, size) of its array, counted from 0. `ID.0` is the first job, and `ID` names the
    array."""
    nodes: int | None = None
    """Number of nodes, with the same number of GPUs on each; None for any number of nodes."""
    min_width: int = 0
    """Minimum number of GPUs on which the job can run; 0 if it cannot run on fewer than `gpus`."""
    max_width: int = 0
    """Maximum number of GPUs that the job can use; 0 if it cannot use more than `gpus`."""
    demand: tuple[tuple[int, float], ...] = ()
    """Run time in seconds by number of GPUs, ascending; empty if the speed is proportional to the
    number."""
    deadline: float | None = None
    """Time by which the job should end, in seconds since the epoch."""
    soft: tuple[tuple[float, float], ...] = ()
    """Later steps of the deadline: pairs of a multiple of the time from submission to deadline and
    the reward of an end by then. Empty if only an end by the deadline is rewarded."""
    value: float | None = None
    """Value of an end by the deadline; None for the policy's usual value."""
    budget: float | None = None
    """Weight relative to other jobs under policies with budgets; None for 1."""
    prefers: str = ""
    """Attribute of the nodes on which the job runs at full speed; "" for any node."""
    slowdown: float | None = None
    """Factor on the run time on other nodes; None if the job cannot run there."""
    strl: str = ""
    """STRL expression: on which nodes the job may start when, for how long, and with which value;
    see `sia.state.strl`."""
    checkpoint: str = ""
    """Signal that tells the job to save its work before a stop, or a command that saves it
    (`sia.state.checkpoint` parses it); "" for none."""
    mode: str = ""
    """Name of the mode that determines how the configuration changes, such as `static` or `gns`."""
    min_run_time: float | None = None
    """Minimum run time in seconds; None if the job does not state it."""
    model: str = ""
    """Name of the model that the job trains."""
    iterations: int | None = None
    """Number of iterations of its whole work; None if it is not stated."""
    regimes: tuple[Regime, ...] = ()
    """Configurations of the job in order, with the expected epochs and the seconds per epoch."""
    origin: str = ""
    """The backend's id of a job that was submitted in the backend. Clients cannot set it."""

    @property
    def elastic(self) -> bool:
        """Whether the job can run on other numbers of GPUs than its own."""
        return bool(self.min_width or self.max_width)

    @property
    def worth(self) -> float | None:
        """The highest value that the job states; None if it states none. O(its STRL) once."""
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
    """The job was told to stop and still has its GPUs; a further attempt will start later."""
    ENDING = "ending"
    """The backend has the order to end the job."""
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
