"""Peaks of new load against their definition, recounted from the whole story at every question."""

from itertools import chain
from math import ceil, exp, floor, log
from random import Random

import pytest

from predictors.loads.kindred import WORTH
from predictors.loads.peaks import FARTHEST, HOUR, MEMORY, REFRESH, PeakLoads, Peaks, highest
from predictors.loads.public_pools import POOLS, SHARES
from predictors.perfect import PerfectRunTimes
from sia import Core, Job
from sia.core.playout import play
from sia.decisions import StartJob
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, TICK
from sia.model import Load
from sia.policies.sia.policy import Sia
from tests.support.budget import budget
from tests.support.builders import LENGTHS, SMALL, Workload, job, play_out, pools
from tests.support.naive import naive_policies

ROUNDS = budget(ci=10, soak=60)
NEVER = float("inf")


class Stay:
    """The interval from a job's arrival to its end or cancellation."""

    def __init__(self, job, place):
        self.job, self.came, self.gone = job, place, NEVER


def peak(stays, pool, first, last):
    """The most GPUs at once of those of a pool that came as number `first` to `last`."""
    new = [stay for stay in stays if stay.job.pool == pool and first <= stay.came <= last]
    return max(
        (
            sum(other.job.width for other in new if other.came <= stay.came < other.gone)
            for stay in new
        ),
        default=0,
    )


def happenings(rng, pools, marks, count=200):
    """Arrivals, ends and marks in a random order: (what, the stays so far, who it is)."""
    stays = []
    for place in range(count):
        there = [stay for stay in stays if stay.gone == NEVER]
        what = rng.choice(["come", "come", "go", "mark"])
        if what == "go" and there:
            stay = rng.choice(there)
            stay.gone = place
            yield "go", stays, stay.job
        elif what == "mark":
            marks.append(place)
            yield "mark", stays, None
        else:
            stays.append(Stay(Job(f"j{place}", rng.choice(pools), 0.0, rng.randint(1, 8)), place))
            yield "come", stays, stays[-1].job


def test_a_peak_is_the_most_that_those_hold_at_once_who_came_after_the_mark():
    for seed in range(ROUNDS):
        rng = Random(seed)
        kept = rng.randint(1, 6)
        peaks, marks = Peaks("ab", kept), []
        for what, stays, who in happenings(rng, "ab", marks):
            if what == "mark":
                assert peaks.mark() == len(marks) - 1
            else:
                {"come": peaks.add, "go": peaks.remove}[what](who)
            for mark in range(max(0, len(marks) - kept), len(marks)):
                true = [peak(stays, pool, marks[mark], NEVER) for pool in "ab"]
                assert peaks.since(mark).tolist() == true, (seed, what, mark)


def test_removing_a_job_from_before_the_mark_lowers_nothing():
    peaks = Peaks("a", 3)
    peaks.mark()
    peaks.remove(Job("before", "a", 0.0, 4))
    peaks.add(Job("new", "a", 0.0, 2))
    assert peaks.since(0).tolist() == [2]


def test_very_many_very_wide_jobs_are_not_taken_for_few():
    peaks = Peaks("a", 1)
    peaks.mark()
    for i in range(4096):
        peaks.add(Job(f"j{i}", "a", 0.0, 2**20))
    assert peaks.since(0).tolist() == [2**32]


def prior(public):
    """What each public pool weighs: each log as much as any other."""
    logs = [name.split()[0] for name in public]
    return {name: 1 / len(set(logs)) / logs.count(name.split()[0]) for name in public}


