"""Naive models of elastic policies: the same rules in plain loops, from the text of the rules."""

from fractions import Fraction
from itertools import pairwise


def _least(job):
    return job.width if job.preemptible in ("restart", "never") else job.min_width or 1


def _most(job):
    return job.width if job.preemptible in ("restart", "never") else job.max_width or job.width


def _cap(job, level):
    """The widest width whose efficiency is at least the level, by trying all."""
    if level <= 0:
        return _most(job)
    base = job.speed(_least(job)) / _least(job)
    widths = range(_least(job), _most(job) + 1)
    return max(k for k in widths if job.speed(k) / k / base >= level - 1e-9)


def _fill(jobs, share, zeta, delta):
    """One queue: in order of arrival up to the caps; caps rise until the share is used up."""
    step = 0
    while True:
        left, widths = share, {}
        for job in jobs:
            if not left or _least(job) > left:
                break
            widths[job.id] = min(left, _cap(job, zeta - step * delta))
            left -= widths[job.id]
        if not left or zeta - step * delta <= 0:
            return widths
        step += 1


def _shares(weights, use, gpus):
    """Weighted max-min by raising all shares together, then largest remainder."""
    shares = [Fraction(0)] * len(use)
    left = Fraction(gpus)
    while left and any(shares[i] < use[i] for i in range(len(use))):
        hungry = [i for i in range(len(use)) if shares[i] < use[i]]
        total = sum(weights[i] for i in hungry)
        step = min(left / total, *((use[i] - shares[i]) / weights[i] for i in hungry))
        for i in hungry:
            shares[i] += step * weights[i]
        left -= step * total
    whole = [int(share) for share in shares]
    order = sorted(range(len(use)), key=lambda i: (whole[i] - shares[i], i))
    for i in order[: int(sum(shares)) - sum(whole)]:
        whole[i] += 1
    return whole


def naive_wfq(jobs, gpus, sizes, weights, zeta, delta, now):
    """Return the GPUs of each job that runs, by id; `jobs` are (job, size) in order of arrival."""
    parts = [gpus * weight / sum(weights) for weight in weights]
    weights = [Fraction(weight) for weight in weights]
    bounds = [0.0, *sizes, float("inf")]
    queues = [[job for job, size in jobs if low < size <= high] for low, high in pairwise(bounds)]
    use = [min(gpus, sum(map(_most, queue))) for queue in queues]
    oldest = next((job for job, _ in jobs if _first(job, queues) and _least(job) <= gpus), None)
    for job, size in jobs:
        part = sum(parts[i] for i, queue in enumerate(queues) if job in queue)
        if job is oldest and part < 1 and _least(job) == 1 and now < job.submit + size / part:
            oldest = None
    while True:
        shares = _shares(weights, use, gpus)
        for i, queue in enumerate(queues):
            if oldest in queue and shares[i] < _least(oldest):
                others = [0 if j == i else most for j, most in enumerate(use)]
                shares = _shares(weights, others, gpus - _least(oldest))
                shares[i] = _least(oldest)
        widths = [_fill(q, share, zeta, delta) for q, share in zip(queues, shares, strict=True)]
        used = [sum(each.values()) for each in widths]
        if used == shares:
            break
        use = [
            min(most, n) if n < s else most for most, n, s in zip(use, used, shares, strict=True)
        ]
    left = gpus - sum(used)
    waiting = [(job, i) for job, _ in jobs for i, q in enumerate(queues)
               if job in q and job.id not in widths[i]]  # fmt: skip
    asked = []
    for _, i in waiting:
        if i not in asked:
            asked.append(i)
            more = _fill(queues[i], used[i] + left, zeta, delta)
            if sum(more.values()) > used[i]:
                left -= sum(more.values()) - used[i]
                widths[i] = more
    return {job_id: width for each in widths for job_id, width in each.items()}


def _first(job, queues):
    return any(queue and queue[0] is job for queue in queues)
