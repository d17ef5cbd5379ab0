"""The oracle's problem solved by brute force, sharing no code with the oracle."""

from itertools import product


def least(jobs, quotas, beta=0.0):
    """Return the least cost over all schedules, or None if there is none.

    `jobs` are (pool, release, cutoff, latest, length, width, weight, price) in slots, `quotas` by
    pool.
    """
    best = None
    end = max(job[3] + job[4] for job in jobs)
    for starts in product(*(range(job[1], job[3] + 1) for job in jobs)):
        cost = sum(
            job[6] * (start - job[1]) + job[7] * max(0, start - job[2])
            for job, start in zip(jobs, starts, strict=True)
        )
        if best is not None and cost >= best:
            continue
        fits = True
        for t in range(end):
            used = [0] * len(quotas)
            for job, start in zip(jobs, starts, strict=True):
                if start <= t < start + job[4]:
                    used[job[0]] += job[5]
            if sum(used) > sum(quotas):
                fits = False
                break
            cost += beta * max(u / q for u, q in zip(used, quotas, strict=True))
        if fits and (best is None or cost < best):
            best = cost
    return best
