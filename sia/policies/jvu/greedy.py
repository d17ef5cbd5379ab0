"""Plan jobs one after the other, each by its best choice, without a solver (§4.1.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from sia.contract.views import JobStateView
from sia.policies.jvu.outlook import JvuOutlook, StartChoice


class Taken(NamedTuple):
    """A choice in a plan, with its units by partition."""

    choice: StartChoice
    units: dict[int, int]


class JvuPlan(NamedTuple):
    """The choice for each pending job, and the running jobs to kill."""

    taken: dict[str, Taken]
    kills: list[str]
    """Names of jobs, as in `JvuOutlook.running`."""


class _Victim(NamedTuple):
    name: str
    cost: float
    units: dict[int, int]
    """By partition."""
    first: int
    """First slot in which a kill frees them."""
    last: int


class Profile:
    """Free units of each partition in each slot."""

    def __init__(self, outlook: JvuOutlook, slots: int) -> None:
        """Start with the units that running jobs leave. O(partitions · slots + running jobs)."""
        self.partitions = partitions = outlook.partitions
        self._outlook, self._slots = outlook, slots
        self._free = [[part.units] * slots for part in partitions.parts]
        self.victims: dict[str, _Victim] = {}
        where: dict[str, dict[int, int]] = {}
        for at, part in enumerate(partitions.parts):
            for held in part.held:
                where.setdefault(held.job, {})[at] = held.k
                self._add(at, 0, outlook.slot_after(held.end), -held.k)
        for name, units in where.items():
            kill = outlook.kill_leaf(name) if name in outlook.running else None
            if kill is not None:
                last = outlook.slot_after(kill.until)
                first = outlook.soonest_kill
                self.victims[name] = _Victim(name, kill.cost, units, first, last)
        self._rare = [0] * len(partitions.parts)
        for parts in partitions.of.values():
            for at in parts:
                self._rare[at] += 1

    def _add(self, at: int, first: int, last: int, units: int) -> None:
        free = self._free[at]
        for slot in range(first, min(last, self._slots)):
            free[slot] += units

    def _span(self, choice: StartChoice) -> tuple[int, int]:
        begin = choice.slot
        end = self._outlook.slot_after(choice.leaf.start + choice.leaf.duration)
        return begin, min(self._slots, max(end, begin + 1))

    def use(self, job: JobStateView, gpus: int, begin: float, end: float) -> None:
        """Use GPUs of a job's group, in which all GPUs are alike, in a span of seconds."""
        unit = self._outlook.unit_of(job)
        for at, part in enumerate(self.partitions.parts):
            if unit in part.nodes:
                after = self._outlook.slot_after
                self._add(at, after(begin), after(end), -gpus)

    def use_any(self, choices: Iterable[StartChoice]) -> None:
        """Use the units of the first of these choices that fits, if any."""
        for choice in choices:
            units = self.fit(choice) if choice.slot < self._slots else None
            if units is not None:
                self.take(Taken(choice, units))
                return

    def take(self, taken: Taken, sign: int = 1) -> None:
        """Use the units of a choice; give them back if `sign` is -1."""
        first, last = self._span(taken.choice)
        for at, units in taken.units.items():
            self._add(at, first, last, -sign * units)

    def kill(self, name: str, sign: int = 1) -> None:
        """Free the units of a running job; take them back if `sign` is -1."""
        victim = self.victims[name]
        for at, units in victim.units.items():
            self._add(at, victim.first, victim.last, sign * units)

    def fit(self, choice: StartChoice) -> dict[int, int] | None:
        """Return units by partition for a choice, or None if there are too few.

        Units that few other sets contain come first.
        """
        first, last = self._span(choice)
        parts = self.partitions.of[choice.leaf.units]
        left = choice.leaf.k
        if len(parts) == 1:
            return {parts[0]: left} if min(self._free[parts[0]][first:last]) >= left else None
        there = [(self._rare[at], -min(self._free[at][first:last]), at) for at in parts]
        if -sum(min(0, minus) for _, minus, _ in there) < left:
            return None
        found: dict[int, int] = {}
        for _, minus, at in sorted(there):
            units = min(left, -minus)
            if units > 0:
                found[at] = units
                left -= units
            if not left:
                break
        return found

    def has(self, taken: Taken) -> bool:
        """Return whether exactly these units are free for a choice."""
        first, last = self._span(taken.choice)
        return bool(taken.units) and all(
            min(self._free[at][first:last]) >= units for at, units in taken.units.items()
        )

    def never_negative(self) -> bool:
        """Return whether no partition is overused in any slot."""
        return all(min(free) >= 0 for free in self._free)


