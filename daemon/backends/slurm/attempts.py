"""Attempts that Slurm runs, or is to run, and what its words for their states mean here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.slurm.schema import SlurmJob
from daemon.model.inputs import Ended, Lost, Observation, StartFailed
from daemon.model.outputs import StartEffect

TERM, KILL = 15, 9

FORGOTTEN = (
    "Slurm knows nothing of it any more: how it ended is not known (it was over for longer than "
    "MinJobAge when the daemon looked again, or Slurm has lost its state)"
)

LOST_IT = (
    "Slurm has lost it: it was there a moment ago (slurmctld was killed before it saved its state)"
)

FORGETS = 60.0
"""Seconds for which Slurm surely knows what is over: MinJobAge is 300, and hardly ever less."""

ENDED_BY = {
    "TIMEOUT": (TERM, "time limit, in Slurm"),
    "OUT_OF_MEMORY": (KILL, "out of memory"),
    "DEADLINE": (TERM, "its deadline in Slurm has passed"),
    "CANCELLED": (TERM, "cancelled in Slurm"),
}
"""States in which Slurm has ended a job: by which signal, and why."""

LOST_BY = {
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "Slurm has preempted it",
    "BOOT_FAIL": "its nodes did not boot",
}
"""States in which a job is gone through no fault or wish of its own."""

MARK = "sia"
"""How the comments of jobs begin that a daemon has submitted."""

RUNS = "slurm/run/"
"""How marks begin that say what an attempt is called in Slurm."""


class SlurmAttempt:
    """An attempt that is to begin, to end, or to be followed.

    Attributes:
        ref: What it is called in Slurm; None until that is durable.
        submitted: When Slurm says that it was submitted; None where that was not seen.
        seen: Whether it is surely that which is called so: Slurm was not away since.
        sought: Whether it was looked for in Slurm, where a daemon before may have submitted it.
        fresh: Whether no daemon before this one can have released it.
        released: When it was last told to run, by the loop's clock; None before.
        free: Whether Slurm has shown that it knows of that, and was not away since: who holds the
            job after that is a person.
        restarts: How often Slurm had begun it anew by then.
        alive: When Slurm last knew it to be not over, by the loop's clock; None before.
        before: Where it was to run by Slurm right before its release; None where nobody asked.
        vain: How often Slurm did not have what it had said that it took.
    """

    def __init__(
        self, order: StartEffect, *, sought: bool, started: bool = False, fresh: bool = False
    ) -> None:
        """It is to begin, unless it is found."""
        self.order, self.sought, self.told, self.fresh = order, sought, started, fresh
        self.ref: str | None = order.spec.origin.partition("@")[0] or None
        self.submitted: int | None = None
        self.seen = False
        self.released: float | None = None
        self.free = False
        self.restarts = 0
        self.alive: float | None = None
        self.before: tuple[str, frozenset[str]] | None = None
        self.tries = 0
        self.vain = 0
        self.stop = False
        self.stopped = False

    def named(self, mark: str) -> None:
        """It is called so, and was submitted then."""
        self.ref, _, when = mark.partition("@")
        self.submitted = int(when) if when else None

    @property
    def key(self) -> AttemptKey:
        """Of which job it is which attempt."""
        return self.order.job, self.order.attempt

    @property
    def adopted(self) -> bool:
        """Whether it was in Slurm before it was here."""
        return bool(self.order.spec.origin)


class SlurmView(NamedTuple):
    """What Slurm knew of jobs when that was asked at `began`, by the loop's clock."""

    jobs: Mapping[str, SlurmJob]
    began: float
    next: int = 1
    """The number of the first job that was not there yet."""
    unread: frozenset[int] = frozenset()
    """Numbers of those that are there, and of which no more is known."""
    asked: frozenset[str] | None = None
    """Those of `jobs` that are as they were then; the others are older. None: all are."""

    @classmethod
    def of(cls, jobs: Iterable[SlurmJob], began: float) -> SlurmView:
        """By what they are called."""
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
        """Whether it says of this one how it is now, or that it is not there."""
        return self.asked is None or ref in self.asked


def comment_of(instance: str, key: AttemptKey) -> str:
    """What a job's comment says: which daemon's, which attempt, which job."""
    return f"{MARK}:{instance}:{key[1]}:{key[0]}"


def key_of(instance: str, comment: str) -> AttemptKey | None:
    """Of which job of this daemon a comment says that it is which attempt, if it is of one."""
    mark, name, attempt, job = (*comment.split(":", 3), "", "", "", "")[:4]
    if (mark, name) != (MARK, instance) or not attempt.isdecimal():
        return None
    return job, int(attempt)


def gone(run: SlurmAttempt, now: float) -> Observation:
    """What to say of a job that may have run and that Slurm does not know any more."""
    known = max(run.alive or 0.0, run.released or 0.0)
    if known and now - known < FORGETS:
        return Lost(*run.key, LOST_IT)
    return Ended(*run.key, why=FORGOTTEN, by_itself=not run.stopped)


def end_of(run: SlurmAttempt, job: SlurmJob) -> Observation | None:
    """What to say of a job that is over in Slurm; None if it is not.

    What is told to end there is CANCELLED from then on, whatever its processes do.
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
        kind = StartFailed if state == "BOOT_FAIL" and not run.told else Lost
        return kind(*key, LOST_BY[state])
    return None
