"""Waiting jobs of one kind, in order."""

from __future__ import annotations

from heapq import heappop, heappush

from sia.state.state import JobState


class FifoQueue:
    """Jobs by their sequence numbers.

    They mostly join in that order, but for those whose estimate or priority changes: a heap costs
    nothing then. Who has left is dropped from it when it comes first.

    Attributes:
        jobs: By sequence number, in no order.
    """

    __slots__ = ("_order", "jobs")

    def __init__(self) -> None:
        """Start with nobody."""
        self.jobs: dict[int, JobState] = {}
        self._order: list[int] = []

    def add(self, job: JobState) -> None:
        """A job joins. O(1) for the last, O(log n) amortised for another."""
        self.jobs[job.sequence] = job
        heappush(self._order, job.sequence)
        if len(self._order) > 2 * len(self.jobs) + 16:  # many left behind the first, or came twice
            self._order = sorted(self.jobs)

    def first(self) -> int:
        """The least sequence number; there must be one. O(log n) amortised."""
        order, jobs = self._order, self.jobs
        while order[0] not in jobs:
            heappop(order)
        return order[0]
