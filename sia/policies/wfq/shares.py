"""Shares of queues: weighted max-min over what they can use, in whole GPUs."""

from __future__ import annotations

from collections.abc import Sequence

DIGITS = 9
"""Remainders that agree to so many digits are equal: weights are floats."""


def max_min(weights: Sequence[float], use: Sequence[int], gpus: int) -> list[float]:
    """Return shares in proportion to the weights, none above what its queue can use.

    What a queue cannot use goes to the others. O(queues²).
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

    The sum is `gpus`, or what the queues can use if that is less.
    """
    shares = rounded(max_min(weights, use, gpus))
    if shares[first] < least:
        others = [0 if i == first else most for i, most in enumerate(use)]
        shares = rounded(max_min(weights, others, gpus - least))
        shares[first] = least
    return shares


def part_of(weights: Sequence[float], queue: int, gpus: int) -> float:
    """Return the GPUs of a queue if all queues have jobs, before they are rounded."""
    return gpus * weights[queue] / sum(weights)


def owed_at(submit: float, size: float, part: float) -> float:
    """Return when a job of one GPU, the oldest of its pool, has its turn (seconds).

    Its queue has `part` GPUs by weight. A whole GPU is there in any case; less may be rounded to
    none, and then the job waits for as long as the part would take for its `size` (GPU-seconds).
    """
    return submit if part >= 1.0 else submit + size / part
