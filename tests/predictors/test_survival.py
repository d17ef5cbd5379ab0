"""Run times by survival against a model that recounts all evidence at every question."""

from itertools import pairwise
from random import Random

import pytest

import predictors.run_times.survival
from predictors.loads.sliding import SlidingMaximum
from predictors.run_times.survival import SurvivalRunTimes
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, playable
from sia import Core, Job, Pool
from sia.core.playout import play
from sia.events import RunTimesUpdated
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.policies.sia.policy import Sia
from tests.support.budget import budget
from tests.support.logs import first_jobs

ROUNDS = budget(ci=12, soak=30)
WINDOWS = (300.0, 900.0, 3600.0)
LONG_AGO = -20_000.0


def alike(job):
    """The groups of a job, from all to the narrowest."""
    size = next(n for n in range(99) if job.width <= 2**n)
    groups = [(), (job.pool,), (job.pool, size)]
    groups += [(job.pool, size, job.user)] if job.user else []
    return groups + ([(job.pool, size, job.user, job.name)] if job.name else [])


def weighed(jobs):
    return sum(0.5 ** (age / 150) for age in range(jobs))


class Recount:
    """A list of evidence, of which everything is counted anew at every question."""

    def __init__(self, windows, quantile):
        self.windows, self.quantile = windows, quantile
        self.evidence = []  # window, groups, whether it lasted longer
        self.counted = {}  # job: windows
        self.submits = {}  # narrowest group: when its jobs were
        self.groups = {}  # job: its groups and its batch

    def hazard(self, window, groups):
        told = [on for at, of, on in self.evidence if at == window and groups[-1] in of]
        weights = [0.5 ** (age / 150) for age in range(len(told) - 1, -1, -1)]
        lasted = sum(weight for weight, on in zip(weights, told, strict=True) if on)
        if len(groups) == 1:
            return (lasted + 4) / (sum(weights) + 4)
        return (lasted + 4 * self.hazard(window, groups[:-1])) / (sum(weights) + 4)

    def submit(self, job):
        groups = alike(job)
        submits = self.submits.setdefault(groups[-1], [])
        submits.append(job.submit)
        batch = sum(later - sooner > 300 for sooner, later in pairwise(submits))
        self.groups[job.id] = [*groups, (*groups[-1], "batch", batch)]

    def run_time(self, job):
        """The usual time, or what its user expects: if nobody knows better, or more exactly."""
        usual = self.usual(job)
        if job.estimate is None:
            return usual
        peers = [group for group in alike(job) if len(group) <= 3][-1]
        seen = sum(at == 0 and peers in of for at, of, _ in self.evidence)
        same = sum(usual > w for w in self.windows) == sum(job.estimate > w for w in self.windows)
        return job.estimate if same or weighed(seen) < 10 else usual

    def usual(self, job):
        told = [0 for at, _, _ in self.evidence if at == 0]
        if weighed(len(told)) < 10:
            return UNKNOWN_RUN_TIME
        chance = 1.0
        for window, length in enumerate(self.windows):
            chance *= self.hazard(window, self.groups[job.id])
            if chance <= 1 - self.quantile:
                return length
        return UNKNOWN_RUN_TIME

    def count(self, job, so_far, ended):
        """Count windows that a job reached in `so_far` seconds; `ended` is its run time."""
        for window in range(self.counted.get(job.id, 0), len(self.windows)):
            if so_far <= self.windows[window]:
                return
            lasted = ended is None or ended > self.windows[window]
            self.evidence.append((window, self.groups[job.id], lasted))
            self.counted[job.id] = window + 1 if lasted else len(self.windows)
            if not lasted:
                return