class Story:
    """What a forecast was told, and what it should say by its definition."""

    def __init__(self, names, windows, start, quantile, since=None, quotas=None):
        self.names, self.windows, self.start, self.quantile = names, windows, start, quantile
        self.since, self.quotas = since or {}, quotas or {}
        self.changed = set()  # pools that have forgotten, or have another quota
        self.stays, self.place, self.times = [], 0, []

    def now(self, now):
        self.place += 1
        self.times.append(now)

    def placed(self, time):
        """The last thing that happened by then."""
        return sum(1 for past in self.times if past <= time)

    def load(self, pool, window, now):
        """The quantile of the pool's own windows if they have earned it, else of kindred pools."""
        own, _, earned = self.own(pool, window, now)
        if earned:
            return sorted(own)[ceil((len(own) + 1) * self.quantile) - 1]
        return self.kindred(pool, window, now) if pool in self.quotas else MAX_GROUP

    def own(self, pool, window, now):
        """Peaks of the pool's windows of the last two weeks, what they are worth, if that will do.

        Two windows that overlap, or are in one hour, are no two pieces of evidence.
        """
        ticks = ceil(self.windows[window] / TICK)
        apart = min(max(1, ticks // 4), FARTHEST)
        over = ceil(now / TICK) - 1  # the last tick that has passed
        first = ceil(max(self.start, self.since.get(pool, self.start)) / TICK)
        begun = [t for t in range(first, over - ticks + 1) if t % apart == 0]
        kept = int(MEMORY / TICK / apart)
        own = [self.peak(pool, tick, ticks) for tick in begun[-kept:]]
        worth = len(own) * apart / max(ticks, HOUR)
        needed = self.quantile / (1 - self.quantile)
        return own, worth, len(own) == kept or worth >= needed - 1e-9

    def classes(self, pool, window, now):
        """How many independent windows of a pool fell into each class."""
        own, worth, _ = self.own(pool, window, now)
        counts = [0.0] * (len(SHARES) + 1)
        for gpus in own:
            counts[sum(gpus > share * self.quotas[pool] for share in SHARES)] += worth / len(own)
        return counts, worth

    def others(self, pool, window, now):
        """The other pools, public ones first: (name, classes of its windows as shares)."""
        longer = [length for length in POOLS if length >= ceil(self.windows[window] / TICK) * TICK]
        public = POOLS[min(longer)] if longer else {}
        like = {
            name: [(n + 1) / (sum(row) + len(row)) for n in row] for name, row in public.items()
        }
        mean = [1 / (len(SHARES) + 1)] * (len(SHARES) + 1)
        if like:
            weights = prior(like)
            mean = [sum(weights[n] * row[i] for n, row in like.items()) for i in range(len(mean))]
        for other in self.names:
            counts, worth = self.classes(other, window, now)
            if other != pool:
                like[other] = [(n + m) / (worth + 1) for n, m in zip(counts, mean, strict=True)]
        return like

    def kindred(self, pool, window, now):
        """By Bayes' rule: windows of an hour say which of the others the pool is like."""
        known = [i for i, length in enumerate(self.windows) if length <= max(POOLS)]
        known = known or [*range(len(self.windows))]
        long = [i for i in known if self.windows[i] > (HOUR - 1) * TICK]
        guide = long[0] if long else known[-1]
        public = [name for name in self.others(pool, guide, now) if name not in self.names]
        weights = prior(public)
        for other in self.names:
            worth = self.classes(other, guide, now)[1]
            weights[other] = worth / (worth + WORTH)
        seen, _ = self.classes(pool, guide, now)
        fits = {
            name: log(weights[name]) + sum(n * log(p) for n, p in zip(seen, row, strict=True))
            for name, row in self.others(pool, guide, now).items()
            if weights[name]
        }
        like = self.others(pool, window, now)
        chances = {
            name: exp(fit - max(fits.values())) for name, fit in fits.items() if name in like
        }
        counts, worth = self.classes(pool, window, now)
        for place, share in enumerate(SHARES):
            above = sum(c * sum(like[name][place + 1 :]) for name, c in chances.items())
            if not chances:
                break
            left = WORTH * above / sum(chances.values()) + sum(counts[place + 1 :])
            if left / (WORTH + worth) <= 1 - self.quantile + 1e-9:
                return ceil(share * self.quotas[pool])
        return MAX_GROUP

    def peak(self, pool, tick, ticks):
        """GPUs at once of those who came in (tick, tick + ticks]."""
        first, last = (self.placed(t * TICK) for t in (tick, tick + ticks))
        return peak(self.stays, pool, first + 1, last)


def told(story, forecast, rng, instants):
    """Tell a forecast a random story; after each instant: when, and what it changes."""
    for now in instants:
        for stay in [s for s in story.stays if s.gone == NEVER]:
            if rng.random() < 0.3:
                story.now(now)
                stay.gone = story.place
                rng.choice([forecast.finished, forecast.withdrawn])(now, stay.job)
        for _ in range(rng.choice([0, 0, 1, 3])):
            story.now(now)
            name = f"j{story.place}"
            stay = Stay(Job(name, rng.choice(story.names), now, rng.randint(1, 8)), story.place)
            story.stays.append(stay)
            forecast.submitted(now, stay.job)
        story.changed = set()
        if rng.random() < 0.1:
            pool, before = rng.choice(story.names), now - rng.choice([0.0, 1000.0, 20000.0])
            story.since[pool] = max(before, story.since.get(pool, before))
            forecast.forget(pool, before)
            story.changed.add(pool)
        if rng.random() < 0.1 and story.quotas:
            pool, quota = rng.choice(story.names), rng.randint(4, 40)
            forecast.requota(now, pool, quota)
            if story.quotas[pool] != quota:
                story.changed.add(pool)
            story.quotas[pool] = quota
        yield now, {(load.pool, load.window): load.gpus for load in forecast.changes(now)}


def random_instants(rng, start, count=60):
    """Times that ascend, many of them ticks, some after a silence."""
    now = start
    for _ in range(count):
        to_tick = floor(now / TICK) * TICK + TICK
        choices = [now + 1.0, to_tick, to_tick, to_tick, to_tick + TICK, now + 1000.5]
        now = rng.choice([*choices, now + rng.choice([0.0, 5 * TICK, 40 * TICK])])
        yield now


def stories():
    """Random stories: each forecast with its story and instants."""
    for seed in range(ROUNDS):
        rng = Random(seed)
        windows = rng.choice([(300.0, 900.0), (250.0, 1000.0, 3601.0), (600.0, 90000.0)])
        start, quantile = rng.choice([0.0, -5000.0, 123.0]), rng.choice([0.5, 0.75, 0.9])
        since = {
            pool: start + rng.choice([-50.0, 1000.0, 7777.7])
            for pool in rng.choice(["", "b", "abc"])
        }
        quotas = {} if rng.random() < 0.2 else {pool: rng.randint(4, 40) for pool in "abc"}
        story = Story("abc", windows, start, quantile, since, quotas)
        forecast = PeakLoads("abc", windows, start, quantile, since, quotas)
        yield seed, story, told(story, forecast, rng, random_instants(rng, start))


def looked_at(row, last, tick):
    """Whether a pool's turn came since the last answer."""
    return last is None or any(t % REFRESH == row for t in range(last + 1, tick + 1))


def test_the_forecast_is_the_quantile_of_recent_peaks():
    numbers = 0
    for seed, story, instants in stories():
        said = {(pool, i): 0 for pool in "abc" for i in range(len(story.windows))}
        last = None
        for now, changes in instants:
            tick, true = floor(now / TICK), dict(said)
            for pool, window in said:
                if pool in story.changed or looked_at("abc".index(pool), last, tick):
                    true[pool, window] = story.load(pool, window, now)
            assert changes == {k: gpus for k, gpus in true.items() if gpus != said[k]}, (seed, now)
            said, last = true, tick
            numbers += sum(0 < gpus < MAX_GROUP for gpus in changes.values())
    assert numbers > ROUNDS  # it was not always too early to say anything


def test_a_cold_start_lends_nothing():
    forecast = PeakLoads("ab", (300.0, 3600.0), start=0.0)
    first = forecast.changes(0.0)
    assert {load.gpus for load in first} == {MAX_GROUP}
    assert len(first) == 4
    assert forecast.changes(18 * HOUR * TICK + 1.0) == []  # 18 hours are too few for 0.95


def test_nineteen_independent_windows_end_the_cold_start():
    forecast = PeakLoads("a", (300.0, 7200.0), start=0.0)
    forecast.changes(0.0)
    assert forecast.changes(19 * HOUR * TICK - 1.0) == []
    assert forecast.changes(19 * HOUR * TICK + 1.0) == [("a", 0, 0)]
    assert forecast.changes(38 * HOUR * TICK + 1.0) == []  # 73 windows of 2 hours, which overlap
    assert forecast.changes(42 * HOUR * TICK + 1.0) == [("a", 1, 0)]


def test_a_new_pool_is_as_careful_as_public_pools_and_follows_its_own_windows():
    forecast = PeakLoads("a", (3600.0, 30 * 86400.0), start=0.0, quotas={"a": 100})
    (first, longest) = forecast.changes(0.0)
    assert 10 <= first.gpus <= 80, "as most pools of public logs"
    assert longest.gpus == MAX_GROUP, "no log says anything of windows of a month"
    quiet = forecast.changes(12 * HOUR * TICK)
    assert 0 < quiet[0].gpus < first.gpus, "half a day without jobs"
    assert forecast.changes(20 * HOUR * TICK) == [("a", 0, 0)], "its own windows have earned it"


def test_a_new_pool_is_like_the_others_of_its_site():
    names = "abcd"
    quotas = dict.fromkeys(names, 100)
    day = 24 * HOUR * TICK

    def stated(widths):
        forecast = PeakLoads(names, (3600.0,), 0.0, 0.95, {"d": 10 * day}, quotas)
        for hour in range(240):
            for pool, width in zip(names, widths, strict=False):
                new = Job(f"{pool}{hour}", pool, hour * 3600.0 + 1, width)
                forecast.submitted(hour * 3600.0 + 1, new)
                forecast.finished(hour * 3600.0 + 600, new)
        return {load.pool: load.gpus for load in forecast.changes(10 * day)}["d"]

    assert stated((1, 1, 1)) < stated((60, 60, 60)) <= 100


def test_the_time_before_a_pool_existed_is_no_evidence():
    forecast = PeakLoads("ab", (300.0,), -MEMORY, since={"b": 0.0})
    assert forecast.changes(0.0) == [("b", 0, MAX_GROUP)]
    assert forecast.changes(18 * HOUR * TICK) == []
    assert forecast.changes(20 * HOUR * TICK) == [("b", 0, 0)]


def test_a_pools_turn_comes_once_in_an_hour():
    names = [f"p{i}" for i in range(2 * REFRESH)]
    forecast = PeakLoads(names, (300.0,), start=0.0)
    forecast.changes(0.0)
    turns = [
        [load.pool for load in forecast.changes(tick * TICK)]
        for tick in range(1, 19 * HOUR + 2 * REFRESH)
    ]
    assert max(map(len, turns)) == 2
    assert sorted(chain(*turns)) == sorted(names)


def test_a_very_long_silence_is_processed_at_once_and_forgets():
    forecast = PeakLoads("a", (300.0, 43200.0), start=0.0)
    assert len(forecast.changes(0.0)) == 2
    forecast.submitted(1.0, Job("there all the time", "a", 1.0, 7))
    now = 1e15
    assert forecast.changes(now) == [("a", 0, 0), ("a", 1, 0)]
    for step in range(200):
        forecast.submitted(now + step * TICK, Job(f"j{step}", "a", now, 1))
    said = {load.window: load.gpus for load in forecast.changes(now + 200 * TICK)}
    assert said.get(0, 0) <= 1


def test_windows_older_than_two_weeks_are_forgotten():
    forecast = PeakLoads("a", (300.0,), start=0.0, quantile=0.9)
    forecast.changes(0.0)
    for step in range(500):
        burst = Job(f"j{step}", "a", 0.0, 5)
        forecast.submitted(step * TICK + 1.0, burst)
        forecast.finished(step * TICK + 2.0, burst)
    assert forecast.changes(501 * TICK) == [("a", 0, 5)]
    assert forecast.changes(50 * TICK + MEMORY) == []
    assert forecast.changes(502 * TICK + MEMORY) == [("a", 0, 0)]


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0, float("nan")])
def test_an_invalid_quantile_is_an_error(quantile):
    with pytest.raises(ValueError, match="between 0 and 1"):
        PeakLoads("a", (300.0,), 0.0, quantile)


