"""What estimates go by, as it is heard of: how long jobs last, which came, what came of estimates.

Pure, and told in the order of the notices, so that the same journal makes the same estimates.
"""

from __future__ import annotations

from daemon.answers import Notice
from daemon.book import JobRecord
from daemon.insight.calibration import Calibration
from daemon.insight.lately import Lately
from daemon.insight.outlook import plain_job
from predictors.lasting import Lasting

OVER = ("ended", "cancelled", "lost")
"""Notices of jobs that are over."""


class Heard:
    """Hears of each notice once.

    Attributes:
        lasting: How long jobs last.
        lately: Which came.
        calibration: What came of estimates.
    """

    def __init__(self) -> None:
        """Nothing happened yet."""
        self.lasting, self.lately, self.calibration = Lasting(), Lately(), Calibration()

    def hear(self, notice: Notice, record: JobRecord | None) -> bool:
        """A notice, and the job that it is of; whether it changes what may be estimated."""
        if record is None:
            return not notice.job
        now, job = notice.time, plain_job(record)
        self.calibration.advance(now)
        kind = notice.kind
        if kind == "submitted":
            self.lasting.submitted(job)
            self.lately.submitted(job, record.run_time)
        elif kind == "started":
            self.lasting.started(now, job)
            self.calibration.started(job.id, now)
        elif kind == "held":
            self.calibration.gone(job.id, now)
        elif kind == "requeued":
            self.calibration.gone(job.id, now)
            self.lasting.withdrawn(now, job)
            self.lasting.submitted(job)
        elif kind in OVER:
            self._over(now, record)
        return True

    def _over(self, now: float, record: JobRecord) -> None:
        job = plain_job(record)
        if record.decided is None:
            self.calibration.gone(job.id, now)
            self.lasting.withdrawn(now, job)
            self.lately.ended(job.id, None)
        else:
            seconds = max(0.0, now - record.decided)
            self.calibration.ended(job.id, now)
            self.lasting.finished(now, job, seconds)
            self.lately.ended(job.id, seconds)
