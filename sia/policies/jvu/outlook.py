"""What a decision of `jvu` starts from, and the choices of each pending job as STRL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from sia.contract.plan import PlannedStart
from sia.contract.policy import is_barred
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, Stream
from sia.policies.jvu.params import JvuParams
from sia.policies.jvu.strl.expressions import (
    Choose,
    JobScope,
    Kill,
    Max,
    StrlHolding,
    StrlProblem,
    Sum,
    Units,
)
from sia.policies.jvu.strl.partitions import Partitions
from sia.policies.jvu.worth import JobWorth, overdue_from

MOST_COLUMNS = 1_000
"""Columns of a program up to which it has every choice, exactly; see `JvuOutlook.is_large`."""

MOST_CHOICES_KEPT = 350
"""Choices of a large plan."""

MOST_CHOICES = 480
"""Choices of one job: below the limit of `strl.text`."""

SOONER = 1e-6
"""What starting a slot later costs: of equal plans the one that starts soonest is worth most.

Over all slots of all jobs of a plan it adds up to less than a slot costs one best-effort job.
"""

OVERDUE = 0.01
"""What the start of an overdue job is worth at least, so that it is planned at all; and that of a
job of unknown run time, so that it does not wait for its deadline while GPUs are idle."""

OWNER = 10_000.0
"""Added to the value of a job within its pool's quota, where pools lend: no guest outbids it."""


class Draining(NamedTuple):
    """GPUs of a killed job, which are not available yet."""

    until: float
    units: dict[str, int]


class Names:
    """Short names of nodes, or of groups where nodes are alike, and of jobs, for STRL."""

    def __init__(self, state: ClusterStateView) -> None:
        """Name what there is."""
        self._state = state
        table = state.nodes
        self.groups = {group: f"g{i}" for i, group in enumerate(state.groups)}
        self.nodes = {} if table is None else {name: f"n{i}" for i, name in enumerate(table.nodes)}
        self.real = {short: name for name, short in self.nodes.items()}
        self._sets: dict[frozenset[str], Units] = {}

    @staticmethod
    def job(job: JobStateView) -> str:
        """Return the name of a job: its number in the order of arrival."""
        return f"j{job.arrival}"

    def units(self, names: frozenset[str]) -> Units:
        """Return a set of nodes by their short names."""
        found = self._sets.get(names)
        if found is None:
            found = self._sets[names] = frozenset(self.nodes[name] for name in names)
        return found

    def places(self, job: JobStateView) -> list[tuple[Units, float]]:
        """Return the sets of units on which a job may run, with the factor on its run time."""
        table = self._state.nodes
        if table is None:
            return [(frozenset([self.groups[job.pool.group]]), 1.0)]
        everywhere = self.units(frozenset(table.nodes))
        if not job.job.prefers:
            return [(everywhere, 1.0)]
        sets = [(self.units(each), 1.0) for each in table.preferred(job.job.prefers)]
        slowdown = job.job.slowdown
        if slowdown is None:
            return sets
        return [(everywhere, 1.0)] if slowdown == 1.0 else [*sets, (everywhere, slowdown)]

    def held(self, job: JobStateView) -> dict[str, int]:
        """Return the units of a running job."""
        table = self._state.nodes
        if table is None:
            return {self.groups[job.pool.group]: job.frees} if job.frees else {}
        return {self.nodes[node]: gpus for node, gpus in table.held(job.job.id).items()}


class StartChoice(NamedTuple):
    """One way to run a pending job."""

    job_id: str
    leaf: Choose
    slot: int
    value: float


class RunningView(NamedTuple):
    """A running job as a plan sees it."""

    job: JobStateView
    end: float
    """Its expected end, in seconds, after `now`."""
    cost: float
    """Of a kill; infinite if it must not be killed."""


