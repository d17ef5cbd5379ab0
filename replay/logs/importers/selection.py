"""The result of an importer: jobs that can be replayed, and the dropped ones counted by reason."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from pathlib import Path

from replay.logs.limits import MIN_DURATION
from replay.logs.read import BadCellError, shown
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_QUOTA
from sia.model import Job


class ImportedJobs:
    """Collect the jobs of a log in row order, with `dropped` counts by reason and `notes`."""

    def __init__(self, log: Path, job_id: str, *columns: str, what: str = "job") -> None:
        """Start without jobs.

        `job_id` names the log's ID column in errors, `columns` are the extra columns to store, and
        `what` names the jobs that the importer selects.
        """
        self.dropped: Counter[str] = Counter()
        self.notes: list[str] = []
        self._log, self._job_id, self._what = log, job_id, what
        self._columns = columns
        self._arrivals: list[Arrival] = []
        self._extras: dict[str, tuple[str, ...]] = {}
        self._cells: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, job: Job, duration: float, *cells: str) -> bool:
        """Add a job if it ran and a log may have its width; return whether. Raises BadCellError.

        `job.submit` is in the publisher's time, `duration` in seconds; `cells` are the extra
        columns.
        """
        if not job.id:
            raise BadCellError(self._job_id, "empty", "give the job an ID", "")
        if job.id in self._extras:
            raise BadCellError(
                self._job_id, f"duplicate {shown(job.id)}", "remove one of the rows", ""
            )
        if job.width > MAX_QUOTA:
            self.dropped[f"wider than {MAX_QUOTA} GPUs"] += 1
            return False
        if duration < MIN_DURATION:
            self.dropped["ended before it started" if duration < 0 else "ran for 0 seconds"] += 1
            return False
        self._arrivals.append(Arrival(job, duration))
        # Logs have many jobs but few distinct extra cells; sharing equal tuples saves memory.
        self._extras[job.id] = self._cells.setdefault(cells, cells)
        return True

    def first(self) -> float:
        """Return the earliest submission time. Raises UserError if there are no jobs."""
        if not self._arrivals:
            why = ", ".join(f"{n} {reason}" for reason, n in sorted(self.dropped.items()))
            raise UserError(
                f"{self._log}: the log has no {self._what} that ran ({why or 'no rows'}); "
                "use another log"
            )
        return min(arrival.job.submit for arrival in self._arrivals)

    def trace(self, origin: float | None = None) -> Trace:
        """Return the jobs in order of submission, with `origin` as second 0. Raises UserError."""
        self.first()
        arrivals = self._arrivals
        if origin:
            arrivals = [
                Arrival(job.submitted_at(job.submit - origin), duration)
                for job, duration in arrivals
            ]
        arrivals.sort(key=_submit)
        return Trace(arrivals, self._columns, self._extras, self.dropped, self.notes, origin)


_submit = attrgetter("job.submit")
