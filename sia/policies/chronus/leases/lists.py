"""Plans of leases without a solver, and what no plan can exceed.

A list takes one job after the other and gives it the first leases that are free. It often reaches
what could be reached at most, and then no solver is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import le
from typing import Any

from sia.policies.chronus.leases.claims import Claim, LeasePlan

Room = tuple[int, ...]
"""What the jobs of one lease may use together (`NodeSizes.room`)."""

Order = Callable[[tuple[int, Claim]], Any]


class _Free:
    """What is free in each lease."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._left: list[list[int]] = [[] for _ in room]  # of each, by lease; later ones are free
        self._begin = 0  # the leases before have no GPU free

    def take(self, claim: Claim, within: int) -> tuple[int, ...] | None:
        """Take the first free leases before `within` for a job; None, and nothing, if too few."""
        gpus = self._left[0]
        while self._begin < len(gpus) and gpus[self._begin] <= 0:
            self._begin += 1
        found = tuple(islice(self._fitting(claim.uses, within), claim.leases))
        if len(found) < claim.leases:
            return None
        self.use(claim, found)
        return found

    def _fitting(self, uses: Room, within: int) -> Iterator[int]:
        """Yield the leases before `within` that have room."""
        if any(need > have for need, have in zip(uses, self._room, strict=True)):
            return
        begin, known = self._begin, min(within, len(self._left[0]))
        rows = [left[begin:known] for left in self._left]
        if len(rows) == 1:
            need = uses[0]
            for lease, have in enumerate(rows[0], begin):
                if need <= have:
                    yield lease
        else:
            for lease, all_left in enumerate(zip(*rows, strict=True), begin):
                if all(map(le, uses, all_left)):
                    yield lease
        yield from range(max(begin, known), within)

    def use(self, claim: Claim, leases: Sequence[int]) -> None:
        """Use these leases, which ascend."""
        if not leases:
            return
        missing = leases[-1] + 1 - len(self._left[0])
        for left, have, need in zip(self._left, self._room, claim.uses, strict=True):
            if missing > 0:
                left.extend([have] * missing)
            for lease in leases:
                left[lease] -= need


