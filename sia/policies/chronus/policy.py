"""Chronus: deadlines that are promised are kept by leases; the rest runs shortest first.

At one instant a group's new jobs are told whether their deadline is promised, then leases are given
if a cycle of leases begins, then best-effort jobs get what is left if a cycle of theirs begins
(Chronus, §3.3). A plan that lets all promised jobs meet their last step exists at any moment: the
solver makes it better, and is waited for only within the instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, Literal

from msgspec import Struct, convert, to_builtins

from sia.contract.policy import Changes, Needs, Policy, stream_of
from sia.contract.proposals import (
    Lease,
    Preempt,
    Promise,
    Proposals,
    Record,
    Reject,
    Solve,
    Start,
    Try,
    Wake,
)
from sia.contract.views import ClusterStateView, JobStateView
from sia.events import ProgramSolved
from sia.model import LATE, NEVER_STOPPED, RESTART
from sia.policies.chronus.book import BookMemory, LeaseBook, Rules, is_up, slack
from sia.policies.chronus.claims import ROUNDING, Claim, LeasePlan
from sia.policies.chronus.lists import is_impossible, joined, listed
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.programs import LeaseGoal, LeaseProgram, lease_program
from sia.policies.chronus.selection import Selection
from sia.policies.chronus.sizes import NODE_GPUS
from sia.program import SolveLimit

LIMIT = SolveLimit(seconds=4.0, nodes=500, iterations=50_000, gap=0.0)
"""Of one program. Two of them, for the reward and the delay, stay below ten seconds live."""

PATIENCE = 1e-5
"""Seconds, after which a cycle goes on with the plan as it is. An answer that takes no time, as in
replays, comes before; one that comes later changes later leases."""

NO_ROOM = "no plan of leases has room for it before its last step"
OVER = "its estimate is up, and no plan of leases has room for one more"


class LeaseQuestion(Struct):
    """The program that is being solved, and for what.

    `claims` are counted from lease number `lease`. For a cycle, `selection` is the choice so far.
    """

    kind: Literal["join", "cycle"]
    group: str
    at: float
    lease: int
    claims: tuple[Claim, ...]
    job: str = ""
    selection: Selection | None = None


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
    tables = ("profiling", "capacity")
    heeds = frozenset({"deadline", "soft", "preemptible"})

    def attach(self, state: ClusterStateView) -> None:
        """Take all jobs. Of running ones, none is promised anything."""
        rules = Rules(self.params, state.options.resume_cost)
        self._books = {group: LeaseBook(group, rules) for group in state.groups}
        self._asked: LeaseQuestion | None = None
        self._answer: Sequence[float] | None = None
        self._shares: tuple[int, int, int] | None = None
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                self._books[job.pool.group].take(job)

    def memory(self) -> Any:
        """Return the plans, and what is being solved."""
        books = {book.group.first: book.memory() for book in self._books.values()}
        answer = None if self._answer is None else tuple(self._answer)
        return to_builtins(_Memory(books, self._asked, answer, self._shares))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Take the plans again."""
        self.attach(state)
        kept = convert(memory, _Memory)
        for group in state.groups_of(kept.books):
            self._books[group].resume(kept.books[group.first])
        self._asked, self._answer = kept.asked, kept.answer
        self._shares = kept.shares

    @property
    def only_in_replays(self) -> str:
        """Trials, if jobs have them."""
        return "trials run only in replays; add profile=0" if self.params.profile else ""

    @property
    def round(self) -> float:
        """The length of the leases of best-effort jobs."""
        return float(self.params.be)

    def submitted(self, job: JobStateView) -> None:
        """Take a job; a new one with a deadline asks whether that is promised."""
        book = self._books[job.pool.group]
        if book.is_new(job) and book.tries(job):
            book.trying[job.job.id] = None
            book.profiler.submit(job.job.id, job.job.user, job.width, self.state.now)
        elif job.job.id not in book.jobs and job.job.deadline is not None:
            book.asking[job.job.id] = None
        book.take(job)

    def left(self, job: JobStateView) -> None:
        """Forget a job that was cancelled; one that was started stays known."""
        if job.job.id not in self.state.jobs:
            self._books[job.pool.group].forget(job.job.id, self.state.now)

    def finished(self, job: JobStateView) -> None:
        """Forget a job that ended."""
        self._books[job.pool.group].forget(job.job.id, self.state.now)

    def solved(self, answer: ProgramSolved) -> None:
        """Take the solution, or nothing where there is none."""
        if self._asked is not None:
            self._answer = answer.values

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Answer who asks, give leases, and let best-effort jobs run."""
        beat = int((now + LATE) // self.params.be)
        is_cycle = changes.round or abs(now - beat * self.params.be) < LATE
        changed = {*changes.groups}
        for group, book in self._books.items():
            if is_cycle or group in changed or self._is_waiting(book, now):
                book.refresh()
                yield from self._profile(book, now)
                yield from self._decide(book, now, beat if is_cycle else book.cycle)
                yield from self._begin_trials(book, now)
        yield from self._record(now)
        due = min(book.profiler.due(now) for book in self._books.values())
        if self._asked is not None and self._asked.at == now:
            due = min(due, now + PATIENCE)
        if due < inf:
            yield Wake(due)

    def _profile(self, book: LeaseBook, now: float) -> Proposals:
        """End trials, and let jobs in; who has had all trials asks for a promise or waits."""
        rows, book.rows = book.rows, []
        for row in rows:
            yield Record("profiling", tuple(row))
        profiler = book.profiler
        if not profiler.capacity:
            return
        for start, job_id, gpus, first in profiler.over(now):
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
        book.refresh()
        profiler.let_in(now)
        yield from self._begin_trials(book, now)

    def _begin_trials(self, book: LeaseBook, now: float) -> Proposals:
        profiler = book.profiler
        if not profiler.kept.queue:
            return
        for trial in profiler.begin(now, book.group.idle - book.group.out):
            if trial.first:
                job = book.jobs[trial.job_id]
                yield Try(job, trial.gpus, "its trial", now + self.params.profile)

    def _most_capacity(self, book: LeaseBook, now: float) -> int:
        """Return up to what the profiler can grow, which breaks no promise and leaves some GPUs."""
        kept = book.profiler.kept
        if kept.capacity >= kept.target:
            return int(kept.target)
        lease = book.next_lease(now)
        for capacity in range(kept.target, kept.capacity, -NODE_GPUS):
            book.refresh(capacity)
            claims = book.claims(now, lease)
            fits = book.sizes.gpus >= max(1, sum(job.width for job in book.holders()))
            if fits and book.holds(claims, book.standing(claims, lease)):
                return capacity
        return int(kept.capacity)

    def _record(self, now: float) -> Proposals:
        """Record how the GPUs are divided, at second 0 and when that changes."""
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
        asked = self._asked is not None and self._asked.group == book.group.first
        return bool(asked or book.blocked or book.asking or book.opened > book.given)

    def _decide(self, book: LeaseBook, now: float, beat: int) -> Proposals:
        """Make the decisions of one group that are due; `beat` is the cycle of this instant."""
        book.blocked = False
        yield from self._take_answer(book, now)
        if book.sizes.gpus < book.gpus:
            yield from self._shrunk(book, now)
        book.gpus = book.sizes.gpus
        yield from self._admit(book, now)
        if self._waits(book, now):
            return
        lease = beat // int(self.params.lease / self.params.be)
        if beat > book.cycle and lease > book.given:
            if beat % int(self.params.lease / self.params.be) == 0:
                if book.opened < lease:
                    book.open(now, lease)
                yield from self._select(book, now, lease)
                if self._waits(book, now):
                    return
            book.given = lease
        if beat > book.cycle:
            book.cycle = beat
            yield from self._cycle(book, now)
        else:
            yield from self._between(book, now)

    def _waits(self, book: LeaseBook, now: float) -> bool:
        """Return whether the answer to a program may still come at this instant.

        It is one of this group, or one of another group that keeps this one from asking.
        """
        asked = self._asked
        return (
            asked is not None
            and asked.at == now
            and (asked.group == book.group.first or book.blocked)
        )

    # Admission

    def _admit(self, book: LeaseBook, now: float) -> Proposals:
        """Answer the jobs that ask, in order of arrival."""
        for job_id in sorted(book.asking, key=lambda job_id: book.jobs[job_id].arrival):
            if self._asked is not None and self._asked.job == job_id:
                return  # its answer is to come
            job = book.jobs[job_id]
            why = book.why_not(job)
            if why:
                del book.asking[job_id]
                yield Reject(job, why)
                continue
            yield from self._join(book, job, now, book.next_lease(now))
            if self._waits(book, now):
                return

    def _join(self, book: LeaseBook, job: JobStateView, now: float, lease: int) -> Proposals:
        """Promise a job its deadline if some plan has room, or ask a solver whether one has."""
        claims, claim = book.claims(now, lease), book.claim(job, now, lease)
        both = (*claims, claim)
        if is_impossible(both, book.room):
            yield from self._refuse(book, job)
            return
        plan = joined(claims, book.room, book.standing(claims, lease), claim)
        plan = plan or listed(both, book.room)
        if plan is not None:
            yield from self._promise(book, job, now, plan, lease)
            return
        asked = LeaseQuestion("join", book.group.first, now, lease, both, job.job.id)
        yield from self._ask(book, asked, lease_program(both, book.room, LeaseGoal.ANY), ())

    def _promise(
        self, book: LeaseBook, job: JobStateView, now: float, plan: LeasePlan, lease: int
    ) -> Proposals:
        """Take the plan with one more job, and tell the job."""
        known = job.job.id in book.plan
        book.asking.pop(job.job.id, None)
        book.anew.pop(job.job.id, None)
        book.adopt(plan, lease)
        if not known:
            leases = [lease + k for k in plan[job.job.id]]
            end = book.planned_end(job, now, leases)
            step = job.job.step_met(end)
            yield Promise(job, 0 if step is None else step, end)

    def _refuse(self, book: LeaseBook, job: JobStateView) -> Proposals:
        """Tell a job that its deadline is not, or no longer, promised."""
        was = job.job.id in book.plan
        book.asking.pop(job.job.id, None)
        book.unpromise(job.job.id)
        yield Reject(job, OVER if was else NO_ROOM)

    def _ask(
        self, book: LeaseBook, asked: LeaseQuestion, program: LeaseProgram, start: tuple[float, ...]
    ) -> Proposals:
        """Ask a solver, unless it works for another group at this instant."""
        book.blocked = self._asked is not None and self._asked.at == asked.at
        if not book.blocked:
            self._asked, self._answer = asked, None
            yield Solve(program.program, LIMIT, start)

    def _take_answer(self, book: LeaseBook, now: float) -> Proposals:
        """Use the answer to a program of this group, if it is there."""
        asked, values = self._asked, self._answer
        if asked is None or asked.group != book.group.first or values is None:
            return
        self._asked = self._answer = None
        if asked.kind == "join":
            yield from self._joined(book, asked, values, now)
        elif asked.selection is not None:
            asked.selection.take(values)
            if book.given < asked.lease:  # the cycle is still open
                yield from self._choose(book, now, asked.lease, asked.selection)
            else:
                self._improve(book, now, asked.lease, asked.selection.plan)

    def _joined(
        self, book: LeaseBook, asked: LeaseQuestion, values: Sequence[float], now: float
    ) -> Proposals:
        """Promise a deadline, or not, as the solver found."""
        job = book.jobs.get(asked.job)
        if job is None or not (asked.job in book.asking or asked.job in book.anew):
            return
        lease = book.next_lease(now) if asked.job in book.asking else asked.lease
        both = (*book.claims(now, lease), book.claim(job, now, lease))
        if lease != asked.lease or both != asked.claims:
            return  # much has changed since: it asks again
        if not values:
            yield from self._refuse(book, job)
            return
        program = lease_program(both, book.room, LeaseGoal.ANY)
        plan = program.plan_of(both, values)
        if book.holds(both, plan):
            yield from self._promise(book, job, now, plan, lease)
        else:
            yield from self._refuse(book, job)

    def _improve(self, book: LeaseBook, now: float, lease: int, plan: LeasePlan) -> None:
        """Take the later leases of a plan that came when its first lease had been given."""
        following = book.next_lease(now)
        claims = book.claims(now, following)
        later = {
            claim.job_id: tuple(
                k + lease - following for k in plan.get(claim.job_id, ()) if k + lease >= following
            )[: claim.leases]
            for claim in claims
        }
        if book.holds(claims, later):
            book.adopt(later, following)

    def _shrunk(self, book: LeaseBook, now: float) -> Proposals:
        """Keep what can be kept of the promises, in order of arrival, on fewer GPUs."""
        lease = book.next_lease(now)
        claims = book.claims(now, lease)
        if book.holds(claims, book.standing(claims, lease)):
            return
        kept: list[Claim] = []
        plan = listed(claims, book.room)
        if plan is not None:
            book.adopt(plan, lease)
            return
        plan = {}
        for claim in sorted(claims, key=lambda claim: book.jobs[claim.job_id].arrival):
            both = [*kept, claim]
            found = joined(kept, book.room, plan, claim) or listed(both, book.room)
            if found is None:
                book.unpromise(claim.job_id)
                yield Reject(book.jobs[claim.job_id], "GPUs were lost, and no plan has room for it")
            else:
                kept, plan = both, found
        book.adopt(plan, lease)

    # Leases

    def _select(self, book: LeaseBook, now: float, lease: int) -> Proposals:
        """Choose who gets this lease and the following ones (§3.3.4)."""
        for job_id in sorted(book.anew, key=lambda i: (i in book.over, book.jobs[i].arrival)):
            if self._asked is None or self._asked.job != job_id:
                yield from self._join(book, book.jobs[job_id], now, lease)
            if self._waits(book, now):
                return
        if book.selected == lease:
            return
        claims = book.claims(now, lease)
        selection = Selection.of(claims, book.room, book.standing(claims, lease))
        if selection is not None:
            yield from self._choose(book, now, lease, selection)

    def _choose(self, book: LeaseBook, now: float, lease: int, selection: Selection) -> Proposals:
        """Ask the next program of a selection, or take its plan."""
        if book.holds(selection.claims, selection.plan):
            book.adopt(selection.plan, lease)
        question = selection.question
        if question is None:
            book.selected = lease
        else:
            asked = LeaseQuestion(
                "cycle", book.group.first, now, lease, selection.claims, selection=selection
            )
            yield from self._ask(book, asked, *question)

    # Best effort

    def _cycle(self, book: LeaseBook, now: float) -> Proposals:
        """Choose who runs until the next cycle: leaseholders, then the shortest that fit."""
        chosen = self._firm(book, now)
        free = book.group.quota - book.group.out - book.profiler.capacity
        free -= sum(job.width for job in chosen.values())
        candidates = [self._spot(book, now)] if free > 0 else []
        if self.params.fill and free > 0:
            candidates.append(self._idle_promised(book, now))
        for job in chain.from_iterable(candidates):
            if free <= 0:
                break
            if job.job.id not in chosen and job.width <= free and self._is_safe(book, job, chosen):
                chosen[job.job.id] = job
                free -= job.width
        for job in [*book.jobs.values()]:
            if job.stream is not None and job.job.id not in (chosen.keys() | book.trying.keys()):
                yield Preempt(job, "its lease is over")
        for job in chosen.values():
            yield from self._run(book, job, now)
        self._show(book)

    def _firm(self, book: LeaseBook, now: float) -> dict[str, JobStateView]:
        """Return the jobs that run whatever is left: who has a lease, must not be stopped, or ends.

        A guaranteed job may have less to go than the rounding of times: it is left to end.
        """
        firm = {job.job.id: job for job in (*book.holders(), *book.stuck)}
        for job_id in book.plan:
            job = book.jobs[job_id]
            left = job.run_time - job.work(now)
            if job.stream is not None and left <= ROUNDING and not is_up(job, now):
                firm[job_id] = job
        return firm

    def _between(self, book: LeaseBook, now: float) -> Proposals:
        """Start leaseholders that could not start yet and, with `fill`, who fits in idle GPUs."""
        waiting = [job for job in book.holders() if job.stream is None]
        for job in waiting:
            yield from self._run(book, job, now)
        if not self.params.fill or book.group.idle <= 0:
            return
        kept = sum(job.width for job in waiting if job.stream is None)
        for jobs in (self._spot(book, now), self._idle_promised(book, now)):
            for job in jobs:
                free = book.group.idle - book.group.out - kept - book.profiler.idle
                if free <= 0:
                    return
                if job.stream is None and job.width <= free and self._is_safe(book, job, {}):
                    yield from self._run(book, job, now)

    def _run(self, book: LeaseBook, job: JobStateView, now: float) -> Proposals:
        """Start a job that does not run, if it fits, or renew its lease."""
        length = self.params.lease if book.given in book.plan.get(job.job.id, ()) else (
            self.params.be)  # fmt: skip
        until = (int((now + LATE) // length) + 1) * length
        if job.stream is not None:
            yield Lease(job, until)
        elif job.width <= job.pool.idle:
            why = "it has a lease" if job.job.id in book.plan else "shortest that fits"
            yield Start(job, stream_of(job.pool, job.width), why, until=until)

    def _spot(self, book: LeaseBook, now: float) -> list[JobStateView]:
        """Return the jobs that are promised nothing, in the order in which they get GPUs.

        A job that would lose its work goes on; who has waited long enough comes next; then those
        with the least work left.
        """
        jobs = [
            job
            for job_id, job in book.jobs.items()
            if job_id not in book.plan and job_id not in book.trying
        ]
        return sorted(jobs, key=lambda job: self._spot_rank(job, now))

    def _spot_rank(self, job: JobStateView, now: float) -> tuple[int, float, int]:
        if job.stream is not None and job.job.preemptible == RESTART:
            return 0, 0.0, job.arrival
        since = job.job.submit if not job.attempt else job.start
        if self.params.patience and job.stream is None and now - since >= self.params.patience:
            return 1, 0.0, job.arrival
        return 2, self._left(job, now), job.arrival

    def _left(self, job: JobStateView, now: float) -> float:
        """Return the work left; a job whose estimate is up has one lease to go."""
        return float(self.params.be) if is_up(job, now) else job.run_time - job.work(now)

    def _idle_promised(self, book: LeaseBook, now: float) -> list[JobStateView]:
        """Return the guaranteed jobs without a lease now, those with the least slack first."""
        jobs = [book.jobs[i] for i, leases in book.plan.items() if book.given not in leases]
        return sorted(jobs, key=lambda job: (slack(job, now), job.arrival))

    def _is_safe(
        self, book: LeaseBook, job: JobStateView, chosen: Mapping[str, JobStateView]
    ) -> bool:
        """Return whether a start breaks no promise: a job may hold its GPUs beyond this lease.

        `chosen` are the jobs that start with it.
        """
        if job.stream is not None or job.job.preemptible != NEVER_STOPPED:
            return True
        others = (
            each.width
            for each in chosen.values()
            if each.stream is None and each.job.preemptible == NEVER_STOPPED
        )
        book.refresh()
        return book.is_free_for_good(job.width + sum(others))

    # What others read

    def _show(self, book: LeaseBook) -> None:
        """Show the next lease of each guaranteed job that waits."""
        plan, length = self.plan[book.group], self.params.lease
        plan.clear_starts()
        for job_id, leases in book.plan.items():
            later = [n for n in leases if n > book.given]
            job = book.jobs[job_id]
            if later and job.stream is None:
                begin = later[0] * length
                plan.intend(job, begin, begin + length, job.width)

    def rank(self, job: JobStateView) -> Any:
        """By the next lease, then by the work left."""
        book = self._books[job.pool.group]
        later = [n for n in book.plan.get(job.job.id, ()) if n >= book.given]
        return (later[0] if later else inf, self._spot_rank(job, self.state.now))

    def check(self) -> None:
        """Assert that the books agree with the state."""
        for group, book in self._books.items():
            known = {i for i, job in self.state.jobs.items() if job.pool.group is group}
            assert known == book.jobs.keys()
            book.check()
