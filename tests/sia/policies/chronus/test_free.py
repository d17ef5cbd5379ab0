"""Free leases in spans against a table of every lease, and exchanges of leases one by one."""

from itertools import combinations
from random import Random

import pytest

from sia.policies.chronus.leases.claims import Claim
from sia.policies.chronus.leases.free import FreeLeases, moved, numbers, spans
from sia.policies.chronus.leases.lists import by_arrival, listed, quality
from sia.policies.chronus.leases.programs import target_program
from tests.support.budget import budget

END = 60
ROUNDS = budget(ci=30, soak=2000)


def drawn(rng, number, resources=1):
    """A job of a few leases and up to three steps."""
    needed = rng.randint(1, 6)
    ends = sorted(rng.sample(range(needed, needed + 25), rng.randint(1, 3)))
    steps = tuple(zip(ends, (100.0, 80.0, 20.0), strict=False))
    uses = (rng.choice([1, 1, 2, 4]), rng.randint(0, 1))[:resources]
    return Claim(f"j{number}", uses, needed, steps, renews=rng.random() < 0.3)


def naive_find(table, claim, within):
    """Look at each lease."""
    fits = [
        k
        for k in range(within)
        if all(use <= left for use, left in zip(claim.uses, table[k], strict=True))
    ]
    return tuple(fits[: claim.leases]) if len(fits) >= claim.leases else None


def change(table, claim, leases, sign):
    for k in leases:
        table[k] = [left - sign * use for left, use in zip(table[k], claim.uses, strict=True)]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_free_leases_are_those_of_a_table_of_every_lease(seed):
    rng = Random(seed)
    room = (8, 3)[: 1 + seed % 2]
    free, table, held = FreeLeases(room), [[*room] for _ in range(END)], []
    for number in range(40):
        claim = drawn(rng, number, len(room))
        within = min(END, claim.last + rng.randint(0, 10))
        expected = naive_find(table, claim, within)
        found = free.find(claim, within)
        assert (None if found is None else numbers(found)) == expected
        if rng.random() < 0.7:
            assert free.take(claim, within) == found
            if expected is not None:
                held.append((claim, expected))
                change(table, claim, expected, 1)
        elif held:
            one, leases = held.pop(rng.randrange(len(held)))
            free.give_back(one, leases)
            change(table, one, leases, -1)
        assert free.least == min(left[0] for left in table)
    assert FreeLeases.beside(room, held).least == free.least


def test_numbers_of_leases_in_many_years_are_counted_on():
    late = [range(65_530, 65_540), range(70_000, 70_002)]
    assert numbers(late) == (*late[0], *late[1])
    assert [*spans(numbers(late))] == late
    assert moved((1, 2, 5), 65_534) == (65_535, 65_536, 65_539)


def naive_by_arrival(claims, plan):
    """Exchange the leases of each pair of a size, which are sets here."""
    plan = {job_id: set(leases) for job_id, leases in plan.items()}

    def worth(claim, leases):
        met = [reward for within, reward in claim.steps if max(leases) < within]
        return met[0] if met else -1000.0

    for one, other in combinations(claims, 2):
        if one.uses != other.uses:
            continue
        mine, theirs = plan[one.job_id], plan[other.job_id]
        split = sorted(mine ^ theirs)
        early = (mine & theirs) | {*split[: len(mine - theirs)]}
        late = (mine & theirs) | {*split[len(mine - theirs) :]}
        renewed = (one.renews and 0 in mine) + (other.renews and 0 in theirs)
        still = (one.renews and 0 in early) + (other.renews and 0 in late)
        before = worth(one, mine) + worth(other, theirs)
        if early != mine and still >= renewed and worth(one, early) + worth(other, late) >= before:
            plan[one.job_id], plan[other.job_id] = early, late
    return {job_id: tuple(sorted(leases)) for job_id, leases in plan.items()}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_jobs_that_arrived_earlier_get_earlier_leases_pair_by_pair(seed):
    rng = Random(seed)
    claims = [drawn(rng, number) for number in range(12)]
    plan = listed(claims, (16,))
    if plan is None:
        return
    found = by_arrival(claims, plan)
    assert found == naive_by_arrival(claims, plan)
    assert quality(claims, found) <= quality(claims, plan)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_program_of_steps_counts_what_jobs_need_until_each_step(seed):
    rng = Random(seed)
    room = (6, 2)[: 1 + seed % 2]
    claims = [drawn(rng, number, len(room)) for number in range(8)]
    program = target_program(claims, room)
    steps = {column: (n, number) for n, number, column in program.targets}
    ends = sorted({within for claim in claims for within, _ in claim.steps})
    expected = []
    for resource, have in enumerate(room):
        for d in ends:

            def need(claim, number, d=d, resource=resource):
                within = claim.steps[number][0]
                return claim.uses[resource] * min(claim.leases, max(0, claim.leases - within + d))

            if sum(need(claim, 0) for claim in claims) <= have * d:
                continue
            last = [need(claim, -1) for claim in claims]
            more = {column: need(claims[n], i) - last[n] for column, (n, i) in steps.items()}
            expected.append(({c: by for c, by in more.items() if by}, have * d - sum(last)))
    choices = len([claim for claim in claims if len(claim.steps) > 1])
    rows = [*program.program.rows()][choices:]
    assert [(dict(zip(r.columns, r.coefficients, strict=True)), r.high) for r in rows] == expected