class Cluster:
    """Jobs that come, start, end and are withdrawn at random, told to a forecast and a recount."""

    def __init__(self, rng, quantile):
        self.rng = rng
        self.forecast, self.model = SurvivalRunTimes(WINDOWS, quantile), Recount(WINDOWS, quantile)
        self.said, self.running, self.tick, self.made = {}, {}, None, 0
        self.started = {}  # those that have ended among them: start, run time or None
        self.shortest = rng.choice([1.0, 200.0])

    def instant(self, now):
        """Ends, withdrawals, arrivals, new estimates, starts."""
        for job, (start, duration) in list(self.running.items()):
            if start + duration <= now:
                del self.running[job]
                self.forecast.finished(now, job, duration)
                self.started[job] = start, duration
        if self.rng.random() < 0.1:
            self.withdraw(now)
        for _ in range(self.rng.choice([0, 1, 3])):
            self.submit(now)
        self.compare_changes(now)
        for job in [*self.said]:
            if self.rng.random() < 0.2:
                self.start(now, job)

    def look(self, now):
        for job, (start, ended) in self.started.items():
            self.model.count(job, now - start, ended)

    def withdraw(self, now):
        there = [*self.said, *self.running]
        if there:
            job = self.rng.choice(there)
            self.look(now)
            self.forecast.withdrawn(now, job)
            self.said.pop(job, None)
            self.running.pop(job, None)
            self.started.pop(job, None)

    def submit(self, now):
        self.made += 1
        user, name = self.rng.choice(["", "ann", "bob"]), self.rng.choice(["", "", "x", "y"])
        width = self.rng.choice([1, 2, 3, 4, 5, 8])
        pool = self.rng.choice("ab")
        own = (None, 200.0, None, 900.0, None, 5000.0)[self.made % 6]
        job = Job(f"j{self.made}", pool, now, width, user, name, estimate=own)
        self.look(now)
        self.model.submit(job)
        self.said[job] = self.forecast.run_time(job)
        assert self.said[job] == self.model.run_time(job), job

    def start(self, now, job):
        del self.said[job]
        self.forecast.started(now, job)
        edges = [window + off for window in WINDOWS for off in (-1.0, 0.0, 1.0)]
        duration = self.rng.choice([self.shortest, self.shortest, *edges, 9000.0])
        self.running[job] = now, duration
        self.started[job] = now, None

    def compare_changes(self, now):
        self.look(now)
        changes = {estimate.job_id: estimate.run_time for estimate in self.forecast.changes(now)}
        true = {}
        if now // TICK != self.tick:
            true = {job: self.model.run_time(job) for job in self.said}
        self.tick = now // TICK
        expected = {job.id: time for job, time in true.items() if time != self.said[job]}
        assert changes == expected, now
        self.said |= true
        self.changed = len(changes)


def test_the_estimate_follows_from_all_evidence():
    answers, changes = set(), 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        cluster = Cluster(rng, rng.choice([0.55, 0.77, 0.88]))
        now = 0.0
        for _ in range(60):
            ends = [start + duration for start, duration in cluster.running.values()]
            soonest = min([end for end in ends if end > now], default=now + 1.0)
            now = min(soonest, now + rng.choice([0.0, 1.0, 100.0, TICK - now % TICK, 1000.0]))
            cluster.instant(now)
            answers |= set(cluster.said.values())
            changes += cluster.changed
    assert answers == {*WINDOWS, UNKNOWN_RUN_TIME, 200.0, 5000.0}
    assert changes > ROUNDS


def test_what_a_user_expects_counts_until_jobs_of_the_user_are_known():
    forecast = SurvivalRunTimes(WINDOWS)
    ann, bob = ({"user": user, "width": 1} for user in ("ann", "bob"))

    def expected(own, user):
        job = Job("new", "a", 0.0, 1, user, "run 7", estimate=own)
        said = forecast.run_time(job)
        forecast.withdrawn(0.0, job)
        return said

    assert expected(60.0, "ann") == 60.0
    assert expected(None, "ann") == UNKNOWN_RUN_TIME
    ran(forecast, 800.0, times=20, **ann)
    assert expected(60.0, "bob") == 60.0, "others' jobs say nothing of bob's"
    assert expected(None, "bob") == 900.0
    assert expected(60.0, "ann") == 900.0, "her jobs took longer"
    assert expected(700.0, "ann") == 700.0, "it agrees with her jobs"
    ran(forecast, 90_000.0, times=40, **bob)
    assert expected(60.0, "bob") == UNKNOWN_RUN_TIME
    assert expected(86_400.0, "bob") == 86_400.0


