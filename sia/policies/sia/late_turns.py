"""Late turns: turns of jobs that came while guests had their cells, and the guests that did.

In a cluster with cells, policies with turns record here that the head of a pool cannot have its
cells although they are in its pool's quota. When the head, or a job behind it, starts, this module
tells how late that is and why. It becomes a row of the table `late_turns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from sia.contract.proposals import Record
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.limits import SLOWED
from sia.wording import as_typed

LATE_TURNS = "late_turns"
"""Name of the table of late turns. Its columns are the job, its pool, its turn and its start in
seconds, the guests that delayed it, and the job behind which it waited."""

NOT_TO_BE_STOPPED = "must not be stopped"
"""The reason why guests that delayed a start were not stopped."""

MOST_NAMED = 5
"""Maximum number of guests that are named as the cause of a late turn."""


class MissedTurn(Struct, frozen=True):
    """The head of a pool whose turn came, in seconds, while guests had its cells."""

    job_id: str
    turn: float
    in_the_way: str


class LateStart(Struct, frozen=True):
    """The job of a pool that last started late at its turn, and by how many seconds."""

    job_id: str
    seconds: float


class LateTurn(NamedTuple):
    """A late turn: its time, the guests that blocked it, and the late job behind which it was."""

    turn: float
    in_the_way: str
    behind: str

    def row(self, job: JobStateView, now: float) -> Record:
        """Return the row of a job that starts now."""
        columns = (job.job.id, job.pool.name, self.turn, now, self.in_the_way, self.behind)
        return Record(LATE_TURNS, columns)

    def reason(self, now: float, whom: str) -> str:
        """Return why a job starts after its turn; `whom` describes the jobs that blocked it."""
        late = f"its turn came {as_typed(round(now - self.turn))} ago"
        if self.in_the_way:
            return f"{late}; {whom}: {self.in_the_way}"
        return f"{late}, behind {self.behind} of its pool, which was late" if self.behind else late


class LateTurnsSnapshot(Struct, frozen=True, omit_defaults=True):
    """Missed turns and last late starts by pool; the turns of jobs that started late by job."""

    missed: dict[str, MissedTurn] = {}
    late: dict[str, LateStart] = {}
    turns: dict[str, float] = {}


class LateTurns:
    """The late turns of all pools. Every method but those for snapshots is O(1)."""

    def __init__(self) -> None:
        """Start without late turns."""
        self._missed: dict[PoolStateView, MissedTurn] = {}
        self._late: dict[PoolStateView, LateStart] = {}
        self._turns: dict[str, float] = {}  # of jobs that started late and have not ended

    def memory(self) -> LateTurnsSnapshot:
        """Return the whole state. O(pools + jobs)."""
        missed = {pool.name: found for pool, found in self._missed.items()}
        late = {pool.name: found for pool, found in self._late.items()}
        return LateTurnsSnapshot(missed, late, self._turns)

    def resume(self, memory: LateTurnsSnapshot, state: ClusterStateView) -> None:
        """Restore the state into a new object. Raises ValueError for an unknown pool."""
        missed, late = state.pools_of(memory.missed), state.pools_of(memory.late)
        self._missed = dict(zip(missed, memory.missed.values(), strict=True))
        self._late = dict(zip(late, memory.late.values(), strict=True))
        self._turns = {job: turn for job, turn in memory.turns.items() if job in state.jobs}

    def is_missed(self, job: JobStateView) -> bool:
        """Return whether it is known that a job's turn came and guests were in its way."""
        missed = self._missed.get(job.pool)
        return missed is not None and missed.job_id == job.job.id

    def miss(self, job: JobStateView, now: float, in_the_way: Iterable[str]) -> None:
        """Note that the turn of a pool's head came now, and which guests have its cells."""
        self._missed[job.pool] = MissedTurn(job.job.id, float(now), ", ".join(in_the_way))

    def passed(self, job: JobStateView, now: float) -> None:
        """Note that a head is one no more. If its turn was missed, its pool is so late now."""
        if self.is_missed(job):
            missed = self._missed.pop(job.pool)
            self._late[job.pool] = LateStart(missed.job_id, float(now - missed.turn))

    def of(self, job: JobStateView, now: float) -> LateTurn | None:
        """Return how late the turn of a job is that starts now, or None if nobody held it up.

        Nobody knows when the turn of a job behind a late one would have been. It was submitted by
        then, and is taken for as late as that job at most.
        """
        missed, before, submit = (
            self._missed.get(job.pool),
            self._late.get(job.pool),
            job.job.submit,
        )
        if missed is not None and missed.job_id == job.job.id:
            found = LateTurn(missed.turn, missed.in_the_way, "")
        elif missed is not None:
            found = LateTurn(max(missed.turn, submit), "", missed.job_id)
        elif before is not None:
            found = LateTurn(max(now - before.seconds, submit), "", before.job_id)
        else:
            return None
        return found if now - found.turn > SLOWED else None

    def started(self, job: JobStateView, now: float, late: LateTurn | None) -> None:
        """Record that a job has started, and how late; if it is in time, so is its pool."""
        if late is None:
            self._late.pop(job.pool, None)
        else:
            self._late[job.pool] = LateStart(job.job.id, float(now - late.turn))
            self._turns[job.job.id] = float(late.turn)

    def turn_of(self, job: JobStateView) -> float | None:
        """Return when the turn of a job came that is late for it, or was when it started."""
        if self.is_missed(job):
            return self._missed[job.pool].turn
        return self._turns.get(job.job.id)

    def gone(self, job: JobStateView, now: float) -> None:
        """Forget a job that has ended or was withdrawn."""
        self._turns.pop(job.job.id, None)
        self.passed(job, now)
