"""What runs the jobs: one small interface, and one file for each kind of machine behind it.

The daemon decides what starts when and where; a backend starts it, says what becomes of it, ends it
when told, and finds it again after the daemon was away. Everything goes by (job, attempt).

How others fit. Slurm: jobs that wait here are nothing there yet, or held there since their
submission; `start` releases one with a partition and nodes (or submits it so), `stop` is `scancel`,
what `squeue` and `sacct` say are the observations. Kubernetes: a Job is created suspended, or was
so by others; `start` takes that away and adds node selectors, `stop` deletes it (others' are
suspended), watches give the observations. In both the name of what is made says job and attempt,
so that a second `start` makes nothing, and `reconcile` is one listing of what bears such names.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from daemon.config.config import Config
from daemon.journal.journal import Journal
from daemon.model.book import Book, JobRecord
from daemon.model.inputs import Command, Observation
from daemon.model.outputs import Answer, StartEffect
from daemon.runtime.clock import Clock
from daemon.runtime.fence import Fence
from daemon.runtime.health import HealthRegistry
from sia.model import Nodes
from sia.state.state import PoolState

SubmitCommands = Callable[[Sequence[Command]], Awaitable[list[Answer]]]
"""Has commands done, in order, as clients have; they are durable when it returns. Raises
UnavailableError, and is to be asked again then."""

ObservationSink = Callable[[Observation], None]
"""Where a backend says what it sees. It only queues, so that it may be called at any moment, from
within `start` and `stop` too, on the event loop's thread."""

StopKind = Literal["warn", "end"]

SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Of an OSError: the machine has no file, memory or process left for the moment."""

Ability = Literal["commands", "logs", "preempt", "requeue", "resize"]
"""What not every backend can: run commands, without which there is no job; keep logs; stop a job
that goes on later; start one again as another attempt; change the number of GPUs of one that
runs."""


class LogRequest(NamedTuple):
    """A piece of what an attempt wrote that somebody asks for."""

    attempt: int
    stream: Literal["stdout", "stderr"]
    after: int
    """Bytes before it."""
    tail: int | None
    """Instead of that: so many, from the end."""
    most: int


class LogChunk(NamedTuple):
    """What an attempt wrote; `after` so many bytes, None where nobody counted them."""

    after: int | None
    data: bytes


class LogError(Exception):
    """What a job wrote cannot be had: why, and the mend.

    Attributes:
        again: Seconds after which it may be asked for again; 0 where that changes nothing.
    """

    def __init__(self, why: str, mend: str, again: float = 0.0) -> None:
        """Say both, in a line each."""
        super().__init__(why)
        self.why, self.mend, self.again = why, mend, again


@runtime_checkable
class LogReader(Protocol):
    """A backend whose logs are no files of this machine."""

    async def read_log(self, record: JobRecord, asked: LogRequest) -> LogChunk | None:
        """A piece; None where there is nothing. Raises LogError."""


class Notes(Protocol):
    """Short texts by key that outlive the daemon. All raise JournalError where they cannot."""

    async def read(self, prefix: str) -> dict[str, str]:
        """All of which the key begins so, in order of their keys."""

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Have these values from now on, all or none of them; None is to be no more."""


class BackendContext(NamedTuple):
    """What of the daemon a backend may use, on the loop's thread."""

    sink: ObservationSink
    fence: Fence
    """To be asked right before each act on the outside: a daemon that another one has taken over
    from must not act any more."""
    notes: Notes
    """Where it keeps what must outlive the daemon, in the journal's database."""
    ask: SubmitCommands
    parts: HealthRegistry
    """Where it says how it is, under the name `backend`."""
    book: Callable[[], Book]
    """Jobs, pools and nodes, for reading."""
    counts: Callable[[], Mapping[str, PoolState]] = dict
    """Pools as the core counts them: what they use and lend, what is foreseen; for reading."""


class BuildContext(NamedTuple):
    """What the `build` of a backend's section gets; the journal is open."""

    config: Config
    clock: Clock
    journal: Journal


class Expected(Struct, frozen=True):
    """A job that should be starting or running, or was told to end and was not seen to."""

    order: StartEffect
    started: float | None = None
    """When it was seen to run (seconds since the epoch); None while it was not."""


class Backend(Protocol):
    """Starts jobs, says what becomes of them, ends them.

    Of each attempt it says `StartFailed`, or `Started` and then `Ended` or `Lost`; it may leave out
    `Started` where the job was over before it could be seen, or was nothing that can be run. A job
    is `Ended` or `Lost` only when nothing of it is left on its GPUs.
    """

    can: frozenset[Ability]

    @property
    def gpus(self) -> Nodes | None:
        """The GPUs that it has found, by node; None where only the configuration can say."""

    async def open(self, house: BackendContext) -> None:
        """Begin to work. Raises UserError where it cannot."""

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """After `open`, once: compare what should run with what does.

        Says by observations what became of the expected, and `Stray` of what runs unexpected (a
        `stop` ends it, as any other). Returns the expected that it has never seen: they are to be
        started again, as the same attempt. What was told to end is to be told again.
        """

    async def start(self, order: StartEffect) -> None:
        """Start a job. A second time, also by another daemon after this one, does nothing more.

        Returns when the order is safe; that the job runs is an observation. Raises an OSError that
        is `SHORT` where it is to be told again, and nothing was started.
        """

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Warn a job of its end, or end it; returns at once. One that is gone is let be."""

    async def close(self) -> None:
        """Stop working. Jobs go on, and nothing more is said of them."""

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """The file that holds what a job wrote; None without one, or for a `LogReader`.

        Called in a thread: it may look at the disk, and nothing else.
        """
