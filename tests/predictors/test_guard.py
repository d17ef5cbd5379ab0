"""The share controller: virtual clocks against the true baseline, misses, what is shut when."""

from math import ceil
from random import Random

import numpy as np
import pytest
from msgspec import field

import predictors.loads.guard
from predictors.loads.guard import GuardedLoads, PoolClock, ShortfallCounts
from predictors.loads.peaks import apart
from predictors.perfect import PerfectLoads, PerfectRunTimes
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, playable
from sia import Core, Job, Options, Pool
from sia.core.playout import play
from sia.decisions import StartJob
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_GROUP, SLOWED, TICK
from sia.model import Load
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.mmfs import MaxMin
from sia.policies.sia.policy import Sia
from tests.support.budget import budget
from tests.support.builders import SMALL, job, pools, random_workload
from tests.support.logs import first_jobs
from tests.support.naive import naive_policies

ROUNDS = budget(ci=36, soak=300)
PAPER = Options()
OVER = 1e9
"""A time at which everything is over."""


class NotedClock(PoolClock):
    """A clock that keeps what it finds."""

    starts: dict[str, float] = field(default_factory=dict)
    slowed: set[str] = field(default_factory=set)

    def _judge(self, job_id, began, started):
        before = self.slowed_jobs
        super()._judge(job_id, began, started)
        self.starts[job_id] = began
        if self.slowed_jobs > before:
            self.slowed.add(job_id)


class Clocks(Loads):
    """Nothing is foreseen; clocks are told what happens, and asked who is late."""

    def __init__(self, owned, baseline):
        self.clocks = {pool.name: NotedClock.of(pool.quota) for pool in owned}
        self.baseline, self.waiting, self.lates = baseline, {}, 0

    def submitted(self, now, job):
        self.clocks[job.pool].submitted(now, job)
        self.waiting[job.id] = job

    def started(self, now, job, run_time):
        self.clocks[job.pool].started(now, job.id)
        del self.waiting[job.id]

    def finished(self, now, job):
        self.clocks[job.pool].finished(now, job.id)

    def changes(self, now):
        for name, clock in self.clocks.items():
            clock.advance(now)
            clock.check()
            true = [j for j in self.waiting.values() if self.baseline[j.id] < now]
            late = any(job.pool == name for job in true)
            if late and not clock.slowed:  # nothing has held the clock up so far
                assert clock.late(now), (name, now)
            if clock.late(now):
                assert late, (name, now)
                self.lates += 1
        return []


class TooShort(RunTimes):
    """Run times that are thought too short by far."""

    def run_time(self, job):
        return 1.0


def started_under(policy, owned, arrivals, loads, options=PAPER):
    """When jobs start if all are thought to be gone in a second."""
    core = Core(owned, policy(), options)
    return {
        decision.job_id: instant.now
        for instant in play(core, arrivals, run_times=TooShort(), loads=loads)
        for decision in instant.decisions
        if isinstance(decision, StartJob)
    }


def clocked(policy, seed):
    """A random workload played with bad forecasts: the clocks, true starts, the baseline's."""
    workload = random_workload(Random(seed))
    baseline = naive_policies.fcfs(*workload.plain())
    clocks = Clocks(workload.pools, baseline)
    return clocks, started_under(policy, *workload, clocks, SMALL), baseline


@pytest.mark.parametrize("policy", [MaxMin, Sia])
def test_once_all_is_over_the_clocks_know_the_baseline_and_who_was_slowed(policy, monkeypatch):
    monkeypatch.setattr(predictors.loads.guard, "KEPT", 1.0)
    slowed = lates = 0
    for seed in range(ROUNDS):
        clocks, starts, baseline = clocked(policy, seed)
        found = clocks.clocks.values()
        for clock in found:
            clock.advance(OVER)
            clock.check()
        true = {job_id for job_id in starts if starts[job_id] > baseline[job_id]}
        assert {k: v for clock in found for k, v in clock.starts.items()} == baseline, seed
        assert set().union(*(clock.slowed for clock in found)) == true, seed
        assert sum(clock.slowed_jobs for clock in found) == len(true), seed
        assert sum(clock.started_jobs for clock in found) == len(starts), seed
        slowed += len(true)
        lates += clocks.lates
    assert slowed > ROUNDS // 20
    assert lates > ROUNDS // 20


