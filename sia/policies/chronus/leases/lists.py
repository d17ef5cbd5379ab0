"""Plans of leases by list scheduling, without a solver, and upper bounds on all plans.

A list gives the first free leases to one job after the other. Its plan often reaches the bound, and
then no solver is needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import add, le, sub
from typing import Any

from sia.policies.chronus.leases.claims import Claim, LeasePlan

Room = tuple[int, ...]
"""The GPUs, then the places of each size, that the jobs of one lease may use together; see
`NodeSizes.room`."""

Order = Callable[[tuple[int, Claim]], Any]


class FreeLeases:
    """Free GPUs and places, stored as spans of leases with equal values; plans have few spans."""

    def __init__(self, room: Room) -> None:
        """Start with the whole room free in every lease."""
        self._begins = [0]  # the first lease of each span, which ends with the next one
        self._left = [room]  # free in each span; the last span has no end

    @classmethod
    def beside(cls, room: Room, plan: Iterable[tuple[Claim, Sequence[int]]]) -> FreeLeases:
        """Return what the leases of these jobs leave free. O(spans of leases · log spans)."""
        changes: dict[int, Room] = {0: room}
        nothing = (0,) * len(room)
        for claim, leases in plan:
            for span in spans(leases):
                for at, by in (span.start, sub), (span.stop, add):
                    changes[at] = tuple(map(by, changes.get(at, nothing), claim.uses))
        free = cls(room)
        free._begins = sorted(changes)
        free._left = [*accumulate((changes[at] for at in free._begins), _sum_of)]
        return free

    def find(self, claim: Claim, within: int) -> list[range] | None:
        """Return the first free leases before `within` for a job; None if there are too few."""
        uses, wanted, found = claim.uses, claim.leases, list[range]()
        need, single, begins = uses[0], len(uses) == 1, self._begins
        for n, left in enumerate(self._left):
            begin = begins[n]
            if begin >= within:
                return None
            if need <= left[0] and (single or all(map(le, uses, left))):
                end = min(begins[n + 1] if n + 1 < len(begins) else within, within, begin + wanted)
                if found and found[-1].stop == begin:
                    found[-1] = range(found[-1].start, end)
                else:
                    found.append(range(begin, end))
                wanted -= end - begin
                if not wanted:
                    return found
        return None

    def take(self, claim: Claim, within: int) -> tuple[int, ...] | None:
        """Take the first free leases before `within` for a job, and return them.

        If there are too few, return None and take none.
        """
        found = self.find(claim, within)
        if found is None:
            return None
        self._change(sub, claim.uses, found)
        return tuple(chain.from_iterable(found))

    def use(self, claim: Claim, leases: Sequence[int]) -> None:
        """Use these leases, which must ascend."""
        self._change(sub, claim.uses, spans(leases))

    def give_back(self, claim: Claim, leases: Sequence[int]) -> None:
        """Make leases free again that a job has used."""
        self._change(add, claim.uses, spans(leases))

    def _change(self, by: Callable[[int, int], int], uses: Room, found: Iterable[range]) -> None:
        single, left = len(uses) == 1, self._left
        for span in found:
            begin, end = self._split(span.start), self._split(span.stop)
            for n in range(begin, end):
                left[n] = (by(left[n][0], uses[0]),) if single else tuple(map(by, left[n], uses))

    def _split(self, at: int) -> int:
        """Return the index of the span that begins at a lease; split a span if necessary."""
        n = bisect_left(self._begins, at)
        if n == len(self._begins) or self._begins[n] != at:
            self._begins.insert(n, at)
            self._left.insert(n, self._left[n - 1])
        return n

    @property
    def least(self) -> int:
        """The fewest GPUs that are free in a lease; negative if more are used than there are."""
        return min(left[0] for left in self._left)

    @property
    def is_overfull(self) -> bool:
        """Whether some lease is used by more than fits."""
        return any(min(left) < 0 for left in self._left)


def _sum_of(one: Room, other: Room) -> Room:
    return tuple(map(add, one, other))


def spans(leases: Sequence[int]) -> Iterator[range]:
    """Yield the spans of consecutive leases. O(spans · log leases)."""
    begin, count = 0, len(leases)
    while begin < count:
        first, end = leases[begin], begin + 1
        if leases[-1] - first == count - 1 - begin:
            end = count
        elif leases[end] == first + 1:
            ahead = range(count)
            end = bisect_right(ahead, first - begin, end, key=lambda n: leases[n] - n)
        yield range(first, first + end - begin)
        begin = end


def moved(leases: Sequence[int], by: int) -> tuple[int, ...]:
    """Return the leases with `by` added to each number. O(leases), but fast, as ranges."""
    found = (range(span.start + by, span.stop + by) for span in spans(leases))
    return tuple(chain.from_iterable(found))


def is_within(claims: Iterable[Claim], room: Room, plan: LeasePlan) -> bool:
    """Return whether no lease of a plan is used by more than fits. O(spans of leases)."""
    return not FreeLeases.beside(room, ((c, plan[c.job_id]) for c in claims)).is_overfull


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
    """Return the number of leases before the best step that the job could meet alone."""
    return next((within for within, _ in claim.steps if within >= claim.leases), claim.last)


def listed(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return the best of the lists' plans that give every job enough leases, or None.

    The best has the highest reward, then the least delay. O(jobs · leases) for each list.
    """
    plans = (_listed(claims, room, order) for order in ORDERS)
    return best_of(claims, [plan for plan in plans if plan is not None])


