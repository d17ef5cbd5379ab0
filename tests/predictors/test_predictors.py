"""Forecasts against their definitions, recomputed from all arrivals at every question."""

from random import Random

from predictors.loads.sliding import SlidingMaximum
from predictors.perfect import PerfectLoads, PerfectRunTimes
from predictors.random_forecast import RandomLoads, RandomRunTimes
from predictors.run_times.history import HistoryRunTimes
from sia import Job
from sia.limits import MAX_GROUP, TICK, UNKNOWN_RUN_TIME
from tests.support.budget import budget
from tests.support.builders import SMALL

ROUNDS = budget(ci=15, soak=100)
WINDOWS = SMALL.windows


def random_jobs(rng, names="ab", span=300, count=60):
    """Jobs in order of arrival, with bursts and ties."""
    submits = [rng.choice([rng.randint(0, span), rng.randint(0, 9)]) for _ in range(count)]
    return [
        Job(f"j{i}", rng.choice(names), float(submit), rng.randint(1, 8))
        for i, submit in enumerate(sorted(submits))
    ]


def random_instants(rng, jobs, last):
    """Every arrival's instant and some in between, each with the jobs that arrive in it."""
    quiet = {float(rng.randint(0, last)) for _ in range(40)}
    for now in sorted(quiet | {job.submit for job in jobs}):
        yield now, [job for job in jobs if job.submit == now]


def told(forecast, instants):
    """Play the instants to a forecast: what it said until now, and what it changes of that."""
    said = {}
    for now, arrivals in instants:
        for job in arrivals:
            forecast.submitted(now, job)
        changes = {(load.pool, load.window): load.gpus for load in forecast.changes(now)}
        yield now, said, changes
        said = said | changes


def new_load(jobs, pool, window, now):
    return sum(job.width for job in jobs if job.pool == pool and now < job.submit <= now + window)


def sliding_maximum(jobs, pool, window, now, recent=12):
    if now < window:
        return MAX_GROUP
    arrivals = [(job.submit, job.width) for job in jobs if job.pool == pool and job.submit <= now]
    return max(
        (
            sum(width for submit, width in arrivals if last - window < submit <= last)
            for last, _ in arrivals
            if last > now - recent * window
        ),
        default=0,
    )


def differing(expected, before):
    return {key: gpus for key, gpus in expected.items() if gpus != before.get(key, 0)}


def said_by_perfect_loads():
    """Random stories: where and when, what is true then, what was said before, what is changed."""
    for seed in range(ROUNDS):
        rng = Random(seed)
        jobs = random_jobs(rng)
        instants = random_instants(rng, jobs, 400)
        for now, before, changes in told(PerfectLoads(jobs, WINDOWS), instants):
            true = {(p, i): new_load(jobs, p, w, now) for p in "ab" for i, w in enumerate(WINDOWS)}
            yield f"seed {seed} at {now}", true, before, changes


def test_perfect_loads_count_what_arrives_in_each_window():
    for where, true, before, changes in said_by_perfect_loads():
        assert dict.fromkeys(true, 0) | before | changes == true, where


def test_perfect_loads_say_what_differs_and_nothing_else():
    for where, true, before, changes in said_by_perfect_loads():
        assert changes == differing(true, before), where


def test_perfect_loads_leave_out_now_and_take_in_the_windows_end():
    jobs = [Job("now", "a", 0.0, 1), Job("at 5", "a", 5.0, 2), Job("at 6", "a", 6.0, 4)]
    forecast = PerfectLoads(jobs, (5.0, 20.0))
    assert sorted(forecast.changes(0.0)) == [("a", 0, 2), ("a", 1, 6)]
    assert sorted(forecast.changes(5.0)) == [("a", 0, 4), ("a", 1, 4)]


def test_perfect_run_times_are_the_true_ones():
    assert PerfectRunTimes({"j": 7.0}).run_time(Job("j", "a", 0.0, 1)) == 7.0


def test_the_sliding_maximum_is_the_most_that_came_in_any_recent_window():
    keys = [(pool, i) for pool in "ab" for i in range(len(WINDOWS))]
    for seed in range(ROUNDS):
        rng = Random(seed)
        jobs = random_jobs(rng)
        recent = rng.choice([1, 2, 12])
        forecast = SlidingMaximum("ab", WINDOWS, 0.0, recent)
        for now, before, changes in told(forecast, random_instants(rng, jobs, 1500)):
            true = {(p, i): sliding_maximum(jobs, p, WINDOWS[i], now, recent) for p, i in keys}
            where = f"seed {seed} at {now}"
            assert {(p, i): forecast.estimate(now, p, i) for p, i in keys} == true, where
            assert changes == differing(true, before), where


def test_a_sliding_maximum_trusts_nothing_before_it_has_seen_a_whole_window():
    forecast = SlidingMaximum(["a"], (5.0,), start=100.0)
    assert forecast.changes(100.0) == [("a", 0, MAX_GROUP)]
    forecast.submitted(102.0, Job("j", "a", 102.0, 3))
    assert forecast.changes(104.0) == []
    assert forecast.changes(105.0) == [("a", 0, 3)]
    assert forecast.changes(161.0) == []
    assert forecast.changes(162.0) == [("a", 0, 0)]


