"""Who is promised a deadline, and who gets which leases (Chronus, §3.3.2 to §3.3.4).

A plan that lets all promised jobs meet their last step exists at any moment: the solver makes it
better, and is waited for only within the instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from sia.contract.proposals import Promise, Proposals, Reject, Solve
from sia.contract.views import JobStateView
from sia.policies.chronus.book import LeaseBook
from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.lists import fitted, is_impossible, joined
from sia.policies.chronus.leases.programs import (
    LeaseGoal,
    LeaseProgram,
    TargetProgram,
    lease_program,
)
from sia.policies.chronus.leases.repair import rearranged
from sia.policies.chronus.leases.selection import Selection
from sia.program import SolveLimit

LIMIT = SolveLimit(seconds=4.0, nodes=500, iterations=50_000, gap=0.0)
"""Limits of one program. A question solves two, so a live answer takes less than ten seconds."""

SOON = SolveLimit(seconds=2.0, nodes=20, iterations=3_000, gap=0.01)
"""Limits of a large delay program. The reward is proven before, so a good delay is enough."""

LARGE = 300
"""Columns from which on a program is large. Smaller ones are solved to the end."""

PATIENCE = 1e-5
"""Seconds, after which a cycle goes on with the plan as it is. An answer that takes no time, as in
replays, comes before; one that comes later changes later leases."""

OVERDUE = 60.0
"""Seconds after which an answer no longer comes, as whoever drives the core gives up long before.
Until then nothing else is asked: a new question would take the place of the open one."""

SOONER = "leases before its own became free"
LATER = "its leases were moved so that more deadlines can be kept"

NO_ROOM = "no plan of leases has room for it before its last step"
LOST = "GPUs were lost, and no plan of leases has room for it on the others"
OVER = "its estimate is up, and no plan of leases has room for one more"


Asked = LeaseProgram | TargetProgram


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


class Promises:
    """Answers jobs and chooses leases, group by group.

    Attributes:
        asked: The program that is being solved, or None.
        answer: Its solution, once that has come; empty if there is none.
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

        It is one of this group, or one of another group that keeps this one from asking.
        """
        return self.waits_at(now) and (self.is_asked_for(book) or book.blocked)

    def waits_at(self, now: float) -> bool:
        """Return whether the answer to a program of any group may still come at this instant."""
        return self.asked is not None and self.asked.at == now

    def admit(self, book: LeaseBook, now: float) -> Proposals:
        """Answer the jobs that ask, in order of arrival."""
        for job_id in sorted(book.asking, key=lambda job_id: book.jobs[job_id].arrival):
            if self.asked is not None and self.asked.job == job_id:
                return  # its answer is to come
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
        """Promise a job its deadline if some plan has room, or ask a solver whether one has."""
        claims, claim = book.claims(now, lease), book.claim(job, now, lease)
        both = (*claims, claim)
        if is_impossible(both, book.room):
            yield from self._refuse(book, job, now)
            return
        standing = book.standing(claims, lease)
        plan = joined(claims, book.room, standing, claim)
        plan = plan or rearranged(claims, book.room, standing, claim)
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
            step = book.told[job.job.id] = job.job.step_met(end) or 0
            yield Promise(job, step, end)

    def tell(self, book: LeaseBook, now: float) -> Proposals:
        """Tell the jobs that are now planned to end by another step than they were told.

        O(jobs whose last lease has changed · leases).
        """
        moved = [job_id for job_id in book.moved if len(book.jobs[job_id].job.steps) > 1]
        book.moved.clear()
        for job_id in moved:
            job, leases = book.jobs[job_id], [n for n in book.plan[job_id] if n >= book.given]
            if not leases or job_id in book.anew or job_id in book.over:
                continue
            end = book.planned_end(job, now, leases)
            step, before = job.job.step_met(end) or 0, book.told.get(job_id)
            if step != before:
                book.told[job_id] = step
                yield Promise(job, step, end, SOONER if before and step < before else LATER)

    def _refuse(self, book: LeaseBook, job: JobStateView, now: float) -> Proposals:
        """Tell a job that its deadline is not, or no longer, promised."""
        was = job.job.id in book.plan
        book.asking.pop(job.job.id, None)
        book.unpromise(job.job.id)
        yield Reject(job, OVER if was else NO_ROOM, None if was else book.soonest(job, now))

    def _ask(
        self, book: LeaseBook, asked: LeaseQuestion, program: Asked, start: tuple[float, ...]
    ) -> Proposals:
        """Ask a solver, unless it works on another question."""
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
        """Use the answer to a program of this group, if it is there."""
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
            # else a job of it has ended: the cycle, which is still open, selects anew

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
            yield from self._refuse(book, job, now)
            return
        program = lease_program(both, book.room, LeaseGoal.ANY)
        plan = program.plan_of(both, values)
        if book.holds(both, plan):
            yield from self._promise(book, job, now, plan, lease)
        else:
            yield from self._refuse(book, job, now)

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

    def shrunk(self, book: LeaseBook, now: float) -> Proposals:
        """Keep what can be kept of the promises, in order of arrival, on fewer GPUs."""
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
        """Choose who gets this lease and the following ones (§3.3.4)."""
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
        """Ask the next program of a selection, or take its plan."""
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
