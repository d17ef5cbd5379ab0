"""Read from notices what job records lack: earlier stays in queues, runs, quotas and loans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from daemon.model.book import JobRecord
from daemon.model.job import PoolMode
from daemon.model.outputs import Notice
from replay.run.schedule import LoanSpan

KINDS = (
    "submitted", "held", "released", "started", "requeued", "pool_changed", "lending",
    "loan_opened", "loan_moved", "loan_closed", "preempted", "resized", "configured",
)  # fmt: skip
"""Kinds of notices with data that job records lack."""


class QueueSpan(NamedTuple):
    """One stay in the queue: its begin, the notice that began it, and start and end of its run."""

    joined: float
    order: int
    started: float | None = None
    ended: float | None = None


class Run(NamedTuple):
    """A time in which a job ran on the same GPUs, as the core counts it. It has no end yet."""

    start: float
    width: int
    trial: float = 0.0
    """When its trial began, if it has not ended; 0 for an ordinary run."""


class TrialSpan(NamedTuple):
    """A trial of a job, and how often the job had been requeued."""

    job: str
    number: int
    start: float
    end: float
    gpus: int


class Life:
    """History of a job that was in the queue more than once, or was stopped."""

    def __init__(self, record: JobRecord) -> None:
        """Start with the job in the queue since its submission."""
        self.record = record
        self.stays: list[QueueSpan] = []  # earlier stays in the queue that led to a run
        self.joined = record.submitted
        self.order = 0
        self.started: float | None = None

    def join(self, notice: Notice) -> None:
        """Move the job to the end of its queue."""
        self.joined, self.order, self.started = notice.time, notice.seq, None

    def requeued(self, notice: Notice) -> None:
        """Record that the job lost its GPUs and was requeued."""
        if self.started is not None:
            self.stays.append(QueueSpan(self.joined, self.order, self.started, notice.time))
        self.join(notice)


class NoticeHistory:
    """The history in the notices, read in one pass."""

    def __init__(self, records: Mapping[str, JobRecord], begin: float) -> None:
        """Use these jobs, by id; the history starts at `begin` (seconds since the epoch)."""
        self.lives = {
            i: Life(r) for i, r in records.items() if r.stays > 1 or r.attempt > 1 or r.preempted
        }
        self.changed = False
        """Whether a job was stopped, resized or tried, so that the schedule needs segments."""
        self.trials: list[TrialSpan] = []
        self._segments: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
        self._run: dict[str, Run] = {}
        self.orders: dict[str, int] = {}
        self.quotas: list[tuple[float, str, int]] = []
        self.switched: list[tuple[float, bool]] = []
        self.modes: Counter[str] = Counter()
        self.limits: Counter[str] = Counter()
        self.loans: list[tuple[str, int, LoanSpan]] = []  # job, number of its run, loan
        self._held: set[str] = set()
        self._open: dict[tuple[str, str], tuple[int, float]] = {}
        self._runs: Counter[str] = Counter()
        self._records, self._begin = records, begin

    def hear(self, notices: Iterable[Notice]) -> None:
        """Process notices of `KINDS` in order. O(1) each, except when a pool opens again."""
        hear = {
            "submitted": self._submitted, "held": self._none, "released": self._joined,
            "started": self._started, "requeued": self._requeued, "pool_changed": self._pool,
            "lending": self._lending, "loan_opened": self._opened, "loan_moved": self._moved,
            "loan_closed": self._closed, "preempted": self._preempted, "resized": self._resized,
            "configured": self._configured,
        }  # fmt: skip
        for notice in notices:
            hear[notice.kind](notice)

    def _none(self, notice: Notice) -> None:
        """Ignore the notice: a held job gets its place in the queue when it is released."""

    def _submitted(self, notice: Notice) -> None:
        self.orders[notice.job] = notice.seq
        if notice.job in self.lives:
            self.lives[notice.job].join(notice)

    def _joined(self, notice: Notice) -> None:
        self.orders[notice.job] = notice.seq
        if notice.job in self.lives:
            self.lives[notice.job].join(notice)
        elif notice.job in self._records:  # held since its submission
            life = self.lives[notice.job] = Life(self._records[notice.job])
            life.join(notice)

    def _started(self, notice: Notice) -> None:
        trial = notice.time if "trial" in notice.data else 0.0
        self._run[notice.job] = Run(notice.time, notice.data["gpus"], trial)
        if trial:
            self.changed = True
            return  # it starts when its trial becomes an ordinary run, or after it
        life = self.lives.get(notice.job)
        if life is not None and life.started is None:
            life.started = notice.time

    def _configured(self, notice: Notice) -> None:
        """Another policy, or other options, made trials ordinary runs, which keep their work."""
        for job in notice.data.get("untried", ()):
            run = self._run.get(job)
            if run is not None and run.trial:
                self._end_trial(job, run, notice.time)
                self._run[job] = run._replace(trial=0.0)
                life = self.lives.get(job)
                if life is not None and life.started is None:
                    life.started = run.start

    def _end_trial(self, job: str, run: Run, now: float) -> None:
        if run.start < now:
            self.trials.append(TrialSpan(job, self._runs[job], run.trial, now, run.width))

    def _preempted(self, notice: Notice) -> None:
        self.changed = True
        run = self._run.get(notice.job)
        if run is not None and run.trial:  # its work is lost
            self._end_trial(notice.job, self._run.pop(notice.job), notice.time)
        else:
            self._end_run(notice.job, notice.time)

    def _resized(self, notice: Notice) -> None:
        self._preempted(notice)
        self._run[notice.job] = Run(notice.time, notice.data["gpus"])

    def _end_run(self, job: str, now: float) -> None:
        """End the run of a job, if it is known to run; a job in a trial has ended in it."""
        run = self._run.pop(job, None)
        if run is not None and run.trial:
            self._end_trial(job, run, now)
        if run is not None and run.start < now:
            self._segments.setdefault((job, self._runs[job]), []).append(
                (run.start, now, run.width)
            )

    def segments(self, job: str, number: int, ended: float) -> list[tuple[float, float, int]]:
        """Return start, end and width of each run of a job's stay in the queue, ended by then.

        Stays are numbered from 0.
        """
        if number == self._runs[job]:
            self._end_run(job, ended)
        return self._segments.pop((job, number), [])

    def _requeued(self, notice: Notice) -> None:
        run = self._run.get(notice.job)
        if run is not None and run.trial:
            self._end_trial(notice.job, self._run.pop(notice.job), notice.time)
        self._end_run(notice.job, notice.time)
        self._runs[notice.job] += 1
        if notice.job in self.lives:
            self.lives[notice.job].requeued(notice)

    def _pool(self, notice: Notice) -> None:
        pool, data = notice.pool, notice.data
        if "quota" in data:
            self.quotas.append((notice.time, pool, data["quota"]))
        self.limits.update(key for key in ("lend_limit", "borrow_limit", "weight") if key in data)
        if "state" not in data:
            return
        self.modes[pool] += 1
        if data["state"] == PoolMode.HOLD.value:
            self._held.add(pool)
        elif pool in self._held:
            self._held.remove(pool)
            for life in self.lives.values():  # pending jobs join the queue now
                if life.record.spec.pool == pool and life.started is None:
                    life.join(notice)

    def _lending(self, notice: Notice) -> None:
        self.switched.append((notice.time, bool(notice.data["on"])))

    def _opened(self, notice: Notice) -> None:
        self._lend(notice, notice.pool, notice.data["gpus"])

    def _moved(self, notice: Notice) -> None:
        self._lend(notice, notice.data["previous"], -notice.data["gpus"])
        self._lend(notice, notice.pool, notice.data["gpus"])

    def _closed(self, notice: Notice) -> None:
        self._lend(notice, notice.pool, -notice.data["gpus"])

    def _lend(self, notice: Notice, donor: str, gpus: int) -> None:
        """Change the number of GPUs that a pool lends to a job."""
        key, now = (notice.job, donor), notice.time
        before, since = self._open.pop(key, (0, now))
        if not before and gpus < 0:  # opened before the oldest stored notice
            record = self._records.get(notice.job)
            since = self._begin if record is None else record.decided or self._begin
            before = -gpus
        if now > since and before:
            loan = LoanSpan(notice.job, donor, before, since, now)
            self.loans.append((notice.job, self._runs[notice.job], loan))
        if before + gpus > 0:
            self._open[key] = before + gpus, now

    def number(self, job: str) -> int:
        """Return how often a job was requeued."""
        return self._runs[job]
