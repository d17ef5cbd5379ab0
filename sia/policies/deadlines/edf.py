"""Earliest deadline first, as Chronus is compared with (§4.3)."""

from __future__ import annotations

from typing import Any

from sia.contract.policy import Needs
from sia.contract.views import JobStateView
from sia.policies.shared.ranked import Ranked


class EarliestDeadline(Ranked):
    """Runs jobs with a deadline, by their first step, then the others by arrival.

    Running jobs with a deadline are never stopped. Other running jobs are stopped for jobs before
    them in this order. A job that does not fit is skipped.
    """

    needs = Needs(preemption=True)
    heeds = frozenset({"deadline", "preemptible"})

    def waiting_rank(self, job: JobStateView) -> Any:
        """Return the deadline, or last the order of arrival."""
        deadline = job.job.deadline
        return (1, 0.0) if deadline is None else (0, deadline)

    def running_key(self, job: JobStateView) -> Any:
        """Return the same as `waiting_rank`."""
        return self.waiting_rank(job)

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Return the key, which does not change with time."""
        return key

    def is_pinned(self, job: JobStateView) -> bool:
        """Return True for jobs with a deadline, too."""
        return super().is_pinned(job) or job.job.deadline is not None
