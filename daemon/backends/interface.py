"""The contract between the daemon and the systems that run jobs.

The daemon decides which job starts when and where. A backend starts it, reports its state, ends it
on request, and finds it again after a restart of the daemon. Attempts are identified by (job id,
attempt number).

Slurm: `start` submits a held job or releases one with a partition and nodes, `stop` is `scancel`,
and `squeue` or slurmrestd give the observations. Kubernetes: `start` resumes a suspended Job with
node selectors, `stop` deletes it (adopted Jobs are suspended), and watches give the observations.
The created object carries job and attempt, so a second `start` creates nothing, and `reconcile` is
one listing of these objects.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from daemon.config.config import Ability, Config
from daemon.journal.journal import Journal
from daemon.model.book import Book, JobRecord
from daemon.model.inputs import Command, Observation
from daemon.model.outputs import Answer, PreemptEffect, ResizeEffect, StartEffect
from daemon.runtime.clock import Clock
from daemon.runtime.fence import Fence
from daemon.runtime.health import HealthRegistry
from daemon.runtime.job_token import ReportVariables
from sia.model import Nodes
from sia.state.state import PoolState

SubmitCommands = Callable[[Sequence[Command]], Awaitable[list[Answer]]]
"""Submits commands in order, like a client. They are durable on return. Raises UnavailableError;
the caller must retry."""

ObservationSink = Callable[[Observation], None]
"""Receives observations. It only queues them, so a backend may call it at any time on the event
loop's thread, also within `start` and `stop`."""

StopKind = Literal["warn", "end"]

SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""OSError numbers of temporary shortages of files, memory or processes."""


class LogRequest(NamedTuple):
    """Request for a piece of an attempt's output."""

    attempt: int
    stream: Literal["stdout", "stderr"]
    after: int
    """Offset in bytes."""
    tail: int | None
    """Number of bytes from the end, instead of `after`."""
    most: int


class LogChunk(NamedTuple):
    """A piece of an attempt's output; `after` is its offset in bytes, or None if unknown."""

    after: int | None
    data: bytes


class LogError(Exception):
    """A job's output is not available: why, and the fix.

    Attributes:
        again: Seconds until a retry may succeed; 0 if a retry is useless.
    """

    def __init__(self, why: str, mend: str, again: float = 0.0) -> None:
        """Store reason and fix, one line each."""
        super().__init__(why)
        self.why, self.mend, self.again = why, mend, again


@runtime_checkable
class LogReader(Protocol):
    """A backend whose logs are not files on this machine."""

    async def read_log(self, record: JobRecord, request: LogRequest) -> LogChunk | None:
        """Return a piece of the output, or None if there is none. Raises LogError."""


class Notes(Protocol):
    """Durable short texts by key. All methods raise JournalError."""

    async def read(self, prefix: str) -> dict[str, str]:
        """Return all notes whose key has the prefix, ordered by key."""

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Store values in one transaction; None deletes a key."""


class BackendContext(NamedTuple):
    """Services of the daemon that a backend may use, on the event loop's thread."""

    sink: ObservationSink
    fence: Fence
    """The backend checks it right before each external action: a daemon without the lease must not
    act."""
    notes: Notes
    """Durable notes in the journal's database."""
    ask: SubmitCommands
    parts: HealthRegistry
    """Reports the backend's health, as component `backend`."""
    book: Callable[[], Book]
    """Returns jobs, pools and nodes; read only."""
    counts: Callable[[], Mapping[str, PoolState]] = dict
    """Returns the core's pool states: usage, loans and forecasts; read only."""
    reports: ReportVariables = ReportVariables()
    """Returns the environment variables with which a job can report its progress."""


class BuildContext(NamedTuple):
    """Arguments of the method `build` of a backend's section; the journal is open."""

    config: Config
    clock: Clock
    journal: Journal


class Expected(Struct, frozen=True):
    """An attempt that should be starting or running, or whose end was ordered but not observed."""

    order: StartEffect
    started: float | None = None
    """Time when it was observed to run (seconds since the epoch), or None."""
    since: float | None = None
    """Time since which it does the work after `order.done`: of its latest report, or `started`."""


class Backend(Protocol):
    """Starts jobs, reports their state, and ends them.

    For each attempt a backend reports `StartFailed`, or `Started` and then `Ended` or `Lost`.
    `Started` may be missing if the job ended before it was observed or could not be executed.
    `Ended` and `Lost` mean that no process of the job is left on its GPUs.
    """

    can: frozenset[Ability]
    """Abilities of the backend, as in its section of the configuration (`BackendConfig.can`). A
    section need not declare "logs"."""

    @property
    def gpus(self) -> Nodes | None:
        """GPUs that the backend discovered, by node; None if only the configuration has them."""

    async def open(self, context: BackendContext) -> None:
        """Start the backend. Raises UserError if that is not possible."""

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Compare the attempts that should run with those that run. Called once, after `open`.

        Report the state of the expected attempts, and `Stray` for unexpected ones, which `stop` can
        end. Return the orders that the backend has never seen; the caller starts them again as the
        same attempts. The caller also repeats stop orders.
        """

    async def start(self, order: StartEffect) -> None:
        """Start an attempt. Idempotent, also across restarts of the daemon.

        Returns when the order is safe; whether the job runs is an observation. Raises OSError with
        an errno in `SHORT` if nothing was started and the caller should retry.
        """

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Warn or end an attempt; returns immediately. Has no effect if the attempt is gone."""

    async def close(self) -> None:
        """Stop working. Jobs continue to run and are no longer observed."""

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return the file with a job's output; None if there is none or for a `LogReader`.

        Called on a thread; may only read from disk.
        """


@runtime_checkable
class PreemptingBackend(Backend, Protocol):
    """A backend that can "preempt"."""

    async def preempt(self, order: PreemptEffect) -> None:
        """Tell an attempt to stop, or end it at once if its grace time is over. Idempotent.

        Returns immediately. The backend reports `Stopped`, `Ended` or `Lost` when no process of the
        attempt is left on its GPUs; until then nothing else starts on them. Has no effect if the
        attempt is gone. After a restart of the daemon, the daemon repeats the order, after
        `reconcile`, for each attempt that was told to stop and is not known to be gone.
        """


@runtime_checkable
class ResizingBackend(Backend, Protocol):
    """A backend that can "resize"."""

    async def resize(self, order: ResizeEffect) -> None:
        """Change the width of a running attempt; returns immediately. Idempotent.

        The backend reports `Resized` when the attempt has the new width. The order is repeated
        after a restart of the daemon.
        """
