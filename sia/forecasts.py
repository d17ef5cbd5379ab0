"""What a scheduler asks of forecasts; `predictors/` answers.

Whoever drives the core asks and hands the answers in as events, so that a journal of events holds
all that was known at the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sia.model import Job, Load


class RunTimes(Protocol):
    """How long jobs will run (§5.2, JobDuration), in seconds."""

    def run_time(self, job: Job) -> float:
        """The estimate at submission; SIA looks only at which window's bin it falls into."""

    def finished(self, job: Job, run_time: float) -> None:
        """Learn that a job has ended, and how long it ran."""


class Loads(Protocol):
    """How many GPUs will be asked for by new jobs (§5.2, TotalNewLoad)."""

    def submitted(self, now: float, job: Job) -> None:
        """Learn that a job arrived."""

    def changes(self, now: float) -> Sequence[Load]:
        """Forecasts that differ from what was said last; at first all pools have load 0."""
