"""GPUs by number: always those that a look at every node would find."""

import sys
from random import Random

import pytest

from daemon.engine.placement import Placement
from daemon.model.setup import Node


class NaiveSeats:
    """Every GPU of every node is looked at each time."""

    def __init__(self, sizes):
        self.free = {f"n{i}": set(range(size)) for i, size in enumerate(sizes)}
        self.out = set()

    def find(self, gpus):
        free = {n: sorted(s) for n, s in self.free.items() if s and n not in self.out}
        fits = [name for name, some in free.items() if len(some) >= gpus]
        if fits:
            best = min(fits, key=lambda name: len(free[name]))
            return ((best, tuple(free[best][:gpus])),)
        if sum(map(len, free.values())) < gpus:
            return None
        found = []
        for name in sorted(free, key=lambda name: -len(free[name])):
            if gpus > 0:
                found.append((name, tuple(free[name][:gpus])))
                gpus -= len(found[-1][1])
        return tuple(found)


@pytest.mark.parametrize("seed", range(30))
def test_placement_agrees_with_a_search_of_all_nodes(seed):
    rng = Random(seed)
    sizes = [rng.randint(0, 8) for _ in range(rng.randint(1, 6))]
    naive = NaiveSeats(sizes)
    seats = Placement(Node(name, tuple(free)) for name, free in naive.free.items())
    given, wide = [], 0
    for _ in range(200):
        node, turn = rng.choice([*naive.free]), rng.random()
        if turn < 0.1:
            seats.out(node)
            naive.out.add(node)
        elif turn < 0.2:
            seats.back(node)
            naive.out.discard(node)
        elif turn < 0.5 and given:
            nodes = given.pop(rng.randrange(len(given)))
            seats.free(nodes)
            for name, gpus in nodes:
                naive.free[name] |= set(gpus)
        else:
            nodes = seats.find(width := rng.choice([1, 1, 2, 4, 9, 14]))
            assert nodes == naive.find(width)
            if nodes:
                wide += len(nodes) > 1
                seats.take(nodes)
                given.append(nodes)
                for name, gpus in nodes:
                    naive.free[name] -= set(gpus)
        seats.check({f"n{i}": tuple(range(size)) for i, size in enumerate(sizes)}, given)
    assert wide or sum(sizes) < 9 or len(sizes) == 1


def lines_run(nodes):
    """Lines of Python that 500 placements execute when all but 250 of so many nodes are full."""
    seats, count = Placement(Node(f"n{i}", (0, 1)) for i in range(nodes)), 0
    for i in range(nodes - 250):
        seats.take(((f"n{i}", (0, 1)),))

    def trace(_, event, __):
        nonlocal count
        count += event == "line"
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(500):
            seats.take(seats.find(1))
    finally:
        sys.settrace(usual)
    return count


def test_placement_costs_the_same_with_many_nodes():
    assert lines_run(10_000) < 1.5 * lines_run(300)
