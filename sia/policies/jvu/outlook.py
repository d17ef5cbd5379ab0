"""The inputs of a decision of `jvu`, and the choices of each pending job as STRL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import ceil, inf
from typing import NamedTuple

from sia.contract.plan import PlannedStart
from sia.contract.policy import is_barred, owners_first
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, Job, Stream
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
from sia.policies.jvu.worth import JobWorth, opens, steps_of
from sia.state.nodes import NodeTable

MOST_COLUMNS = 1_000
"""Number of columns up to which a program has every choice exactly; see `JvuOutlook.is_large`."""

MOST_CHOICES_KEPT = 350
"""Largest number of choices in a large plan."""

MOST_CHOICES = 480
"""Largest number of choices of one job: below the limit of `strl.text`."""

MOST_ALONE = 16
"""Single nodes that a plan considers for a job that needs one node; with hundreds of nodes and of
such jobs all of them would take seconds."""

MOST_WISHES = 1_000
"""Maximum number of different node preferences whose places are cached; a site with hundreds of
users has tens of them."""

SOONER = 1e-6
"""Cost of a start one slot later, so that of equal plans the earliest starts have the most value.

The sum over all slots and jobs of a plan is less than the value that one best-effort job loses in a
slot.
"""

OVERDUE = 0.01
"""Smallest value of some starts: of an overdue job, so that it is planned at all; of a job with
unknown run time, so that it does not wait for its deadline while GPUs are idle; and of a job within
its pool's quota."""


class Scope(Enum):
    """The pending jobs that a plan covers when pools share GPUs."""

    OWNERS = "owners"
    """Jobs that fit into the rest of their pools' quotas; they may kill jobs outside quotas."""
    POOL = "pool"
    """The other jobs of one pool; they may kill jobs of the pool within its quota."""
    OTHERS = "others"
    """All other jobs; they may kill jobs outside quotas."""


class Draining(NamedTuple):
    """GPUs of a killed job that are not available yet."""

    until: float
    units: dict[str, int]


class UnitsPlace(NamedTuple):
    """A set of units on which a job may run; see `JobPlace`."""

    units: Units
    slowdown: float
    among: str = ""


_Wish = tuple[str, float | None, str, int]
"""What a job asks of nodes; the last is its width if it needs one node, else 0."""


