"""The oracle's plan with times as in the log: what slots have rounded up is nobody's waiting."""

from random import Random
from time import perf_counter

from oracle.problem.problem import Goal
from oracle.run.real import brought_forward
from oracle.run.run import START, SolveSettings, instance_of, run, waiting
from replay.logs.trace import PoolTable
from replay.run.metrics import measure
from replay.run.run import Settings, replay_one
from replay.run.schedule import Result
from replay.run.summary import jct_pairs
from sia.model import Pool
from tests.oracle.test_solve import SLOT, STORY, TWO, log_of


def overfull(jobs, starts, gpus):
    """Whether more run at any start than there are GPUs."""
    runs = [(s, s + d, job.width) for (job, d), s in zip(jobs, starts, strict=True)]
    return any(sum(w for b, e, w in runs if b <= now < e) > gpus for now, _, _ in runs)


def random_log(seed):
    """Jobs of two pools at any second, planned by SIA-VC on slots of a minute."""
    random = Random(seed)
    rows = sorted(
        (
            random.uniform(0, 900),
            i,
            random.choice("ab"),
            random.randint(1, 2),
            random.uniform(1, 400),
        )
        for i in range(25)
    )
    log = log_of(*[(f"j{i}", pool, s, width, seconds) for s, i, pool, width, seconds in rows])
    instance = instance_of(log, TWO, 60.0, Goal())
    plan = replay_one(instance.trace, TWO, START, Settings([START]), instance.baseline)
    return log, instance, plan.starts


def test_jobs_start_as_early_as_the_plan_allows():
    sooner = 0
    for seed in range(60):
        log, instance, planned = random_log(seed)
        starts = brought_forward(log, instance.problems, planned)
        jobs = log.arrivals
        assert not overfull(jobs, starts, 4), seed
        for i, (job, _) in enumerate(jobs):
            assert job.submit <= starts[i] <= planned[i], seed
            sooner += starts[i] < planned[i] - 60
            ends = [s + d for (_, d), s in zip(jobs, starts, strict=True)]
            for earlier in {job.submit, *ends}:
                if job.submit <= earlier < starts[i]:
                    assert overfull(jobs, [*starts[:i], earlier, *starts[i + 1 :]], 4), (seed, i)
    assert sooner > 100


def test_a_job_that_waits_for_nobody_starts_when_it_comes():
    log = log_of(("x", "a", 10, 2, 30), ("y", "a", 40, 2, 5), ("z", "a", 42, 2, 5))
    found = instance_of(log, TWO, SLOT, Goal()).problems
    assert brought_forward(log, found, [300.0, 600.0, 900.0]) == [10.0, 40.0, 42.0]
    table = PoolTable([Pool("a", 2)])  # alone there are fewer GPUs
    found = instance_of(log, table, SLOT, Goal()).problems
    assert brought_forward(log, found, [300.0, 600.0, 900.0]) == [10.0, 40.0, 45.0]


def test_short_jobs_are_not_slowed_by_slots():
    """Each runs a second and waits for nobody; on the grid each takes five minutes."""
    log = log_of(*[(f"j{i}", "a", 37 * i, 1, 1) for i in range(20)])
    outcome = run(log, TWO, SolveSettings(SLOT, 20.0), perf_counter())
    pairs = jct_pairs(Result(log, outcome.real_baseline, outcome.real), Settings([]))
    found = measure(pairs)
    assert (found.slowed, found.speedup_geomean) == (0, 1.0)
    assert waiting(outcome.instance.trace, outcome.instance.baseline) > 0


def test_the_story_with_times_as_in_the_log():
    outcome = run(STORY, TWO, SolveSettings(SLOT, 20.0), perf_counter())
    assert outcome.real.starts == [10.0, 20.0, 900.0]
    assert outcome.real_baseline.starts == [10.0, 3610.0, 900.0]
