"""A core that was dumped and restored decides from then on as the undisturbed one does."""

from random import Random

import pytest
from cores import POLICIES, PREEMPTING
from troubled import step, troubled, troubled_in_cells

from sia.policies.fcfs import Fcfs
from sia.policies.gssf import GlobalSsf
from sia.policies.hived import HiveD
from sia.policies.mmfs import MaxMin
from sia.policies.sia import Sia
from sia.policies.sia_recall import SiaRecall
from sia.policies.sjf import Sjf
from sia.policies.ssf import Ssf
from sia.snapshot import decode, dump, encode, restore

ROUNDS = 40
IN_CELLS = [Fcfs, Ssf, Sjf, GlobalSsf, MaxMin, HiveD, Sia, SiaRecall]


def again(core, policy=None):
    """By way of its bytes."""
    data = encode(dump(core))
    made = restore(decode(data), (policy or type(core.policy))())
    assert encode(dump(made)) == data
    return made


def relive(history, rng, renew=again):
    """The same events to a core that is made anew now and then: the first answer that differs."""
    core = history.first.copy()
    for number, (now, events, answer) in enumerate(history.steps):
        if rng.random() < 0.2:
            core = renew(core)
            core.check()
        if step(core, now, events)[1] != answer:
            return number
    return None if encode(dump(core)) == encode(dump(history.core)) else len(history.steps)


@pytest.mark.parametrize("policy", [*POLICIES, *PREEMPTING, SiaRecall])
def test_a_restored_core_decides_as_the_undisturbed_one(policy):
    for seed in range(ROUNDS):
        history = troubled(policy, Random(seed))
        assert relive(history, Random(seed)) is None, f"seed {seed}"


@pytest.mark.parametrize("policy", IN_CELLS)
def test_a_restored_core_places_as_the_undisturbed_one(policy):
    for seed in range(ROUNDS):
        history = troubled_in_cells(policy, Random(seed))
        assert relive(history, Random(seed)) is None, f"seed {seed}"
