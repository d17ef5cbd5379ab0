"""SPEA2: fitness, the archive beside a naive one, and children."""

from math import dist
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from replay.search.algorithms import (
    Individual,
    RandomSearch,
    dominates,
    front_of,
    make_algorithm,
    random_genome,
)
from replay.search.spea2 import Spea2, fitness, select

numbers = st.integers(0, 6).map(float)
values = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=14)


def candidates(found):
    """Give each point a genome of its own: points with equal objectives stay distinct."""
    return [Individual((i / 20,), each) for i, each in enumerate(found)]


@given(values)
def test_the_front_is_what_nothing_dominates(found):
    naive = [
        i for i, own in enumerate(found)
        if not any(dominates(other, own) for other in found) and own not in found[:i]
    ]  # fmt: skip
    assert front_of(found) == naive


@given(values)
def test_fitness_is_below_1_where_nothing_dominates(found):
    ranks = fitness(candidates(found))
    for own, rank in zip(found, ranks, strict=True):
        assert (rank < 1) == (not any(dominates(other, own) for other in found))


def test_fitness_adds_the_strength_of_those_that_dominate():
    found = [(0.0, 3.0), (3.0, 0.0), (1.0, 4.0), (4.0, 4.0)]
    # (0, 3) dominates two, (3, 0) and (1, 4) one each
    assert [int(rank) for rank in fitness(candidates(found))] == [0, 0, 2, 4]


@given(values, st.integers(1, 8))
def test_the_archive_is_that_of_a_naive_one(found, size):
    pool = candidates(found)
    kept = select(pool, size)
    assert len(kept) == min(size, len(pool))
    assert kept == naive_archive(pool, size)


def naive_archive(pool, size):
    """Sort by fitness; if too many are undominated, drop the most crowded one and start again."""
    ranked = sorted(zip(fitness(pool), pool, strict=True), key=lambda pair: pair[0])
    best = [each for rank, each in ranked if rank < 1]
    if len(best) <= size:
        best = [each for _, each in ranked[:size]]
    best.sort(key=pool.index)
    spans = [
        (min(column), max(column)) for column in zip(*(b.values for b in best), strict=True)
    ]  # fmt: skip

    def place(each):
        return [
            (v - low) / (high - low) if high > low else 0.0
            for v, (low, high) in zip(each.values, spans, strict=True)
        ]

    while len(best) > size:
        crowding = [
            sorted(dist(place(own), place(other)) for other in best if other is not own)
            for own in best
        ]
        del best[crowding.index(min(crowding))]
    return best


@given(st.integers(0, 100), st.integers(1, 6))
def test_children_stay_in_the_space(seed, dimensions):
    random = Random(seed)
    algorithm = Spea2(dimensions, 7, random)
    for _ in range(4):
        genomes = algorithm.ask()
        assert len(genomes) == 7
        assert all(len(genome) == dimensions for genome in genomes)
        assert all(0 <= gene <= 1 for genome in genomes for gene in genome)
        algorithm.tell([Individual(genome, (sum(genome), -genome[0])) for genome in genomes])


def volume(algorithm, generations=12):
    """How much of the unit square the points found dominate, of a front that bends inwards."""
    found = []
    for _ in range(generations):
        told = []
        for genome in algorithm.ask():
            away = 1 + 9 * sum(genome[1:]) / (len(genome) - 1)
            told.append(
                Individual(genome, (genome[0], away * (1 - (genome[0] / away) ** 0.5) / 10))
            )
        algorithm.tell(told)
        found += [each.values for each in told]
    best = sorted(found[i] for i in front_of(found))
    edges = [*(x for x, _ in best[1:]), 1.0]
    return sum((right - x) * (1 - y) for (x, y), right in zip(best, edges, strict=True))


def test_it_finds_more_than_chance_does():
    for seed in range(3):
        drawn = volume(RandomSearch(6, 20, Random(seed)))
        assert volume(Spea2(6, 20, Random(seed))) > drawn


def test_the_same_seed_proposes_the_same():
    one, other = (make_algorithm("spea2", 4, 9, Random(5)) for _ in range(2))
    for _ in range(3):
        genomes = one.ask()
        assert genomes == other.ask()
        for algorithm in (one, other):
            algorithm.tell([Individual(genome, genome[:2]) for genome in genomes])


def test_a_generation_is_as_large_as_asked_for():
    assert len(make_algorithm("random", 3, 5, Random(0)).ask()) == 5
    assert len(random_genome(Random(0), 3)) == 3