def test_a_job_is_late_once_it_waits_longer_than_what_counts_as_slowed():
    clock = PoolClock.of(4)
    clock.submitted(10.0, Job("j", "a", 10.0, 1))
    looks = (10.0, 10.0 + SLOWED / 2, 10.0 + SLOWED * 2)
    late = []
    for now in looks:
        clock.advance(now)
        late.append(clock.late(now))
    assert late == [False, False, True]


def test_the_clocks_keep_nothing_of_what_is_over():
    for seed in range(ROUNDS):
        clocks, _, _ = clocked(MaxMin, seed)
        for clock in clocks.clocks.values():
            clock.advance(OVER)
            assert clock.quiet() == float("inf"), seed
            assert clock._lag() == 0.0, seed
            left = [clock.twins, clock.coming, clock.queue, clock.due, clock.behind, clock.ready]
            assert not any(left), seed


def alone(quota, jobs):
    """Starts, first come, first served, of (submit, id, width, duration, withdrawn or None)."""
    starts, ends, queue, free, coming = {}, {}, [], quota, [*jobs]
    times = {0.0, *(j[0] for j in jobs), *(j[4] for j in jobs if j[4] is not None)}
    while times:
        now = min(times)
        times.remove(now)
        for name in [name for name, (end, _) in ends.items() if end <= now]:
            free += ends.pop(name)[1]
        queue = [j for j in queue if j[4] is None or j[4] > now]
        while coming and coming[0][0] == now:
            queue.append(coming.pop(0))
        while queue and queue[0][2] <= free:
            _, name, width, duration, withdrawn = queue.pop(0)
            starts[name] = now
            ends[name] = (now + duration if withdrawn is None else withdrawn), width
            free -= width
            times.add(ends[name][0])
    return starts


def random_lives(rng, quota):
    """Jobs, and when they really start, whatever the quota says: many late, some withdrawn."""
    jobs, events = [], []
    for i in range(rng.randint(1, 25)):
        submit, width = float(rng.randint(0, 60)), rng.randint(1, quota)
        start, duration = submit + rng.choice([0, 0, rng.randint(0, 90)]), float(rng.randint(0, 40))
        gone = rng.choice([None, None, submit + rng.randint(1, 120)])
        if gone is not None and gone > start + duration:
            gone = None  # it is over by then
        jobs.append((submit, f"j{i}", width, duration, gone))
        events.append((submit, 2, i, "submitted"))
        if gone is None or gone > start:
            events.append((start, 3, i, "started"))
        after = 0 if duration else 4
        over = (
            (start + duration, after, i, "finished") if gone is None else (gone, 1, i, "withdrawn")
        )
        events.append(over)
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i][0], i))
    return [jobs[i] for i in order], sorted(events, key=lambda event: event[:3])


def test_whatever_really_happens_the_clock_finds_what_would_have_happened():
    slowed = withdrawn = 0
    for seed in range(budget(ci=300, soak=2000)):
        rng = Random(seed)
        quota = rng.randint(1, 8)
        jobs, events = random_lives(rng, quota)
        clock = NotedClock.of(quota)
        told = {name: Job(name, "a", submit, width) for submit, name, width, _, _ in jobs}
        for now, _, i, what in events:
            job = told[f"j{i}"]
            getattr(clock, what)(now, job if what == "submitted" else job.id)
            clock.advance(now)
            clock.check()
        clock.advance(OVER)
        clock.check()
        assert not clock.twins, seed
        gone = {j[1] for j in jobs if j[4] is not None}
        true = {name: start for name, start in alone(quota, jobs).items() if name not in gone}
        assert {name: start for name, start in clock.starts.items() if name not in gone} == true
        slowed += len(clock.slowed)
        withdrawn += len(gone)
    assert min(slowed, withdrawn) > budget(ci=150, soak=1000)