def fitted(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return a plan in which every job meets its last step, or None if no list finds one.

    With soft deadlines the last steps are easier to meet than the best ones.
    """
    plan = listed(claims, room)
    for order in (_by_last, _by_last_slack):
        plan = plan or _listed(claims, room, order)
    return plan


def best_of(claims: Sequence[Claim], plans: Sequence[LeasePlan]) -> LeasePlan | None:
    """Return the plan of the highest reward, then of the least delay, then the first."""
    return min(plans, key=lambda plan: quality(claims, plan), default=None)


def _listed(claims: Sequence[Claim], room: Room, order: Order) -> LeasePlan | None:
    free, plan = FreeLeases(room), LeasePlan()
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
    free = FreeLeases.beside(room, ((c, plan[c.job_id]) for c in claims))
    leases = free.take(more, more.last)
    return None if leases is None else {**plan, more.job_id: leases}


def is_impossible(claims: Sequence[Claim], room: Room) -> bool:
    """Return whether no plan lets all jobs meet their last steps, even with fractions of GPUs.

    It is impossible if, for some d, the jobs need more in the first d leases than these have: a job
    needs the leases that do not fit between lease d and its last step. This need is linear in d
    between the leases at which a job must begin or end, so only those leases are checked.
    O(jobs · log jobs), whatever the deadlines.
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
    """Return (−reward, delay, −renewed GPUs) of a plan; the smallest tuple is best."""
    reward = sum(claim.earned(plan[claim.job_id]) for claim in claims)
    renewed = sum(c.gpus for c in claims if c.renews and plan[c.job_id][0] == 0)
    return -reward, delay(claims, plan), -renewed


def delay(claims: Iterable[Claim], plan: LeasePlan) -> int:
    """Return Σ k · GPUs over the leases k of all jobs."""
    return sum(claim.gpus * _sum(plan[claim.job_id]) for claim in claims)


def _sum(leases: Sequence[int]) -> int:
    """Return the sum of the numbers. O(spans · log leases)."""
    return sum((span.start + span.stop - 1) * len(span) for span in spans(leases)) // 2


def least(claims: Sequence[Claim], room: Room) -> tuple[float, int, int]:
    """Return a lower bound on the `quality` of all plans. O(jobs · leases + GPUs · jobs)."""
    reward = sum(claim.best for claim in claims)
    renewed = sum(claim.gpus for claim in claims if claim.renews)
    return -reward, _least_delay(claims, _fillable(claims, room[0])), -renewed


def _least_delay(claims: Sequence[Claim], most: int) -> int:
    """Return the delay if jobs could use fractions of GPUs, at most `most` GPUs in a lease.

    In the first d leases jobs can use min(d · `most`, Σ GPUs · min(leases, d)), and one plan
    reaches this for all d at once. From some d on the second term is the smaller one, because it
    grows ever slower. O(jobs · log leases).
    """
    sizes = [(claim.gpus, claim.leases) for claim in claims]
    whole = sum(gpus * leases for gpus, leases in sizes)
    longest = max((leases for _, leases in sizes), default=0)
    ahead = range(1, 2 + max(longest, whole // max(1, most)))
    full = bisect_left(
        ahead, 0, key=lambda d: d * most - sum(gpus * min(n, d) for gpus, n in sizes)
    )  # the number of leases that can be full
    left = ((gpus, max(0, leases - full - 1)) for gpus, leases in sizes)
    rest = sum(gpus * n * (n + 1) // 2 for gpus, n in left)
    return whole * full - most * full * (full + 1) // 2 + rest


def _fillable(claims: Sequence[Claim], gpus: int) -> int:
    """Return the largest sum of the jobs' widths that is at most `gpus`."""
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
    """Return a plan of equal quality in which jobs that arrived earlier have earlier leases.

    Two jobs of one size exchange leases if both still meet the same steps and equally many GPUs
    are renewed. O(pairs of jobs of one size · leases).
    """
    plan, masks = dict(plan), {c.job_id: _mask(plan[c.job_id]) for c in claims}
    by_size: dict[tuple[int, ...], list[Claim]] = {}
    for claim in claims:
        by_size.setdefault(claim.uses, []).append(claim)
    for alike in by_size.values():
        limits = [(claim.last, claim) for claim in alike]
        for i, one in enumerate(alike):
            mine, end = masks[one.job_id], plan[one.job_id][-1]
            for last, other in limits[i + 1 :]:
                if end >= last or _is_sooner(mine, masks[other.job_id]):
                    continue  # the other one would be late, or has its leases later already
                _exchange(plan, one, other)
                masks.update((c.job_id, _mask(plan[c.job_id])) for c in (one, other))
                mine, end = masks[one.job_id], plan[one.job_id][-1]
    return plan


def _mask(leases: Sequence[int]) -> int:
    """Return an integer whose bits are the leases, for fast comparisons of pairs."""
    bits = 0
    for span in spans(leases):
        bits |= ((1 << len(span)) - 1) << span.start
    return bits


def _is_sooner(mine: int, theirs: int) -> bool:
    """Return whether the leases that only mask `mine` has precede those only in `theirs`."""
    only, other = mine & ~theirs, theirs & ~mine
    return not only or not other or only < other & -other


def _exchange(plan: LeasePlan, one: Claim, other: Claim) -> None:
    """Of the leases that only one of two jobs has, give the earlier ones to the earlier job."""
    mine, theirs = plan[one.job_id], plan[other.job_id]
    both = set(mine) & set(theirs)
    split = sorted(set(mine) ^ set(theirs))
    count = one.leases - len(both)
    early = tuple(sorted([*both, *split[:count]]))
    late = tuple(sorted([*both, *split[count:]]))
    renewed = (one.renews and mine[0] == 0) + (other.renews and theirs[0] == 0)
    still = (one.renews and early[0] == 0) + (other.renews and late[0] == 0)
    same = one.earned(early) + other.earned(late) if late[-1] < other.last else -1.0
    if still >= renewed and same >= one.earned(mine) + other.earned(theirs):
        plan[one.job_id], plan[other.job_id] = early, late
