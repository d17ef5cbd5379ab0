"""Times at which the core must be called without an event: policy's wish, rounds and leases."""

from __future__ import annotations

from math import inf

from sortedcontainers import SortedList

from sia.state.state import JobState


class CoreTimers:
    """One queue of timers. Times are in seconds.

    Attributes:
        wish: When the policy last asked to be called; infinite once that time has come.
        retry: When a refused proposal is considered again; infinite once that time has come.
        round: When the next round begins; infinite without rounds, or without jobs.
    """

    def __init__(self) -> None:
        """Start without timers."""
        self.wish = self.retry = self.round = inf
        self._leases: SortedList[tuple[float, int, str]] = SortedList()  # end, sequence, job
        self._first = inf  # the end of the first of them; most policies give no leases

    @property
    def next(self) -> float:
        """The earliest of all timers, or infinity. O(1)."""
        due = self.wish if self.wish < self.retry else self.retry  # noqa: FURB136  min() is slow
        other = self.round if self.round < self._first else self._first  # noqa: FURB136
        return due if due < other else other  # noqa: FURB136

    def lease(self, job: JobState, until: float | None) -> None:
        """Set or remove the end of a running job's lease. O(log n)."""
        if job.lease is not None:
            self._leases.discard((job.lease, job.sequence, job.job.id))
        job.lease = until
        if until is not None:
            self._leases.add((until, job.sequence, job.job.id))
        self._note_first()

    def _note_first(self) -> None:
        self._first = self._leases[0][0] if self._leases else inf

    def expired(self, now: float) -> list[str]:
        """Remove the leases that are over, and return their jobs. O(log n) for each."""
        over: list[str] = []
        leases = self._leases
        while leases and leases[0][0] <= now:
            over.append(leases.pop(0)[2])
        self._note_first()
        return over

    def check(self, jobs: dict[str, JobState]) -> None:
        """Assert that exactly the running jobs with a lease are in the queue. O(n)."""
        leases = [(j.lease, j.sequence, i) for i, j in jobs.items() if j.lease is not None]
        assert sorted(leases) == list(self._leases)
        assert self._first == min((end for end, *_ in leases), default=inf)
        assert all(jobs[job_id].stream is not None for _, _, job_id in leases)
