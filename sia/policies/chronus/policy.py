"""Chronus: promised deadlines are kept by leases; the other jobs run shortest first.

In one instant the policy first decides for a group's new jobs whether it promises their deadlines.
Then it gives leases, if a cycle of leases begins, and then the remaining GPUs to best-effort jobs,
if a cycle of theirs begins (Chronus, §3.3). At any moment there is a plan in which all promised
jobs meet their last step. The solver only improves it, and the policy waits for its answer only
within the instant.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Any

from msgspec import Struct, convert, to_builtins

from sia.contract.plan import PromisedSpan
from sia.contract.policy import Awaited, Changes, Needs, PlannedRun, Policy, next_multiple
from sia.contract.proposals import (
    Preempt,
    Proposals,
    Record,
    Try,
    Wake,
)
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.events import ProgramSolved
from sia.model import LATE
from sia.policies.chronus.book import BookMemory, LeaseBook, Rules
from sia.policies.chronus.cycles import Cycles
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.promises import PATIENCE, LeaseQuestion, Promises
from sia.wording import counted


class _Memory(Struct):
    books: dict[str, BookMemory]
    asked: LeaseQuestion | None
    answer: tuple[float, ...] | None
    shares: tuple[int, int, int] | None


class Chronus(Policy):
    """Plans the leases of each sharing group.

    A cycle costs O(jobs · log jobs) and, for the plan, O(guaranteed jobs · leases).
    """

    Params = ChronusParams
    needs = Needs(run_times=True, preemption=True, solver=True)
    shares = True
    on_nodes = True
    queued = False
    tables = ("profiling", "capacity")
    heeds = frozenset({"deadline", "soft", "preemptible"})

    def attach(self, state: ClusterStateView) -> None:
        """Take all jobs; running jobs with a deadline are admitted again."""
        rules = Rules(self.params, state.options)
        self._books = {group: LeaseBook(group, rules, state.nodes) for group in state.groups}
        self._promises, self._cycles = Promises(), Cycles(self.params)
        self._shares: tuple[int, int, int] | None = None
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                book = self._books[job.pool.group]
                book.take(job)
                if job.job.deadline is not None:
                    book.asking[job.job.id] = None
        for book in self._books.values():  # decisions follow this order, also after a restart
            book.jobs = {i: book.jobs[i] for i in state.jobs if i in book.jobs}

    def memory(self) -> Any:
        """Return the plans, and the open question to the solver."""
        books = {book.group.first: book.memory() for book in self._books.values()}
        answer = None if self._promises.answer is None else tuple(self._promises.answer)
        return to_builtins(_Memory(books, self._promises.asked, answer, self._shares))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the plans and the open question."""
        self.attach(state)
        kept = convert(memory, _Memory)
        for group in state.groups_of(kept.books):
            self._books[group].resume(kept.books[group.first])
        self._promises.asked, self._promises.answer = kept.asked, kept.answer
        self._shares = kept.shares

    @property
    def for_trials(self) -> int:
        """GPUs of the profiler at the start."""
        return int(self.params.first_capacity)

    @property
    def round(self) -> float:
        """The length of the leases of best-effort jobs."""
        return float(self.params.be)

    def submitted(self, job: JobStateView) -> None:
        """Take a job; a new one with a deadline waits for a decision on its promise."""
        book = self._books[job.pool.group]
        if book.is_new(job) and book.tries(job):
            book.trying[job.job.id] = None
            book.profiler.submit(job.job.id, job.job.user, job.width, self.state.now)
        elif job.job.id not in book.jobs and job.job.deadline is not None:
            book.asking[job.job.id] = None
        book.take(job)

    def left(self, job: JobStateView) -> None:
        """Forget a job that was cancelled; one that was started stays known."""
        book = self._books[job.pool.group]
        book.touch(job.job.id)
        if job.job.id not in self.state.jobs:
            book.forget(job.job.id, self.state.now)

    def progressed(self, job: JobStateView) -> None:
        """Compute its claim anew."""
        self._books[job.pool.group].touch(job.job.id)

    def finished(self, job: JobStateView) -> None:
        """Forget a job that ended."""
        self._books[job.pool.group].forget(job.job.id, self.state.now)

    def solved(self, answer: ProgramSolved) -> None:
        """Keep the solution, or note that there is none."""
        if self._promises.asked is not None:
            self._promises.answer = answer.values

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Decide on promises, give leases, and start and stop best-effort jobs."""
        beat = int((now + LATE) // self.params.be)
        is_cycle = changes.round or abs(now - beat * self.params.be) < LATE
        changed = {*changes.groups}
        for group, book in self._books.items():
            if is_cycle or group in changed or self._is_waiting(book, now):
                book.refresh()
                yield from self._profile(book, now)
                if is_cycle:
                    book.begun = beat
                # a cycle that waited for a solver continues, however late its instant came
                yield from self._decide(book, now, beat if book.begun == beat else book.cycle)
                yield from self._begin_trials(book, now)
        yield from self._record(now)
        due = min(book.profiler.due(now) for book in self._books.values())
        due = min([due, *(u for book in self._books.values() for u in book.ending.values())])
        if self._promises.asked is not None and self._promises.asked.at == now:
            due = min(due, now + PATIENCE)
        if due < inf:
            yield Wake(due)

    def _profile(self, book: LeaseBook, now: float) -> Proposals:
        """End and start trials; jobs that have had all trials wait for a promise or for GPUs."""
        rows, book.rows = book.rows, []
        for row in rows:
            yield Record("profiling", tuple(row))
        profiler = book.profiler
        if not profiler.capacity:
            return
        for start, job_id, gpus, first, _ in profiler.over(now):
            yield Record("profiling", (job_id, start, now, gpus))
            job = book.jobs[job_id]
            if first and job.stream is not None:
                yield Preempt(job, "its trial is over")
            if profiler.is_tried(job_id) and job_id in book.trying:
                del book.trying[job_id]
                if job.job.deadline is not None:
                    book.asking[job_id] = None
        profiler.aim(now)
        profiler.resize(self._most_capacity(book, now))
        book.reserve()
        book.refresh()
        profiler.let_in(now)
        yield from self._begin_trials(book, now)

    def _begin_trials(self, book: LeaseBook, now: float) -> Proposals:
        profiler = book.profiler
        if not profiler.kept.queue:
            return
        place = None if book.allocator is None else book.allocator.trial
        for trial in profiler.begin(now, book.group.idle - book.group.out, place):
            if trial.first:
                job, until = book.jobs[trial.job_id], now + self.params.profile
                spread = book.profiler.nodes(trial.gpus), book.profiler.nodes(job.job.width)
                yield Try(job, trial.gpus, "its trial", until, trial.nodes, spread)

    def _most_capacity(self, book: LeaseBook, now: float) -> int:
        """Return the largest capacity of the profiler that breaks no promise and leaves GPUs."""
        kept = book.profiler.kept
        if kept.capacity >= kept.target:
            return int(kept.target)
        lease = book.next_lease(now)
        spare = inf if book.allocator is not None else book.current(now, lease).spare
        for capacity in range(kept.target, kept.capacity, -book.node):
            if capacity - kept.capacity > spare:
                continue  # some lease of the plan needs these GPUs
            if book.allocator is not None and book.reservation(capacity) is None:
                continue
            book.refresh(capacity)
            claims = book.claims(now, lease)
            fits = book.sizes.gpus >= max(1, sum(job.width for job in book.holders()))
            if fits and book.holds(claims, book.standing(claims, lease)):
                return capacity
        return int(kept.capacity)

    def _record(self, now: float) -> Proposals:
        """Record the division of the GPUs at second 0 and whenever it changes."""
        profiling = guaranteed = owned = 0
        for book in self._books.values():
            profiling += book.profiler.capacity
            guaranteed += sum(job.width for job in book.holders())
            owned += book.group.quota - book.group.out
        if self._shares is None:
            self._shares = (profiling, 0, owned - profiling)
            yield Record("capacity", (0, *self._shares))
        found = profiling, guaranteed, owned - profiling - guaranteed
        if found != self._shares:
            self._shares = found
            yield Record("capacity", (now, *found))

    def _is_waiting(self, book: LeaseBook, now: float) -> bool:
        if book.rows or book.profiler.due(now) <= now:
            return True
        if any(until <= now for until in book.ending.values()):
            return True
        asked = self._promises.is_asked_for(book)
        return bool(asked or book.blocked or book.asking or book.opened > book.given)

    def _decide(self, book: LeaseBook, now: float, beat: int) -> Proposals:
        """Make the decisions of one group that are due; `beat` is the cycle of this instant."""
        book.blocked = False
        yield from self._promises.overdue(book, now)
        yield from self._promises.take_answer(book, now)
        if book.has_less:
            yield from self._promises.shrunk(book, now)
        book.had = book.room
        yield from self._promises.admit(book, now)
        if self._promises.waits(book, now):
            return
        lease = beat // int(self.params.lease / self.params.be)
        if beat > book.cycle and lease > book.given:
            if beat % int(self.params.lease / self.params.be) == 0:
                if book.opened < lease:
                    book.open(now, lease)
                yield from self._promises.select(book, now, lease)
                if self._promises.waits(book, now):
                    return
            book.given = lease
        if beat > book.cycle:
            book.cycle = beat
            yield from self._cycles.deal(book, now)
            self._show(book)
        else:
            yield from self._cycles.between(book, now)
        yield from self._promises.tell(book, now)

    def _show(self, book: LeaseBook) -> None:
        """Add the next lease of each pending guaranteed job to the plan."""
        plan, length = self.plan[book.group], self.params.lease
        plan.clear_starts()
        for job_id, leases in book.plan.items():
            job = book.jobs[job_id]
            if job.stream is None and leases[-1] > book.given:
                begin = leases[bisect_right(leases, book.given)] * length
                plan.intend(job, begin, begin + length, job.width)

    def foretell(self, job: JobStateView) -> PlannedRun | None:
        """Return the next lease and the planned end of a guaranteed job. O(its leases)."""
        book, now = self._books[job.pool.group], self.state.now
        leases = [n for n in book.plan.get(job.job.id, ()) if n >= book.given]
        if not leases:
            return None
        holds = job.stream is not None or leases[0] == book.given
        start = now if holds else leases[0] * self.params.lease
        return PlannedRun(start, book.planned_end(job, now, leases), promised=True)

    def awaits(self, job: JobStateView) -> Awaited | None:
        """Return the trial, lease or cycle that a pending job waits for. O(its leases + trials)."""
        book, now, job_id = self._books[job.pool.group], self.state.now, job.job.id
        if job_id in book.trying:
            return book.profiler.awaits(job_id, now)
        later = [n for n in book.plan.get(job_id, ()) if n > book.given]
        if later:
            return Awaited("its next lease", later[0] * self.params.lease)
        left = book.group.quota - book.group.out - book.profiler.capacity
        if job.width > left:
            what = f"GPUs of the profiler, which leaves {left:,}: lower capacity or floor"
            return Awaited(what, None)
        cycle = next_multiple(now, self.params.be)
        if job_id in book.asking:
            return Awaited("the answer whether its deadline is promised", None)
        return Awaited("the next cycle of best effort, in which the shortest jobs go first", cycle)

    def too_wide(self, job: JobStateView) -> str:
        """Name a job that is wider than the GPUs that the profiler leaves. O(1)."""
        book = self._books[job.pool.group]
        capacity = min(book.profiler.capacity, self.params.first_capacity)
        left = book.group.quota - capacity
        if not capacity or job.job.width <= left:
            return ""
        where = "it can end only in its trial" if job.job.id in book.trying else "it never starts"
        return (
            f"it is wider than the {counted(left, 'GPU')} that the profiler leaves, so "
            f"{where}; set a lower capacity or floor, or profile=0"
        )

    def promised(self, group: GroupStateView) -> list[PromisedSpan]:
        """Return the GPUs of guaranteed jobs, lease by lease."""
        return self._books[group].promised()

    def rank(self, job: JobStateView) -> Any:
        """By the next lease, then by the work left."""
        book = self._books[job.pool.group]
        later = [n for n in book.plan.get(job.job.id, ()) if n >= book.given]
        return (later[0] if later else inf, self._cycles.spot_rank(book, job, self.state.now))

    def check(self) -> None:
        """Assert that the books agree with the state."""
        for group, book in self._books.items():
            known = {i for i, job in self.state.jobs.items() if job.pool.group is group}
            assert known == book.jobs.keys()
            book.check()
