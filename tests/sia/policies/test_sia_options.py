"""What holds for `sia` with each option that limits or ends loans."""

from random import Random

import pytest

from sia.policies.sia.policy import Sia, SiaParams
from tests.sia.test_snapshot import part
from tests.support.budget import budget
from tests.support.builders import play_out, random_workload
from tests.support.clusters.troubled import troubled
from tests.support.naive import naive_policies

ROUNDS = budget(ci=36, soak=600)


def sia_with(**options):
    """Return the policy as a class that has these options unless it is given others."""

    class WithOptions(Sia):
        def __init__(self, params=None):
            super().__init__(params or SiaParams(**options))

    return WithOptions


EACH = pytest.mark.parametrize(
    "policy",
    [sia_with(risk=0.3), sia_with(chance=0.3), sia_with(turns=True)],
    ids=["risk", "chance", "turns"],
)


@EACH
def test_who_knows_the_future_slows_no_job(policy):
    for seed in range(ROUNDS):
        workload = random_workload(Random(seed))
        baseline = naive_policies.fcfs(*workload.plain())
        played = play_out(policy, *workload)
        assert all(played[i].start <= baseline[i] for i in baseline), f"seed {seed}"


@EACH
def test_a_core_restored_now_and_then_decides_the_same(policy):
    for seed in range(budget(ci=6, soak=40)):
        assert not part(troubled(policy, Random(seed)), Random(seed)), f"seed {seed}"
