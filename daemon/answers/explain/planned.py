"""Planned start and promised end of a job by the policy's current plan, as values and in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from daemon.model.access import Principal
from daemon.model.book import Book, DeadlineAnswer, JobRecord, job_of
from daemon.model.job import JobSpec
from daemon.wire.explain import PlannedView
from sia.contract.policy import PlannedRun
from sia.core.core import Core
from sia.core.guard import ask
from sia.limits import UNKNOWN_RUN_TIME
from sia.wording import duration, some

NO_PROMISE = "no promise: plans change"


def planned_of(
    book: Book, core: Core, record: JobRecord, who: Principal | None = None
) -> PlannedView | None:
    """Return how the plan runs a job that has not ended; None if the policy makes no such plans.

    Only jobs that `who` may see are named; without `who` no job is named. O(planned starts +
    running jobs).
    """
    job = core.state.jobs.get(record.core) if record.core else None
    run: PlannedRun | None = None if job is None else ask(core.policy, "foretell", job)
    if job is None or run is None:
        return None

    def seen(ids: Iterable[str]) -> list[str]:
        names = [job_of(each) for each in ids]
        jobs = [book.jobs[name] for name in names if name in book.jobs]
        return [each.spec.id for each in jobs if who is not None and who.sees(each.spec.pool)]

    known = job.run_time < UNKNOWN_RUN_TIME
    end = run.end if known and run.end < inf else None
    deadline, late = record.spec.deadline, 0.0
    if known and deadline is not None and job.stream is None:
        late = max(0.0, core.state.now + max(0.0, job.run_time - job.done) - deadline)
    return PlannedView(
        None if run.start == inf else run.start,
        end,
        False if run.missed else None if end is None or deadline is None else end <= deadline,
        seen(run.kills), seen(run.before), seen(run.spared), run.cost, run.gain, run.promised,
        late,
    )  # fmt: skip


def deadline_words(spec: JobSpec, planned: PlannedView | None, now: float) -> list[str]:
    """Return a line on whether the plan meets a job's deadline; nothing if an end is promised."""
    if planned is None or spec.deadline is None or planned.promised:
        return []  # `promise_words` has a line for a promise
    left = spec.deadline - now
    if planned.end is None and planned.start is not None:
        return ["its run time is unknown, so its deadline cannot be planned for: give an estimate"]
    if planned.end is None:
        if left <= 0.0:
            return []
        due = f"its deadline, which is in {duration(left)}"
        if planned.in_time is False:
            line = f"by the present plan it misses {due} ({NO_PROMISE})"
            if planned.late:
                late = duration(planned.late)
                line += f": by its estimate it would end {late} after it, even if it started now"
            return [line]
        return [f"the present plan has no start for it yet, and may still meet {due}"]
    ahead = spec.deadline - planned.end
    side = f"{duration(abs(ahead))} {'before' if ahead >= 0.0 else 'after'} its deadline"
    when = duration(max(0.0, planned.end - now))
    return [f"by the present plan it ends in {when}, {side} ({NO_PROMISE})"]


def promise_words(promise: DeadlineAnswer | None, now: float) -> list[str]:
    """Return a line with a job's promised latest end, or why its deadline is not guaranteed."""
    if promise is None:
        return []
    if not promise.guaranteed or promise.latest is None:
        line = f"its deadline is not guaranteed: {promise.why}"
        if promise.soonest is not None and promise.soonest > now:
            soonest = duration(promise.soonest - now)
            line += f"; its earliest end in the present plan is in {soonest} (no promise)"
        return [line]
    latest = duration(max(0.0, promise.latest - now))
    line = f"its deadline is guaranteed: it ends in {latest} at the latest"
    if promise.by is not None and now < promise.by < promise.latest:
        line += f"; the current plan meets the step in {duration(promise.by - now)}"
        if promise.planned is not None and now < promise.planned < promise.by:
            line += f", with its end in {duration(promise.planned - now)}"
    return [line]


def plan_words(
    record: JobRecord, planned: PlannedView | None, now: float, *, runs: bool
) -> list[str]:
    """Return lines on a job's planned start and promised end, and on what delays its start."""
    spec, lines = record.spec, promise_words(record.promise, now)
    if planned is None:
        return lines
    if not runs and planned.start is not None:
        wait = max(0.0, planned.start - now)
        when = f"in {duration(wait)}" if wait else "in the next cycle"
        kills = f", for which {_jobs_are(planned.kills)} killed" if planned.kills else ""
        lines.append(f"it is planned to start {when}{kills}")
    lines += deadline_words(spec, planned, now)
    if runs:
        return lines
    if planned.before:
        lines.append(f"{_jobs_are(planned.before)} planned to start before it")
    if planned.spared and planned.cost > planned.gain:
        lines.append(
            f"to start it now, job {some(planned.spared)} would have to be killed: that costs "
            f"{planned.cost:.4g}, and the start now would gain {planned.gain:.4g}"
        )
    return lines


def _jobs_are(names: Sequence[str]) -> str:
    return f"job {names[0]} is" if len(names) == 1 else f"jobs {some(names)} are"