def test_a_job_wider_than_its_pool_is_left_out():
    clock = PoolClock.of(4)
    wide, narrow = Job("wide", "a", 0.0, 5), Job("narrow", "a", 0.0, 4)
    clock.submitted(0.0, wide)
    clock.submitted(0.0, narrow)
    clock.advance(10.0)
    assert clock.late(10.0)  # without the other it would run
    clock.started(10.0, "narrow")
    assert not clock.late(10.0)
    clock.finished(20.0, "narrow")
    for event in (clock.started, clock.finished, clock.withdrawn):
        event(30.0, "wide")
    clock.advance(OVER)
    clock.check()
    assert not clock.twins


class Says(Loads):
    """A forecast that says what the test wants it to."""

    def __init__(self, **gpus):
        self.wanted = {(pool, i): g for pool, loads in gpus.items() for i, g in enumerate(loads)}
        self.said = {}

    def changes(self, now):
        changed = {key: gpus for key, gpus in self.wanted.items() if self.said.get(key, 0) != gpus}
        self.said |= changed
        return [Load(pool, window, gpus) for (pool, window), gpus in changed.items()]


class Watched:
    """What a guard has said up to now."""

    def __init__(self, guard):
        self.guard, self.loads = guard, {}

    def at(self, now):
        """All that holds at this time, except loads of 0."""
        changes = {(pool, window): gpus for pool, window, gpus in self.guard.changes(now)}
        assert all(self.loads.get(key, 0) != gpus for key, gpus in changes.items()), "no change"
        self.loads |= changes
        return {key: gpus for key, gpus in self.loads.items() if gpus}


def submit(guard, now, *stories):
    jobs = [story.at(now).runs(0).job for story in stories]
    for told in jobs:
        guard.submitted(now, told)
    return jobs


def start(guard, now, *jobs):
    for told in jobs:
        guard.started(now, told, 0.0)


def finish(guard, now, *jobs):
    for told in jobs:
        guard.finished(now, told)


WINDOWS = (TICK, 4 * TICK)


def open_guard(**options):
    """Pools a and b share, c is in another group, d to itself; much is foretold of all."""
    owned = [Pool("a", 4), Pool("b", 4), Pool("c", 4, "west"), Pool("d", 4, share=False)]
    guard = GuardedLoads(
        Says(a=[2, 9], b=[2, 9], c=[2, 9], d=[2, 9]), owned, WINDOWS, 0.0, **options
    )
    watched = Watched(guard)
    return guard, watched, watched.at(0.0)


def shut(pool, *windows):
    return {(pool, window): MAX_GROUP for window in windows}


def test_while_all_is_well_a_guard_says_what_the_forecast_says():
    _, watched, well = open_guard()
    assert well == {(pool, i): gpus for pool in "abcd" for i, gpus in enumerate([2, 9])}
    assert watched.at(100.0) == watched.at(9 * TICK) == well


def test_a_tick_of_the_past_is_told_to_the_forecast_itself():
    class Heard(Loads):
        def unasked(self, now):
            self.when = now

    heard = Heard()
    GuardedLoads(heard, [Pool("a", 4)], PAPER.windows, 0.0).unasked(-300.0)
    assert heard.when == -300.0


def test_a_window_in_which_more_came_than_foretold_is_shut_for_as_long_again():
    guard, watched, well = open_guard()
    came = submit(guard, 10.0, job("x").gpus(2), job("y").gpus(1))
    start(guard, 10.0, *came)
    finish(guard, 20.0, *came)
    assert watched.at(TICK) == well  # more may come in this instant
    assert watched.at(TICK + 1) == watched.at(2 * TICK - 1) == well | shut("a", 0)
    assert watched.at(2 * TICK) == well


