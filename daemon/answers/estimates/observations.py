"""Observations behind estimates: run times, arrivals, waits and outcomes of estimates.

Pure. Observations are recorded in the order of the notices, so that the same journal gives the same
estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter

from daemon.answers.estimates.calibration import Calibration, Given
from daemon.answers.estimates.recent_arrivals import RecentArrivals
from daemon.answers.estimates.recent_waits import WaitHistory
from daemon.answers.estimates.worlds import plain_job
from daemon.model.book import JobRecord
from daemon.model.outputs import Notice
from predictors.run_time_distribution import RunTimeDistributions
from sia.model import Job

TimedObservation = tuple[float, int, Callable[[float], None]]
"""Time of an observation, its order at that time, and the function that records it."""

OVER = ("ended", "cancelled", "lost")
"""Kinds of notices that end a job."""


class EstimateInputs:
    """Collect observations; each notice must be passed exactly once.

    Attributes:
        lasting: Distributions of run times.
        lately: Recent arrivals.
        calibration: Outcomes of estimates.
        waits: Waits of jobs that did not start at once.
        tuned: When the options of the policy were last changed; 0 if never.
    """

    def __init__(self) -> None:
        """Start with no observation."""
        self.lasting, self.lately, self.calibration = (
            RunTimeDistributions(),
            RecentArrivals(),
            Calibration(),
        )
        self.waits = WaitHistory()
        self.tuned = 0.0

    def events(
        self, records: Iterable[JobRecord], given: Iterable[Given] = ()
    ) -> list[TimedObservation]:
        """Return these records as observations for `learn`; the records may change later. O(n)."""
        found = [event for record in records for event in self._of(record)]
        found += [(each.made, 1, partial(self._give, each)) for each in given]
        return found

    def changes(self, given: Iterable[Given], tuned: float) -> list[TimedObservation]:
        """Return an observation for each change of the policy's options that `given` shows. O(n).

        Each estimate in `given` records the last change before it. `tuned` is the time of the
        newest change.
        """
        self.tuned = tuned
        moments = {each.tuned for each in given} | {tuned}
        return [(moment, 0, self.calibration.retuned) for moment in sorted(moments) if moment]

    def _give(self, given: Given, _: float) -> None:
        self.calibration.give(given)

    def learn(self, events: Iterable[TimedObservation]) -> None:
        """Record past observations in order of time. O(n log n)."""
        for now, _, tell in sorted(events, key=itemgetter(0, 1)):
            self.calibration.advance(now)
            tell(now)

    def _of(self, record: JobRecord) -> list[TimedObservation]:
        """Return the observations of a job: its submission, start and end."""
        job, estimate = plain_job(record), record.run_time
        began, ended, queued, first = record.decided, record.ended, record.queued, _ran_from(record)

        def come(_: float) -> None:
            self.lasting.submitted(job)
            self.lately.submitted(job, estimate)

        def start(now: float) -> None:
            self._started(now, job, queued)

        found: list[TimedObservation] = [(record.submitted, 0, come)]
        if began is not None:
            found.append((began, 2, start))
        if ended is not None:
            found.append((ended, 3, lambda now: self._over(now, job, first)))
        return found

    def hear(self, notice: Notice, record: JobRecord | None) -> bool:
        """Record a notice and its job; return True if estimates may change."""
        if notice.kind == "policy":
            self.tuned = notice.time
            self.calibration.retuned(notice.time)
        if record is None:
            return not notice.job
        now, job = notice.time, plain_job(record)
        self.calibration.advance(now)
        kind = notice.kind
        if kind == "submitted":
            self.lasting.submitted(job)
            self.lately.submitted(job, record.run_time)
        elif kind == "started":
            if not record.stops:  # otherwise the job will start again
                self._started(now, job, record.queued)
        elif kind == "held":
            self.calibration.gone(job.id, now)
        elif kind == "requeued":
            self.calibration.gone(job.id, now)
            self.lasting.withdrawn(now, job)
            self.lasting.submitted(job)
        elif kind in OVER:
            self._over(now, job, _ran_from(record))
        return True

    def _started(self, now: float, job: Job, queued: float) -> None:
        self.lasting.started(now, job)
        self.calibration.started(job.id, now)
        self.waits.started(job.pool, now - queued)

    def _over(self, now: float, job: Job, began: float | None) -> None:
        if began is None:
            self.calibration.gone(job.id, now)
            self.lasting.withdrawn(now, job)
            self.lately.ended(job.id, None)
        else:
            seconds = max(0.0, now - began)
            self.calibration.ended(job.id, now)
            self.lasting.finished(now, job, seconds)
            self.lately.ended(job.id, seconds)


def _ran_from(record: JobRecord) -> float | None:
    """Return when a job would have begun if it had run without stops; None if it never ran."""
    began = record.started if record.decided is None else record.decided
    return None if began is None else began - record.ran
