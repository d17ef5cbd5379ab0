"""The jobs that run from one best-effort cycle to the next, and their GPUs (§3.3.5, §3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sia.contract.policy import stream_of
from sia.contract.proposals import Lease, Preempt, Proposals, Start
from sia.contract.views import JobStateView
from sia.model import LATE, NEVER_STOPPED, RESTART
from sia.policies.chronus.book import LeaseBook, is_up, slack
from sia.policies.chronus.leases.claims import ROUNDING
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.placing.placement import WIDE
from sia.state.nodes import NodeCounts

Jobs = dict[str, JobStateView]


class Cycles:
    """Stops and starts jobs: leaseholders first, then best effort, shortest remaining first."""

    def __init__(self, params: ChronusParams) -> None:
        """Use these options of the policy."""
        self.params = params

    def deal(self, book: LeaseBook, now: float) -> Proposals:
        """Choose the jobs until the next cycle: leaseholders, then the shortest that fit."""
        for job_id in book.plan:
            job = book.jobs[job_id]
            if job_id not in book.held and job_id not in book.ending and book.may_end(job, now):
                book.let_end(job, now)
        fixed = self._fixed(book, now)
        chosen = {job.job.id: job for job in (*book.holders(), *fixed.values())}
        free = book.group.quota - book.group.out - book.profiler.capacity
        free -= sum(job.width for job in chosen.values())
        owned = book.left_of_quotas(chosen.values())
        for job, borrows in self._others(book, now) if free > 0 else ():
            if free <= 0:
                break
            can = job.job.id not in chosen and job.width <= free
            can = can and (borrows or job.width <= owned[job.pool.name])
            if can and self._is_safe(book, job, chosen) and _fits(book, job, chosen, fixed):
                chosen[job.job.id] = job
                free -= job.width
                owned[job.pool.name] -= job.width
        places = _places(book, chosen, fixed, now)
        for job, why in _stopped(book, chosen, fixed, places):
            yield Preempt(job, why)
        for job in chosen.values():
            yield from self._run(book, job, now, places.get(job.job.id, ()))

    def _fixed(self, book: LeaseBook, now: float) -> Jobs:
        """Return the jobs that keep their GPUs.

        They are jobs that must not be stopped, and guaranteed jobs whose remaining work is less
        than the rounding of times, or that a daemon lets end, which run to their end.
        """
        fixed = {job.job.id: job for job in book.stuck}
        fixed |= {i: book.jobs[i] for i in book.ending if book.jobs[i].stream is not None}
        for job_id in book.plan:
            job = book.jobs[job_id]
            left = job.run_time - job.work(now)
            if job.stream is not None and left <= ROUNDING and not is_up(job, now):
                fixed[job_id] = job
        return fixed

    def between(self, book: LeaseBook, now: float) -> Proposals:
        """Start leaseholders that could not start yet and, with `fill`, jobs on idle GPUs."""
        waiting = [job for job in book.holders() if job.stream is None]
        for job in waiting:
            yield from self._run_between(book, job, now)
        if not self.params.fill or book.group.idle <= 0:
            return
        waiting = [job for job in waiting if job.stream is None]
        kept = sum(job.width for job in waiting)
        owned = book.left_of_quotas([*waiting, *book.running])
        for job, borrows in self._others(book, now):
            free = book.group.idle - book.group.out - kept - book.profiler.idle
            if free <= 0:
                return
            can = job.stream is None and job.width <= free
            can = can and (borrows or job.width <= owned[job.pool.name])
            if can and self._is_safe(book, job, {}):
                yield from self._run_between(book, job, now)
                if job.stream is not None:
                    owned[job.pool.name] -= job.width

    def _others(self, book: LeaseBook, now: float) -> Iterator[tuple[JobStateView, bool]]:
        """Yield jobs for the GPUs that leases leave, in order, and whether they may borrow.

        If pools lend, jobs first get GPUs within their pool's quota, then unused GPUs are lent.
        """
        jobs = self._spot(book, now)
        if self.params.fill:
            jobs += self._idle_promised(book, now)
        if book.lends:
            yield from ((job, False) for job in jobs)
        yield from ((job, True) for job in jobs)

    def _run_between(self, book: LeaseBook, job: JobStateView, now: float) -> Proposals:
        """Start a job on idle GPUs, if there is a place for it."""
        nodes: NodeCounts = ()
        if book.allocator is not None:
            trials = book.profiler.kept.running
            nodes = book.allocator.between(job, trials, together=_is_together(book, job))
            if job.job.preemptible == NEVER_STOPPED and not book.keeps(now, nodes):
                return
        yield from self._run(book, job, now, nodes)

    def _run(self, book: LeaseBook, job: JobStateView, now: float, nodes: NodeCounts) -> Proposals:
        """Start a job that does not run, if it fits, or renew its lease."""
        length = self.params.lease if job.job.id in book.held else (
            self.params.be)  # fmt: skip
        until = (int((now + LATE) // length) + 1) * length
        if job.stream is not None:
            yield Lease(job, until)
        elif job.width <= job.pool.idle and (nodes or book.allocator is None):
            why = "it has a lease" if job.job.id in book.plan else "shortest that fits"
            stream = stream_of(job.pool, job.width)
            yield Start(job, stream, why, until=until, nodes=nodes)

    def _spot(self, book: LeaseBook, now: float) -> list[JobStateView]:
        """Return the jobs without a promise, in the order in which they get GPUs."""
        jobs = [
            job
            for job_id, job in book.jobs.items()
            if job_id not in book.plan and job_id not in book.trying
        ]
        return sorted(jobs, key=lambda job: self.spot_rank(book, job, now))

    def spot_rank(self, book: LeaseBook, job: JobStateView, now: float) -> tuple[int, float, int]:
        """Return the sort key of a job without a promise; the lowest gets GPUs first.

        First come running jobs that would lose their work, then jobs that have waited for
        `patience`, then the jobs with the least work left. A running job gives way to patience only
        after twice its cost of a stop: jobs that take turns work for half of the time at least.
        """
        if job.stream is not None:
            resumes = self.params.patience and now - job.start < 2.0 * book.cost(job)
            if job.job.preemptible == RESTART or resumes:
                return 0, 0.0, job.arrival
        elif self.params.patience:
            since = job.start if job.runs else job.job.submit
            if now - since >= self.params.patience:
                return 1, 0.0, job.arrival
        return 2, self._left(job, now), job.arrival

    def _left(self, job: JobStateView, now: float) -> float:
        """Return the remaining work in seconds; one lease if the estimate is used up."""
        left = job.run_time - job.work(now)
        return float(self.params.be) if left <= ROUNDING and is_up(job, now) else left

    def _idle_promised(self, book: LeaseBook, now: float) -> list[JobStateView]:
        """Return the guaranteed jobs without a lease now, by ascending slack."""
        jobs = [book.jobs[i] for i in book.plan if i not in book.held]
        return sorted(jobs, key=lambda job: (slack(job, now), job.arrival))

    def _is_safe(
        self, book: LeaseBook, job: JobStateView, chosen: Mapping[str, JobStateView]
    ) -> bool:
        """Return whether a start breaks no promise if the job keeps its GPUs beyond this lease.

        `chosen` are the jobs that start in the same cycle.
        """
        if job.stream is not None or job.job.preemptible != NEVER_STOPPED:
            return True
        others = (
            each
            for each in chosen.values()
            if each.stream is None and each.job.preemptible == NEVER_STOPPED
        )
        book.refresh()
        return book.is_free_for_good([job, *others])


# Where nodes are known


def _is_together(book: LeaseBook, job: JobStateView) -> bool:
    """Return whether a job is rounded up, and is on the fewest nodes or does not run."""
    return job.job.id in book.plan or job.width >= WIDE


def _fits(book: LeaseBook, job: JobStateView, chosen: Jobs, fixed: Jobs) -> bool:
    """Return whether a job fits together with the chosen ones, which may move."""
    if book.allocator is None or not _is_together(book, job):
        return True
    beside = [each for i, each in chosen.items() if i not in fixed and _is_together(book, each)]
    return book.allocator.fits([*beside, job], book.allocator.free(fixed.values()))


def _places(book: LeaseBook, chosen: Jobs, fixed: Jobs, now: float) -> dict[str, NodeCounts]:
    """Return the GPUs of each chosen job, and remove the jobs without a place from `chosen`.

    A job that must not be stopped is also removed if leases need its GPUs.
    """
    allocator = book.allocator
    while allocator is not None:
        jobs = [job for job_id, job in chosen.items() if job_id not in fixed]
        together = [job for job in jobs if _is_together(book, job)]
        small = [job for job in jobs if not _is_together(book, job)]
        places = allocator.place(together, small, [*fixed.values()])
        never = [
            job for job in jobs
            if job.job.preemptible == NEVER_STOPPED and job.job.id in places
        ]  # fmt: skip
        if never and not book.keeps(now, *(places[job.job.id] for job in never)):
            del chosen[never[-1].job.id]
            continue
        for job in jobs:
            if job.job.id not in places:
                del chosen[job.job.id]
        return places
    return {}


def _stopped(
    book: LeaseBook, chosen: Jobs, fixed: Jobs, places: Mapping[str, NodeCounts]
) -> list[tuple[JobStateView, str]]:
    """Return the running jobs to stop, with reasons: jobs not chosen, then jobs that move."""
    goes_on = chosen.keys() | book.trying.keys()
    found = [
        (job, "its lease is over" if job_id in book.plan else "its cycle is over")
        for job_id, job in book.jobs.items()
        if job.stream is not None and job_id not in goes_on
    ]
    if book.allocator is not None:
        found += [
            (job, "it moves so that jobs lie together")
            for job_id, job in chosen.items()
            if job.stream is not None
            and job_id not in fixed
            and not book.allocator.is_where(job, places)
        ]
    return found