def ran(forecast, seconds, times=1, start=LONG_AGO, **which):
    """So many jobs alike came, started and ended, by default so long ago that all of it counts."""
    for i in range(times):
        job = Job(f"ran{i}", **{"pool": "a", "submit": 0.0, "width": 1, **which})
        forecast.run_time(job)
        forecast.started(start, job)
        forecast.finished(start + seconds, job, seconds)


def test_without_any_evidence_no_pool_lends():
    assert SurvivalRunTimes(WINDOWS, 0.01).run_time(Job("j", "a", 0.0, 1)) == UNKNOWN_RUN_TIME


def test_short_jobs_of_one_user_say_little_of_a_new_user_and_more_of_a_known_one():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    ran(forecast, 9999.0, times=40, user="ann")
    ran(forecast, 10.0, times=60, user="bob")
    new, ann, bob = (Job(u, "a", 0.0, 1, u) for u in ("new", "ann", "bob"))
    assert forecast.run_time(new) == forecast.run_time(ann) == UNKNOWN_RUN_TIME
    assert forecast.run_time(bob) == 300.0


def test_the_estimate_of_a_batch_follows_its_first_jobs_and_that_of_later_jobs_hardly():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    ran(forecast, 10.0, times=100)
    ran(forecast, 9999.0, times=50, user="ann")
    batch = [Job(f"b{i}", "a", 20_000.0 + 299 * i, 1, "ann") for i in range(50)]
    assert {forecast.run_time(job) for job in batch} == {UNKNOWN_RUN_TIME}
    for job in batch[:40]:
        forecast.started(40_000.0, job)
        forecast.finished(40_010.0, job, 10.0)
    assert forecast.changes(40_300.0) == []
    assert forecast.changes(40_500.0) == [(job.id, 300.0) for job in batch[40:]]
    assert forecast.run_time(Job("later", "a", 40_500.0, 1, "ann")) == UNKNOWN_RUN_TIME


def test_the_first_of_a_batch_to_fail_do_not_speak_for_those_that_run_on():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    ran(forecast, 10.0, times=100)
    ran(forecast, 9999.0, times=50, user="ann")
    batch = [Job(f"b{i}", "a", 0.0, 1, "ann") for i in range(101)]
    assert {forecast.run_time(job) for job in batch} == {UNKNOWN_RUN_TIME}
    for job in batch[:100]:
        forecast.started(0.0, job)
    for job in batch[:34]:
        forecast.finished(10.0, job, 10.0)
    assert [forecast.changes(now) for now in (20.0, 300.0, 600.0)] == [[], [], []]


def test_few_jobs_do_not_change_the_estimate():
    forecast = SurvivalRunTimes(WINDOWS, 0.5)
    ran(forecast, 10.0, times=9, user="ann", name="train")
    assert forecast.run_time(Job("j", "a", 0.0, 1, "ann", "train")) == UNKNOWN_RUN_TIME
    ran(forecast, 10.0, times=2, user="ann", name="train")
    assert forecast.run_time(Job("k", "a", 0.0, 1, "ann", "train")) == 300.0


def test_jobs_that_run_on_and_on_make_those_that_wait_look_longer():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    ran(forecast, 10.0, times=50)
    runs = [Job(f"runs{i}", "a", 0.0, 1) for i in range(20)]
    waits = Job("waits", "a", 0.0, 1)
    for job in runs:
        forecast.run_time(job)
        forecast.started(1000.0, job)
    assert forecast.run_time(waits) == 300.0
    assert forecast.changes(1300.0) == []
    assert forecast.changes(1500.0) == [("waits", UNKNOWN_RUN_TIME)]


def test_a_job_that_is_taken_away_while_it_runs_counts_for_what_it_has_outlasted():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    ran(forecast, 10.0, times=50)
    for i in range(20):
        job = Job(f"runs{i}", "a", 0.0, 1)
        forecast.run_time(job)
        forecast.started(0.0, job)
        forecast.withdrawn(301.0, job)
    assert forecast.run_time(Job("waits", "a", 0.0, 1)) == UNKNOWN_RUN_TIME