@pytest.mark.parametrize("windows", [(300.0,), (300.0, 3600.0), (301.0, 43200.0), (30 * 86400.0,)])
def test_the_highest_quantile_is_stated_once_the_memory_is_full_and_no_higher_one_taken(windows):
    most = highest(windows)
    forecast = PeakLoads("a", windows, 0.0, most)
    forecast.changes(0.0)
    said = forecast.changes(2 * MEMORY + 2 * windows[-1])
    assert said == [("a", window, 0) for window in range(len(windows))]
    with pytest.raises(ValueError, match="must be at most"):
        PeakLoads("a", windows, 0.0, most + 1e-6)


def test_two_weeks_have_168_windows_of_twelve_hours():
    assert highest((300.0, 43200.0)) == 168 / 169


def test_more_gpus_than_any_group_has_are_as_many_as_it_may_have():
    forecast = PeakLoads("a", (300.0,), 0.0, quantile=0.5)
    assert forecast.changes(0.0) == [("a", 0, MAX_GROUP)]
    for step in range(2 * REFRESH):
        forecast.submitted(step * TICK + 1.0, Job(f"j{step}", "a", 0.0, 2**32))
    assert forecast.changes(2 * REFRESH * TICK) == []


class PerfectPeaks(Loads):
    """The peak of those who come in (now, now + window], if each ran from its arrival on."""

    def __init__(self, arrivals, windows):
        self._arrivals, self._windows = arrivals, windows
        self._pools = sorted({arrival.job.pool for arrival in arrivals})

    def changes(self, now):
        return [
            Load(pool, window, self.peak(pool, now, now + length))
            for pool in self._pools
            for window, length in enumerate(self._windows)
        ]

    def peak(self, pool, after, until):
        stays = [
            (arrival.job.submit, arrival.job.submit + arrival.duration, arrival.job.width)
            for arrival in self._arrivals
            if arrival.job.pool == pool and after < arrival.job.submit <= until
        ]
        return max(
            (
                sum(width for came, gone, width in stays if came <= now < gone or came == now)
                for now, _, _ in stays
            ),
            default=0,
        )


