"""Plans of leases by list scheduling, without a solver, and upper bounds on all plans.

A list gives the first free leases to one job after the other. Its plan often reaches the bound, and
then no solver is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import FreeLeases, Room, numbers, spans

_Spans = dict[str, list[range]]
"""A plan by spans of consecutive leases."""

_Entry = tuple[int, Claim, int]
"""The number of a job, its claim, and the leases before the best step that it could meet alone."""

Order = Callable[[_Entry], Any]


def is_within(claims: Iterable[Claim], room: Room, plan: LeasePlan) -> bool:
    """Return whether the jobs of each lease of a plan fit together. O(spans of leases)."""
    return not FreeLeases.beside(room, ((c, plan[c.job_id]) for c in claims)).is_overfull


def _by_deadline(entry: _Entry) -> Any:
    number, claim, within = entry
    return within, not claim.renews, number


def _by_slack(entry: _Entry) -> Any:
    number, claim, within = entry
    return within - claim.leases, not claim.renews, number


def _by_last(entry: _Entry) -> Any:
    number, claim, _ = entry
    return claim.last, not claim.renews, number


def _by_last_slack(entry: _Entry) -> Any:
    number, claim, _ = entry
    return claim.last - claim.leases, not claim.renews, number


def _by_width(entry: _Entry) -> Any:
    number, claim, within = entry
    return -claim.gpus, within, number


def _by_length(entry: _Entry) -> Any:
    number, claim, within = entry
    return -claim.leases, within, number


ORDERS: tuple[Order, ...] = (_by_deadline, _by_slack, _by_length, _by_width)


def _entries(claims: Sequence[Claim]) -> list[_Entry]:
    return [(number, claim, _within(claim)) for number, claim in enumerate(claims)]


def _within(claim: Claim) -> int:
    """Return the number of leases before the best step that the job could meet alone."""
    needed = claim.leases
    for within, _ in claim.steps:
        if within >= needed:
            return within
    return claim.last


def listed(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return the best of the lists' plans that give every job enough leases, or None.

    The best has the highest reward, then the least delay. O(jobs · leases) for each list.
    """
    entries = _entries(claims)
    plans = (_listed(entries, room, order) for order in ORDERS)
    found = [plan for plan in plans if plan is not None]
    return _numbered(min(found, key=lambda plan: _quality(claims, plan), default=None))