class JvuOutlook:
    """Everything that a decision knows. Times are in seconds; slots are cycles from `now`.

    Attributes:
        now: When the present cycle began.
        running: The running jobs, by name.
        choices: By pending job, its choices, the soonest first; jobs come in the order in which
            the greedy mode takes them.
        problem: All of it as STRL; None if no pending job has a choice.
        overdue: The pending job that waits longest beyond the planner's patience, by group.
        partitions: The units that no choice tells apart.
        is_large: Whether an exact program of all choices would have too many columns. Then choices
            without room are left out, and the program takes later starts loosely.
    """

    def __init__(
        self,
        state: ClusterStateView,
        params: JvuParams,
        names: Names,
        now: float,
        running: Sequence[RunningView],
        draining: Sequence[Draining],
        estimates: Mapping[str, float],
        only: JobStateView | None = None,
    ) -> None:
        """Look at the cluster. O(pending jobs · choices + running jobs).

        With `only` this pending job alone has choices.
        """
        self.now, self.running = now, {names.job(each.job): each for each in running}
        self._state, self._params, self._names = state, params, names
        self._worth, self._estimates = JobWorth(params), estimates
        self.draining = [each for each in draining if each.until > now]
        self.held = tuple(self._held())
        self.units = self._units()
        self.soonest_kill = ceil(params.delay / params.cycle)
        pending = [job for job in state.jobs.values() if job.stream is None]
        pending.sort(key=lambda job: (job.job.deadline is None, job.sequence))
        self.overdue = self._overdue(pending)
        self._owners = self._owned(pending)
        self.choices: dict[str, list[StartChoice]] = {}
        slots = self._starts()
        for job in pending if only is None else [only]:
            found = self._choices(job, slots)
            if found:
                self.choices[job.job.id] = found
        self.partitions = self._parts()
        self.is_large = self._columns() > MOST_COLUMNS
        if self.is_large:
            self._cull()
            self.partitions = self._parts()
        self.problem = self._problem() if self.choices else None

    def _held(self) -> Iterable[StrlHolding]:
        for name, each in self.running.items():
            units = self._names.held(each.job)
            if units:
                yield StrlHolding(name, units, each.end)
        for number, gone in enumerate(self.draining):
            yield StrlHolding(f"d{number}", gone.units, gone.until)

    def _units(self) -> dict[str, int]:
        """Return how many units there are of each node or group."""
        table = self._state.nodes
        if table is not None:
            return {self._names.nodes[node.name]: node.usable for node in table.nodes.values()}
        used = dict.fromkeys(self._names.groups.values(), 0)
        there = {name: max(0, g.idle - g.out) for g, name in self._names.groups.items()}
        for holding in self.held:
            for name, count in holding.units.items():
                used[name] += count
                if holding.job.startswith("j"):
                    there[name] += count
        return {name: max(there[name], used[name]) for name in there}

    def _overdue(self, pending: Sequence[JobStateView]) -> dict[GroupStateView, JobStateView]:
        found: dict[GroupStateView, JobStateView] = {}
        waits = [(overdue_from(job.job), job.arrival, job) for job in pending]
        for since, _, job in sorted(waits, key=lambda each: each[:2]):
            if self.now - since > self._params.patience and not is_barred(job):
                found.setdefault(job.pool.group, job)
        return found

    def _owned(self, pending: Sequence[JobStateView]) -> set[str]:
        """Return the pending jobs that fit into the quotas of their pools if pools lend."""
        room = {
            pool: pool.quota
            for group in self._state.groups
            if len(group.pools) > 1
            for pool in group.pools
        }
        owned = set()
        for job in pending:
            if job.width <= room.get(job.pool, 0):
                room[job.pool] -= job.width
                owned.add(job.job.id)
        return owned

    def _starts(self) -> list[int]:
        """Return the slots in which starts are considered: when GPUs are freed, and some others."""
        params = self._params
        slots, most = params.slots, max(2, params.starts)
        if slots <= most:
            return [*range(slots)]
        chosen = dict.fromkeys(at for at in (0, self.soonest_kill) if at < slots)
        ends = sorted({self.slot_after(each.end) for each in self.running.values()})
        chosen.update(dict.fromkeys([at for at in ends if at < slots][: most // 2]))
        left = most - len(chosen)
        if left > 0:
            chosen.update(dict.fromkeys(slots * i // left for i in range(left)))
        return sorted(chosen)

    def _parts(self) -> Partitions:
        sets = dict.fromkeys([frozenset(self.units)])  # that of kills
        for choices in self.choices.values():
            sets.update(dict.fromkeys(choice.leaf.units for choice in choices))
        return Partitions(self.units, self.held, [*sets])

    def _columns(self) -> int:
        """Return how many columns an exact program has for the choices."""
        count = {units: len(parts) for units, parts in self.partitions.of.items()}
        return sum(
            1 if (parts := count[choice.leaf.units]) == 1 else 1 + parts
            for choices in self.choices.values()
            for choice in choices
        )

    def _cull(self) -> None:
        """Leave out choices without room, and thin the others. O(choices · running jobs).

        A choice has room where running jobs leave it, or where kills that each cost less than the
        choice is worth make it. Two small jobs that together outweigh a kill are thus not seen;
        they are once there are fewer choices. Of later starts those after 1, 2, 4, … slots stay.
        """
        rooms: dict[Units, SetRoom] = {}
        kept: dict[str, list[StartChoice]] = {}
        for job_id, choices in self.choices.items():
            for choice in choices:
                units = choice.leaf.units
                room = rooms.get(units)
                if room is None:
                    room = rooms[units] = SetRoom(self, units)
                if room.has(choice):
                    kept.setdefault(job_id, []).append(choice)
        counts = Counter(choice.slot for choices in kept.values() for choice in choices)
        slots, count = set[int](), 0
        for slot in self._coarse():
            count += counts[slot]
            if len(slots) >= 2 and count > MOST_CHOICES_KEPT:
                break
            slots.add(slot)
        self.choices = {}
        for job_id, choices in kept.items():
            self.choices[job_id] = [c for c in choices if c.slot in slots] or choices[:1]

    def _coarse(self) -> list[int]:
        """Return the slots of starts in a large plan: what is far away is planned again anyway."""
        slots, last = [0], 1
        while last < self._params.slots:
            slots.append(last)
            last *= 2
        return sorted({*slots, self.soonest_kill} & {*self._starts()})

    @property
    def last_start(self) -> float:
        """When the last slot begins in which starts are considered, in seconds."""
        return self.now + (self._params.slots - 1) * self._params.cycle

    @property
    def one_kind(self) -> bool:
        """Whether all GPUs of a group are alike."""
        return self._state.nodes is None

    def unit_of(self, job: JobStateView) -> str:
        """Return the name of a job's group, where all its GPUs are alike."""
        return self._names.groups[job.pool.group]

    def outranks(self, planned: PlannedStart, job: JobStateView) -> bool:
        """Return whether a planned start keeps its place beside that of a new job."""
        other = self._state.jobs.get(planned.job_id)
        return other is not None and (job.job.deadline is None or other.job.deadline is not None)

    def slot_after(self, time: float) -> int:
        """Return the first slot that begins at a time or later."""
        return max(0, ceil((time - self.now) / self._params.cycle - 1e-9))

    def run_time(self, job: JobStateView) -> float:
        """Return the expected rest of a pending job's run time at full speed, in seconds."""
        whole = max(job.run_time, self._estimates.get(job.job.id, 0.0))
        if whole >= UNKNOWN_RUN_TIME:
            return whole
        pause = job.pause(self._state.options.resume_cost)
        rest = max(0.0, whole - job.done) / job.pace + pause
        return max(rest, self._params.cycle * 1e-3)  # an estimate of 0 is one of a moment

    def _choices(self, job: JobStateView, starts: Sequence[int]) -> list[StartChoice]:
        first = self.overdue.get(job.pool.group)
        if is_barred(job):
            return []
        latest = inf if first is None or first is job else self._room_for(first)
        places = self._names.places(job)
        if len(places) * len(starts) > MOST_CHOICES:
            step = ceil(len(places) * len(starts) / MOST_CHOICES)
            starts = starts[::step]
        run_time, params = self.run_time(job), self._params
        bonus = OWNER if job.job.id in self._owners else 0.0
        found = []
        for slot in starts:
            begin = self.now + slot * params.cycle
            for units, slowdown in places:
                long = run_time * slowdown
                value = self._worth.end(job.job, begin + long, self.now)
                if first is job or run_time >= UNKNOWN_RUN_TIME:
                    value = max(value, OVERDUE)
                if begin + long > latest:
                    continue
                worth = value + bonus - SOONER * slot
                if worth > 0.0:
                    leaf = Choose(units, job.width, begin, long, worth)
                    found.append(StartChoice(job.job.id, leaf, slot, worth))
        return found

    def _room_for(self, job: JobStateView) -> float:
        """Return when an overdue job should find room, by the estimates: others end before.

        After twice the planner's patience the others do not start at all.
        """
        if self.now - overdue_from(job.job) > 2.0 * self._params.patience:
            return -inf
        group = job.pool.group
        free = group.idle - group.out
        for each in sorted(self.running.values(), key=lambda each: each.end):
            if free >= job.width:
                break
            if each.job.pool.group is group:
                free += each.job.frees
                if free >= job.width:
                    return each.end
        return self.now

    def running_units(self, name: str) -> dict[str, int]:
        """Return the units that a running job holds."""
        return self._names.held(self.running[name].job)

    def kill_cost(self, each: RunningView) -> float:
        """Return what a kill costs in the plan."""
        own = each.job.stream is Stream.DEDICATED and len(each.job.pool.group.pools) > 1
        return each.cost + (OWNER if own else 0.0)

    def kill_leaf(self, name: str) -> Kill | None:
        """Return the choice to kill a running job now, or None if it must not be killed."""
        each, params = self.running[name], self._params
        units = self.running_units(name)
        begin = self.now + self.soonest_kill * params.cycle
        if each.cost == inf or not units or each.end <= begin:
            return None
        # Inside `job` it frees this job's units only, so that the set need not name them; sets of
        # their own would tell apart what is alike.
        everywhere = frozenset(self.units)
        return Kill(everywhere, sum(units.values()), begin, each.end, self.kill_cost(each))

    def _problem(self) -> StrlProblem:
        parts: list[JobScope] = []
        for name in self.running:
            kill = self.kill_leaf(name)
            if kill is not None:
                parts.append(JobScope(name, kill))
        jobs = self._state.jobs
        for job_id, choices in self.choices.items():
            options = tuple(choice.leaf for choice in choices)
            parts.append(JobScope(self._names.job(jobs[job_id]), Max(options)))
        horizon, slot = self._params.ahead, self._params.cycle
        return StrlProblem(self.units, self.now, slot, horizon, self.held, Sum(tuple(parts)))


class SetRoom:
    """How many units of a set running jobs leave free, by slot."""

    def __init__(self, outlook: JvuOutlook, units: Units) -> None:
        """Count them. O(running jobs)."""
        held = [
            (outlook.slot_after(each.end), sum(each.units[n] for n in each.units if n in units))
            for each in outlook.held
        ]
        self._held = [(last, count) for last, count in held if count]
        self._there = sum(outlook.units[name] for name in units)
        self._kills = []
        for name in outlook.running:
            kill = outlook.kill_leaf(name)
            if kill is not None:
                gone = outlook.slot_after(kill.until)
                freed = outlook.running_units(name)
                count = sum(k for node, k in freed.items() if node in units)
                self._kills.append((kill.cost, gone, count))
        self._kills.sort()
        self._free: dict[int, int] = {}
        self._first_kill = outlook.soonest_kill

    def has(self, choice: StartChoice) -> bool:
        """Return whether there is room for a choice alone."""
        slot = choice.slot
        free = self._free.get(slot)
        if free is None:
            used = sum(count for last, count in self._held if last > slot)
            free = self._free[slot] = self._there - used
        if free >= choice.leaf.k or slot < self._first_kill:
            return free >= choice.leaf.k
        for cost, last, count in self._kills:
            if cost >= choice.value:
                return False
            free += count if last > slot else 0
            if free >= choice.leaf.k:
                return True
        return False


def killable(job: JobStateView, params: JvuParams) -> bool:
    """Return whether a running job may be killed."""
    return (
        "p" in params.letters
        and job.job.preemptible != NEVER_STOPPED
        and job.attempt <= params.kills
    )