def test_jobs_that_are_no_longer_pending_get_no_estimate():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    gone, started = Job("gone", "a", 0.0, 1), Job("started", "a", 0.0, 1)
    for job in (gone, started):
        assert forecast.run_time(job) == UNKNOWN_RUN_TIME
    ran(forecast, 10.0, times=50)
    forecast.withdrawn(10.0, gone)
    forecast.started(10.0, started)
    assert forecast.changes(300.0) == []


def test_new_estimates_come_at_ticks_only():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    assert forecast.run_time(Job("waits", "a", 0.0, 1)) == UNKNOWN_RUN_TIME
    forecast.changes(0.0)
    ran(forecast, 10.0, times=50)
    assert forecast.changes(TICK - 1) == []
    assert forecast.changes(TICK) == [("waits", 300.0)]
    assert forecast.changes(2 * TICK) == []


def test_a_job_that_the_forecast_was_not_asked_about_is_learned_from_all_the_same():
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    for i in range(50):
        forecast.finished(0.0, Job(f"j{i}", "a", 0.0, 1), 10.0)
    assert forecast.run_time(Job("new", "a", 0.0, 1)) == 300.0


def groups_kept(forecast):
    return len(forecast._groups) + len(forecast._older)


def test_names_without_end_are_forgotten_but_not_those_that_come_again(monkeypatch):
    monkeypatch.setattr(predictors.run_times.survival, "MOST_GROUPS", 50)
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    for name in ("seldom", "often"):
        ran(forecast, 9999.0, times=50, name=name)
    seldom, often = (Job(name, "a", 0.0, 1, "", name) for name in ("seldom", "often"))
    for i in range(500):
        ran(forecast, 10.0, name=f"n{i}")
        if i % 20 == 0:
            assert forecast.run_time(often) == UNKNOWN_RUN_TIME
            forecast.withdrawn(10.0, often)
        assert groups_kept(forecast) <= 2 * 50 + 5
    assert forecast.run_time(often) == UNKNOWN_RUN_TIME
    assert forecast.run_time(seldom) == 300.0


def test_jobs_whose_group_is_forgotten_while_they_wait_and_run_do_no_harm(monkeypatch):
    monkeypatch.setattr(predictors.run_times.survival, "MOST_GROUPS", 50)
    forecast = SurvivalRunTimes(WINDOWS, 0.9)
    waits, runs = (Job(id_, "a", 0.0, 1, "ann", "train") for id_ in ("waits", "runs"))
    assert [forecast.run_time(job) for job in (waits, runs)] == [UNKNOWN_RUN_TIME] * 2
    forecast.started(0.0, runs)
    for i in range(500):
        ran(forecast, 10.0, start=0.0, name=f"n{i}")
    forecast.finished(10.0, runs, 10.0)
    assert forecast.changes(2 * TICK) == [("waits", 300.0)]
    forecast.started(2 * TICK, waits)
    forecast.finished(2 * TICK + 10.0, waits, 10.0)
    assert not forecast._waiting
    assert not forecast._last
    assert not forecast._running


def test_on_a_real_log_estimates_change_and_only_those_of_jobs_that_wait(traces, tmp_path):
    pools = read_pools(traces / "philly_pools.csv").pools
    narrow = PoolTable([Pool(pool.name, -(-pool.quota // 3)) for pool in pools])
    log = first_jobs(traces / "philly.csv.gz", 10_000, tmp_path / "log.csv")
    arrivals = playable(read_trace(log), narrow).arrivals[: budget(ci=3000, soak=8000)]
    core = Core(narrow.pools, Sia())
    start = arrivals[0].job.submit
    run_times = SurvivalRunTimes(core.state.options.windows)
    loads = SlidingMaximum([pool.name for pool in narrow.pools], run_times._windows, start)
    updated = 0
    for _, events, _ in play(core, arrivals, run_times=run_times, loads=loads):
        updated += sum(len(e.estimates) for e in events if isinstance(e, RunTimesUpdated))
    core.check()
    assert updated > 100
    assert not core.state.jobs
    assert not run_times._waiting
    assert not run_times._running


@pytest.mark.parametrize("quantile", [0.0, 1.0, float("nan")])
def test_an_invalid_quantile_is_an_error(quantile):
    with pytest.raises(ValueError, match="between 0 and 1"):
        SurvivalRunTimes(WINDOWS, quantile)