def _by_deadline(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return _within(claim), not claim.renews, number


def _by_slack(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return _within(claim) - claim.leases, not claim.renews, number


def _by_last(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return claim.last, not claim.renews, number


def _by_last_slack(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return claim.last - claim.leases, not claim.renews, number


def _by_width(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return -claim.gpus, _within(claim), number


def _by_length(numbered: tuple[int, Claim]) -> Any:
    number, claim = numbered
    return -claim.leases, _within(claim), number


ORDERS: tuple[Order, ...] = (_by_deadline, _by_slack, _by_length, _by_width)


def _within(claim: Claim) -> int:
    """Return the leases before the best step that the job could meet on its own."""
    return next((within for within, _ in claim.steps if within >= claim.leases), claim.last)


def listed(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return the best plan of all lists that gives every job what it needs, or None.

    The best has the highest reward, then the least delay. O(jobs · leases) for each list.
    """
    plans = (_listed(claims, room, order) for order in ORDERS)
    return best_of(claims, [plan for plan in plans if plan is not None])


def fitted(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return a plan that lets every job meet its last step, or None where no list finds one.

    Where steps are soft, the last ones leave more room than the best ones do.
    """
    plan = listed(claims, room)
    for order in (_by_last, _by_last_slack):
        plan = plan or _listed(claims, room, order)
    return plan


def best_of(claims: Sequence[Claim], plans: Sequence[LeasePlan]) -> LeasePlan | None:
    """Return the plan of the highest reward, then of the least delay, then the first."""
    return min(plans, key=lambda plan: quality(claims, plan), default=None)


def _listed(claims: Sequence[Claim], room: Room, order: Order) -> LeasePlan | None:
    free, plan = _Free(room), LeasePlan()
    for _, claim in sorted(enumerate(claims), key=order):
        for within, _ in claim.steps:
            leases = free.take(claim, within) if within >= claim.leases else None
            if leases is not None:
                plan[claim.job_id] = leases
                break
        else:
            return None
    return plan


def joined(claims: Sequence[Claim], room: Room, plan: LeasePlan, more: Claim) -> LeasePlan | None:
    """Return a plan with one more job, whose leases are free in `plan`, or None. O(leases)."""
    free = _Free(room)
    for claim in claims:
        free.use(claim, plan[claim.job_id])
    leases = free.take(more, more.last)
    return None if leases is None else {**plan, more.job_id: leases}


def joined_later(
    claims: Sequence[Claim], room: Room, plan: LeasePlan, more: Claim
) -> tuple[int, ...] | None:
    """Return the first leases that a plan leaves free for one more job, however late.

    None if it is too wide. O(leases).
    """
    free = _Free(room)
    for claim in claims:
        free.use(claim, plan[claim.job_id])
    last = max((leases[-1] for leases in plan.values() if leases), default=-1)
    return free.take(more, last + 1 + more.leases)


def is_impossible(claims: Sequence[Claim], room: Room) -> bool:
    """Return whether no plan can let all jobs meet their last steps, even in parts of GPUs.

    In the first d leases a job must use as many as it cannot make up for later. This grows evenly
    between the leases at which a job must begin or end, so that only these are looked at.
    O(jobs · log jobs), however far the deadlines are.
    """
    if any(claim.leases > claim.last for claim in claims):
        return True
    if any(need > have for claim in claims for need, have in zip(claim.uses, room, strict=True)):
        return True
    for resource, have in enumerate(room):
        bends = Counter[int]()  # by d: how much faster the need grows from there on
        for claim in claims:
            use = claim.uses[resource]
            bends[claim.last - claim.leases] += use
            bends[claim.last] -= use
        need = growth = before = 0
        for d, bend in sorted(bends.items()):
            need += growth * (d - before)
            if need > have * d:
                return True
            growth += bend
            before = d
    return False


def quality(claims: Sequence[Claim], plan: LeasePlan) -> tuple[float, int, int]:
    """Return minus the reward, the delay, and minus the renewed GPUs of a plan: less is better."""
    reward = sum(claim.earned(plan[claim.job_id]) for claim in claims)
    renewed = sum(c.gpus for c in claims if c.renews and plan[c.job_id][0] == 0)
    return -reward, delay(claims, plan), -renewed


def delay(claims: Iterable[Claim], plan: LeasePlan) -> int:
    """Return Σ k · GPUs over the leases k of all jobs."""
    return sum(claim.gpus * sum(plan[claim.job_id]) for claim in claims)


def least(claims: Sequence[Claim], room: Room) -> tuple[float, int, int]:
    """Return a bound below the `quality` of every plan. O(jobs · leases + GPUs · jobs)."""
    reward = sum(claim.best for claim in claims)
    renewed = sum(claim.gpus for claim in claims if claim.renews)
    return -reward, _least_delay(claims, _fillable(claims, room[0])), -renewed


def _least_delay(claims: Sequence[Claim], most: int) -> int:
    """Return the delay if jobs could use parts of GPUs, at most so many in a lease.

    In the first d leases jobs can use min(d · `most`, Σ GPUs · min(leases, d)), and one plan
    reaches this for all d at once.
    """
    longest = max((claim.leases for claim in claims), default=0)
    ending = [0] * (longest + 1)  # GPUs of the jobs that need so many leases
    for claim in claims:
        ending[claim.leases] += claim.gpus
    whole = sum(claim.gpus * claim.leases for claim in claims)
    possible, running, total, d = 0, sum(ending), 0, 0
    while True:
        d += 1
        if d <= longest:
            possible += running
            running -= ending[d]
        left = whole - min(possible, d * most)
        if left <= 0:
            return total
        total += left


def _fillable(claims: Sequence[Claim], gpus: int) -> int:
    """Return the most GPUs that jobs can fill together in a lease: a sum of their widths."""
    sums = 1
    for width, count in _counts(claims).items():
        for _ in repeat(None, min(count, gpus // width)):
            sums |= sums << width
        sums &= (1 << (gpus + 1)) - 1
    return sums.bit_length() - 1


def _counts(claims: Iterable[Claim]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for claim in claims:
        counts[claim.gpus] = counts.get(claim.gpus, 0) + 1
    return counts


def by_arrival(claims: Sequence[Claim], plan: LeasePlan) -> LeasePlan:
    """Return an equal plan in which jobs that arrived earlier have the earlier leases.

    Two jobs of one size exchange leases where both still meet the same steps and as many GPUs are
    renewed. O(pairs of jobs of one size · leases).
    """
    plan = dict(plan)
    by_size: dict[tuple[int, ...], list[Claim]] = {}
    for claim in claims:
        by_size.setdefault(claim.uses, []).append(claim)
    for alike in by_size.values():
        for i, one in enumerate(alike):
            for other in alike[i + 1 :]:
                _exchange(plan, one, other)
    return plan


def _exchange(plan: LeasePlan, one: Claim, other: Claim) -> None:
    """Give the earlier job the sooner ones of the leases that only one of two jobs has."""
    mine, theirs = plan[one.job_id], plan[other.job_id]
    if mine == theirs or mine[-1] < theirs[0] or mine[-1] >= other.last:
        return  # the earlier job has the sooner leases, or the other one would be late
    both = set(mine) & set(theirs)
    split = sorted(set(mine) ^ set(theirs))
    count = one.leases - len(both)
    early = tuple(sorted([*both, *split[:count]]))
    late = tuple(sorted([*both, *split[count:]]))
    if not early or not late or early == mine:
        return
    renewed = (one.renews and mine[0] == 0) + (other.renews and theirs[0] == 0)
    still = (one.renews and early[0] == 0) + (other.renews and late[0] == 0)
    same = one.earned(early) + other.earned(late) if late[-1] < other.last else -1.0
    if still >= renewed and same >= one.earned(mine) + other.earned(theirs):
        plan[one.job_id], plan[other.job_id] = early, late