def random_loads(seed, names, jobs, pool="a"):
    """What a forecast by lot says of one pool at each of 60 ticks."""
    forecast = RandomLoads(names, WINDOWS, 0.0, seed)
    instants = [(i * TICK, [job for job in jobs if job.submit == i * TICK]) for i in range(60)]
    said = [before | changes for _, before, changes in told(forecast, instants)]
    return [{i: loads.get((pool, i), 0) for i in range(len(WINDOWS))} for loads in said]


def jobs_at_ticks(rng, names):
    return [Job(f"j{i}", rng.choice(names), i // 3 * TICK, rng.randint(1, 8)) for i in range(180)]


def test_loads_by_lot_depend_on_their_seed_alone():
    jobs = jobs_at_ticks(Random(0), "ab")
    of_a = [job for job in jobs if job.pool == "a"]
    assert random_loads(1, "ab", jobs) == random_loads(1, "a", of_a)
    assert random_loads(1, "ab", jobs) != random_loads(2, "ab", jobs)


def test_loads_by_lot_are_drawn_for_each_pool_and_window():
    jobs = [Job(f"{pool}{i}", pool, i * TICK, 1) for i in range(60) for pool in "ab"]
    of_a, of_b = (random_loads(1, "ab", jobs, pool) for pool in "ab")
    assert of_a != of_b
    assert any(loads[0] != loads[1] for loads in of_a[1:])  # both would be 1 or 0


def test_loads_by_lot_are_the_sliding_maximum_or_nothing_about_half_of_the_time_each():
    jobs = jobs_at_ticks(Random(0), "a")
    said = random_loads(1, "a", jobs)[1:]
    for tick, loads in enumerate(said, start=1):
        for i, window in enumerate(WINDOWS):
            assert loads[i] in (0, sliding_maximum(jobs, "a", window, tick * TICK)), tick
    yes = sum(1 for loads in said for gpus in loads.values() if gpus)
    assert len(said) < yes < 2 * len(said)  # of three windows


def test_loads_by_lot_stay_as_they_are_between_two_ticks():
    forecast = RandomLoads("ab", WINDOWS, 0.0, seed=1)
    assert forecast.changes(0.0)
    forecast.submitted(1.0, Job("j", "a", 1.0, 8))
    assert forecast.changes(TICK - 1) == []


def test_run_times_by_lot_fall_into_every_bin_and_depend_on_seed_and_job_alone():
    jobs = [Job(f"j{i}", "a", 0.0, 1) for i in range(100)]
    one, same, other = (RandomRunTimes(WINDOWS, seed) for seed in (1, 1, 2))
    answers = [one.run_time(job) for job in jobs]
    assert set(answers) == {5.0, 20.0, 100.0, 200.0}
    assert [same.run_time(job) for job in reversed(jobs)] == answers[::-1]
    assert [other.run_time(job) for job in jobs] != answers


def guess(ended, job):
    """The 90th percentile of the last 50 of the most telling kind of which 5 have ended."""
    alike = [
        [run for old, run in ended if job.name and old.name == job.name],
        [
            run
            for old, run in ended
            if job.user and (old.user, old.pool, old.width) == (job.user, job.pool, job.width)
        ],
        [run for old, run in ended if (old.pool, old.width) == (job.pool, job.width)],
    ]
    for runs in alike:
        if len(runs) >= 5:
            last = sorted(runs[-50:])
            return last[int(0.9 * len(last))]
    return UNKNOWN_RUN_TIME


def test_history_guesses_a_high_percentile_of_similar_jobs():
    rng = Random(0)
    history, ended = HistoryRunTimes(), []
    for i in range(budget(ci=1500, soak=5000)):
        user, name = rng.choice(["", "ann", "bob"]), rng.choice(["", "", "train", "test", f"n{i}"])
        job = Job(f"j{i}", rng.choice("ab"), 0.0, rng.randint(1, 3), user, name)
        assert history.run_time(job) == guess(ended, job), i
        if rng.random() < 0.8:
            ended.append((job, float(rng.choice([rng.randint(1, 9), rng.randint(10, 999)]))))
            history.finished(0.0, *ended[-1])


def test_history_knows_nothing_of_the_first_jobs_and_then_prefers_the_same_name():
    history = HistoryRunTimes()
    train, other = (Job(name, "a", 0.0, 1, "ann", name) for name in ("train", "other"))
    assert history.run_time(train) == UNKNOWN_RUN_TIME
    for job, seconds in [(train, 10.0)] * 5 + [(other, 99.0)] * 5:
        history.finished(0.0, job, seconds)
    assert history.run_time(train) == 10.0
    assert history.run_time(Job("new", "a", 0.0, 1, "ann", "new")) == 99.0
