"""Pools that were not there for long: nobody lends what nobody has watched."""

from random import Random

import pytest

from predictors.loads.new_pools import NewPoolLoads, judged_after
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, TICK
from sia.model import Load

WINDOWS = (300.0, 3600.0, 43200.0)


class Said(Loads):
    """A forecast that says what a test has it say."""

    def __init__(self):
        self.next = []

    def changes(self, now):
        said, self.next = self.next, []
        return said


def test_a_pool_is_judged_once_it_was_seen_for_long_enough():
    other = Said()
    loads = NewPoolLoads(other, {"old": 0.0, "new": 1e6}, WINDOWS)
    other.next = [Load("old", 0, 3), Load("new", 0, 2)]
    first = loads.changes(1e6)
    assert Load("old", 0, 3) in first
    assert {load for load in first if load.pool == "new"} == {
        Load("new", window, MAX_GROUP) for window in range(3)
    }
    assert loads.changes(1e6 + judged_after(300.0) - 1) == []
    assert loads.changes(1e6 + judged_after(300.0)) == [Load("new", 0, 2)], "as it stood"
    other.next = [Load("new", 0, 5), Load("new", 1, 6)]
    assert loads.changes(1e6 + judged_after(300.0) + 1) == [Load("new", 0, 5)]
    assert loads.changes(1e9) == [Load("new", 1, 6), Load("new", 2, 0)]


def test_each_window_is_judged_after_a_fixed_time():
    assert [judged_after(window) / 3600 for window in WINDOWS] == pytest.approx([5 / 3, 5.75, 50])
    assert judged_after(300.0) == 20 * TICK


@pytest.mark.parametrize("seed", range(30))
def test_only_loads_of_observed_pools_are_passed_on(seed):
    rng, other = Random(seed), Said()
    since = {pool: rng.uniform(0, 2e5) for pool in "abc"}
    loads = NewPoolLoads(other, since, WINDOWS)
    believed, truth, now = {}, {}, 0.0
    for _ in range(200):
        now += rng.expovariate(1 / 3000)
        other.next = [
            Load(rng.choice("abc"), window, rng.randrange(9)) for window in range(3)
        ]  # one of each window
        truth |= {(load.pool, load.window): load.gpus for load in other.next}
        told = loads.changes(now)
        assert len({load[:2] for load in told}) == len(told), "of each once"
        believed |= {(load.pool, load.window): load.gpus for load in told}
        for pool in "abc":
            for window, length in enumerate(WINDOWS):
                seen = now >= since[pool] + judged_after(length)
                want = truth.get((pool, window), 0) if seen else MAX_GROUP
                assert believed.get((pool, window), 0) == want