class Greedy:
    """Makes plans for one outlook."""

    def __init__(self, outlook: JvuOutlook, slots: int) -> None:
        """Start with an empty plan."""
        self._outlook = outlook
        self.profile = Profile(outlook, slots)
        self.taken: dict[str, Taken] = {}
        self.killed: dict[str, str | None] = {}
        """By killed job, the pending one that it is killed for, if the greedy mode chose that."""

    def plan(self) -> JvuPlan:
        """Plan jobs in their order: those with a deadline first, then the others (§4.1.4)."""
        for job_id in self._order():
            best = self._best(self._outlook.choices[job_id], kills=True)
            if best is not None:
                self._commit(best[0], best[1])
        return self._result()

    @property
    def is_best(self) -> bool:
        """Whether the plan is optimal: each job has its best choice, without kills."""
        return not self.killed and all(
            job_id in self.taken
            and self.taken[job_id].choice.value >= max(choice.value for choice in choices)
            for job_id, choices in self._outlook.choices.items()
        )

    def what_starts_now(self, job_id: str, begin: float) -> tuple[tuple[str, ...], float, float]:
        """Return the kills that would let a job start now, their cost, and the gain of that.

        `begin` is the planned start in seconds. No kills if the job needs none, or if no kills are
        enough.
        """
        choices = self._outlook.choices.get(job_id, [])
        first = [each for each in choices if each.slot == self._outlook.soonest_kill]
        if not first:
            return (), 0.0, 0.0
        best = max(first, key=lambda each: each.value)
        planned = [each.value for each in choices if abs(each.leaf.start - begin) < 1e-6]
        if self.profile.fit(best) is not None:
            return (), 0.0, 0.0
        found = self._by_kills(best, inf)
        if found is None:
            return (), 0.0, 0.0
        names = tuple(self._outlook.running[name].job.job.id for name in found[1])
        return names, found[2], max(0.0, best.value - max(planned, default=0.0))

    def improve(self, plan: JvuPlan) -> JvuPlan:
        """Return the plan with additional and earlier starts on units that it leaves free.

        So the plan of a solver that stopped early does not waste GPUs. O(jobs · choices).
        """
        self._adopt(plan)
        order = sorted(self.taken, key=lambda each: self.taken[each].choice.slot)
        for job_id in order:
            old = self.taken[job_id]
            self.profile.take(old, -1)
            sooner = [
                choice
                for choice in self._outlook.choices[job_id]
                if choice.slot < old.choice.slot and choice.value >= old.choice.value
            ]
            best = self._best(sooner, kills=False)
            self.taken[job_id] = old if best is None else best[0]
            self.profile.take(self.taken[job_id])
        for job_id in self._order():
            if job_id not in self.taken:
                best = self._best(self._outlook.choices[job_id], kills=False)
                if best is not None:
                    self._commit(best[0], ())
        return self._result()

    def _adopt(self, plan: JvuPlan) -> None:
        """Adopt the parts of a plan that are still possible."""
        for name in plan.kills:
            if name in self.profile.victims:
                self.profile.kill(name)
                self.killed[name] = None
        order = sorted(plan.taken, key=lambda each: plan.taken[each].choice.slot)
        for job_id in order:
            taken = plan.taken[job_id]
            if not self.profile.has(taken):  # the state has changed since the plan was made
                units = self.profile.fit(taken.choice)
                if units is None:
                    continue
                taken = Taken(taken.choice, units)
            self.profile.take(taken)
            self.taken[job_id] = taken

    def _order(self) -> Iterator[str]:
        """Yield the jobs that have waited longer than option `patience`, then the others."""
        choices = self._outlook.choices
        first = [job.job.id for job in self._outlook.overdue.values() if job.job.id in choices]
        yield from first
        yield from (job_id for job_id in choices if job_id not in first)

    def _commit(self, taken: Taken, kills: Iterable[str]) -> None:
        for name in kills:
            self.profile.kill(name)
            self.killed[name] = taken.choice.job_id
        self.profile.take(taken)
        self.taken[taken.choice.job_id] = taken

    def _result(self) -> JvuPlan:
        """Return the plan with the kills that its earliest starts need."""
        profile, soonest = self.profile, self._outlook.soonest_kill
        later = [each for each in self.taken.values() if each.choice.slot > soonest]
        for taken in later:
            profile.take(taken, -1)
        victims = profile.victims
        needed = []
        for name in sorted(self.killed, key=lambda each: -victims[each].cost):
            profile.kill(name, -1)
            if not profile.never_negative():
                profile.kill(name)
                needed.append(name)
        return JvuPlan(dict(self.taken), sorted(needed))

    def _best(
        self, choices: Sequence[StartChoice], *, kills: bool
    ) -> tuple[Taken, tuple[str, ...]] | None:
        """Return the choice with the highest value minus kills; of equal ones the earliest."""
        best: tuple[Taken, tuple[str, ...]] | None = None
        worth = 0.0
        tried: set[tuple[frozenset[str], int]] = set()
        for choice in choices:
            if choice.value <= worth:
                continue
            units = self.profile.fit(choice)
            if units is not None:
                best, worth = (Taken(choice, units), ()), choice.value
                continue
            soonest = self._outlook.soonest_kill
            key = choice.leaf.units, soonest
            if not kills or choice.slot < soonest or key in tried:
                continue
            tried.add(key)
            found = self._by_kills(choice, choice.value - worth)
            if found is not None:
                taken, names, cost = found
                best, worth = (taken, names), choice.value - cost
        return best

    def _victims(self, choice: StartChoice) -> list[tuple[float, float, str]]:
        """Return (cost per unit, cost, name) of the jobs whose kill helps a choice, ascending."""
        inside = set(self.profile.partitions.of[choice.leaf.units])
        victims = []
        for victim in self.profile.victims.values():
            units = sum(count for at, count in victim.units.items() if at in inside)
            if units and victim.name not in self.killed and victim.last > choice.slot:
                victims.append((victim.cost / units, victim.cost, victim.name))
        return sorted(victims)

    def _by_kills(
        self, choice: StartChoice, most: float
    ) -> tuple[Taken, tuple[str, ...], float] | None:
        """Return a choice with the kills that make room for it and cost less than `most`.

        It kills the cheapest jobs per unit until the choice fits, and then leaves out the kills
        that are not necessary. None if this costs too much.
        """
        profile = self.profile
        names: list[tuple[float, str]] = []
        found: dict[int, int] | None = None
        cost = 0.0
        for _, price, name in self._victims(choice):
            if cost + price >= most:
                continue
            profile.kill(name)
            names.append((price, name))
            cost += price
            found = profile.fit(choice)
            if found is not None:
                break
        if found is not None:
            for price, name in sorted(names, reverse=True):
                profile.kill(name, -1)
                again = profile.fit(choice)
                if again is None:
                    profile.kill(name)
                else:
                    found, cost = again, cost - price
                    names.remove((price, name))
        for _, name in names:
            profile.kill(name, -1)
        if found is None:
            return None
        return Taken(choice, found), tuple(name for _, name in names), cost


def as_choice(plan: JvuPlan, outlook: JvuOutlook) -> dict[int, dict[tuple[int, int], int]]:
    """Return a plan as chosen leaves of the outlook's problem, for `CompiledStrl.start`."""
    assert outlook.problem is not None
    held = {holding.job: number for number, holding in enumerate(outlook.held)}
    partitions = outlook.partitions
    chosen: dict[int, dict[tuple[int, int], int]] = {}
    number = 0
    for name in outlook.running:
        if outlook.kill_leaf(name) is not None:
            if name in plan.kills:
                chosen[number] = {
                    (at, held[name]): each.k
                    for at, part in enumerate(partitions.parts)
                    for each in part.held
                    if each.job == name
                }
            number += 1
    for job_id, choices in outlook.choices.items():
        taken = plan.taken.get(job_id)
        if taken is not None:
            at = number + choices.index(taken.choice)
            chosen[at] = {(part, -1): count for part, count in taken.units.items()}
        number += len(choices)
    return chosen
