"""Shares of queues: weighted max-min, limited by the GPUs that they can use, in whole GPUs."""

from __future__ import annotations

from collections.abc import Sequence

DIGITS = 9
"""Number of digits to which remainders are compared, because weights are floats."""


def max_min(weights: Sequence[float], use: Sequence[int], gpus: int) -> list[float]:
    """Return shares proportional to the weights, each at most the number that the queue can use.

    GPUs that a queue cannot use go to the others. O(queues²).
    """
    shares = [0.0] * len(weights)
    left, unmet = float(gpus), [i for i, most in enumerate(use) if most]
    while unmet and left > 0:
        total = sum(weights[i] for i in unmet)
        met = [i for i in unmet if use[i] * total <= left * weights[i]]
        if not met:
            for i in unmet:
                shares[i] = left * weights[i] / total
            break
        for i in met:
            shares[i] = use[i]
            left -= use[i]
        unmet = [i for i in unmet if i not in met]
    return shares


def rounded(shares: Sequence[float]) -> list[int]:
    """Return whole shares of the same sum, by largest remainder; ties go to the earlier queue.

    The sum must be whole. O(queues · log queues).
    """
    near = [round(share, DIGITS) for share in shares]
    whole = [int(share) for share in near]
    left = round(sum(near)) - sum(whole)
    order = sorted(range(len(near)), key=lambda i: (round(whole[i] - near[i], DIGITS), i))
    for i in order[:left]:
        whole[i] += 1
    return whole


def dealt(
    weights: Sequence[float], use: Sequence[int], gpus: int, first: int, least: int
) -> list[int]:
    """Return the whole share of each queue; queue `first` gets at least `least` GPUs.

    The sum is `gpus`, or the number that the queues can use if this is less.
    """
    shares = rounded(max_min(weights, use, gpus))
    if shares[first] < least:
        others = [0 if i == first else most for i, most in enumerate(use)]
        shares = rounded(max_min(weights, others, gpus - least))
        shares[first] = least
    return shares


def part_of(weights: Sequence[float], queue: int, gpus: int) -> float:
    """Return the share of a queue if all queues have jobs, in GPUs, before rounding."""
    return gpus * weights[queue] / sum(weights)


def owed_at(submit: float, size: float, part: float) -> float:
    """Return when a job of one GPU, the oldest of its pool, has its turn (seconds).

    `part` is the unrounded share of its queue in GPUs. A share of at least 1 is never rounded to 0.
    A smaller one may be, and then the job waits for the time in which this share would do its
    `size` (GPU-seconds) of work.
    """
    return submit if part >= 1.0 else submit + size / part
