"""3Sigma, as Chronus is compared with (§4.3): a program over distributions of run times."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from sia.contract.policy import Changes, Needs, Policy, is_barred, next_multiple, stream_of
from sia.contract.proposals import Preempt, Proposals, Solve, Start, Wake
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.events import ProgramSolved
from sia.limits import MAX_TIME, UNKNOWN_RUN_TIME
from sia.model import FULL_REWARD, NEVER_STOPPED
from sia.policies.deadlines.outcomes import Outcomes, chance_to_last
from sia.program import ProgramBuilder, SolveLimit

SLOTS = (0, 1, 2, 4, 8, 16, 32, 64)
"""The times at which a program may start jobs, in cycles from now."""

MOST_JOBS = 60
"""Largest number of pending jobs in one program: by deadline, then by arrival."""

LIMIT = SolveLimit(seconds=5.0, nodes=200, iterations=20_000, gap=1e-4)
"""Limits of one program."""

STOP = 0.5
"""Cost of stopping a best-effort job. Ending one is worth at most 1."""

LATE_VALUE = 0.5
"""The smallest value of a start of a job that will probably miss its deadline: less than that of
best effort."""


class SigmaParams(Struct, frozen=True):
    """Options of 3Sigma."""

    cycle: Annotated[float, Meta(gt=0, le=MAX_TIME)] = 60.0
    """Seconds between decisions."""


class _Memory(Struct):
    due: float | None
    outcomes: dict[str, list[float]]
    asked: str
    pending: list[str]
    stops: list[str]
    values: tuple[float, ...] | None
    left: list[str]


class ThreeSigma(Policy):
    """Chooses starts by their expected value, and may stop best-effort jobs for them.

    A run time is the estimate times a ratio of earlier jobs of the user, or of all users. The value
    of a start is the reward of the deadline times the probability to meet it. The expected use of
    GPUs must not exceed the capacity. Jobs with a deadline are never stopped. A cycle costs O(jobs
    · slots) and one program.
    """

    Params = SigmaParams
    needs = Needs(run_times=True, preemption=True, solver=True)
    shares = True
    on_nodes = True
    heeds = frozenset({"deadline", "preemptible"})

    def attach(self, state: ClusterStateView) -> None:
        """Start with nothing learned."""
        self._outcomes = Outcomes()
        self._due = inf
        self._asked: GroupStateView | None = None
        self._pending: list[str] = []
        self._stops: list[str] = []
        self._values: Sequence[float] | None = None
        self._left: list[GroupStateView] = []
        super().attach(state)

    def memory(self) -> Any:
        """Return the learned ratios, and the open question to the solver."""
        asked = "" if self._asked is None else self._asked.first
        values = None if self._values is None else [*self._values]
        return {
            "due": None if self._due == inf else self._due, "outcomes": self._outcomes.kept,
            "asked": asked, "pending": self._pending, "stops": self._stops, "values": values,
            "left": [group.first for group in self._left],
        }  # fmt: skip

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the ratios and the open question."""
        self.attach(state)
        kept = convert(memory, _Memory)
        self._due = inf if kept.due is None else kept.due
        self._outcomes.kept = kept.outcomes
        self._asked = next(iter(state.groups_of([kept.asked])), None) if kept.asked else None
        self._pending, self._stops, self._values = kept.pending, kept.stops, kept.values
        self._left = [*state.groups_of(kept.left)]

    def finished(self, job: JobStateView) -> None:
        """Record the run time of a job."""
        if 0 < job.run_time < UNKNOWN_RUN_TIME:
            self._outcomes.add(job.job, job.run_time, max(0.0, job.work(self.state.now)))

    def solved(self, answer: ProgramSolved) -> None:
        """Keep the solution, or note that there is none."""
        if self._asked is not None:
            self._values = answer.values

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Decide at cycles; carry out a solver's answer when it arrives."""
        cycle = self.params.cycle
        if changes.pools:
            begun = floor(now / cycle) * cycle == now
            self._due = min(self._due, now if begun else next_multiple(now, cycle))
        if self._asked is not None and self._values is not None:
            group, values = self._asked, self._values
            self._asked = self._values = None
            yield from self._carry_out(group, values)
            yield from self._go_on(now)
        elif now >= self._due and self._asked is None:
            self._due = inf
            self._left = [*self.state.groups]
            yield from self._go_on(now)
        if self.state.waiting and not now < self._due < inf:
            self._due = next_multiple(now, cycle)  # also where a solve takes longer than a cycle
        if now < self._due < inf:
            yield Wake(self._due)

    def _go_on(self, now: float) -> Proposals:
        """Decide for the groups that are left, until a solver is asked."""
        while self._left and self._asked is None:
            yield from self._decide(self._left.pop(0), now)

    def _decide(self, group: GroupStateView, now: float) -> Proposals:
        """Start all pending jobs of a group if they fit; else ask the solver which to start."""
        jobs = [job for job in self.state.jobs.values() if job.pool.group is group]
        pending = [job for job in jobs if job.stream is None and not is_barred(job)]
        pending.sort(key=self.rank)
        free = group.idle - group.out
        if sum(job.width for job in pending) <= free:
            for job in pending:
                yield from self._start(job)
            return
        running = [job for job in jobs if job.stream is not None]
        stoppable = [job for job in running if _is_stoppable(job)]
        if not any(job.job.deadline is not None for job in pending):
            stoppable = []  # best effort is stopped for deadlines only
        most = free + sum(job.width for job in stoppable)
        pending = [job for job in pending if job.width <= most][:MOST_JOBS]
        if not pending:
            return
        self._asked, self._values = group, None
        self._pending = [job.job.id for job in pending]
        self._stops = [job.job.id for job in stoppable]
        program = self._program(group, pending, running, stoppable, now)
        yield Solve(program, LIMIT, (0.0,) * len(program.costs))

    def _program(
        self, group: GroupStateView, pending: Sequence[JobStateView],
        running: Sequence[JobStateView], stoppable: Sequence[JobStateView], now: float,
    ) -> Any:  # fmt: skip
        """Return the program: a column for each job and start, then one for each stop."""
        builder = ProgramBuilder()
        cycle = self.params.cycle
        there = group.idle - group.out + sum(job.frees for job in running)
        use: list[dict[int, float]] = [{} for _ in SLOTS]
        for job in pending:
            ratios = self._outcomes.of(job.job)
            first = builder.binaries([-self._worth(job, ratios, now, at * cycle) for at in SLOTS])
            columns = range(first, first + len(SLOTS))
            builder.at_most(dict.fromkeys(columns, 1.0), 1.0)
            for begin, column in enumerate(columns):
                later = [slot - SLOTS[begin] for slot in SLOTS[begin:]]
                for k, chance in enumerate(self._chances(job, ratios, later, now), begin):
                    use[k][column] = job.width * chance
        kept: list[list[tuple[JobStateView, float]]] = [[] for _ in SLOTS]
        for job in running:
            chances = self._chances(job, self._outcomes.of(job.job), SLOTS, now)
            for k, chance in enumerate(chances):
                kept[k].append((job, chance))
        stop_at = {
            job.job.id: builder.binaries([STOP + 1e-4 * job.width])
            for job in stoppable
        }  # fmt: skip
        for k in range(len(SLOTS)):
            have = float(there)
            for job, chance in kept[k]:
                have -= job.frees * chance
                stop = stop_at.get(job.job.id)
                if stop is not None:
                    use[k][stop] = -job.frees * chance
            builder.at_most(use[k], have)
        return builder.build()

    def _chances(
        self, job: JobStateView, ratios: Sequence[float], slots: Sequence[int], now: float
    ) -> list[float]:
        """Return the probability that a job still runs after each number of cycles from now."""
        estimate, done = _known(job), job.work(now)
        age, each = done / estimate, self.params.cycle / estimate
        return [chance_to_last(ratios, age, age + slot * each) if slot else 1.0 for slot in slots]

    def _worth(self, job: JobStateView, ratios: Sequence[float], now: float, after: float) -> float:
        """Return the expected value of a start `after` seconds from now."""
        estimate, done = _known(job), job.done
        sooner: float = 1.0 - after / (SLOTS[-1] * self.params.cycle * 2)
        if job.job.deadline is None:
            return sooner
        pause = job.pause(self.state.options.resume_cost)
        within = (job.job.deadline - now - after - pause + done) / estimate
        met = 1.0 - chance_to_last(ratios, done / estimate, within) if within > 0 else 0.0
        return met * FULL_REWARD + LATE_VALUE * sooner

    def _carry_out(self, group: GroupStateView, values: Sequence[float]) -> Proposals:
        """Stop and start jobs by the solution; without one, start the jobs that fit, by rank."""
        jobs, first = self.state.jobs, len(self._pending) * len(SLOTS)
        if values:
            stops = [i for n, i in enumerate(self._stops) if values[first + n] > 0.5]
            begin = [i for n, i in enumerate(self._pending) if values[n * len(SLOTS)] > 0.5]
        else:
            stops, begin = [], self._pending
        for job_id in stops:
            job = jobs.get(job_id)
            if job is not None and job.stream is not None and _is_stoppable(job):
                yield Preempt(job, "jobs with a deadline need its GPUs")
        for job_id in begin:
            job = jobs.get(job_id)
            if job is not None and job.stream is None and job.pool.group is group:
                yield from self._start(job)

    def _start(self, job: JobStateView) -> Proposals:
        group = job.pool.group
        if job.width <= group.idle - group.out:
            yield Start(job, stream_of(job.pool, job.width), "worth most on average")

    def rank(self, job: JobStateView) -> Any:
        """By deadline, then by arrival."""
        deadline = job.job.deadline
        return -job.job.priority, inf if deadline is None else deadline, job.sequence


def _known(job: JobStateView) -> float:
    """Return the estimate in seconds, or a day if it is unknown."""
    return job.run_time if 0 < job.run_time < UNKNOWN_RUN_TIME else 86400.0


def _is_stoppable(job: JobStateView) -> bool:
    return job.job.deadline is None and job.job.preemptible != NEVER_STOPPED