def fitted(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return a plan in which every job meets its last step, or None if no list finds one.

    With soft deadlines the last steps are easier to meet than the best ones.
    """
    plan = listed(claims, room)
    for order in (_by_last, _by_last_slack):
        plan = plan or _numbered(_listed(_entries(claims), room, order))
    return plan


def best_of(claims: Sequence[Claim], plans: Sequence[LeasePlan]) -> LeasePlan | None:
    """Return the plan of the highest reward, then of the least delay, then the first."""
    return min(plans, key=lambda plan: quality(claims, plan), default=None)


def _listed(entries: Sequence[_Entry], room: Room, order: Order) -> _Spans | None:
    """Return the plan of one list, in its order.

    The first free leases of a job are the same for each of its steps.
    """
    free, plan = FreeLeases(room), _Spans()
    for _, claim, _ in sorted(entries, key=order):
        leases = free.take(claim, claim.last)
        if leases is None:
            return None
        plan[claim.job_id] = leases
    return plan


def _numbered(plan: _Spans | None) -> LeasePlan | None:
    return None if plan is None else {job_id: numbers(found) for job_id, found in plan.items()}


def _spans_of(claims: Iterable[Claim], plan: LeasePlan) -> _Spans:
    return {claim.job_id: [*spans(plan[claim.job_id])] for claim in claims}


def joined(claims: Sequence[Claim], room: Room, plan: LeasePlan, more: Claim) -> LeasePlan | None:
    """Return a plan with one more job, whose leases are free in `plan`, or None. O(leases)."""
    free = FreeLeases.beside(room, ((c, plan[c.job_id]) for c in claims))
    leases = free.take(more, more.last)
    return None if leases is None else {**plan, more.job_id: numbers(leases)}


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
    return _quality(claims, _spans_of(claims, plan))


def _quality(claims: Sequence[Claim], plan: _Spans) -> tuple[float, int, int]:
    reward = sum(claim.earned(plan[claim.job_id][-1]) for claim in claims)
    renewed = sum(c.gpus for c in claims if c.renews and plan[c.job_id][0].start == 0)
    return -reward, _delay(claims, plan), -renewed


def delay(claims: Sequence[Claim], plan: LeasePlan) -> int:
    """Return Σ k · GPUs over the leases k of all jobs. O(spans · log leases)."""
    return _delay(claims, _spans_of(claims, plan))


def _delay(claims: Iterable[Claim], plan: _Spans) -> int:
    twice = sum(
        claim.gpus * (span.start + span.stop - 1) * (span.stop - span.start)
        for claim in claims
        for span in plan[claim.job_id]
    )
    return twice // 2


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
    are renewed. O(pairs of jobs of one size · spans of leases).
    """
    found = dict(plan)
    by_size: dict[tuple[int, ...], list[_Owner]] = {}
    for claim in claims:
        by_size.setdefault(claim.uses, []).append(_Owner(claim, [*spans(plan[claim.job_id])]))
    for alike in by_size.values():
        for i, one in enumerate(alike, 1):
            until, end = one.sooner, one.end
            for other in alike[i:]:
                if other.begin >= until or other.last < end:
                    continue  # the other one has later leases already, or would be late
                if not _is_sooner(one.mask, other.mask) and _exchange(one, other):
                    until, end = one.sooner, one.end
        for one in alike:
            if one.is_new:
                found[one.claim.job_id] = numbers(one.leases)
    return found


class _Owner:
    """A job and its leases.

    Attributes:
        mask: An integer whose bits are the leases, for fast comparisons of pairs.
        begin: The first lease.
        end: The lease after the last one.
        sooner: A job that begins here or later has no lease before one that only this job has.
        last: Whole leases before its last step.
        best: The highest reward that it could earn.
        reward: What it earns.
        is_new: Whether its leases have changed.
    """

    __slots__ = (
        "begin", "best", "claim", "end", "is_new", "last", "leases", "mask", "reward", "sooner"
    )  # fmt: skip

    def __init__(self, claim: Claim, leases: list[range]) -> None:
        self.claim, self.best, self.last, self.is_new = claim, claim.best, claim.last, False
        self._have(leases)

    def take(self, leases: list[range]) -> None:
        """Have other leases."""
        self.is_new = True
        self._have(leases)

    def _have(self, leases: list[range]) -> None:
        self.leases, self.reward = leases, self.claim.earned(leases[-1])
        self.begin, self.end, self.mask = leases[0].start, leases[-1].stop, _mask(leases)
        self.sooner = self.begin if len(leases) == 1 else self.end


def _mask(leases: Iterable[range]) -> int:
    """Return an integer whose bits are the leases, for fast comparisons of pairs."""
    bits = 0
    for span in leases:
        bits |= ((1 << len(span)) - 1) << span.start
    return bits


def _is_sooner(mine: int, theirs: int) -> bool:
    """Return whether the leases that only mask `mine` has precede those only in `theirs`."""
    only, other = mine & ~theirs, theirs & ~mine
    return not only or not other or only < other & -other


def _exchange(one: _Owner, other: _Owner) -> bool:
    """Of the leases that only one of two jobs has, give the earlier ones to the earlier job.

    Return whether they have exchanged leases. The later job gets the last lease that one of them
    has. O(spans · log spans).
    """
    first, second, before = one.claim, other.claim, one.reward + other.reward
    latest = one.leases[-1] if one.end > other.end else other.leases[-1]
    if one.best + second.earned(latest) < before:
        return False
    early, late = _divided(one.leases, other.leases, first.leases)
    renewed = (first.renews and one.begin == 0) + (second.renews and other.begin == 0)
    still = (first.renews and early[0].start == 0) + (second.renews and late[0].start == 0)
    if still < renewed or first.earned(early[-1]) + second.earned(late[-1]) < before:
        return False
    one.take(early)
    other.take(late)
    return True


def _divided(
    mine: Sequence[range], theirs: Sequence[range], wanted: int
) -> tuple[list[range], list[range]]:
    """Return the first `wanted` leases of two jobs, and the others; both keep what both have."""
    bends: dict[int, int] = {}  # where leases begin or end: by how much the number of owners grows
    for span in chain(mine, theirs):
        begin, end = span.start, span.stop
        bends[begin] = bends.get(begin, 0) + 1
        bends[end] = bends.get(end, 0) - 1
    ends = sorted(bends)
    owners = [*accumulate(map(bends.__getitem__, ends))]
    parts = [*zip(map(range, ends, ends[1:]), owners, strict=False)]
    wanted -= sum(len(span) for span, count in parts if count == 2)
    early, late = list[range](), list[range]()
    for span, count in parts:
        if count == 2:
            _append(early, span)
            _append(late, span)
        elif count == 1:
            _append(early, span[:wanted])
            _append(late, span[wanted:])
            wanted -= min(wanted, len(span))
    return early, late


def _append(found: list[range], span: range) -> None:
    """Add later leases, as a part of the last span if they follow it."""
    if span and found and found[-1].stop == span.start:
        found[-1] = range(found[-1].start, span.stop)
    elif span:
        found.append(span)
