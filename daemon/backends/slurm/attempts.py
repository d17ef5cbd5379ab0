"""Attempts in Slurm, and the meaning of Slurm's job states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.slurm.interface import SignalTarget
from daemon.backends.slurm.schema import SlurmJob
from daemon.model.inputs import Ended, Lost, Observation, StartFailed
from daemon.model.outputs import PreemptEffect, StartEffect
from sia.state.checkpoint import CheckpointSignal, parse_checkpoint

TERM, KILL = 15, 9

FORGOTTEN = (
    "Slurm no longer knows the job, so how it ended is unknown (it ended more than MinJobAge "
    "before the daemon looked, or Slurm lost its state)"
)

LOST_IT = "Slurm lost the running job (slurmctld crashed before it saved its state)"

FORGETS = 60.0
"""Minimum seconds for which Slurm keeps an ended job. The default of MinJobAge is 300."""

ENDED_BY = {
    "TIMEOUT": (TERM, "time limit, in Slurm"),
    "OUT_OF_MEMORY": (KILL, "out of memory"),
    "DEADLINE": (TERM, "deadline in Slurm passed"),
    "CANCELLED": (TERM, "cancelled in Slurm"),
}
"""States in which Slurm ended a job: the signal and the reason."""

LOST_BY = {
    "NODE_FAIL": "a node of the job failed",
    "PREEMPTED": "preempted by Slurm",
    "BOOT_FAIL": "the nodes did not boot",
}
"""States in which a job was lost through no fault of its own, with the reason."""

MARK = "sia"
"""Prefix of the comments of jobs that a daemon submitted."""

RUNS = "slurm/run/"
"""Prefix of the notes with the Slurm job id of an attempt."""


class SlurmAttempt:
    """An attempt to start, to end or to follow.

    Attributes:
        ref: Slurm job id; None until it is durable.
        submitted: Submit time by Slurm; None if not seen.
        seen: Whether `ref` is confirmed since Slurm was last unreachable.
        searched: Whether Slurm was searched for a submission by an earlier daemon.
        fresh: Whether no earlier daemon can have released it.
        released: Loop time of the last release; None before.
        free: Whether Slurm has shown the release since it was last unreachable. If so, a later hold
            is by a user.
        restarts: Slurm's restart count at the release.
        alive: Loop time when Slurm last showed that the job has not ended; None before.
        before: Partition and nodes right before the release; None if not looked up.
        settles: Loop time before which a requeued job is not released; None if not looked up.
        lost_submissions: How often Slurm lost an accepted submission.
        stop: Whether the attempt must end, finally or for a later attempt (`preempt`).
        preempt: The order to stop, if the job will start again later.
        told: Whether the job was told to save its work.
        stopped: Loop time of the last request to Slurm that ends the job; None before.
    """

    def __init__(
        self, order: StartEffect, *, searched: bool, started: bool = False, fresh: bool = False
    ) -> None:
        """Create an attempt to start, unless Slurm has it already."""
        self.order, self.searched, self.reported, self.fresh = order, searched, started, fresh
        self.ref: str | None = order.spec.origin.partition("@")[0] or None
        self.submitted: int | None = None
        self.seen = False
        self.released: float | None = None
        self.free = False
        self.restarts = 0
        self.alive: float | None = None
        self.before: tuple[str, frozenset[str]] | None = None
        self.tries = 0
        self.settles: float | None = None
        self.lost_submissions = 0
        self.stop = False
        self.preempt: PreemptEffect | None = None
        self.stop_sent = False
        self.stopped: float | None = None

    def named(self, mark: str) -> None:
        """Set Slurm job id and submit time from a note."""
        self.ref, _, when = mark.partition("@")
        self.submitted = int(when) if when else None

    @property
    def key(self) -> AttemptKey:
        """Job id and attempt number."""
        return self.order.job, self.order.attempt

    @property
    def awaited(self) -> CheckpointSignal | None:
        """The signal that tells the job to save its work; None without a signal or time for it."""
        order = self.preempt
        if order is None or order.force or not self.reported:
            return None
        how = parse_checkpoint(order.checkpoint)
        return how if isinstance(how, CheckpointSignal) else None

    @property
    def signalled(self) -> SignalTarget:
        """The processes of the job that get the signal.

        For adopted jobs `B:` has the meaning that it has in sbatch's `--signal`: with it the batch
        script alone gets the signal, without it the steps alone, because the shell of a batch
        script usually dies of the signal. A job of the daemon has no such shell, because its
        command replaces the shell.
        """
        if self.awaited is not None and self.awaited.main:
            return "batch"
        return "steps" if self.adopted else "all"

    @property
    def adopted(self) -> bool:
        """Whether the job was submitted to Slurm by a user."""
        return bool(self.order.spec.origin)


class SlurmView(NamedTuple):
    """Slurm's jobs as of loop time `began`."""

    jobs: Mapping[str, SlurmJob]
    began: float
    next: int = 1
    """Lowest job number that did not exist yet."""
    unread: frozenset[int] = frozenset()
    """Numbers of jobs that exist but whose records cannot be parsed."""
    asked: frozenset[str] | None = None
    """The refs whose state is current; the others are from an earlier poll. None: all are
    current."""

    @classmethod
    def of(cls, jobs: Iterable[SlurmJob], began: float) -> SlurmView:
        """Index a full listing by Slurm job id."""
        known: dict[str, SlurmJob] = {}
        unread, last = set(), 0
        for job in jobs:
            last = max(last, job.id)
            if job.unread:
                unread.add(job.id)
            else:
                known.update(dict.fromkeys(job.refs, job))
        return cls(known, began, last + 1, frozenset(unread))

    def shows(self, ref: str) -> bool:
        """Return whether the view is current for a job."""
        return self.asked is None or ref in self.asked


def comment_of(instance: str, key: AttemptKey) -> str:
    """Return the comment that marks an attempt: daemon, attempt number, job id."""
    return f"{MARK}:{instance}:{key[1]}:{key[0]}"


def key_of(instance: str, comment: str) -> AttemptKey | None:
    """Parse a comment; return the attempt if the comment is of this daemon, else None."""
    mark, name, attempt, job = (*comment.split(":", 3), "", "", "", "")[:4]
    if (mark, name) != (MARK, instance) or not attempt.isdecimal():
        return None
    return job, int(attempt)


def gone(run: SlurmAttempt, now: float) -> Observation:
    """Return the observation for an attempt that Slurm no longer knows."""
    known = max(run.alive or 0.0, run.released or 0.0)
    if known and now - known < FORGETS:
        return Lost(*run.key, LOST_IT)
    return Ended(*run.key, why=FORGOTTEN, by_itself=run.stopped is None)


def end_of(run: SlurmAttempt, job: SlurmJob) -> Observation | None:
    """Return the observation for a job that has ended in Slurm, else None.

    A cancelled job is CANCELLED at once, even while its processes still run.
    """
    key, state = run.key, job.state
    why = job.reason if job.reason not in ("None", "NonZeroExitCode") else ""
    if state == "COMPLETED":
        return Ended(*key, code=0, by_itself=True)
    if state == "FAILED":
        code = None if job.code == 0 else job.code
        return Ended(*key, code=code, signal=job.signal, why=why, by_itself=True)
    if state in ENDED_BY:
        signal, why = ENDED_BY[state]
        cancelled = state == "CANCELLED"
        return Ended(*key, signal=signal, why=why, cancelled=cancelled, by_itself=not cancelled)
    if state in LOST_BY:
        kind = StartFailed if state == "BOOT_FAIL" and not run.reported else Lost
        return kind(*key, LOST_BY[state])
    return None
