"""What a scheduler asks of forecasts; `predictors/` derives from these and answers.

Whoever drives the core asks and hands the answers in as events, so that a journal of events holds
all that was known at the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sia.model import Estimate, Job, Load


class RunTimes:
    """How long jobs will run (§5.2, JobDuration), in seconds.

    At one instant ends are told first, then arrivals are asked about, then `changes` is asked.
    """

    def run_time(self, job: Job) -> float:
        """The estimate at submission; SIA looks only at which window's bin it falls into."""
        raise NotImplementedError

    def started(self, now: float, job: Job) -> None:
        """Learn that a job runs from now on."""

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Learn that a job has ended, and how long it ran."""

    def withdrawn(self, now: float, job: Job) -> None:
        """Learn that a job is gone without having ended."""

    def changes(self, now: float) -> Sequence[Estimate]:
        """Jobs that wait and are thought of otherwise than last said."""
        return ()


class Loads:
    """How many GPUs will be asked for by new jobs (§5.2, TotalNewLoad)."""

    def submitted(self, now: float, job: Job) -> None:
        """Learn that a job arrived."""

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Learn that a job runs from now on, and how long it is thought to."""

    def finished(self, now: float, job: Job) -> None:
        """Learn that a job has ended."""

    def withdrawn(self, now: float, job: Job) -> None:
        """Learn that a job is gone without having ended."""

    def unasked(self, now: float) -> None:
        """Learn from a tick of the past, at which nobody asks: what would have been said counts."""

    def changes(self, now: float) -> Sequence[Load]:
        """Forecasts that differ from what was said last; at first all pools have load 0."""
        raise NotImplementedError