def busy(rng):
    """Two or three pools that share, with more jobs than fit into the longest window at once."""
    owned = pools(**{name: rng.randint(2, 12) for name in "abc"[: rng.randint(2, 3)]})
    arrivals = []
    for pool in owned:
        span = rng.randint(50, 400)
        for i in range(rng.randint(10, 40)):
            width = rng.choice([1, 1, rng.randint(1, pool.quota)])
            story = job(f"{pool.name}{i}").gpus(width).pool(pool.name).at(rng.randint(0, span))
            arrivals.append(story.runs(rng.randint(*rng.choice(LENGTHS))))
    arrivals.sort(key=lambda arrival: arrival.job.submit)
    return Workload(owned, arrivals)


def started_with(loads, workload):
    run_times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in workload.arrivals})
    core = Core(workload.pools, Sia(), SMALL)
    return {
        decision.job_id: instant.now
        for instant in play(core, workload.arrivals, run_times=run_times, loads=loads)
        for decision in instant.decisions
        if isinstance(decision, StartJob)
    }


def test_with_perfect_peaks_no_job_is_slowed_and_more_is_lent_than_with_perfect_sums():
    sooner = sooner_with_sums = 0
    for seed in range(budget(ci=24, soak=200)):
        workload = busy(Random(seed))
        baseline = naive_policies.fcfs(*workload.plain())
        starts = started_with(PerfectPeaks(workload.arrivals, SMALL.windows), workload)
        assert starts.keys() == baseline.keys(), seed
        slowed = {j: start - baseline[j] for j, start in starts.items() if start > baseline[j]}
        assert not slowed, seed
        sums = play_out(Sia, *workload)
        sooner += sum(baseline[j] - start for j, start in starts.items())
        sooner_with_sums += sum(baseline[j] - played.start for j, played in sums.items())
    assert sooner > sooner_with_sums > 0
