"""The fewest running jobs that must move so that other jobs fit (Chronus, §3.4.1).

Proposition 1 holds for empty nodes. If jobs continue to run, there may be enough free GPUs, but
scattered; then as few of these jobs as possible move. A job that moves to a place of its size
leaves one place of that size, so a move only makes places of larger sizes. So a state of the search
is the number of lacking places of each size, and each node is processed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from sia.policies.chronus.leases.sizes import NodeSizes

MOST_STATES = 2_000
"""Largest number of states (lacking places) after each node. If there are more, only the cheapest
are kept, and more jobs than necessary may move."""

Lacking = tuple[int, ...]
"""Missing places by size in `NodeSizes.steps`."""


class StayingJob(NamedTuple):
    """A job on a part of a node, which may stay or move."""

    job_id: str
    gpus: int
    """Its GPUs, rounded up."""


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
    """Return the jobs that must move so that all jobs fit; None if that is impossible.

    They are as few as possible, and among equally few those with the fewest GPUs. Moves of jobs on
    whole nodes do not help; such jobs are not in `staying`.

    Args:
        sizes: The sizes of places.
        free: Free GPUs of each node, after the staying jobs are rounded up.
        staying: The jobs on parts of each node.
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
            moved += alike[len(alike) - count :]  # the latest jobs move
    return moved


def _options(sizes: NodeSizes, free: int, jobs: Sequence[int]) -> list[_Option]:
    """Return the cheapest set of moving jobs for each number of places that a node can gain."""
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
    """Return the states after one more node, each with its least cost."""
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
