"""What a job, a pool and a run's options are: plain values, all immutable."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from sia.limits import TICK, WINDOWS


class Stream(Enum):
    """Which of a pool's two virtual streams a job runs in (§5.3)."""

    DEDICATED = "dedicated"
    """In order, inside the pool's own quota."""
    SPARE = "spare"
    """On GPUs that their owners do not need for now."""


class Job(Struct, frozen=True, gc=False):
    """What is known of a job when it is submitted. How long it will run is not.

    `submit` is in seconds, `width` in GPUs that start and end together (a gang).
    """

    id: str
    pool: str
    submit: float
    width: int
    user: str = ""
    name: str = ""


class Pool(Struct, frozen=True):
    """GPUs that somebody owns.

    Pools lend only inside their `group`; `share` off keeps a pool to itself altogether.
    """

    name: str
    quota: int
    group: str = ""
    share: bool = True


class FutureJob(Struct, frozen=True, gc=False):
    """A job known before it arrives, and when its own pool alone would start it (§5.1)."""

    job: Job
    run_time: float
    virtual_start: float


class Load(NamedTuple):
    """TotalNewLoad of one pool and window: GPUs that arrive in (now, now + window] (§5.2)."""

    pool: str
    window: int
    gpus: int


class Options(Struct, frozen=True):
    """The operator's choices (§5.3). Windows are seconds, ascending."""

    windows: tuple[float, ...] = WINDOWS
    tick: float = TICK
    slack: float = 1.0
    """Factor on what SIA reserves for a pool; 1 is the paper's, more holds back more."""
    spare_priority: dict[str, int] = {}
    """Pools with a higher number are offered spare GPUs first; 0 where not named."""
    no_lending: frozenset[tuple[str, float]] = frozenset()
    """Pairs of pool and window (seconds): for that window the pool reserves all of its unused
    quota; it goes on borrowing."""
