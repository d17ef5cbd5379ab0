"""STRL by brute force: every choice of every leaf, node by node, checked slot by slot."""

from itertools import product
from math import ceil, floor

from sia.policies.jvu.strl.expressions import (
    Barrier,
    Choose,
    JobScope,
    Kill,
    Max,
    Min,
    Scale,
    Sum,
)

EPSILON = 1e-6


def best_value(problem):
    """The best value of a small problem. Exponential."""
    found = [0.0]
    for value, taken in outcomes(problem, problem.goal, None):
        if value > max(found) and fits(problem, taken):
            found.append(value)
    return max(found)


def spread(count, rooms):
    """Every way to take `count` of so many from each room."""
    for counts in product(*(range(min(count, most) + 1) for most in rooms.values())):
        if sum(counts) == count:
            yield dict(zip(rooms, counts, strict=True))


def leaf_outcomes(leaf, worth, rooms):
    for k in range(leaf.k + 1) if leaf.linear else [leaf.k]:
        for counts in spread(k, rooms):
            yield (worth * k / max(1, leaf.k) if leaf.linear else worth), [(leaf, counts)]


def freeable(problem, leaf, job):
    return {
        (number, node): held
        for number, holding in enumerate(problem.held)
        for node, held in holding.units.items()
        if node in leaf.units
        and holding.end > max(leaf.begin, problem.now)
        and job in (None, holding.job)
    }


def joint(options, add):
    for chosen in product(*options):
        yield add(value for value, _ in chosen), [each for _, taken in chosen for each in taken]


def outcomes(problem, expression, job):  # noqa: PLR0911  one for each operator
    """Every (value, [(leaf, {unit or holding: count})]) with the expression chosen."""
    now, end = problem.now, problem.now + problem.horizon

    def of(part):
        return list(outcomes(problem, part, job))

    match expression:
        case Choose(units=units, start=start, value=value):
            rooms = {node: problem.nodes[node] for node in units}
            return leaf_outcomes(expression, value, rooms) if now <= start < end else []
        case Kill(begin=begin, until=until, cost=cost):
            possible = max(begin, now) < min(until, end)
            rooms = freeable(problem, expression, job)
            return leaf_outcomes(expression, -cost, rooms) if possible else []
        case Max(parts):
            return [(0.0, []), *(each for part in parts for each in of(part))]
        case Sum(parts):
            return joint([[(0.0, []), *of(part)] for part in parts], sum)
        case Min(parts):
            return joint([of(part) for part in parts], min)
        case Scale(factor, part):
            return [(factor * value, taken) for value, taken in of(part)]
        case Barrier(least, part):
            return [(least, taken) for value, taken in of(part) if value >= least - EPSILON]
        case JobScope(name, part):
            return outcomes(problem, part, name)


def touched(problem, begin, end):
    if end <= begin:
        return range(0)
    first = floor((begin - problem.now) / problem.slot)
    return range(max(0, first), ceil((end - problem.now) / problem.slot))


def fits(problem, taken):
    """Whether no unit is used twice in a slot, and none is freed twice."""
    slots = ceil(problem.horizon / problem.slot)
    used = {node: [0] * slots for node in problem.nodes}

    def use(node, span, count):
        for slot in span:
            if slot < slots:
                used[node][slot] += count

    freed = {}
    for holding in problem.held:
        for node, count in holding.units.items():
            use(node, touched(problem, problem.now, holding.end), count)
    for leaf, counts in taken:
        for at, count in counts.items():
            if isinstance(leaf, Choose):
                use(at, touched(problem, leaf.start, leaf.start + leaf.duration), count)
                continue
            freed[at] = freed.get(at, 0) + count
            end = problem.held[at[0]].end
            kept = {
                *touched(problem, problem.now, max(leaf.begin, problem.now)),
                *touched(problem, max(leaf.until, problem.now), end),
            }
            use(at[1], touched(problem, problem.now, end), -count)
            use(at[1], kept, count)
    if any(count > problem.held[n].units[node] for (n, node), count in freed.items()):
        return False
    return all(max(each, default=0) <= problem.nodes[node] for node, each in used.items())