def test_each_window_is_held_against_its_own_forecast():
    guard = GuardedLoads(Says(a=[2, 5]), pools(a=9), WINDOWS, 0.0)
    watched = Watched(guard)
    well = watched.at(0.0)
    for i in range(3):  # never more than 2 in the short window, but 6 at once in the long one
        now = i * TICK + 1
        start(guard, now, *submit(guard, now, job(f"x{i}").gpus(2)))
        assert watched.at(now) == well
    assert watched.at(3 * TICK) == watched.at(4 * TICK) == well
    assert watched.at(4 * TICK + 1) == watched.at(8 * TICK - 1) == well | shut("a", 1)
    assert watched.at(8 * TICK) == well


def test_a_long_window_is_looked_at_once_in_a_quarter_of_it():
    guard = GuardedLoads(Says(a=[2]), pools(a=9), (40 * TICK,), 0.0)
    watched = Watched(guard)
    for tick in (0, 3):
        watched.at(tick * TICK)
        start(guard, tick * TICK + 1, *submit(guard, tick * TICK + 1, job(f"x{tick}").gpus(2)))
    finish(guard, 4 * TICK, job("x0").gpus(2).runs(0).job)
    start(guard, 41 * TICK, *submit(guard, 41 * TICK, job("after the first").gpus(2)))
    assert watched.at(42 * TICK) == shut("a", 0)  # 4 GPUs from tick 0 on
    assert watched.at(80 * TICK) == {("a", 0): 2}  # and from tick 3 on, which is not looked at


