"""What the solver proves by cuts and branching holds for every policy, on every workload."""

from time import perf_counter

import pytest

from oracle.problem.problem import Goal
from oracle.run.run import SolveSettings, instance_of, lp_bound, run, waiting
from oracle.study.study import POLICIES
from replay.run.run import Settings, replay_one
from replay.synthetic.paper import PRESETS, synthesize
from tests.oracle.test_solve import SLOT
from tests.support.budget import budget

HARMLESS = ("fcfs", "sia", "sia-vc")
"""Those that know enough to slow nobody."""

SECONDS = 2.0
"""Seconds for each: of workloads that are not solved to the optimum there is a bound."""

SEEDS, DAYS = budget(ci=((1,), 0.375), soak=((1, 2, 3), 0.5))


def slows(schedule, baseline):
    pairs = zip(schedule.starts, baseline.starts, strict=True)
    return any(start > alone for start, alone in pairs)


def needed_by(schedule, instance):
    """Cutoffs as late as a policy's own starts, where those are later than alone."""
    later = map(max, schedule.starts, instance.baseline.starts)
    return dict(zip((a.job.id for a in instance.log.arrivals), later, strict=True))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_no_policy_waits_less_than_what_is_proven(preset):
    """Those that slow nobody wait at least as long as the bound, and as the optimum if it is known.

    The others wait at least as long as the LP says of schedules that may be as late as they are.
    """
    for seed in SEEDS:
        log, table = synthesize(PRESETS[preset], seed, DAYS)
        outcome = run(log, table, SolveSettings(SLOT, SECONDS), perf_counter())
        instance = outcome.instance
        assert not slows(outcome.schedule, instance.baseline)
        assert outcome.wait >= outcome.wait_bound
        for label in POLICIES:
            settings = Settings([label])
            schedule = replay_one(instance.trace, table, label, settings, instance.baseline)
            waited = waiting(instance.trace, schedule)
            if not slows(schedule, instance.baseline):
                assert waited >= outcome.wait_bound, (seed, label)
                assert waited >= outcome.wait or outcome.status != "optimal", (seed, label)
                continue
            assert label not in HARMLESS, (seed, label)
            wider = instance_of(log, table, SLOT, Goal(), needed_by(schedule, instance))
            assert waited >= lp_bound(wider, "step", perf_counter() + 60).bound, (seed, label)
