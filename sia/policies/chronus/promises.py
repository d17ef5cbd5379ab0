"""Decides which deadlines to promise, and which job gets which leases (Chronus, §3.3.2 to §3.3.4).

At any moment there is a plan in which all promised jobs meet their last step. The solver only
improves it, and the policy waits for its answer only within the instant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from sia.contract.proposals import Preempt, Promise, Proposals, Reject, Solve
from sia.contract.views import JobStateView
from sia.policies.chronus.book import LeaseBook
from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.lists import fitted, is_impossible, joined
from sia.policies.chronus.leases.programs import (
    LeaseGoal,
    LeaseProgram,
    TargetProgram,
    choices,
    lease_program,
)
from sia.policies.chronus.leases.repair import rearranged
from sia.policies.chronus.leases.selection import MOST_ASKED, Selection
from sia.program import SolveLimit

LIMIT = SolveLimit(seconds=4.0, nodes=500, iterations=50_000, gap=0.0)
"""Limits of one program. A question solves two, so a live answer takes less than ten seconds."""

SOON = SolveLimit(seconds=2.0, nodes=20, iterations=3_000, gap=0.01)
"""Limits of a large program that minimises the delay. The reward is optimal before, so a good delay
is enough."""

LARGE = 300
"""Number of columns from which on a program is large. Smaller programs are solved to optimality."""

PATIENCE = 1e-5
"""Seconds after which a cycle continues with the present plan. In a replay answers take no time and
come before; an answer that comes later changes later leases."""

OVERDUE = 60.0
"""Seconds after which no answer is expected: every driver gives up long before. Until then the
policy asks no other question, because a new one would replace the open one."""

SOONER = "leases before its own became free"
LATER = "its leases were moved so that more deadlines can be kept"

NO_ROOM = "no plan of leases has room for it before its last step"
LOST = "GPUs were lost, and no plan of leases has room for it on the others"
OVER = "its estimate is up, and no plan of leases has room for one more"


Asked = LeaseProgram | TargetProgram


class LeaseQuestion(Struct):
    """The program that is being solved, and its purpose.

    `claims` are numbered from lease number `lease`. For a cycle, `selection` is the choice so far.
    """

    kind: Literal["join", "cycle"]
    group: str
    at: float
    lease: int
    claims: tuple[Claim, ...]
    job: str = ""
    selection: Selection | None = None


class Promises:
    """Decides on promises and chooses leases, group by group.

    Attributes:
        asked: The program that is being solved, or None.
        answer: Its solution once it has arrived, empty if the solver found none.
    """

    def __init__(self) -> None:
        """Start without a question."""
        self.asked: LeaseQuestion | None = None
        self.answer: Sequence[float] | None = None

    def is_asked_for(self, book: LeaseBook) -> bool:
        """Return whether a program of this group is being solved."""
        return self.asked is not None and self.asked.group == book.group.first

    def waits(self, book: LeaseBook, now: float) -> bool:
        """Return whether the answer to a program may still come at this instant.

        The program may be of this group, or of another group that this one must wait for.
        """
        return self.waits_at(now) and (self.is_asked_for(book) or book.blocked)

    def waits_at(self, now: float) -> bool:
        """Return whether the answer to a program of any group may still come at this instant."""
        return self.asked is not None and self.asked.at == now

    def admit(self, book: LeaseBook, now: float) -> Proposals:
        """Decide on the promises of the asking jobs, in order of arrival."""
        for job_id in sorted(book.asking, key=lambda job_id: book.jobs[job_id].arrival):
            if self.asked is not None and self.asked.job == job_id:
                return  # a solver's answer is open
            job = book.jobs[job_id]
            why = book.why_not(job)
            if why:
                del book.asking[job_id]
                yield Reject(job, why)
                continue
            yield from self._join(book, job, now, book.next_lease(now))
            if self.waits(book, now) or job_id in book.asking:
                return

    def _join(self, book: LeaseBook, job: JobStateView, now: float, lease: int) -> Proposals:
        """Promise a deadline if a heuristic finds a plan with the job, else ask a solver."""
        current, claim = book.current(now, lease), book.claim(job, now, lease)
        if current.is_hopeless(claim):
            yield from self._refuse(book, job, now)
            return
        is_full = job.job.id not in book.plan and current.holds
        if is_full:
            leases = current.find(claim)
            if leases is not None:
                book.add(claim, leases, lease)
                yield self._told(book, job, now)
                return
        claims = [*current.claims.values()]
        both = (*claims, claim)
        if is_impossible(both, book.room):
            yield from self._refuse(book, job, now)
            return
        plan = None if is_full else joined(claims, book.room, current.plan, claim)
        plan = plan or rearranged(claims, book.room, current.plan, claim)
        if plan is not None:
            yield from self._promise(book, claim, now, plan, lease)
            return
        if choices(both) > MOST_ASKED:
            yield from self._refuse(book, job, now)
            return
        asked = LeaseQuestion("join", book.group.first, now, lease, both, job.job.id)
        yield from self._ask(book, asked, lease_program(both, book.room, LeaseGoal.ANY), ())

    def _promise(
        self, book: LeaseBook, claim: Claim, now: float, plan: LeasePlan, lease: int
    ) -> Proposals:
        """Adopt the plan with one more job, and promise the job its deadline."""
        known = claim.job_id in book.plan
        book.asking.pop(claim.job_id, None)
        book.anew.pop(claim.job_id, None)
        if known:
            book.adopt(plan, lease)
        else:
            book.admit(claim, plan, lease)
            yield self._told(book, book.jobs[claim.job_id], now)

    def _told(self, book: LeaseBook, job: JobStateView, now: float) -> Promise:
        """Return the promise to a job that the plan now contains."""
        book.asking.pop(job.job.id, None)
        end = book.planned_end(job, now, book.plan[job.job.id])
        step = book.told[job.job.id] = job.job.step_met(end) or 0
        return Promise(job, step, end)

    def tell(self, book: LeaseBook, now: float) -> Proposals:
        """Promise another step to the jobs that will now end by another one than promised.

        O(jobs whose last lease has changed · leases).
        """
        moved = [job_id for job_id in book.moved if len(book.jobs[job_id].job.steps) > 1]
        book.moved.clear()
        for job_id in moved:
            job, leases = book.jobs[job_id], book.plan[job_id]
            leases = leases[bisect_left(leases, book.given) :]
            if not leases or job_id in book.anew or job_id in book.over:
                continue
            end = book.planned_end(job, now, leases)
            step, before = job.job.step_met(end) or 0, book.told.get(job_id)
            if step != before:
                book.told[job_id] = step
                yield Promise(job, step, end, SOONER if before and step < before else LATER)

    def _refuse(self, book: LeaseBook, job: JobStateView, now: float) -> Proposals:
        """Reject a job: its deadline is not, or no longer, promised.

        A job that ends about now may do so, and keeps its promise until then.
        """
        if book.may_end(job, now):
            book.let_end(job, now)
        else:
            yield from self._reject(book, job, now)

    def _reject(self, book: LeaseBook, job: JobStateView, now: float) -> Proposals:
        was = job.job.id in book.plan
        book.asking.pop(job.job.id, None)
        book.unpromise(job.job.id)
        yield Reject(job, OVER if was else NO_ROOM, None if was else book.soonest(job, now))

    def overdue(self, book: LeaseBook, now: float) -> Proposals:
        """Look for a further lease for the jobs that should have ended by now, or reject them.

        They make room for jobs with a lease.
        """
        for job_id in [job_id for job_id, until in book.ending.items() if until <= now]:
            job = book.jobs[job_id]
            book.overrun(job, now)
            yield from self._join(book, job, now, book.next_lease(now))
            if job.stream is not None and any(each.stream is None for each in book.holders()):
                yield Preempt(job, "its lease is over")

    def _ask(
        self, book: LeaseBook, asked: LeaseQuestion, program: Asked, start: tuple[float, ...]
    ) -> Proposals:
        """Ask the solver, unless it works on another question."""
        book.blocked = self.asked is not None and self.asked.at == asked.at
        if self._is_open(asked.at):
            return
        self.asked, self.answer = asked, None
        large = len(program.program.costs) >= LARGE
        soonest = asked.selection is not None and asked.selection.goal is LeaseGoal.SOONEST
        yield Solve(program.program, SOON if large and soonest else LIMIT, start)

    def _is_open(self, now: float) -> bool:
        """Return whether a question may still be answered."""
        return self.asked is not None and now < self.asked.at + OVERDUE

    def take_answer(self, book: LeaseBook, now: float) -> Proposals:
        """Use the answer to a program of this group, if it has arrived."""
        asked, values = self.asked, self.answer
        if asked is None or asked.group != book.group.first or values is None:
            return
        self.asked = self.answer = None
        if asked.kind == "join":
            yield from self._joined(book, asked, values, now)
        elif asked.selection is not None:
            asked.selection.take(values)
            if book.given >= asked.lease:
                self._improve(book, now, asked.lease, asked.selection.plan)
            elif all(claim.job_id in book.plan for claim in asked.selection.claims):
                yield from self._choose(book, now, asked.lease, asked.selection)
            # else one of its jobs has ended: the cycle, which is still open, selects again

    def _joined(
        self, book: LeaseBook, asked: LeaseQuestion, values: Sequence[float], now: float
    ) -> Proposals:
        """Promise or reject a deadline by the answer of the solver."""
        job = book.jobs.get(asked.job)
        if job is None or not (asked.job in book.asking or asked.job in book.anew):
            return
        lease = book.next_lease(now) if asked.job in book.asking else asked.lease
        both = (*book.claims(now, lease), book.claim(job, now, lease))
        if lease != asked.lease or both != asked.claims:
            return  # the state has changed too much since: it asks again
        if not values:
            yield from self._refuse(book, job, now)
            return
        program = lease_program(both, book.room, LeaseGoal.ANY)
        plan = program.plan_of(both, values)
        if book.holds(both, plan):
            yield from self._promise(book, both[-1], now, plan, lease)
        else:
            yield from self._refuse(book, job, now)

    def _improve(self, book: LeaseBook, now: float, lease: int, plan: LeasePlan) -> None:
        """Adopt the later leases of a plan that arrived after its first lease was given."""
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

    def shrunk(self, book: LeaseBook, now: float) -> Proposals:
        """Keep as many promises as possible, in order of arrival, after the loss of GPUs."""
        lease = book.next_lease(now)
        claims = book.claims(now, lease)
        if book.holds(claims, book.standing(claims, lease)):
            return
        kept, lost = list[Claim](), list[JobStateView]()
        plan = fitted(claims, book.room)
        if plan is not None:
            book.adopt(plan, lease)
            return
        plan = {}
        for claim in sorted(claims, key=lambda claim: book.jobs[claim.job_id].arrival):
            both = [*kept, claim]
            found = joined(kept, book.room, plan, claim) or fitted(both, book.room)
            if found is None:
                book.unpromise(claim.job_id)
                lost.append(book.jobs[claim.job_id])
            else:
                kept, plan = both, found
        book.adopt(plan, lease)
        for job in lost:
            yield Reject(job, LOST, book.soonest(job, now))

    def select(self, book: LeaseBook, now: float, lease: int) -> Proposals:
        """Choose the jobs of this lease and the following ones (§3.3.4)."""
        for job_id in sorted(book.anew, key=lambda i: (i in book.over, book.jobs[i].arrival)):
            if self.asked is None or self.asked.job != job_id:
                yield from self._join(book, book.jobs[job_id], now, lease)
            if self.waits(book, now):
                return
        if self._is_selecting(book, lease):
            book.selected = lease  # its answer will change later leases
        if book.selected == lease:
            return
        claims = book.claims(now, lease)
        selection = Selection.of(claims, book.room, book.standing(claims, lease))
        if selection is not None:
            yield from self._choose(book, now, lease, selection)

    def _is_selecting(self, book: LeaseBook, lease: int) -> bool:
        """Return whether a program of this cycle is being solved."""
        asked = self.asked
        return (
            self.is_asked_for(book)
            and asked is not None
            and ((asked.kind, asked.lease) == ("cycle", lease))
        )

    def _choose(self, book: LeaseBook, now: float, lease: int, selection: Selection) -> Proposals:
        """Ask the solver for the next program of a selection, or adopt its plan."""
        if book.holds(selection.claims, selection.plan):
            book.adopt(selection.plan, lease)
        question = selection.question
        if question is None or (self._is_open(now) and not self.waits_at(now)):
            book.selected = lease
        else:
            asked = LeaseQuestion(
                "cycle", book.group.first, now, lease, selection.claims, selection=selection
            )
            yield from self._ask(book, asked, *question)
