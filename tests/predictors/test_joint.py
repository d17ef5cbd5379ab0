"""The joint load of a group against its definition, recounted from the whole story."""

from math import ceil, floor
from random import Random

from predictors.catalog import Choice, loads_by
from predictors.loads.joint import JointLoads
from predictors.loads.peaks import PeakLoads
from sia.forecasts import PredictorContext
from sia.limits import MAX_GROUP, TICK
from sia.model import Job
from tests.predictors.test_peaks import NEVER, ROUNDS, Story, random_instants, told

HOUR = 3600.0


class JointStory(Story):
    """What the forecast should say for pools whose own windows suffice."""

    def shares(self, window, now):
        """The shares of all pools of one group that have earned it, by the definition."""
        own, unused = {}, {}
        for pool in self.names:
            peaks, _, earned = self.own(pool, window, now)
            if earned:
                own[pool] = peaks
                there = sum(
                    s.job.width for s in self.stays if s.job.pool == pool and s.gone == NEVER
                )
                unused[pool] = max(0, self.quotas[pool] - there)
        count = min(map(len, own.values()), default=0)
        last = {pool: peaks[-count:] for pool, peaks in own.items()}
        needs = sorted(sum(min(last[p][i], unused[p]) for p in last) for i in range(count))
        need = needs[ceil((count + 1) * self.quantile) - 1] if count else 0
        for level in range(count):
            found = {pool: sorted(peaks)[level] for pool, peaks in last.items()}
            if sum(min(gpus, unused[pool]) for pool, gpus in found.items()) >= need:
                return found
        return {}


class Both:
    """A joint forecast and `peaks`, which are told the same."""

    def __init__(self, *given):
        self.joint, self.alone = JointLoads(*given), PeakLoads(*given)
        self.said = {}  # by `peaks`

    def __getattr__(self, name):
        def tell(*given):
            getattr(self.joint, name)(*given)
            getattr(self.alone, name)(*given)

        return tell

    def changes(self, now):
        self.said |= {(load.pool, load.window): load.gpus for load in self.alone.changes(now)}
        return self.joint.changes(now)


def test_the_shares_add_up_to_a_quantile_of_the_sum_over_the_pools():
    shared = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        windows = rng.choice([(300.0, 900.0), (250.0, 1000.0, 3601.0), (600.0, 90000.0)])
        start, quantile = rng.choice([0.0, -5000.0, 123.0]), rng.choice([0.5, 0.75, 0.9])
        since = {pool: start + rng.choice([-50.0, 7777.7]) for pool in rng.choice(["", "b", "abc"])}
        quotas = {pool: rng.randint(4, 40) for pool in "abc"}
        story = JointStory("abc", windows, start, quantile, since, quotas)
        both = Both("abc", windows, start, quantile, since, quotas)
        said = dict.fromkeys(((pool, i) for pool in "abc" for i in range(len(windows))), 0)
        tick = None
        for now, changes in told(story, both, rng, random_instants(rng, start)):
            tick, last = floor(now / TICK), tick
            if tick == last and not story.changed:  # answered once a tick
                assert changes == {}
                continue
            true = dict.fromkeys(said, 0) | both.said
            for window in range(len(windows)):
                shares = story.shares(window, now)
                true |= {(pool, window): gpus for pool, gpus in shares.items()}
                shared += len(shares) > 1
            assert changes == {k: gpus for k, gpus in true.items() if gpus != said[k]}, (seed, now)
            said = true
    assert shared > ROUNDS  # it was not always too early


def told_days(forecast, days, busy):
    """In each hour the pools get a job for half an hour, of as many GPUs as `busy(hour)` says."""
    for hour in range(24 * days):
        jobs = [
            Job(f"{pool}{hour}", pool, hour * HOUR + 1.0, gpus) for pool, gpus in busy(hour).items()
        ]
        for job in jobs:
            forecast.submitted(job.submit, job)
        for job in jobs:
            forecast.finished(job.submit + HOUR / 2, job)
    now = 24 * days * HOUR
    return {load.pool: load.gpus for load in forecast.changes(now)}, now


def joint(quantile, pools="abcd", **more):
    return JointLoads(pools, (HOUR,), 0.0, quantile, None, dict.fromkeys(pools, 4), **more)


def test_pools_that_are_busy_at_different_times_need_less_together():
    """Each of four needs all of its 8 GPUs in an eighth of the hours, and rarely all of them do."""
    rng = Random(1)
    needs = [{pool: rng.randint(1, 8) for pool in "abcd"} for _ in range(24 * 14)]
    quotas = dict.fromkeys("abcd", 8)
    given = "abcd", (HOUR,), 0.0, 0.9, None, quotas
    assert sum(told_days(PeakLoads(*given), 14, needs.__getitem__)[0].values()) >= 30
    shares, _ = told_days(JointLoads(*given), 14, needs.__getitem__)
    assert 20 <= sum(shares.values()) <= 28


def test_a_pool_whose_quota_alone_is_left_gets_what_it_needs_alone():
    """Three are busy in a tenth of the hours each, one after the other: 30 %, and 10 % of b's."""
    loads = joint(0.85)
    shares, now = told_days(
        loads, 14, lambda hour: {"bcd"[hour % 10 // 2]: 4} if hour % 10 in (0, 2, 4) else {}
    )
    assert sum(shares.values()) >= 4
    for pool in "cd":
        loads.submitted(now + 1.0, Job(f"full-{pool}", pool, now + 1.0, 4))
    changes = {load.pool: load.gpus for load in loads.changes(now + TICK)}
    assert changes == dict.fromkeys(shares, 0)


def test_pools_that_are_busy_together_need_more_than_each_alone():
    """Four pools are busy in the same tenth of all hours; the forecast is all of them or none."""
    shares, _ = told_days(
        joint(0.95), 14, lambda hour: dict.fromkeys("abcd", 4) if hour % 10 == 0 else {}
    )
    assert shares == dict.fromkeys("abcd", 4)


def test_pools_of_other_groups_are_not_added():
    context = PredictorContext(
        (HOUR,), "ab", quotas={"a": 4, "b": 4}, groups={"a": ("", "a"), "b": ("", "b")}
    )
    loads = loads_by(Choice("sia", "joint", "survival", 0.9), context)
    alone = PeakLoads("ab", (HOUR,), 0.0, 0.9, None, {"a": 4, "b": 4})

    def busy(hour):
        return {"a": 4} if hour % 2 else dict.fromkeys("b" * (hour % 12 == 0), 4)

    assert told_days(loads, 14, busy)[0] == told_days(alone, 14, busy)[0] == {"a": 4}


def test_a_cold_start_lends_nothing():
    loads = JointLoads("ab", (300.0, HOUR), 0.0)
    assert {load.gpus for load in loads.changes(0.0)} == {MAX_GROUP}
