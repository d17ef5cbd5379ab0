"""GPUs that jobs are leaving, where the core or the backend assigns GPUs.

The core counts a job's GPUs as free when it decides to stop the job. Until the job is gone, nothing
may start on them.
"""

from __future__ import annotations

from daemon.model.book import Book, JobRecord
from daemon.model.job import JobPhase
from sia.core.core import Core


class LeftGpus:
    """The GPUs that may not be used yet, for the starts of one step.

    With cells these are the GPUs of the jobs that are leaving. Otherwise GPUs are numbers: a start
    needs as many that are free for certain in its sharing group, and waits for the starts before
    it, which makes the wait of a wide job finite.
    """

    def __init__(self, book: Book, core: Core) -> None:
        """Count the GPUs. O(jobs that are leaving + jobs that wait for GPUs)."""
        self._cells = core.state.places is not None
        self._pools = core.state.pools
        self._busy: set[tuple[str, int]] = set()
        self._free = {group.first: group.idle for group in core.state.groups}
        self._tight: set[str] = set()
        for job_id in book.leaving:
            record = book.jobs[job_id]
            if self._cells:
                self._busy.update((node, gpu) for node, gpus in record.nodes for gpu in gpus)
                continue
            group = self._group(record)
            self._tight.add(group)
            counted = record.gpus if record.core and record.phase is not JobPhase.STOPPING else 0
            self._free[group] -= max(0, record.taken - counted)
        if not self._cells:
            for job_id in book.seatless:
                record = book.jobs[job_id]
                self._free[self._group(record)] += record.gpus

    def _group(self, record: JobRecord) -> str:
        return self._pools[record.spec.pool].group.first

    def free_for(self, record: JobRecord) -> bool:
        """Return whether a job's GPUs are free; if so, they count as used from now on."""
        if self._cells:
            wanted = {(node, gpu) for node, gpus in record.nodes for gpu in gpus}
            return self._busy.isdisjoint(wanted)
        group = self._group(record)
        if group not in self._tight:
            return True
        if record.gpus > self._free[group]:
            self._free[group] = 0  # those behind it wait as well
            return False
        self._free[group] -= record.gpus
        return True
