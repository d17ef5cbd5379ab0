"""Which of the jobs that go on must move so that others find a place (Chronus, §3.4.1).

Proposition 1 needs free nodes. Where jobs go on, there may be enough GPUs, but not together: then
some of these jobs move, as few as can be. A job that moves to a place of its size leaves one, so it
gains nothing for its own size or smaller ones, only places of larger sizes. How many of these are
lacking is therefore all that matters, and each node is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from sia.policies.chronus.leases.sizes import NodeSizes

MOST_STATES = 2_000
"""Combinations of lacking places that are kept after each node. Beyond that the cheapest are kept,
and more jobs than need be may move."""

Lacking = tuple[int, ...]
"""Missing places by size in `NodeSizes.steps`."""


class StayingJob(NamedTuple):
    """A job on a part of a node, which may stay or move."""

    job_id: str
    gpus: int
    """Rounded up."""


class _Option(NamedTuple):
    gains: Lacking
    cost: tuple[int, int]  # jobs, then their GPUs
    moved: tuple[int, ...]  # jobs by size


class _Reached(NamedTuple):
    cost: tuple[int, int]
    moved: tuple[tuple[int, int], ...]  # (node, which of its options), for nodes that lose jobs


def lacking(sizes: NodeSizes, free: Iterable[int], wanted: Iterable[int]) -> Lacking:
    """Return the places of each size that jobs of these rounded GPUs lack. O(nodes + jobs)."""
    free, wanted = list(free), list(wanted)
    return tuple(
        max(0, sum(sizes.pieces(gpus, s) for gpus in wanted) - sum(f // s for f in free))
        for s in sizes.steps
    )


def fewest_moves(
    sizes: NodeSizes,
    free: Sequence[int],
    staying: Mapping[int, Sequence[StayingJob]],
    wanted: Sequence[int],
) -> list[str] | None:
    """Return the jobs that move so that all jobs find a place; None if that is impossible.

    They are as few as can be, and of as few the ones with the fewest GPUs. Jobs on whole nodes gain
    nothing by moving and are not in `staying`.

    Args:
        sizes: The sizes of places.
        free: Free GPUs by node, without what the staying jobs are rounded up to.
        staying: By node, the jobs on parts of it.
        wanted: The rounded GPUs of jobs that need a place.
    """
    short = lacking(sizes, free, wanted)
    reached: dict[Lacking, _Reached] = {short: _Reached((0, 0), ())}
    known: dict[tuple[int, tuple[int, ...]], list[_Option]] = {}
    options: dict[int, list[_Option]] = {}
    for node, jobs in staying.items() if any(short) else ():
        kind = free[node], tuple(sorted(job.gpus for job in jobs))
        if kind not in known:
            known[kind] = _options(sizes, *kind)
        options[node] = known[kind]
        reached = _after(reached, node, options[node])
    done = reached.get((0,) * len(short))
    if done is None:
        return None
    moved = []
    for node, number in done.moved:
        for size, count in zip(sizes.steps, options[node][number].moved, strict=True):
            alike = [job.job_id for job in staying[node] if job.gpus == size]
            moved += alike[len(alike) - count :]  # who came later moves
    return moved


def _options(sizes: NodeSizes, free: int, jobs: Sequence[int]) -> list[_Option]:
    """Return what a node could lose for each number of places that it gains by that."""
    counts = [range(jobs.count(size) + 1) for size in sizes.steps]
    best: dict[Lacking, _Option] = {}
    for moved in product(*counts):
        gpus = sum(size * count for size, count in zip(sizes.steps, moved, strict=True))
        gains = tuple(
            (free + gpus) // s
            - free // s
            - sum(sizes.pieces(g, s) * n for g, n in zip(sizes.steps, moved, strict=True))
            for s in sizes.steps
        )
        option = _Option(gains, (sum(moved), gpus), moved)
        if any(gains) and (gains not in best or option.cost < best[gains].cost):
            best[gains] = option
    return list(best.values())


def _after(
    reached: dict[Lacking, _Reached], node: int, options: Sequence[_Option]
) -> dict[Lacking, _Reached]:
    """Return what can be lacking, at the least cost, once a node has been looked at."""
    found = dict(reached)
    for short, before in reached.items():
        for number, option in enumerate(options):
            left = tuple(max(0, a - b) for a, b in zip(short, option.gains, strict=True))
            cost = before.cost[0] + option.cost[0], before.cost[1] + option.cost[1]
            if left != short and (left not in found or cost < found[left].cost):
                found[left] = _Reached(cost, (*before.moved, (node, number)))
    if len(found) > MOST_STATES:
        best = sorted(found, key=lambda left: (sum(left), found[left].cost))[:MOST_STATES]
        found = {left: found[left] for left in best}
    return found