class Names:
    """Short names of jobs, and of nodes (or of groups if nodes are alike), for STRL."""

    def __init__(self, state: ClusterStateView) -> None:
        """Name the groups and nodes of the cluster."""
        self._state = state
        table = state.nodes
        self.groups = {group: f"g{i}" for i, group in enumerate(state.groups)}
        self.nodes = {} if table is None else {name: f"n{i}" for i, name in enumerate(table.nodes)}
        self.real = {short: name for name, short in self.nodes.items()}
        self._sets: dict[frozenset[str], Units] = {}
        self._out = frozenset[str]()  # the nodes that were out when these were found:
        self._places: dict[_Wish, list[UnitsPlace]] = {}
        self._alone: dict[_Wish, list[UnitsPlace]] = {}

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

    def has(self, name: str) -> bool:
        """Return whether a node in service, or a group, has this short name."""
        table = self._state.nodes
        return table is None or self.real[name] not in table.out

    def places(self, job: JobStateView) -> list[UnitsPlace]:
        """Return the sets of units on which a job may run, with the factor on its run time.

        O(1) amortised over jobs that request the same nodes.
        """
        table = self._state.nodes
        if table is None:
            return [UnitsPlace(frozenset([self.groups[job.pool.group]]), 1.0)]
        out = frozenset(table.out)
        if out != self._out or len(self._places) >= MOST_WISHES:
            self._out, self._places, self._sets = out, {}, {}
        own = job.job
        wish = own.prefers, own.slowdown, own.strl, own.width if own.one_node else 0
        found = self._places.get(wish)
        if found is None:
            found = self._places[wish] = self._find(table, job.job)
        return self._few(table, wish, found) if own.one_node and len(found) > MOST_ALONE else found

    def look(self) -> None:
        """Forget which nodes had free GPUs: another decision begins."""
        self._alone.clear()

    def _few(self, table: NodeTable, wish: _Wish, all_: list[UnitsPlace]) -> list[UnitsPlace]:
        """Return some of these single nodes: half of them as they come, half with room now."""
        found = self._alone.get(wish)
        if found is None:
            first, rest = all_[: MOST_ALONE // 2], all_[MOST_ALONE // 2 :]
            full = [any(table.free(self.real[n]) < wish[3] for n in each.units) for each in rest]
            ready = sorted(range(len(rest)), key=full.__getitem__)[: MOST_ALONE - len(first)]
            found = self._alone[wish] = [*first, *(rest[at] for at in sorted(ready))]
        return found

    def _find(self, table: NodeTable, job: Job) -> list[UnitsPlace]:
        if job.prefers and job.slowdown == 1.0 and not job.one_node:
            everywhere = self.units(frozenset(table.nodes) - self._out)
            return [UnitsPlace(everywhere, 1.0)] if everywhere else []
        there = ((place, place.nodes - self._out) for place in table.places(job))
        return [
            UnitsPlace(self.units(nodes), place.slowdown, place.among)
            for place, nodes in there
            if nodes
        ]

    def held(self, job: JobStateView) -> dict[str, int]:
        """Return the units of a running job, without those on nodes that are out."""
        table = self._state.nodes
        if table is None:
            return {self.groups[job.pool.group]: job.frees} if job.frees else {}
        return {self.nodes[node]: gpus for node, gpus in table.frees(job.job.id).items()}


class StartChoice(NamedTuple):
    """One way to run a pending job."""

    job_id: str
    leaf: Choose
    slot: int
    value: float


class RunningView(NamedTuple):
    """The properties of a running job that a plan uses."""

    job: JobStateView
    end: float
    """Its expected end, in seconds, after `now`."""
    cost: float
    """The cost of killing it; infinite if it must not be killed."""


class JvuOutlook:
    """The inputs of a decision. Times are in seconds; slots are cycles from `now`.

    Attributes:
        now: When the present cycle began.
        running: The running jobs, by name.
        choices: The choices of each pending job, the earliest first. Jobs are in the order of the
            greedy mode.
        problem: The choices as an STRL problem; None if no pending job has a choice.
        overdue: For each group, the pending job that has waited longest beyond option `patience`,
            among the jobs that the cluster could hold.
        partitions: The partitions of units that no choice distinguishes.
        scope: The pending jobs that the plan covers.
        owned: The pending jobs that fit into the rest of their pools' quotas, if pools share. They
            are planned first. Plans of other jobs leave free GPUs for those of them that still
            wait.
        is_large: Whether an exact program of all choices would have too many columns. Then choices
            that do not fit are left out, and the program relaxes later starts.
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
        only: Scope = Scope.OTHERS,
        jobs: Collection[JobStateView] | None = None,
        pool: PoolStateView | None = None,
    ) -> None:
        """Read the cluster. O(pending jobs · choices + running jobs).

        Only jobs of the scope have choices: all jobs, `jobs`, or the jobs of one pool.
        """
        self.now, self.running = now, {names.job(each.job): each for each in running}
        self._state, self._params, self._names = state, params, names
        self._worth, self._estimates = JobWorth(params), estimates
        names.look()
        self.draining = [each for each in draining if each.until > now]
        self.scope, self._pool = only, pool
        pending = [each for each in state.jobs.values() if each.stream is None]
        pending.sort(key=lambda each: (each.job.deadline is None, each.sequence))
        self.owned = self._owned(pending)
        waiting = [] if only is Scope.OWNERS else [each for each in pending if each in self.owned]
        self._needed = {each.pool.group for each in waiting}
        self._all_costs = sum(each.cost for each in running if each.cost < inf) or 1.0
        self.held = (*self._held(), *self._kept(waiting))
        self.units = self._units()
        self._sizes: dict[Units, int] = {}
        self._rooms: dict[str, tuple[float, Units]] = {}  # by overdue job; see `_room_for`
        self.soonest_kill = ceil(params.delay / params.cycle)
        self.overdue = self._overdue(pending)
        self.choices: dict[str, list[StartChoice]] = {}
        self._others = [] if jobs is None or self.one_kind else pending  # see `planned`
        slots = self._starts()
        for each in pending:
            if (
                (each in self.owned) is not (only is Scope.OWNERS)
                or (jobs is not None and each not in jobs)
                or (pool is not None and each.pool is not pool)
            ):
                continue
            found = self._choices(each, slots)
            if found:
                self.choices[each.job.id] = found
        if params.early:
            self._put_late_ones_behind()
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
            units = {name: count for name, count in gone.units.items() if self._names.has(name)}
            if units:
                yield StrlHolding(f"d{number}", units, gone.until)

    def _kept(self, waiting: Sequence[JobStateView]) -> Iterable[StrlHolding]:
        """Yield holdings of free units for owners' jobs that wait, so that no other job takes them.

        In the plan of a pool all free units except those of its quota are held: otherwise a killed
        job would fit the quota at once, and the job that it was killed for would not.
        """
        table = self._state.nodes
        if table is None:
            free = {name: g.idle - g.out for g, name in self._names.groups.items()}
        else:
            free = {self._names.nodes[name]: table.free(name) for name in table.nodes}
        for gone in self.draining:
            for name, count in gone.units.items():
                free[name] -= count
        wanted = [
            (job.width, frozenset[str]().union(*(units for units, *_ in self._names.places(job))))
            for job in waiting
        ]
        if self._pool is not None:
            pool, group = self._pool, self._pool.group
            own = sum(job.width for job in waiting if job.pool is pool)
            there = frozenset([self._names.groups[group]] if table is None else free)
            rest = sum(max(0, free[name]) for name in there)
            rest -= sum(job.width for job in waiting if job.pool.group is group)
            wanted.append((rest - (pool.quota - pool.dedicated - own), there))
        for number, (width, places) in enumerate(wanted):
            left, units = width, dict[str, int]()
            for name in sorted(places):
                count = min(left, free[name])
                if count > 0:
                    units[name] = count
                    free[name] -= count
                    left -= count
            if units:
                # beyond all that is planned
                yield StrlHolding(f"o{number}", units, self.now + 2.0 * self._params.ahead)

    def _units(self) -> dict[str, int]:
        """Return the number of units of each node or group."""
        table = self._state.nodes
        if table is not None:
            return {
                self._names.nodes[node.name]: node.usable
                for node in table.nodes.values()
                if node.name not in table.out
            }
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
        waits = [(self.overdue_from(job), job.arrival, job) for job in pending]
        for since, _, job in sorted(waits, key=lambda each: each[:2]):
            if self.now - since > self._params.patience and not is_barred(job):
                found.setdefault(job.pool.group, job)
        return found

    def overdue_from(self, job: JobStateView) -> float:
        """Return the time from which on a job's wait counts for option `patience`, in seconds.

        Infinite while no set of its nodes has enough GPUs in all: no job should wait for one that
        cannot start. O(its places) amortised.
        """
        there = (each for each in self._names.places(job) if self._size(each.units) >= job.width)
        first = min((opens(job.job, each.among) for each in there), default=inf)
        return first if job.job.deadline is None else max(first, job.job.deadline)

    def _size(self, units: Units) -> int:
        size = self._sizes.get(units)
        if size is None:
            size = self._sizes[units] = sum(self.units[name] for name in units)
        return size

    def _owned(self, pending: Sequence[JobStateView]) -> set[JobStateView]:
        """Return the pending jobs that fit into the rest of their pools' quotas, if pools share."""
        room = {
            pool: pool.quota - pool.dedicated
            for group in self._state.groups
            if owners_first(self._state.options, group)
            for pool in group.pools
        }
        owned = set()
        for job in pending:
            if job.width <= room.get(job.pool, 0):
                room[job.pool] -= job.width
                owned.add(job)
        return owned

    def _starts(self) -> list[int]:
        """Return the slots of possible starts: those in which GPUs become free, and some others."""
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
        for job in self._others:
            for place in self._names.places(job):
                sets[place.units] = None
        return Partitions(self.units, self.held, [*sets])

    def _put_late_ones_behind(self) -> None:
        """Order jobs with deadlines that are worth no more than best effort behind the others."""
        jobs, best = self._state.jobs, self._params.best

        def rank(job_id: str) -> tuple[bool, bool]:
            late = all(choice.value <= best for choice in self.choices[job_id])
            return jobs[job_id].job.deadline is None, late

        self.choices = {job_id: self.choices[job_id] for job_id in sorted(self.choices, key=rank)}

    def _columns(self) -> int:
        """Return the number of columns of an exact program of the choices."""
        count = {units: len(parts) for units, parts in self.partitions.of.items()}
        return sum(
            1 if (parts := count[choice.leaf.units]) == 1 else 1 + parts
            for choices in self.choices.values()
            for choice in choices
        )

    def _cull(self) -> None:
        """Remove choices that do not fit, and some later starts. O(choices · running jobs).

        A choice fits if running jobs leave enough units, or if kills free enough that each cost
        less than the value of the choice. So two small jobs that only together have more value than
        a kill costs are not considered until there are fewer choices. Of later starts those after
        1, 2, 4, … slots remain.
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
        """Return the slots of starts in a large plan: few later ones, as these are replanned."""
        slots, last = [0], 1
        while last < self._params.slots:
            slots.append(last)
            last *= 2
        return sorted({*slots, self.soonest_kill} & {*self._starts()})

    @property
    def last_start(self) -> float:
        """The begin of the last slot of possible starts, in seconds."""
        return self.now + (self._params.slots - 1) * self._params.cycle

    @property
    def one_kind(self) -> bool:
        """Whether all GPUs of a group are alike."""
        return self._state.nodes is None

    def unit_of(self, job: JobStateView) -> str:
        """Return the short name of a job's group; for clusters in which all GPUs are alike."""
        return self._names.groups[job.pool.group]

    def planned(self, start: PlannedStart) -> list[StartChoice]:
        """Return the choices that a planned start may stand for, the likeliest first.

        The likeliest is on the nodes on which the job would run as long as planned. Only for an
        outlook of some of the pending jobs, in a cluster whose nodes differ.
        """
        job = self._state.jobs[start.job_id]
        long, run_time = start.end - start.start, self.run_time(job)
        places = self._names.places(job)
        places = sorted(places, key=lambda place: abs(long - run_time * place.slowdown))
        slot = self.slot_after(start.start)
        leaves = (Choose(units, start.gpus, start.start, long, 1.0) for units, *_ in places)
        return [StartChoice(start.job_id, leaf, slot, 1.0) for leaf in leaves]

    def outranks(self, planned: PlannedStart, job: JobStateView) -> bool:
        """Return whether a planned start takes precedence over a new job.

        False if the planned job has started since: it then counts as a running job.
        """
        other = self._state.jobs.get(planned.job_id)
        if other is None or other.stream is not None:
            return False
        return job.job.deadline is None or other.job.deadline is not None

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
        return max(rest, self._params.cycle * 1e-3)  # an estimate of 0 still takes some time

    def _choices(self, job: JobStateView, starts: Sequence[int]) -> list[StartChoice]:
        first = self.overdue.get(job.pool.group)
        if is_barred(job):
            return []
        own = job in self.owned
        latest, reserved = self._kept_back(job, first)
        places = self._names.places(job)
        starts = self._starts_of(job, starts, len(places))
        run_time, params = self.run_time(job), self._params
        found = []
        anyway = not job.job.strl and (own or run_time >= UNKNOWN_RUN_TIME)
        opened = {each.among: opens(job.job, each.among) for each in places} if first is job else {}
        for slot in starts:
            begin = self.now + slot * params.cycle
            for units, slowdown, among in places:
                long, there = run_time * slowdown, units
                if begin + long > latest:
                    there = units - reserved
                    if not there or self._size(there) < job.width:
                        continue
                value = self._worth.choice(job.job, begin, begin + long, self.now, among)
                if anyway or begin >= opened.get(among, inf) - 1e-9:
                    value = max(value, OVERDUE)
                worth = value - SOONER * slot
                if worth > 0.0:
                    leaf = Choose(there, job.width, begin, long, worth)
                    found.append(StartChoice(job.job.id, leaf, slot, worth))
        if (
            own and anyway
        ):  # a later start never has more value, even if the deadline was missed before
            most: dict[Units, float] = {}
            for at, choice in reversed([*enumerate(found)]):
                units = choice.leaf.units
                most[units] = worth = max(choice.value, most.get(units, 0.0) + SOONER)
                found[at] = choice._replace(value=worth, leaf=choice.leaf._replace(value=worth))
        return found

    def _kept_back(self, job: JobStateView, first: JobStateView | None) -> tuple[float, Units]:
        """Return by when a job must end on units for which an overdue one waits, and these units.

        An owner's job waits only for overdue jobs of its own pool.
        """
        if first is None or first is job or (job in self.owned and first.pool is not job.pool):
            return inf, frozenset()
        return self._room_for(first)

    def _starts_of(self, job: JobStateView, starts: Sequence[int], places: int) -> Sequence[int]:
        """Return the slots of possible starts of a job that has `places` sets of nodes."""
        if job.job.strl:
            asked = {self.slot_after(time) for time in steps_of(job.job)}
            starts = sorted({*starts, *(at for at in asked if at < self._params.slots)})
        return starts[:: max(1, ceil(places * len(starts) / MOST_CHOICES))]

    def _room_for(self, job: JobStateView) -> tuple[float, Units]:
        """Return when an overdue job should be able to start, and the units on which it may run.

        The time follows from the estimates: other new starts on these units must end before. After
        twice option `patience` no other job starts there. O(places · running jobs), once a job.
        """
        found = self._rooms.get(job.job.id)
        if found is None:
            places = [each.units for each in self._names.places(job)]
            places = [each for each in places if self._size(each) >= job.width]
            time = -inf
            if self.now - self.overdue_from(job) <= 2.0 * self._params.patience:
                time = min(self._room_in(each, job.width) for each in places)
            found = self._rooms[job.job.id] = time, frozenset[str]().union(*places)
        return found

    def _room_in(self, units: Units, width: int) -> float:
        """Return when this number of these units should be free, if no other job starts."""
        held = [
            (each.end, sum(count for name, count in each.units.items() if name in units))
            for each in self.held
            if not each.job.startswith("o")  # free, and only kept for a job
        ]
        free = self._size(units) - sum(count for _, count in held)
        for end, count in sorted(held):
            if free >= width:
                break
            free += count
            if free >= width:
                return end
        return self.now

    def running_units(self, name: str) -> dict[str, int]:
        """Return the units of a running job, by node or group."""
        return self._names.held(self.running[name].job)

    def kill_cost(self, each: RunningView) -> float:
        """Return the cost of a kill in the plan; infinite if this plan must not kill the job.

        If pools share, only jobs of the same pool may kill a job within its pool's quota. All kills
        for an owner's job together cost less than a start one slot later.
        """
        pool = each.job.pool
        if not owners_first(self._state.options, pool.group) or each.cost == inf:
            return each.cost
        inside = each.job.stream is Stream.DEDICATED
        if self.scope is Scope.OWNERS:
            return inf if inside else SOONER / 2.0 * each.cost / self._all_costs
        if self.scope is Scope.POOL:
            return each.cost if inside and pool is self._pool else inf
        fits = pool.dedicated + each.job.width <= pool.quota  # it would fit the quota at once
        return inf if inside or fits or pool.group in self._needed else each.cost

    def kill_leaf(self, name: str) -> Kill | None:
        """Return the choice to kill a running job now, or None if it must not be killed."""
        each, params = self.running[name], self._params
        units = self.running_units(name)
        begin = self.now + self.soonest_kill * params.cycle
        cost = self.kill_cost(each)
        if cost == inf or not units or each.end <= begin:
            return None
        # Inside `job` a kill frees only this job's units, so the set need not name them; separate
        # sets would make more partitions.
        everywhere = frozenset(self.units)
        return Kill(everywhere, sum(units.values()), begin, each.end, cost)

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
    """The number of units of a set that running jobs leave free in each slot."""

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
        """Return whether a choice fits if no other is chosen."""
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
        "p" in params.letters and job.job.preemptible != NEVER_STOPPED and job.runs <= params.kills
    )
