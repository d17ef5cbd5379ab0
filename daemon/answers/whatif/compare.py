"""Compare two futures: which jobs start or end earlier or later, and by how much. Pure.

Under a policy that changes the widths of running jobs, the ends are compared instead of the starts:
a job may start at once in both futures and end much later in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from daemon.answers.estimates.predict import (
    EstimateContext,
    RawEstimate,
    little_known,
    stated,
)
from daemon.answers.estimates.worlds import HORIZON
from daemon.answers.simulate.forward import Played, PredictedStart
from daemon.answers.simulate.futures import estimated, is_unknown, overruns
from daemon.answers.whatif.whatif import Question, WhatIfOutcome, anew
from daemon.model.book import Book, JobRecord
from daemon.model.job import ON_GPUS, JobPhase, JobSpec
from daemon.wire.whatif import (
    WHATIF_JOBS,
    AskedJob,
    Moved,
    PoolGuests,
    PoolMoved,
    Span,
    WhatIfAnswer,
)
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.policies import load
from sia.wording import counted

SHOWN = 100
"""Maximum number of jobs listed as earlier, and as later. The sums include all jobs."""

TOLD = "assumes that no more jobs arrive and that load forecasts stay the same"
"""Note for a daemon in which too few jobs have ended for estimates."""

ESTIMATED = (
    "for other jobs, assumes that no more jobs arrive, that each runs for the median time of "
    "similar jobs, and that load forecasts stay the same"
)

CanSee = Callable[[str], bool]
"""Returns True if the caller may see the jobs of a pool."""


def compare(
    book: Book,
    now: float,
    question: Question,
    unchanged: WhatIfOutcome,
    altered: WhatIfOutcome,
    sees: CanSee,
) -> WhatIfAnswer:
    """Return the effect of a change on pools visible to the caller. O(n · log n) for n starts.

    Args:
        book: The book of the simulated engine; it may be a few steps newer.
        now: Time of the change.
        question: The change.
        unchanged: The future without the change, and its notes (`notes_of`).
        altered: The future with the change.
        sees: Returns True for visible pools.
    """
    as_is, changed = unchanged.played, altered.played
    assert as_is is not None, "the unchanged future has no command that could be refused"
    assert changed is not None, "a refused change is not compared"
    asked, before, after = _asked(book, question), _by_job(as_is), _by_job(changed)
    ends = load(book.setup.policy).needs.resizing
    old, new = (
        _ended(book, question, played) if ends else _started(played) for played in (as_is, changed)
    )
    spans = [_Spans(now, question.known, each, starts)
             for each, starts in ((unchanged, before), (altered, after))]  # fmt: skip
    shown = {job_id: one for job_id, one in asked.items() if sees(_pool(one))}
    names = {name for job_id in asked for name in (job_id, anew(job_id))}
    moved = [
        move
        for job_id in dict.fromkeys((*old, *new))
        if job_id not in names
        and (ends or (job_id in old and job_id in new) or not _runs(book.job(job_id)))
        and (move := _moved(old.get(job_id), new.get(job_id), as_is, changed)) is not None
        and sees(move.pool)
    ]
    return WhatIfAnswer(
        now,
        min(as_is.until, changed.until),
        as_is.cut or changed.cut,
        [sum(sees(start.pool) for start in played.starts) for played in (as_is, changed)],
        "end" if ends else "start",
        [*islice(_described(book, question, shown, *spans), WHATIF_JOBS)],
        nsmallest(SHOWN, (move for move in moved if _is_earlier(move)), key=_most),
        nsmallest(SHOWN, (move for move in moved if not _is_earlier(move)), key=_most),
        _sums(moved),
        _guests(as_is, changed, sees),
        [*dict.fromkeys((*unchanged.notes, *altered.notes))],
    )


def _runs(record: JobRecord | None) -> bool:
    """Return True if a job runs and is not being stopped.

    Only a future that stops it starts it again.
    """
    return record is not None and record.phase in ON_GPUS - {JobPhase.STOPPING}


def _by_job(played: Played) -> dict[str, PredictedStart]:
    """Return the first start and the last end of each job, which may be stopped in between."""
    found: dict[str, PredictedStart] = {}
    for each in played.starts:
        first = found.get(each.job)
        found[each.job] = each if first is None else replace(first, end=each.end)
    return found


class _Moment(NamedTuple):
    """The start or the end of a job in one future."""

    job: str
    pool: str
    gpus: int
    time: float


def _started(played: Played) -> dict[str, _Moment]:
    return {
        each.job: _Moment(each.job, each.pool, each.gpus, each.start)
        for each in _by_job(played).values()
    }


def _ended(book: Book, question: Question, played: Played) -> dict[str, _Moment]:
    """Return the ends of the jobs that are still in the book, or that the question submits."""
    specs = {spec.id: spec for spec in question.new}
    specs |= {job_id: book.jobs[job_id].spec for job_id in played.ends if job_id in book.jobs}
    return {
        job_id: _Moment(job_id, specs[job_id].pool, specs[job_id].gpus, time)
        for job_id, time in played.ends.items()
        if job_id in specs
    }


def _moved(a: _Moment | None, b: _Moment | None, as_is: Played, changed: Played) -> Moved | None:
    """Return the change of a job's start or end; None if it is the same or unknown.

    An event that does not happen in one of the futures counts as after the end of that future.
    """
    one = a or b
    assert one is not None, "it happens in at least one future"
    start = as_is.until if a is None else a.time
    by = (changed.until if b is None else b.time) - start
    whole = a is not None and b is not None
    if abs(by) <= SLOWED or (not whole and (by > 0) is (a is None)):
        return None
    is_now, then = None if a is None else a.time, None if b is None else b.time
    return Moved(one.job, one.pool, one.gpus, is_now, then, abs(by))


def _is_earlier(move: Moved) -> bool:
    return move.now is None or (move.then is not None and move.then < move.now)


def _most(move: Moved) -> tuple[float, str]:
    return -move.by, move.job


def _sums(moved: Iterable[Moved]) -> list[PoolMoved]:
    found: dict[str, PoolMoved] = {}
    for move in moved:
        of = found.get(move.pool)
        if of is None:
            of = found[move.pool] = PoolMoved(move.pool, 0, 0, 0.0, 0.0, 0.0, 0.0)
        hours = move.by * move.gpus / 3600.0
        if _is_earlier(move):
            of.earlier += 1
            of.earlier_seconds += move.by
            of.earlier_gpu_hours += hours
        else:
            of.later += 1
            of.later_seconds += move.by
            of.later_gpu_hours += hours
    return [found[name] for name in sorted(found)]


def _guests(as_is: Played, changed: Played, sees: CanSee) -> list[PoolGuests]:
    """Return the numbers of guests and of stops in each visible pool, in both futures."""
    both = as_is, changed
    pools = {pool for one in both for counts in (one.guests, one.stops) for pool in counts}
    found = []
    for pool in sorted(filter(sees, pools)):
        guests = [one.guests.get(pool, 0) for one in both]
        found.append(PoolGuests(pool, guests, [one.stops.get(pool, 0) for one in both]))
    return [each for each in found if any(each.guests) or any(each.stops)]


def _pool(one: JobRecord | JobSpec) -> str:
    return one.pool if isinstance(one, JobSpec) else one.spec.pool


def _asked(book: Book, question: Question) -> dict[str, JobRecord | JobSpec]:
    """Return the jobs of the question by id; for new jobs, their specs."""
    found: dict[str, JobRecord | JobSpec] = {
        record.spec.id: record for job in question.asked.jobs for record in book.named(job.job)
    }
    return found | {spec.id: spec for spec in question.new}


def _described(
    book: Book,
    question: Question,
    asked: Mapping[str, JobRecord | JobSpec],
    before: _Spans,
    after: _Spans,
) -> Iterator[AskedJob]:
    """Yield the outcome of each job of the question."""
    changes = {record.spec.id: job for job in question.asked.jobs for record in book.named(job.job)}
    for job_id, one in asked.items():
        if isinstance(one, JobSpec):
            yield AskedJob(job_id, one.pool, one.gpus, None, after.of(one.pool, job_id))
            continue
        change = changes[job_id]
        is_now = before.of(one.spec.pool, job_id, one)
        then = after.of(change.pool or one.spec.pool, anew(job_id))
        if then.start is None and then.by is None:
            then = after.of(one.spec.pool, job_id, one)
        yield AskedJob(
            job_id, change.pool or one.spec.pool, change.gpus or one.spec.gpus,
            is_now, None if change.cancel else then, one.phase is JobPhase.HELD,
        )  # fmt: skip


class _Spans:
    """Start and end times of jobs in one of the two futures."""

    def __init__(
        self,
        now: float,
        known: EstimateContext | None,
        unchanged: WhatIfOutcome,
        starts: Mapping[str, PredictedStart],
    ) -> None:
        self._now, self._known, self._unchanged, self._starts = now, known, unchanged, starts

    def of(self, pool: str, job_id: str, record: JobRecord | None = None) -> Span:
        """Return the estimated times of a job, or the simulated ones if it has no estimate."""
        timed = self._unchanged.times.get(job_id)
        if timed is not None and self._known is not None:
            return self._estimated(pool, timed, record)
        if record is not None and (running := _running(record, self._now)) is not None:
            return running
        return _span(self._starts.get(job_id), self._now)

    def _estimated(self, pool: str, timed: RawEstimate, record: JobRecord | None) -> Span:
        assert self._known is not None, "only called with an estimate"
        end, start = stated(self._known.heard, pool, self._now, timed)
        if start is not None:
            p50, p90 = start.p50, start.p90
        else:
            began = record is not None and record.decided
            p50 = p90 = began or self._now  # the job would start at once
        little = little_known(pool, timed.in_pool, stated=timed.stated)
        return Span(
            p50, end.p50, p90, end.p90, timed.by, HORIZON, timed.similar, timed.in_pool, little
        )


def _running(record: JobRecord, now: float) -> Span | None:
    """Return the start and the assumed end of a running job."""
    if record.phase not in ON_GPUS or record.started is None:
        return None
    run_time = estimated(now)(record)
    return Span(record.started, _end(max(now, record.started + run_time), now))


def _span(start: PredictedStart | None, now: float) -> Span:
    if start is None:
        return Span(None, None)
    return Span(start.start, _end(start.end, now))


def _end(end: float, now: float) -> float | None:
    """Return the end of a job without an estimate from ended jobs; None if it is unknown.

    A job with an unknown run time has the end of a very long run, which is no useful answer. An end
    that follows from the user's estimate is returned, however distant it is.
    """
    return end if end - now < UNKNOWN_RUN_TIME / 2 else None


def notes_of(
    jobs: Iterable[JobRecord], now: float, sees: CanSee, known: EstimateContext | None = None
) -> list[str]:
    """Return notes on assumptions made for active jobs that the caller may see. O(jobs)."""
    estimated = known is not None and known.heard.lasting.knows()
    unknown = late = held = 0
    for record in jobs:
        if sees(record.spec.pool):
            unknown += not estimated and is_unknown(record)
            late += not estimated and overruns(record, now)
            held += record.phase is JobPhase.HELD
    found = [ESTIMATED if estimated else TOLD]
    _note(found, unknown, "without a known run time", "assumed not to end")
    _note(found, late, "running longer than estimated", "assumed to run twice as long in all")
    _note(found, held, "held", "assumed to stay held")
    return found


def _note(found: list[str], jobs: int, what: str, assumed: str) -> None:
    if jobs:
        found.append(f"{counted(jobs, 'job')} {what}: {assumed}")
