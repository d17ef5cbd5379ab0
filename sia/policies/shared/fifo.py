"""A queue of pending jobs in order of their sequence numbers."""

from __future__ import annotations

from heapq import heappop, heappush

from sia.contract.views import JobStateView


class FifoQueue:
    """Jobs by sequence number.

    Most jobs join in order; only a changed estimate or priority breaks it. A heap is then as cheap
    as a list. Jobs that left are removed from the heap when they reach its top.

    Attributes:
        jobs: The jobs by sequence number, unordered.
    """

    __slots__ = ("_order", "jobs")

    def __init__(self) -> None:
        """Start empty."""
        self.jobs: dict[int, JobStateView] = {}
        self._order: list[int] = []

    def add(self, job: JobStateView) -> None:
        """Add a job. O(1) for the last in order, O(log n) amortised for others."""
        self.jobs[job.sequence] = job
        heappush(self._order, job.sequence)
        if len(self._order) > 2 * len(self.jobs) + 16:  # too many stale entries
            self._order = sorted(self.jobs)

    def first(self) -> int:
        """Return the lowest sequence number. The queue must not be empty. O(log n) amortised."""
        order, jobs = self._order, self.jobs
        while order[0] not in jobs:
            heappop(order)
        return order[0]
