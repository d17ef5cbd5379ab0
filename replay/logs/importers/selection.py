"""What importers make of a log: the jobs that can be replayed, and the others counted by reason."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from pathlib import Path

import msgspec

from replay.logs.limits import MIN_DURATION
from replay.logs.read import BadCellError, shown
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job


class ImportedJobs:
    """Jobs of a log in the order of its rows, `dropped` by reason, and `notes` on the rest."""

    def __init__(self, log: Path, job_id: str, *columns: str, what: str = "job") -> None:
        """`job_id` is the log's word for it, `columns` are kept besides, `what` is looked for."""
        self.dropped: Counter[str] = Counter()
        self.notes: list[str] = []
        self._log, self._job_id, self._what = log, job_id, what
        self._columns = columns
        self._arrivals: list[Arrival] = []
        self._extras: dict[str, tuple[str, ...]] = {}
        self._cells: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, job: Job, duration: float, *cells: str) -> bool:
        """Keep a job, submitted by the publisher's clock, if it ran. Raises BadCellError."""
        if not job.id:
            raise BadCellError(self._job_id, "it is empty", "give the job an id", "")
        if job.id in self._extras:
            raise BadCellError(self._job_id, f"{shown(job.id)} stands twice", "keep one row", "")
        if duration < MIN_DURATION:
            self.dropped["ended before it started" if duration < 0 else "ran for 0 seconds"] += 1
            return False
        self._arrivals.append(Arrival(job, duration))
        # A log has many jobs and few different further cells: one tuple for all that are equal.
        self._extras[job.id] = self._cells.setdefault(cells, cells)
        return True

    def first(self) -> float:
        """When the first job was submitted. Raises UserError where there is no job."""
        if not self._arrivals:
            why = ", ".join(f"{n} {reason}" for reason, n in sorted(self.dropped.items()))
            raise UserError(
                f"{self._log}: no {self._what} that ran is in it ({why or 'it has no rows'}); "
                "give another log"
            )
        return min(arrival.job.submit for arrival in self._arrivals)

    def trace(self, origin: float = 0.0) -> Trace:
        """The jobs in order of submission, `origin` being second 0. Raises UserError."""
        self.first()
        arrivals = self._arrivals
        if origin:
            arrivals = [Arrival(_shifted(job, origin), duration) for job, duration in arrivals]
        arrivals.sort(key=_submit)
        return Trace(arrivals, self._columns, self._extras, self.dropped, self.notes)


_submit = attrgetter("job.submit")


def _shifted(job: Job, origin: float) -> Job:
    return msgspec.structs.replace(job, submit=job.submit - origin)
