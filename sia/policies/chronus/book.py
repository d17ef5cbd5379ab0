"""The jobs of one sharing group under Chronus, and the plan of their leases.

Leases are numbered from second 0: lease n lasts from n · `lease` to (n + 1) · `lease` seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from msgspec import Struct

from sia.contract.plan import PromisedSpan
from sia.contract.policy import owners_first
from sia.contract.views import GroupStateView, JobStateView
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, Options
from sia.policies.chronus.leases.claims import (
    ROUNDING,
    Claim,
    LeasePlan,
    first_lease,
    lease_cost,
    leases_before,
    leases_needed,
)
from sia.policies.chronus.leases.free import Room, moved, spans
from sia.policies.chronus.leases.lists import is_within
from sia.policies.chronus.leases.sizes import NODE_GPUS, NodeSizes
from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.placing.allocator import Allocator
from sia.policies.chronus.profiler import Profiler, ProfilerMemory, TrialRow
from sia.policies.chronus.standing import StandingPlan
from sia.state.nodes import NodeCounts, NodeTable

MOST_LEASES = 20_000
"""Largest number of leases of one job: more than nine months with leases of 20 minutes. A plan
lists each lease, so more would make planning slow."""


SLIP = 0.02
"""Part of a lease by which a daemon's steps, and the starts of jobs, may come late without the loss
of a promise: a job that needs exactly its leases would otherwise lose it by a few milliseconds."""

OVERRUN = 0.5
"""Part of this time for which a job without a further lease may run on after its estimate. The next
job on its GPUs starts late by so much, and by the time of the stop, and must keep its promise."""


class BookMemory(Struct):
    """The memory of a `LeaseBook`."""

    asking: list[str]
    plan: dict[str, tuple[int, ...]]
    anew: list[str]
    over: list[str]
    given: int
    opened: int
    selected: int
    cycle: int
    had: tuple[int, ...]
    trying: list[str] = []
    rows: list[TrialRow] = []
    profiler: ProfilerMemory | None = None
    reserved: dict[str, int] = {}
    told: dict[str, int] = {}
    moved: list[str] = []
    begun: int = -1
    ending: dict[str, float] = {}
    late: list[str] = []


class Rules(NamedTuple):
    """The options with which a book plans."""

    params: ChronusParams
    options: Options
    """Options of the core: the default cost of a resume, and whether owners come first."""


class LeaseBook:
    """The jobs of a sharing group.

    Attributes:
        jobs: All jobs by id.
        asking: Jobs that wait for a decision on the promise of their deadline.
        plan: The leases of each guaranteed job, from the latest given lease on.
        anew: Guaranteed jobs that need more leases than they have, and so must be admitted again.
        over: Guaranteed jobs that have worked for their whole estimate and still run.
        ending: Guaranteed jobs without this lease whose estimate ends about now, and the second
            until which they keep their GPUs. Only with owners, as in a daemon.
        late: Guaranteed jobs that have not ended until then, until the next lease begins.
        given: The number of the latest lease that was given, or -1.
        opened: The number of the latest lease whose cycle has begun, or -1.
        selected: The number of the latest lease whose selection is done, or -1.
        cycle: The number of the latest best-effort cycle that is done, or -1.
        begun: The number of the latest best-effort cycle that has begun, or -1.
        had: The value of `room` in the last pass that compared it.
        sizes: The GPUs that guaranteed jobs may use in a lease.
        owned: The GPUs that the guaranteed jobs of each pool may use in a lease, because GPUs of
            other pools are not promised; empty if the group has only one pool.
        told: The number of the step that was last promised to each guaranteed job.
        moved: Guaranteed jobs whose last lease has changed since the last pass.
        profiler: The trials.
        trying: Jobs that have not had all their trials.
        rows: Trials that have ended with their job since the last pass.
        allocator: Places jobs on nodes; None if the nodes are not known.
        blocked: Whether it could not ask a solver, because the solver works for another group.
    """

    def __init__(self, group: GroupStateView, rules: Rules, table: NodeTable | None = None) -> None:
        """Start without jobs; `table` has the nodes, if these are known."""
        self.group, self._rules = group, rules
        self.jobs: dict[str, JobStateView] = {}
        self.asking: dict[str, None] = {}
        self.plan: LeasePlan = {}
        self.anew: dict[str, None] = {}
        self.over: dict[str, None] = {}
        self.ending: dict[str, float] = {}
        self.late: dict[str, None] = {}
        self.given = self.opened = self.selected = self.cycle = self.begun = -1
        self.had: Room = ()
        self.sizes, self.owned = NodeSizes(0), tuple[int, ...]()
        self.blocked = False
        self.allocator = None
        if table is not None:
            round_up, search = rules.params.roundup, rules.params.search
            self.allocator = Allocator(table, round_up=round_up, search=search)
        self.node = NODE_GPUS if self.allocator is None else self.allocator.node
        in_turn = rules.options.owners  # as in a daemon
        self.slip = SLIP * rules.params.lease if in_turn else 0.0
        self.profiler = Profiler(rules.params, group.quota, self.node, in_turn=in_turn)
        self.trying: dict[str, None] = {}
        self.rows: list[TrialRow] = []
        self.told: dict[str, int] = {}
        self.moved: dict[str, None] = {}
        self._never: dict[str, None] = {}  # jobs that must not be stopped
        self._claimed: dict[str, tuple[tuple[Any, ...], Claim]] = {}  # claims, and what they are of
        self._current: StandingPlan | None = None
        self._held: tuple[int, dict[str, None]] | None = None  # `given`, and who has this lease
        self._touched: dict[str, None] = {}  # guaranteed jobs that have changed since `current`
        self.reserve()

    def memory(self) -> BookMemory:
        """Return what the state does not show."""
        return BookMemory(
            [*self.asking], dict(self.plan), [*self.anew], [*self.over],
            self.given, self.opened, self.selected, self.cycle, self.had,
            [*self.trying], [*self.rows], self.profiler.kept,
            {} if self.allocator is None else self.allocator.reserved,
            dict(self.told), [*self.moved], self.begun, dict(self.ending), [*self.late],
        )  # fmt: skip

    def resume(self, memory: BookMemory) -> None:
        """Take the memory; the jobs are known already. Raises ValueError if one is not."""
        for job_id in (*memory.asking, *memory.plan, *memory.anew, *memory.over, *memory.trying):
            if job_id not in self.jobs:
                raise ValueError(f"job {job_id} has leases, but is not in the cluster")
        self.plan = dict(memory.plan)
        self._held = None
        if memory.had:  # else no pass has admitted any job yet: all pending jobs ask
            self.asking = dict.fromkeys(memory.asking)
        self.anew, self.over = dict.fromkeys(memory.anew), dict.fromkeys(memory.over)
        self.ending, self.late = dict(memory.ending), dict.fromkeys(memory.late)
        self.given, self.opened, self.selected = memory.given, memory.opened, memory.selected
        self.cycle, self.begun, self.had = memory.cycle, memory.begun, memory.had
        self.trying, self.rows = dict.fromkeys(memory.trying), [*memory.rows]
        self.told, self.moved = dict(memory.told), dict.fromkeys(memory.moved)
        if memory.profiler is not None:
            self.profiler.kept = memory.profiler
        if self.allocator is not None:
            self.allocator.reserved = memory.reserved

    def take(self, job: JobStateView) -> None:
        """Add a job, or replace its earlier version."""
        self.jobs[job.job.id] = job
        self.touch(job.job.id)
        self._never.pop(job.job.id, None)
        if job.job.preemptible == NEVER_STOPPED:
            self._never[job.job.id] = None

    def touch(self, job_id: str) -> None:
        """Note that a job has started, stopped or changed, if the plan contains or contained it."""
        found = self._current
        if job_id in self.plan or (found is not None and job_id in found.claims):
            self._touched[job_id] = None

    def is_new(self, job: JobStateView) -> bool:
        """Return whether a job is unknown to the book and has never run."""
        return job.job.id not in self.jobs and not job.runs

    def tries(self, job: JobStateView) -> bool:
        """Return whether a new job gets trials first."""
        can = job.job.preemptible != NEVER_STOPPED
        if job.job.fixed_width and job.width > self.node:
            return False
        return can and self.profiler.capacity > 0 and self.profiler.tries(job.width)

    def forget(self, job_id: str, now: float) -> None:
        """Remove a job that ended or left."""
        del self.jobs[job_id]
        if self.trying.pop(job_id, "") is None:
            self.rows += self.profiler.forget(job_id, now)
        self._never.pop(job_id, None)
        self.asking.pop(job_id, None)
        self.unpromise(job_id)

    def unpromise(self, job_id: str) -> None:
        """Take the leases of a job away."""
        jobs: dict[str, Any]
        for jobs in (
            self.plan, self.anew, self.over, self.ending, self.late, self.told, self.moved,
            self._claimed,
        ):  # fmt: skip
            jobs.pop(job_id, None)
        if self._held is not None and job_id in self._held[1]:
            self._held = None
        self.touch(job_id)

    def refresh(self, less: int | None = None) -> None:
        """Compute the GPUs that guaranteed jobs may use.

        These are all GPUs in service except those of the profiler (or, if given, except `less`
        GPUs), and except those of running jobs that must not be stopped.
        """
        stuck = self.stuck
        away = sum(job.width for job in stuck)
        away += self.profiler.capacity if less is None else less
        gpus = max(0, self.group.quota - self.group.out - away)
        free: tuple[int, ...] = ()
        if self.allocator is not None:
            reserved = None if less is None else self.reservation(less)
            free = self.allocator.free(stuck, reserved)
        self.sizes = NodeSizes(gpus, self.node, self._rules.params.roundup, free)
        if self.lends:
            held = self.left_of_quotas(stuck)
            self.owned = tuple(max(0, held[pool.name]) for pool in self.group.pools)

    @property
    def lends(self) -> bool:
        """Whether each pool's jobs come first on its quota, and only unused GPUs are lent."""
        return owners_first(self._rules.options, self.group)

    def left_of_quotas(self, jobs: Iterable[JobStateView]) -> dict[str, int]:
        """Return how much of each pool's quota these jobs leave; negative if they borrow."""
        left = {pool.name: pool.quota for pool in self.group.pools}
        for job in jobs:
            left[job.pool.name] -= job.width
        return left

    def reservation(self, capacity: int) -> dict[str, int] | None:
        """Return nodes for a profiler of this capacity; None if leases need too many GPUs."""
        assert self.allocator is not None
        firm = [*self.holders(), *self.stuck]
        return self.allocator.reserve(capacity, self.profiler.kept.running, firm)

    def reserve(self) -> None:
        """Give the profiler nodes for its capacity, if nodes are known.

        If leases need the other nodes, the profiler keeps its present ones, even if they are out.
        """
        allocator = self.allocator
        if allocator is not None and allocator.trying != self.profiler.capacity:
            found = self.reservation(self.profiler.capacity)
            if found is not None:
                allocator.reserved = found

    @property
    def stuck(self) -> list[JobStateView]:
        """The running jobs that must not be stopped."""
        return [self.jobs[i] for i in self._never if self.jobs[i].stream is not None]

    @property
    def running(self) -> list[JobStateView]:
        """The jobs that run and are not in a trial."""
        return [
            job for job_id, job in self.jobs.items()
            if job.stream is not None and job_id not in self.trying
        ]  # fmt: skip

    @property
    def has_less(self) -> bool:
        """Whether an entry of `room` is less than in `had`."""
        alike = len(self.room) == len(self.had)
        return not alike or any(a < b for a, b in zip(self.room, self.had, strict=True))

    @property
    def room(self) -> Room:
        """The GPUs, and places of each size, that guaranteed jobs may use together in a lease."""
        return self.sizes.room + self.owned

    def uses(self, job: JobStateView) -> Room:
        """Return how much of `room` a job uses in each of its leases.

        GPUs by which its width is rounded up also count against its pool's quota, but not beyond.
        """
        uses = self.sizes.uses(job.width)
        if not self.owned:
            return uses
        own = max(job.width, min(uses[0], job.pool.quota))
        return (*uses, *(own if pool is job.pool else 0 for pool in self.group.pools))

    def next_lease(self, now: float) -> int:
        """Return the number of the first lease that has not been given."""
        return max(self.given + 1, first_lease(now, self._rules.params.lease))

    def cost(self, job: JobStateView) -> float:
        """Return the cost of a resume in seconds; infinite if the job must not be stopped."""
        return lease_cost(job.job, self._rules.options.resume_cost)

    def left(self, job: JobStateView, now: float, lease: int) -> float:
        """Return the seconds of work that a job has left when a lease begins.

        A job that holds the lease before runs until then, from now on if it has not started: with
        owners its GPUs may be free a little later.
        """
        begin = lease * self._rules.params.lease
        if job.job.id not in self.held:
            return job.run_time - job.work(now)
        if job.stream is None and self.slip:
            until = begin - self.cost(job) if job.runs else begin
            return job.run_time - job.done - max(0.0, until - now)
        return job.run_time - job.work(max(begin, now))

    def claim(self, job: JobStateView, now: float, lease: int, uses: Room | None = None) -> Claim:
        """Return the claim of a job from a lease on; `uses` is the result of `uses`, if known.

        A job that has worked for its whole estimate claims one lease.
        """
        length, left = self._rules.params.lease, self.left(job, now, lease)
        needed = self._needed(job, left, lease) if left > ROUNDING else 1
        steps = leases_before(job.job.steps, lease * length, length)
        return Claim(
            job.job.id, uses or self.uses(job), needed, steps, renews=job.stream is not None
        )

    def _needed(self, job: JobStateView, left: float, lease: int) -> int:
        """Return the number of leases for the rest of a job, from `lease` on.

        A job whose planned leases are too short only because steps came late needs no further one.
        """
        worth = self._rules.params.lease - self.cost(job)
        needed = leases_needed(left, self._rules.params.lease, self.cost(job))
        known = self.plan.get(job.job.id, ())
        planned = len(known) - bisect_left(known, lease)
        late = 0 < planned == needed - 1 and left - planned * worth <= self.slip
        return planned if late else needed

    def may_end(self, job: JobStateView, now: float) -> bool:
        """Return whether a guaranteed job may keep its GPUs without a lease, as it ends about now.

        Only with owners, as in a daemon, where its start, or this step, may have been late. False
        if it has had the time before.
        """
        late = abs(job.run_time - job.work(now)) <= self.slip and job.stream is not None
        return late and self.slip > 0.0 and job.job.id in self.plan and job.job.id not in self.late

    def let_end(self, job: JobStateView, now: float) -> None:
        """Let a job that ends about now keep its GPUs for some seconds."""
        left = max(0.0, job.run_time - job.work(now))
        self.anew.pop(job.job.id, None)
        self.over.pop(job.job.id, None)
        self.ending[job.job.id] = now + min(self.slip, left + OVERRUN * self.slip)
        self.touch(job.job.id)

    def overrun(self, job: JobStateView, now: float) -> None:
        """Note that a job of `ending` has not ended in time: it needs a further lease."""
        del self.ending[job.job.id]
        self.late[job.job.id] = self.anew[job.job.id] = None
        if is_up(job, now):
            self.over[job.job.id] = None
        self.touch(job.job.id)

    def claims(self, now: float, lease: int) -> list[Claim]:
        """Return the claims of the guaranteed jobs that need a lease from this one on."""
        uses = dict[tuple[int, str], Room]()
        found = (self._claim_of(job_id, now, lease, uses) for job_id in self.plan)
        return [claim for claim in found if claim is not None]

    def _claim_of(
        self, job_id: str, now: float, lease: int, uses: dict[tuple[int, str], Room]
    ) -> Claim | None:
        """Return the claim of a guaranteed job, or None if it needs no lease from this one on.

        `uses` keeps the results of `uses` by width and pool.
        """
        if job_id in self.anew or job_id in self.ending:
            return None
        job, leases = self.jobs[job_id], self.plan[job_id]
        left, is_last = self.left(job, now, lease), leases[-1] < lease
        # The end of a job in its last lease may be late.
        least = max(ROUNDING, self.slip) if is_last else ROUNDING
        if left <= least if job_id not in self.over else is_last:
            return None
        size = job.width, job.pool.name
        if size not in uses:
            uses[size] = self.uses(job)
        key = job.job, left, lease, job.stream is not None, uses[size]
        known = self._claimed.get(job_id)
        if known is None or known[0][0] is not job.job or known[0][1:] != key[1:]:
            known = self._claimed[job_id] = key, self.claim(job, now, lease, uses[size])
        return known[1]

    def current(self, now: float, lease: int) -> StandingPlan:
        """Return the claims and the plan from a lease on, which is the next one to be given.

        O(jobs that have changed · spans of leases); O(jobs) for the first call for each lease.
        """
        key, found = (lease, self.given, self.sizes, self.owned), self._current
        if found is not None and found.key == key:
            changed = [i for i in (*self._touched, *found.moving) if i in self.plan]
            claims = {i: self._claim_of(i, now, lease, {}) for i in dict.fromkeys(changed)}
            if all(i in found.claims for i, claim in claims.items() if claim is not None):
                for job_id in (*self._touched, *found.moving):
                    if claims.get(job_id) is None:
                        found.drop(job_id)
                for claim in claims.values():
                    self._put(found, claim, lease)
                self._touched.clear()
                return found
        claimed = self.claims(now, lease)
        found = StandingPlan(key, self.room, claimed, self.standing(claimed, lease))
        for claim in claimed:
            self._note(found, claim, lease)
        self._current = found
        self._touched.clear()
        return found

    def _put(self, found: StandingPlan, claim: Claim | None, lease: int) -> None:
        """Add a claim with its leases to a standing plan."""
        if claim is None:
            return
        found.put(claim, self._later(claim, lease))
        self._note(found, claim, lease)

    def _note(self, found: StandingPlan, claim: Claim, lease: int) -> None:
        """Note whether a job has more leases than it needs, and whether it runs without one."""
        job_id, leases = claim.job_id, self.plan[claim.job_id]
        found.cut.pop(job_id, None)
        if len(leases) - bisect_left(leases, lease) > len(found.plan[job_id]):
            found.cut[job_id] = None
        found.moving.pop(job_id, None)
        if self.jobs[job_id].stream is not None and job_id not in self.held:
            found.moving[job_id] = None

    def _later(self, claim: Claim, lease: int) -> tuple[int, ...]:
        """Return the leases of a job from `lease` on, numbered from it, as far as it needs them."""
        leases = self.plan[claim.job_id]
        first = bisect_left(leases, lease)
        return moved(leases[first : first + claim.leases], -lease)

    def add(self, claim: Claim, leases: Sequence[int], lease: int) -> None:
        """Add a job to the plan: its leases, numbered from `lease`, are free in `current`.

        The other jobs give up the leases that they no longer need.
        """
        found = self._current
        assert found is not None
        for job_id in found.cut:
            self._set(job_id, found.plan[job_id], lease)
        found.cut.clear()
        self._set(claim.job_id, leases, lease)
        found.put(claim, tuple(leases))
        self.touch(claim.job_id)

    def open(self, now: float, lease: int) -> None:
        """Begin the cycle of a lease: find the jobs that need a new lease.

        They are jobs that have worked for their whole estimate, and jobs with too few leases.
        """
        self.opened = lease
        self.ending.clear()
        self.late.clear()
        for job_id, leases in self.plan.items():
            job = self.jobs[job_id]
            left = self.left(job, now, lease)
            if is_up(job, now):
                self.anew[job_id] = self.over[job_id] = None
                self.touch(job_id)
            elif left > ROUNDING:
                if self.over.pop(job_id, "") is None:
                    self.touch(job_id)
                if not self._is_enough(self.claim(job, now, lease), leases, lease):
                    self.anew[job_id] = None
                    self.touch(job_id)

    def _is_enough(self, claim: Claim, leases: Sequence[int], lease: int) -> bool:
        last = bisect_left(leases, lease) + claim.leases - 1
        return last < len(leases) and leases[last] - lease < claim.last

    def standing(self, claims: Iterable[Claim], lease: int) -> LeasePlan:
        """Return the present plan, numbered from `lease`, without leases that are not needed."""
        return {claim.job_id: self._later(claim, lease) for claim in claims}

    def holds(self, claims: Sequence[Claim], plan: LeasePlan) -> bool:
        """Return whether a plan gives each job enough leases, and all fit. O(spans of leases)."""
        room = self.room
        for claim in claims:
            leases = plan.get(claim.job_id, ())
            if len(leases) != claim.leases or not 0 <= leases[0] <= leases[-1] < claim.last:
                return False
            if len(claim.uses) != len(room):
                return False  # other nodes were available at the request
        return is_within(claims, room, plan)

    def keeps(self, now: float, *taken: NodeCounts) -> bool:
        """Return whether the plan from the next lease on is feasible without these GPUs."""
        assert self.allocator is not None
        self.refresh()
        sizes = self.sizes
        free = self.allocator.free(self.stuck)
        less = self.allocator.less(free, *taken)
        self.sizes = sizes._replace(gpus=sizes.gpus - sum(free) + sum(less), free=less)
        lease = self.next_lease(now)
        claims = self.claims(now, lease)
        holds = self.holds(claims, self.standing(claims, lease))
        self.sizes = sizes
        return holds

    def adopt(self, plan: Mapping[str, Sequence[int]], lease: int) -> None:
        """Replace the plan from `lease` on by one that is numbered from `lease`."""
        self._current = None
        for job_id, leases in plan.items():
            self._set(job_id, leases, lease)

    def admit(self, claim: Claim, plan: LeasePlan, lease: int) -> None:
        """Replace the plan from `lease` on by one, numbered from it, with one more job."""
        found = self._current
        self.adopt(plan, lease)
        if found is None or found.key[0] != lease:
            return
        if plan.keys() != {*found.claims, claim.job_id}:
            return
        self._current = found.joined_by(claim, plan)
        for each in self._current.claims.values():
            self._note(self._current, each, lease)
        self.touch(claim.job_id)

    def _set(self, job_id: str, leases: Sequence[int], lease: int) -> None:
        """Replace the leases of a job from `lease` on by leases that are numbered from it."""
        known = self.plan.get(job_id, ())
        since, first = bisect_left(known, self.given), bisect_left(known, lease)
        if _is_same_span(known, first, leases, lease):
            found = known[since:]
        else:
            found = known[since:first] + moved(leases, lease)
        if known and found and known[-1] != found[-1]:
            self.moved[job_id] = None
        self.plan[job_id] = found
        if lease <= self.given:
            self._held = None

    def soonest(self, job: JobStateView, now: float) -> float | None:
        """Return when a job could end on GPUs that the plan leaves free; None for never.

        O(guaranteed jobs + spans of leases).
        """
        lease = self.next_lease(now)
        leases = self.current(now, lease).find_later(self.claim(job, now, lease))
        if leases is None:
            return None
        return self.planned_end(job, now, [lease + k for k in leases])

    def promised(self) -> list[PromisedSpan]:
        """Return the GPUs of guaranteed jobs, rounded up, lease by lease."""
        length, used = self._rules.params.lease, self._used()
        found: list[PromisedSpan] = []
        for n, sums in sorted(used.items()):
            gpus, last = sum(sums.values()), found[-1] if found else None
            if last is not None and last.gpus == gpus and last.end == n * length:
                found[-1] = last._replace(end=(n + 1) * length)
            else:
                found.append(PromisedSpan(n * length, (n + 1) * length, gpus))
        return found

    def planned_end(self, job: JobStateView, now: float, leases: Sequence[int]) -> float:
        """Return when a job ends if it gets these leases, in seconds. O(spans of leases)."""
        length, cost = self._rules.params.lease, self.cost(job)
        left = self.left(job, now, leases[0])
        begun, before = job.runs > 0, leases[0] - 1 if job.stream is not None else -2
        end = now
        for span in spans(leases):
            begin = max(now, span.start * length)
            if begun and span.start != before + 1:
                begin += cost
            latest = (span.stop - 1) * length if len(span) > 1 else -inf  # its last lease begins
            end = min(span.stop * length, max(latest, begin + left))
            left -= end - begin
            before, begun = span.stop - 1, True
        return end

    @property
    def held(self) -> dict[str, None]:
        """The guaranteed jobs that hold the latest given lease, in the order of the plan."""
        if self._held is None or self._held[0] != self.given:
            found = (
                (job_id, bisect_left(had, self.given), had) for job_id, had in self.plan.items()
            )
            held = (job_id for job_id, n, had in found if n < len(had) and had[n] == self.given)
            self._held = self.given, dict.fromkeys(held)
        return self._held[1]

    def holders(self) -> list[JobStateView]:
        """Return the guaranteed jobs that hold the latest given lease."""
        return [self.jobs[job_id] for job_id in self.held]

    def is_free_for_good(self, jobs: Sequence[JobStateView]) -> bool:
        """Return whether the plan stays feasible if these jobs keep their GPUs for ever.

        O(jobs · leases).
        """
        left = self.left_of_quotas([*self.stuck, *jobs])
        wanted = sum(job.width for job in jobs)
        return all(
            sum(used.values()) + wanted <= self.sizes.gpus
            and (not self.owned or all(gpus <= left[name] for name, gpus in used.items()))
            for used in (*self._used().values(), dict.fromkeys(left, 0))
        )

    def _used(self) -> dict[int, dict[str, int]]:
        """Return how many GPUs, rounded up, each lease of the plan takes, by pool.

        Leases before the present one are left out.

        O(jobs · leases).
        """
        used: dict[int, dict[str, int]] = {}
        for job_id, leases in self.plan.items():
            job = self.jobs[job_id]
            gpus, name = self.sizes.rounded(job.width), job.pool.name
            for n in leases[bisect_left(leases, self.given) :]:
                sums = used.setdefault(n, {})
                sums[name] = sums.get(name, 0) + gpus
        return used

    def why_not(self, job: JobStateView) -> str:
        """Return why the deadline could not be promised even to a job alone, or ""."""
        if not 0 < job.run_time < UNKNOWN_RUN_TIME:
            return "its run time is not known; give an estimate"
        if self.cost(job) == inf:
            return "a stop would cost it all its work, or is not allowed"
        length = self._rules.params.lease
        if self.cost(job) >= length:
            return "going on costs it a whole lease"
        if leases_needed(job.run_time, length, self.cost(job)) > MOST_LEASES:
            return f"it would need more than {MOST_LEASES:,} leases"
        return ""

    def check(self) -> None:
        """Assert that leases are in order and belong to known jobs. O(jobs · leases)."""
        assert self.jobs.keys() >= self.plan.keys()
        assert self.plan.keys() >= {*self.anew, *self.over, *self.ending, *self.late}
        assert not self.plan.keys() & self.asking.keys()
        for leases in self.plan.values():
            assert leases
            assert list(leases) == sorted(set(leases))


def _is_same_span(known: Sequence[int], first: int, leases: Sequence[int], lease: int) -> bool:
    """Return whether `leases`, numbered from `lease`, are one span and are those from `first` on.

    O(1); False where they are several spans.
    """
    count = len(leases)
    return (
        0 < count == len(known) - first
        and leases[-1] - leases[0] == known[-1] - known[first] == count - 1
        and leases[0] + lease == known[first]
    )


def is_up(job: JobStateView, now: float) -> bool:
    """Return whether a job has worked for its whole estimate and has not ended.

    False for a running job whose remaining work is less than the rounding of times: it will end by
    itself at the instant that its estimate gives.
    """
    left = job.run_time - job.work(now)
    if abs(left) <= ROUNDING and job.stream is not None:
        return job.end(job.run_time) <= now
    return left <= ROUNDING


def slack(job: JobStateView, now: float) -> float:
    """Return the seconds that a job can wait and still meet its last step."""
    return job.job.steps[-1].at - now - (job.run_time - job.work(now))
