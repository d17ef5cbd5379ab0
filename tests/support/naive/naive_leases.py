"""Chronus' selector and allocator by brute force; shares no code with SIA's."""

from itertools import combinations, product


def _fits(jobs, chosen, gpus, node):
    """Whether the jobs of each lease fit; jobs are (width, needed, steps)."""
    for k in {k for leases in chosen for k in leases}:
        widths = [rounded(job[0], node) for job, has in zip(jobs, chosen, strict=True) if k in has]
        nodes = 0 if not node or gpus % node else gpus // node
        if sum(widths) > gpus or not packs(widths, nodes, node):
            return False
    return True


def rounded(width, node):
    """1, 2, 4 or whole nodes; the width itself without nodes."""
    if not node:
        return width
    for size in (1, 2, 4):
        if width <= size < node:
            return size
    whole = node
    while whole < width:
        whole += node
    return whole


def packs(widths, nodes, node):
    """Whether jobs of rounded widths lie on the fewest nodes, by trying all nodes for each.

    A cluster that is not made of whole nodes is counted by GPUs alone.
    """
    if not node or nodes == 0:
        return True
    seen = {tuple([node] * nodes)}
    for width in sorted(widths, reverse=True):
        following = set()
        for free in seen:
            if width >= node:
                empty = [n for n, has in enumerate(free) if has == node]
                ways = combinations(empty, width // node)
            else:
                ways = ((n,) for n, has in enumerate(free) if has >= width)
            for way in ways:
                left = list(free)
                for n in way:
                    left[n] -= min(width, node)
                following.add(tuple(sorted(left)))
        seen = following
    return bool(seen)


def step_of(job, leases):
    """The first step of (width, needed, steps) that the leases meet, or None."""
    for number, (within, _) in enumerate(job[2]):
        if max(leases) < within:
            return number
    return None


def plans(jobs, gpus, node):
    """Every plan in which all jobs meet their last step."""
    ways = [[*combinations(range(job[2][-1][0]), job[1])] for job in jobs]
    for chosen in product(*ways):
        if _fits(jobs, chosen, gpus, node):
            yield chosen


def admitted(jobs, gpus, node):
    """The numbers of the jobs that are guaranteed, one by one."""
    kept = []
    for number in range(len(jobs)):
        both = [jobs[i] for i in (*kept, number)]
        if next(plans(both, gpus, node), None) is not None:
            kept.append(number)
    return kept


def best(jobs, gpus, node):
    """The best plan: the most reward, then the least delay, then the soonest by arrival."""

    def rank(chosen):
        pairs = [*zip(jobs, chosen, strict=True)]
        reward = sum(job[2][step_of(job, leases)][1] for job, leases in pairs)
        delay = sum(rounded(job[0], node) * sum(leases) for job, leases in pairs)
        return -reward, delay, [sum(leases) for leases in chosen]

    return min(((*rank(chosen), chosen) for chosen in plans(jobs, gpus, node)), default=None)


def spreads(width, free):
    """Every way to take so many GPUs of nodes."""
    if not free:
        return [()] if width == 0 else []
    return [
        (gpus, *rest)
        for gpus in range(min(width, free[0]) + 1)
        for rest in spreads(width - gpus, free[1:])
    ]


def most_reward(jobs, free, speed):
    """The most Σ width · speed of (width, model) on these free GPUs; jobs may be left out."""
    if not jobs:
        return 0.0
    (width, model), *others = jobs
    found = most_reward(others, free, speed)
    for way in spreads(width, free):
        left = tuple(has - gpus for has, gpus in zip(free, way, strict=True))
        nodes = sum(gpus > 0 for gpus in way)
        found = max(found, width * speed(model, width, nodes) + most_reward(others, left, speed))
    return found