class RecountedMisses:
    """All jobs and all questions in their order, of which everything is counted anew."""

    def __init__(self, windows):
        self.windows, self.log, self.opened, self.slots = windows, [], [], {}

    def shut(self, now, foretold):
        slots = {w: now // TICK // apart(ceil(w / TICK)) for w in self.windows}
        new_tick = now // TICK != self.log_tick if self.opened else True
        self.log_tick = now // TICK
        for window, slot in slots.items():
            if new_tick and slot != self.slots.get(window):
                self.slots[window] = slot
                self.opened.append((now, len(self.log), window, foretold[window]))
        return {window: self._shut(now, window) for window in self.windows}

    def _shut(self, now, window):
        missed = [
            when
            for when, place, of, gpus in self.opened
            if of == window and when + window < now and self._peak(place, when + window) > gpus
        ]
        return any(when + 2 * window > now for when in missed)

    def _peak(self, place, until):
        """The most that jobs held at once that came from this place of the log on."""
        told = [entry for entry in self.log[place:] if entry[0] <= until]
        came = {id_ for _, id_, gpus in told if gpus > 0}
        held = peak = 0
        for _, id_, gpus in told:
            held += gpus if id_ in came else 0
            peak = max(peak, held)
        return peak


def test_windows_are_looked_at_whenever_it_is_that_anything_is_asked():
    windows, closed, looked = (300.0, 1000.0, 7200.0, 30000.0), 0, 0
    for seed in range(budget(ci=12, soak=60)):
        rng = Random(seed)
        misses, model = ShortfallCounts(["a"], windows, 0.0), RecountedMisses(windows)
        now, there = rng.choice([0.0, 17.0]), []
        for i in range(120):
            now += rng.choice([0.0, 1.0, 299.0, 300.0, rng.uniform(0.0, 4000.0)])
            if there and rng.random() < 0.5:
                gone = there.pop(rng.randrange(len(there)))
                misses.remove(gone)
                model.log.append((now, gone.id, -gone.width))
            if rng.random() < 0.5:
                there.append(Job(f"j{i}", "a", now, rng.choice([1, 2, 8])))
                misses.add(now, there[-1])
                model.log.append((now, there[-1].id, there[-1].width))
            foretold = {window: rng.choice([0, 3, 9]) for window in windows}
            said = misses.shut(now, np.array([[*foretold.values()]]))
            true = model.shut(now, foretold)
            assert dict(zip(windows, said[0].tolist(), strict=True)) == true, (seed, i)
            closed, looked = closed + sum(true.values()), looked + len(true)
    assert looked / 10 < closed < looked * 0.9


def test_slowdowns_before_the_question_do_not_count():
    guard, watched, well = open_guard()
    start(guard, TICK + 50, *submit(guard, TICK + 50, job("x").gpus(3)))
    assert watched.at(TICK + 50) == well
    assert watched.at(9 * TICK) == well


def test_as_much_as_foretold_is_no_miss():
    guard, watched, well = open_guard()
    start(guard, 10.0, *submit(guard, 10.0, job("x").gpus(2)))
    for tick in range(1, 9):
        assert watched.at(tick * TICK + 1) == well


def test_no_pool_of_a_group_lends_while_a_job_is_late():
    guard, watched, well = open_guard()
    waits = submit(guard, 1.0, job("waits"))
    assert watched.at(1.0) == well
    assert watched.at(2.0) == well | shut("a", 0, 1) | shut("b", 0, 1)
    start(guard, 3.0, *waits)
    guard.finished(3.0, Job("of c", "c", 0.0, 1))
    assert watched.at(3.0) == well | shut("a", 0, 1)  # its budget is spent


def test_a_job_that_is_late_in_a_pool_to_itself_shuts_no_other():
    guard, watched, well = open_guard()
    submit(guard, 1.0, job("waits").pool("d"))
    assert watched.at(2.0) == well | shut("d", 0, 1)


def test_a_job_that_is_withdrawn_is_late_no_longer():
    guard, watched, well = open_guard()
    waits = submit(guard, 1.0, job("waits"))
    assert watched.at(2.0) != well
    guard.withdrawn(3.0, *waits)
    assert watched.at(3.0) == well


def test_a_clock_knows_that_its_pool_has_grown():
    guard, watched, well = open_guard()
    start(guard, 1.0, *submit(guard, 1.0, job("first").gpus(4)))
    submit(guard, 1.0, job("waits").gpus(4))
    assert watched.at(100.0) == well
    guard.requota(200.0, "a", 8)
    assert watched.at(202.0) == well | shut("a", 0, 1) | shut("b", 0, 1)


def test_a_job_that_waits_behind_others_of_its_pool_is_not_late():
    guard, watched, _ = open_guard()
    wide, behind = submit(guard, 1.0, job("wide").gpus(4).pool("c"), job("behind").pool("c"))
    start(guard, 1.0, wide)
    assert watched.at(100.0)[("c", 1)] == 9
    finish(guard, 200.0, wide)
    assert watched.at(200.0)[("c", 1)] == 9
    assert watched.at(201.0)[("c", 1)] == MAX_GROUP
    start(guard, 201.0, behind)


def test_a_pool_over_its_budget_keeps_its_gpus_until_enough_others_were_in_time(monkeypatch):
    monkeypatch.setattr(predictors.loads.guard, "KEPT", 1.0)
    guard, watched, well = open_guard(max_slowed_pct=10.0)
    start(guard, 5.0, *submit(guard, 1.0, job("slowed")))
    finish(guard, 6.0, job("slowed").at(1.0).runs(0).job)
    for i in range(8):
        now = 10.0 + i
        in_time = submit(guard, now, job(f"j{i}"))
        start(guard, now, *in_time)
        finish(guard, now, *in_time)
        assert watched.at(now) == well | shut("a", 0, 1), i
    in_time = submit(guard, 20.0, job("the tenth"))
    start(guard, 20.0, *in_time)
    assert watched.at(20.0) == well  # one in ten is allowed


def test_a_slowed_job_is_forgiven_after_a_thousand_jobs_in_time():
    clock = PoolClock.of(4)
    clock.submitted(0.0, Job("slowed", "a", 0.0, 1))
    clock.advance(0.0)
    clock.started(9.0, "slowed")
    jobs = 1
    while clock.slowed_jobs > 0.001 * clock.started_jobs:
        jobs += 1
        clock.submitted(10.0, Job(f"j{jobs}", "a", 10.0, 0))
        clock.advance(10.0)
        clock.started(10.0, f"j{jobs}")
    assert 900 < jobs <= 1000


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan")])
def test_an_invalid_budget_is_an_error(percent):
    with pytest.raises(ValueError, match="between 0 and 100"):
        GuardedLoads(Says(), pools(a=4), WINDOWS, 0.0, percent)


def test_jobs_from_before_the_guard_are_ignored():
    guard, watched, well = open_guard()
    before = Job("before", "a", -5.0, 4)
    start(guard, 1.0, before)
    finish(guard, 2.0, before)
    guard.withdrawn(3.0, Job("withdrawn", "a", -5.0, 4))
    assert watched.at(TICK + 1) == well
    guard.check()


class Eager(GuardedLoads):
    """A naive guard that evaluates every clock for every question."""

    def changes(self, now):
        self._look[:] = -float("inf")
        return super().changes(now)


class Both(Loads):
    """Asks two forecasts, and wants the same from both."""

    def __init__(self, one, other):
        self.one, self.other, self.changed = one, other, 0

    def submitted(self, now, job):
        self.one.submitted(now, job)
        self.other.submitted(now, job)

    def started(self, now, job, run_time):
        self.one.started(now, job, run_time)
        self.other.started(now, job, run_time)

    def finished(self, now, job):
        self.one.finished(now, job)
        self.other.finished(now, job)

    def changes(self, now):
        changes = self.one.changes(now)
        assert sorted(changes) == sorted(self.other.changes(now)), now
        self.changed += len(changes)
        return changes


def test_clocks_are_looked_at_as_often_as_they_have_to_be():
    changed = 0
    for seed in range(ROUNDS):
        owned, arrivals = random_workload(Random(seed))
        guards = [kind(Says(), owned, SMALL.windows, 0.0) for kind in (GuardedLoads, Eager)]
        both = Both(*guards)
        for _ in play(Core(owned, MaxMin(), SMALL), arrivals, loads=both):
            guards[0].check()
        changed += both.changed
    assert changed > ROUNDS


def test_a_forecast_that_is_always_right_is_never_shut():
    said = 0
    for seed in range(ROUNDS):
        owned, arrivals = random_workload(Random(seed))
        jobs = [arrival.job for arrival in arrivals]
        guard = GuardedLoads(
            PerfectLoads(jobs, SMALL.windows), owned, SMALL.windows, jobs[0].submit
        )
        both = Both(guard, PerfectLoads(jobs, SMALL.windows))
        run_times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals})
        core = Core(owned, Sia(), SMALL)
        for _ in play(core, arrivals, loads=both, run_times=run_times):
            pass
        said += both.changed
    assert said > ROUNDS


def slowed(arrivals, baseline, loads, owned):
    """Jobs that start later than in the baseline."""
    starts = started_under(Sia, owned, arrivals, loads)
    return sum(starts[job_id] > start + SLOWED for job_id, start in baseline.items())


def test_on_a_real_log_a_guard_makes_the_worst_forecasts_slow_far_fewer_jobs(traces, tmp_path):
    listed = read_pools(traces / "philly_pools.csv").pools
    owned = [Pool(pool.name, -(-pool.quota // 2)) for pool in listed]
    log = first_jobs(traces / "philly.csv.gz", 10_000, tmp_path / "log.csv")
    arrivals = playable(read_trace(log), PoolTable(owned)).arrivals[:8000]
    baseline = started_under(Fcfs, owned, arrivals, None)
    guard = GuardedLoads(Says(), owned, PAPER.windows, arrivals[0].job.submit)
    unwatched, watched = (slowed(arrivals, baseline, loads, owned) for loads in (Says(), guard))
    assert 0 < watched < unwatched / 3
