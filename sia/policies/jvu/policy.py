"""JVuSched (JamaisVu, §4): one plan for jobs with deadlines and best effort, with kills."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from math import floor, inf
from typing import Any, NamedTuple

from msgspec import Struct, convert
from msgspec.structs import replace

from sia.contract.policy import (
    Changes,
    Needs,
    PlannedRun,
    Policy,
    next_multiple,
    owners_first,
    stream_of,
)
from sia.contract.proposals import Preempt, Proposal, ProposalResult, Proposals, Solve, Start, Wake
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.events import ProgramSolved
from sia.limits import UNKNOWN_RUN_TIME
from sia.policies.jvu.foretell import foretell
from sia.policies.jvu.greedy import Greedy, JvuPlan, Taken, as_choice
from sia.policies.jvu.outlook import (
    Draining,
    JvuOutlook,
    Names,
    RunningView,
    Scope,
    StartChoice,
    killable,
)
from sia.policies.jvu.params import JvuParams
from sia.policies.jvu.strl.compiler import CompiledStrl
from sia.policies.jvu.strl.expressions import Choose, StrlProblem
from sia.policies.jvu.strl.text import format_strl, parse_strl
from sia.policies.jvu.worth import JobWorth, steps_of
from sia.program import SolveLimit
from sia.state.nodes import NodeCounts
from sia.wording import duration

GAP = 1e-12
"""Relative gap of a solve. A deadline has the value 1000, so with a gap of 1e-6 the value of best
effort would not count."""

SCALE = 256.0
"""Factor on the values in a program, a power of two. HiGHS prunes solutions that are better by at
most 1e-6, which is the value of a start one slot earlier (`outlook.SOONER`)."""

SMALL = 1_000
"""Number of coefficients up to which a program gets all nodes of option `nodes`; a program with ten
times as many gets a tenth."""

MOST_NEWER = 8
"""Largest number of jobs newer than the plan that are added before a job, so that an answer does
not take as long as a whole plan. A job behind more of them has no start until the next plan, within
a cycle."""


class _Memory(Struct, forbid_unknown_fields=True):
    """The memory of the policy."""

    due: float | None
    grown: dict[str, tuple[int, float]]
    estimates: dict[str, float]
    draining: tuple[tuple[float, dict[str, int]], ...]
    asked: str | None
    """The problem of the open request, as text."""
    loose: bool
    known: int = 0
    planned: tuple[tuple[str, float, float], ...] = ()
    """Job, start and end of each start in the visible plan."""


class AskedPlan(NamedTuple):
    """The problem of an open request."""

    problem: StrlProblem
    loose: bool
    """Whether only starts in the first slot are exact; see `CompiledStrl`."""


class Jvu(Policy):
    """Plans all jobs in cycles, by an optimisation program or one after the other.

    A cycle costs O(choices · (partitions + slots)), and the solver's time. The policy plans only
    after a change, when a planned start is due, or when an estimate has passed.
    """

    Params = JvuParams
    needs = Needs(run_times=True, preemption=True, solver=True)
    shares = True
    on_nodes = True
    heeds = frozenset({"deadline", "value", "prefers", "slowdown", "strl", "preemptible"})

    def __init__(self, params: JvuParams | None = None) -> None:
        """Take the options; those of a preset replace the defaults."""
        super().__init__(params)
        self._options: JvuParams = self.params.effective

    def attach(self, state: ClusterStateView) -> None:
        """Take the state."""
        self._names = Names(state)
        self._worth = JobWorth(self._options)
        self._due = inf  # when the next decision is made
        self._grown: dict[str, tuple[int, float]] = {}
        """How often the estimate of a running job has grown, and its expected end, by job."""
        self._estimates: dict[str, float] = {}
        """The grown estimate of the run time of each killed job, in seconds."""
        self._draining: list[Draining] = []
        self._asked: AskedPlan | None = None
        self._outlook: JvuOutlook | None = None  # of the latest decision
        self._first: dict[str, Taken] = {}
        """Later starts of the latest decision that take precedence over starts of guests."""
        self._known = 0  # number of jobs that had arrived when the visible plan was made
        self._begins: dict[str, float] = {}  # by job, its start in the visible plan
        self._compiled: CompiledStrl | None = None  # of the open request, unless it was restored
        self._answer: ProgramSolved | None = None
        super().attach(state)

    def memory(self) -> Any:
        """Return the open question, the grown estimates and the visible plan."""
        return {
            "due": None if self._due == inf else self._due,
            "grown": {job_id: [*each] for job_id, each in self._grown.items()},
            "estimates": dict(self._estimates),
            "draining": [[each.until, dict(each.units)] for each in self._draining],
            "asked": None if self._asked is None else format_strl(self._asked.problem),
            "loose": self._asked is not None and self._asked.loose,
            "known": self._known,
            "planned": [
                [each.job_id, each.start, each.end]
                for plan in self.plan.values()
                for each in plan.starts
                if (job := self.state.jobs.get(each.job_id)) is not None and job.stream is None
            ],
        }

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the memory."""
        self.attach(state)
        found = convert(memory, _Memory)
        self._due = inf if found.due is None else found.due
        self._grown, self._estimates = found.grown, found.estimates
        self._draining = [Draining(*each) for each in found.draining]
        if found.asked is not None:
            self._asked = AskedPlan(parse_strl(found.asked), found.loose)
        self._known = found.known
        for job_id, begin, end in found.planned:
            job = state.jobs.get(job_id)
            if job is not None and job.stream is None:
                self._intend(job, begin, end)

    def submitted(self, job: JobStateView) -> None:
        """Drop the growth of the estimate of a job that no longer runs."""
        self._grown.pop(job.job.id, None)

    def left(self, job: JobStateView) -> None:
        """Forget a job that was cancelled; the estimate of a started one remains."""
        if job.stream is None and job.job.id not in self.state.jobs:
            self._estimates.pop(job.job.id, None)

    def finished(self, job: JobStateView) -> None:
        """Forget a job that ended."""
        self._grown.pop(job.job.id, None)
        self._estimates.pop(job.job.id, None)

    def solved(self, answer: ProgramSolved) -> None:
        """Take the answer of the solver."""
        self._answer = answer

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Decide at cycles: ask the solver, or carry out its answer."""
        if changes.pools:
            self._due = min(self._due, self._cycle(now))
        if self._answer is not None:
            answer, self._answer = self._answer, None
            if self._asked is not None:
                yield from self._owners_first(now)
                yield from self._carry_out(self._planned(answer), now)
        if self._asked is None and now >= self._due:
            self._due = inf
            yield from self._decide(now)
        if self._asked is None and now < self._due < inf:
            yield Wake(self._due)

    def foretell(self, job: JobStateView) -> PlannedRun:
        """Return how the plan runs a job. O(planned starts + running jobs + its choices)."""
        now = self.state.now
        if job.stream is not None:
            whole = max(job.run_time, self._estimates.get(job.job.id, 0.0))
            return PlannedRun(
                job.start, max(job.end(whole), self._grown.get(job.job.id, (0, 0.0))[1])
            )
        newer = self._newer(job)
        if len(newer) > MOST_NEWER:
            return PlannedRun(inf, inf)
        begin = self._cycle(now)
        running = self._runners(begin, keep=False)
        look = partial(
            JvuOutlook,
            self.state, self._options, self._names, begin, running, self._draining,
            self._estimates, jobs=[*newer, job],
        )  # fmt: skip
        outlook = look()
        starts, slots = self.plan[job.pool.group].starts, self._options.slots
        if job in outlook.owned:
            outlook = look(only=Scope.OWNERS)
        elif self._may_kill_own(job.pool):
            found = foretell(look(only=Scope.POOL, pool=job.pool), job, starts, slots)
            if found.kills:
                return found
        return foretell(outlook, job, starts, slots)

    def _newer(self, job: JobStateView) -> list[JobStateView]:
        """Return pending jobs before `job` that are not in the visible plan. O(jobs)."""
        if job.job.id in self._begins:
            return []
        found = [
            other
            for other in self._waiting()
            if other.arrival > self._known
            and other.pool.group is job.pool.group
            and _precedence(other) < _precedence(job)
        ]
        return sorted(found, key=_precedence)

    def rank(self, job: JobStateView) -> Any:
        """Return the planned start; jobs without one follow in the order of the greedy mode."""
        return self._begins.get(job.job.id, inf), _precedence(job)

    def due(self) -> float:
        """Return when the next decision is made."""
        return inf if self._asked is not None else self._due

    def _cycle(self, now: float) -> float:
        """Return the first multiple of a cycle at `now` or later."""
        cycle = self._options.cycle
        begin: float = floor(now / cycle) * cycle
        return now if begin == now else next_multiple(now, cycle)

    # Decisions

    def _decide(self, now: float) -> Proposals:
        """Plan by the greedy mode, and ask a solver for a better plan unless it is optimal."""
        self._draining = [each for each in self._draining if each.until > now]
        yield from self._owners_first(now)
        outlook = self._look(now)
        self._outlook = outlook
        if outlook.problem is None:
            self._show(self._first)
            self._plan_next(now)
            return
        planner = Greedy(outlook, self._options.slots)
        greedy = planner.plan()
        if self._options.greedy or planner.is_best:
            yield from self._carry_out(greedy, now)
            return
        self._asked = AskedPlan(outlook.problem, outlook.is_large)
        self._compiled = compiled = self._compile(self._asked)
        start = compiled.start(as_choice(greedy, outlook))
        if compiled.program.violation(start):
            start = ()
        # Each node of a large program costs more; its root alone comes close to the bound.
        nodes = self._options.nodes * SMALL // max(SMALL, compiled.program.nonzeros)
        limit = SolveLimit(self._options.cycle, max(1, nodes), self._options.iterations, GAP)
        scaled = replace(compiled.program, costs=tuple(SCALE * c for c in compiled.program.costs))
        result = yield Solve(scaled, limit, start)
        if result is not ProposalResult.DONE:
            self._asked = None
            yield from self._carry_out(greedy, now)

    def _compile(self, asked: AskedPlan) -> CompiledStrl:
        """Compile a problem. In a large one only starts in the first slot are exact."""
        first = asked.problem.now + self._options.cycle / 2.0
        return CompiledStrl(asked.problem, first if asked.loose else inf)

    def _owners_first(self, now: float) -> Proposals:
        """Start jobs within their quotas, if pools share, whatever the value of other jobs.

        Then pools may kill their own jobs within their quotas for other jobs of their own with more
        value. The greedy mode decides, because all owners' jobs fit at the same time.
        """
        self._first = {}
        if not any(owners_first(self.state.options, group) for group in self.state.groups):
            return
        yield from self._start_owned(now)
        killed = False
        for pool in dict.fromkeys(job.pool for job in self._waiting()):
            if not self._may_kill_own(pool):
                continue
            outlook = self._look(now, Scope.POOL, pool)
            plan = Greedy(outlook, self._options.slots).plan()
            if plan.kills:
                killed, self._outlook = True, outlook
                soon = {
                    job_id: taken
                    for job_id, taken in plan.taken.items()
                    if taken.choice.slot <= outlook.soonest_kill
                }
                self._first |= yield from self._apply(JvuPlan(soon, plan.kills), now)
        if killed:  # now narrower jobs may fit the quota
            yield from self._start_owned(now)

    def _may_kill_own(self, pool: PoolStateView) -> bool:
        """Return whether a pool may kill jobs within its quota for other jobs of its own."""
        first = owners_first(self.state.options, pool.group)
        return first and "p" in self._options.letters and pool.dedicated > 0

    def _start_owned(self, now: float) -> Proposals:
        """Start owners' jobs; repeat after kills, because a killed job may fit its quota."""
        before = inf
        while (guests := sum(pool.spare for pool in self.state.pools.values())) < before:
            before = guests
            outlook = self._outlook = self._look(now, Scope.OWNERS)
            plan = Greedy(outlook, self._options.slots).plan()
            self._first |= yield from self._apply(plan, now)
            if not plan.kills:
                return

    def _look(
        self, now: float, only: Scope = Scope.OTHERS, pool: PoolStateView | None = None
    ) -> JvuOutlook:
        cycle: float = self._options.cycle
        begin = floor(now / cycle) * cycle
        running = self._runners(now, keep=True)
        return JvuOutlook(
            self.state, self._options, self._names, begin, running, self._draining,
            self._estimates, only, pool=pool,
        )  # fmt: skip

    def _runners(self, now: float, *, keep: bool) -> list[RunningView]:
        """Return the running jobs for a plan."""
        return [
            self._running(job, now, keep=keep)
            for job in self.state.jobs.values()
            if job.stream is not None
        ]

    def _running(self, job: JobStateView, now: float, *, keep: bool) -> RunningView:
        """Return a running job with its expected end, which grows after it has passed (§4.2)."""
        params, job_id = self._options, job.job.id
        whole = max(job.run_time, self._estimates.get(job_id, 0.0))
        times, grown = self._grown.get(job_id, (0, -inf))
        end = max(job.end(whole), grown)
        if end <= now:
            while end <= now:
                end += (2.0 ** min(times, 60) if "u" in params.letters else 1.0) * params.cycle
                times += 1
            if keep:
                self._grown[job_id] = times, end
        cost = self._worth.kill(job, end, now) if killable(job, params) else inf
        return RunningView(job, end, cost)

    def _planned(self, answer: ProgramSolved) -> JvuPlan:
        """Return the plan of an answer, as far as it still fits the state.

        If the solver stopped early, the plan is improved; without an answer it is the greedy plan.
        """
        asked, self._asked = self._asked, None
        compiled, self._compiled = self._compiled, None
        assert asked is not None
        outlook = self._outlook = self._look(self.state.now)
        parts = outlook.partitions.parts
        planner = Greedy(outlook, self._options.slots)
        if answer.status not in ("optimal", "feasible") or outlook.problem is None:
            return planner.plan()
        if compiled is None:  # the daemon restarted between request and answer
            compiled = self._compile(asked)
        alike = [a.nodes for a in compiled.partitions.parts] == [a.nodes for a in parts]
        numbers = {self._names.job(job): job.job.id for job in self.state.jobs.values()}
        taken: dict[str, Taken] = {}
        kills: list[str] = []
        for chosen in compiled.read(answer.values):
            if not isinstance(chosen.leaf, Choose):
                if chosen.job in outlook.running:
                    kills.append(chosen.job)
                continue
            job_id = numbers.get(chosen.job, "")
            slot = outlook.slot_after(chosen.leaf.start)
            units = {at: count for (at, _), count in chosen.units.items()}
            if not alike or any(at >= len(parts) for at in units):
                units = {}  # a later start whose nodes are not fixed
            if job_id in outlook.choices:
                choice = StartChoice(job_id, chosen.leaf, slot, chosen.leaf.value)
                taken[job_id] = Taken(choice, units)
        return planner.improve(JvuPlan(taken, kills))

    def _carry_out(self, plan: JvuPlan, now: float) -> Proposals:
        """Carry out the kills and starts that the plan has now; set the next decision."""
        later = yield from self._apply(plan, now)
        self._show(self._first | later)
        self._plan_next(now)

    def _apply(
        self, plan: JvuPlan, now: float
    ) -> Generator[Proposal, ProposalResult, dict[str, Taken]]:
        """Carry out the kills and starts that the plan has now; return its later starts."""
        outlook = self._outlook
        assert outlook is not None
        parts = outlook.partitions.parts
        for name in plan.kills:
            yield from self._kill(outlook, name, plan, now)
        later: dict[str, Taken] = {}
        for job_id, taken in sorted(plan.taken.items(), key=lambda each: each[1].choice.slot):
            job = self.state.jobs.get(job_id)
            if job is None or job.stream is not None:
                continue
            if taken.choice.slot > 0:
                later[job_id] = taken
                continue
            among = {at: parts[at].nodes for at in taken.units}
            nodes = self._place(job, taken, among)
            if nodes is None:
                later[job_id] = taken
                continue
            reason = self._reason(job, taken.choice)
            result = yield Start(job, stream_of(job.pool, job.width), reason, nodes=nodes)
            if result is not ProposalResult.DONE:
                later[job_id] = taken
        return later

    def _kill(self, outlook: JvuOutlook, name: str, plan: JvuPlan, now: float) -> Proposals:
        each = outlook.running.get(name)
        job = None if each is None else self.state.jobs.get(each.job.job.id)
        if each is None or job is None or job.stream is None or not killable(job, self._options):
            return
        units = self._names.held(job)
        grown = self._grown.get(job.job.id)
        outgrown = 0.0 if grown is None else job.work(grown[1])
        gains = [
            taken.choice.job_id
            for taken in plan.taken.values()
            if taken.choice.slot <= outlook.soonest_kill
        ]
        others = f"job {', '.join(sorted(gains)[:3])}" if gains else "other jobs"
        if outlook.scope is Scope.OWNERS:
            why = f"{others} fits in the quota of its pool, which lent the GPUs"
        else:
            why = f"starting {others} is worth more than the kill costs ({each.cost:.4g})"
        result = yield Preempt(job, why, kill=True)
        if result is not ProposalResult.DONE:
            return
        if outgrown:
            self._estimates[job.job.id] = max(outgrown, self._estimates.get(job.job.id, 0.0))
        if self._options.delay > 0.0:
            self._draining.append(Draining(now + self._options.delay, units))

    def _place(
        self, job: JobStateView, taken: Taken, among: dict[int, tuple[str, ...]]
    ) -> NodeCounts | None:
        """Return GPUs of nodes for a start now; None if there are too few.

        Within a partition the fullest nodes with free GPUs come first.
        """
        table = self.state.nodes
        draining: dict[str, int] = {}
        for gone in self._draining:
            for name, count in gone.units.items():
                draining[name] = draining.get(name, 0) + count
        group = job.pool.group
        if table is None:
            free = group.idle - group.out - draining.get(self._names.groups[group], 0)
            return () if job.width <= free else None
        found: list[tuple[str, int]] = []
        for at, units in taken.units.items():
            left = units
            free_of = {
                name: table.free(self._names.real[name]) - draining.get(name, 0)
                for name in among[at]
            }
            enough = [name for name in among[at] if free_of[name] >= left]
            if enough:
                order = [min(enough, key=lambda name: free_of[name])]
            else:
                order = sorted(among[at], key=lambda name: -free_of[name])
            for name in order:
                count = min(left, max(0, free_of[name]))
                if count:
                    found.append((self._names.real[name], count))
                    left -= count
            if left:
                return None
        return tuple(found) if job.width <= group.idle else None

    def _reason(self, job: JobStateView, choice: StartChoice) -> str:
        end = choice.leaf.start + choice.leaf.duration
        if choice.leaf.duration >= UNKNOWN_RUN_TIME:
            return "planned now, to end at an unknown time"
        if job.job.deadline is None:
            return f"planned now, to end in {duration(choice.leaf.duration)}"
        left = job.job.deadline - end
        if left >= 0.0:
            return f"planned now, to end {duration(left)} before its deadline"
        return f"planned now, to end {duration(-left)} after its deadline"

    # The visible plan, and the time of the next decision

    def _show(self, later: dict[str, Taken]) -> None:
        self._known = max((job.arrival for job in self.state.jobs.values()), default=0)
        self._begins.clear()
        for plan in self.plan.values():
            plan.clear_starts()
        for job_id, taken in later.items():
            leaf = taken.choice.leaf
            begin = max(leaf.start, self.state.now)
            self._intend(self.state.jobs[job_id], begin, begin + leaf.duration)

    def _intend(self, job: JobStateView, begin: float, end: float) -> None:
        self._begins[job.job.id] = begin
        self.plan[job.pool.group].intend(job, begin, end, job.width)

    def _plan_next(self, now: float) -> None:
        """Set the next decision: when a start is due, an estimate passes, or a value changes."""
        if not self.state.waiting:
            return
        times = [*self._times(now)]
        later = [time for time in times if now < time < inf]
        if later:
            self._due = min(self._due, self._cycle(min(later)))

    def _times(self, now: float) -> Iterable[float]:
        for plan in self.plan.values():
            for start in plan.starts[:1]:
                yield max(start.start, next_multiple(now, self._options.cycle))
        yield from (each.until for each in self._draining)
        outlook = self._outlook
        if outlook is not None:
            yield from (
                each.end
                for each in outlook.running.values()
                if each.job.stream is not None and self.state.jobs.get(each.job.job.id) is each.job
            )
        for job in self._waiting():
            since = inf if outlook is None else outlook.overdue_from(job)
            yield since
            yield from steps_of(job.job)
            yield since + self._options.patience * 1.000001
            yield since + 2.0 * self._options.patience * 1.000001

    def _waiting(self) -> Iterator[JobStateView]:
        return (job for job in self.state.jobs.values() if job.stream is None)

    def check(self) -> None:
        """Assert that the memory names only jobs of the state. O(jobs)."""
        jobs = self.state.jobs
        assert all(i in jobs and jobs[i].stream is not None for i in self._grown)
        assert self._estimates.keys() <= jobs.keys()


def _precedence(job: JobStateView) -> tuple[bool, int]:
    """Return the sort key of the greedy mode: jobs with a deadline first, then by arrival."""
    return job.job.deadline is None, job.sequence
