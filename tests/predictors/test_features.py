"""Features of arrivals against Table 9, counted anew from all events at every question."""

from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest

from predictors.learning.features import GROUPS, HALF_LIVES, NAMES, PAUSES, Features
from replay.forecast.train import observe
from replay.logs.trace import Trace
from sia import Job
from sia.core.playout import Arrival
from sia.limits import TICK, UNKNOWN_RUN_TIME, WINDOWS

HOUR, DAY = 3600.0, 86400.0
POOLS = "abc"


class Story:
    """Jobs that come in bursts over many days, each with its run and what it is thought to run."""

    def __init__(self, seed, days=70, bursts=60):
        rng = Random(seed)
        self.jobs = []
        for _ in range(bursts):
            begin = rng.choice([rng.random() * days * DAY, rng.randrange(days * 24) * HOUR])
            for _ in range(rng.choice([1, 1, 2, 8])):
                submit = begin + rng.choice([0, 0, 60, TICK, 4000])
                start = submit + rng.choice([0, 0, 100, 9000])
                run = rng.choice([50.0, 2000.0, 40_000.0, 400_000.0])
                guess = rng.choice([run, run / 10, run * 3, UNKNOWN_RUN_TIME])
                job = Job(f"j{len(self.jobs)}", rng.choice(POOLS), submit, rng.choice([1, 1, 4, 8]))
                self.jobs.append((job, start, start + run, guess))
        self.asked = sorted(rng.sample(range(int(days * DAY / TICK)), 50))

    def told(self, features):
        """Play all events to the features: at each tick asked about, what they say."""
        events = []
        for job, start, end, guess in self.jobs:
            events.append((job.submit, 0, lambda t, j=job: features.submitted(t, j)))
            events.append((start, 1, lambda t, j=job, g=guess: features.started(t, j, g)))
            events.append((end, 2, lambda t, j=job: features.finished(t, j)))
        events += [(tick * TICK, 3, None) for tick in self.asked]
        for time, _, tell in sorted(events, key=lambda event: event[:2]):
            if tell is None:
                yield time, features.at(time)
            else:
                tell(time)


def counted(times, since, until):
    return sum(1 for time in times if since < time <= until)


def table_9(jobs, now, k):
    """Table 9 as it stands there, clipped at now, for one pool's jobs."""
    submits = [job.submit for job, *_ in jobs]
    ends = [end for _, _, end, _ in jobs]
    expected = [
        start + guess if guess < UNKNOWN_RUN_TIME else inf
        for _, start, end, guess in jobs
        if start <= now < end
    ]
    soon = sum(1 for end in expected if end <= np.ceil(now / TICK) * TICK + k)
    return [
        *(
            counted(submits, now - x * p, min(now, now - x * p + k))
            for p in (HOUR, DAY)
            for x in (1, 2, 3)
        ),
        *(counted(submits, now - x * k, now) for x in (1, 10, 100)),
        *(counted(ends, now - x * k, now) for x in (1, 10, 100)),
        soon,
        len(expected) - soon,
    ]


def ticks_of(times, now):
    return sorted({-(-time // TICK) for time in times if time <= now})


def of_our_own(jobs, now, k):
    """The features that Table 9 has not, by name, for one pool's jobs."""
    came = [job for job, *_ in jobs if job.submit <= now]
    busy = ticks_of([job.submit for job in came], now)
    ended = ticks_of([end for _, _, end, _ in jobs if end <= now], now)
    tick = now // TICK
    age = tick - (busy[-1] if busy else -1)
    pauses = [b - a for a, b in pairwise(busy)][-PAUSES:]
    longer = [pause for pause in pauses if pause > age]
    over = [pause for pause in longer if pause <= age + k // TICK]
    running = [job for job, start, end, _ in jobs if start <= now < end]
    waiting = [job for job, start, _, _ in jobs if job.submit <= now < start]
    faded = {
        life: [0.5 ** ((tick - -(-job.submit // TICK)) * TICK / life) for job in came]
        for life in HALF_LIVES
    }
    return {
        "GPUs in [-10k, 0]": sum(job.width for job in came if job.submit > now - 10 * k),
        "busy ticks in [-100k, 0]": counted([b * TICK for b in busy], now - 100 * k, now),
        "new in 3 ticks": counted([job.submit for job in came], now - 3 * TICK, now),
        "new in (-1w, -1w+k]": counted([j.submit for j in came], now - 7 * DAY, now - 7 * DAY + k),
        "pauses like this that ended within k": (len(over) + 0.5) / (len(longer) + 1),
        "running": len(running),
        "waiting": len(waiting),
        "running GPUs": sum(job.width for job in running),
        "waiting GPUs": sum(job.width for job in waiting),
        "ticks since an arrival": age,
        "ticks since an end": tick - (ended[-1] if ended else -1),
        **{f"arrivals, half-life {x / HOUR:g}h": sum(of) for x, of in faded.items()},
        "GPUs, half-life 1h": sum(
            job.width * share for job, share in zip(came, faded[HOUR], strict=True)
        ),
    }


@pytest.mark.parametrize("seed", range(3))
def test_features_are_what_table_9_says_of_the_past_alone(seed):
    story = Story(seed)
    for now, found in story.told(Features(POOLS, WINDOWS, 0.0)):
        for p, pool in enumerate(POOLS):
            jobs = [of for of in story.jobs if of[0].pool == pool]
            for w, k in enumerate(WINDOWS):
                true = table_9(jobs, now, k)
                assert found[p, w, : len(true)].tolist() == true, (pool, k, now)
                for name, value in of_our_own(jobs, now, k).items():
                    said = found[p, w, NAMES.index(name)]
                    assert said == pytest.approx(value, rel=1e-5), (name, pool, k, now)


def test_sets_of_features_are_nested_and_end_with_all_of_them():
    assert list(GROUPS.values()) == sorted(GROUPS.values())
    assert GROUPS["more"] == len(NAMES) == len(set(NAMES))
    assert [NAMES[: GROUPS[name]][-1] for name in list(GROUPS)[:4]] == [
        "new in (-3d, -3d+k]",
        "new in [-100k, 0]",
        "finished in [-100k, 0]",
        "will finish after k",
    ]


def test_events_after_a_tick_do_not_change_its_features():
    early, late = (Features("a", WINDOWS, 0.0) for _ in range(2))
    for features in (early, late):
        features.submitted(100.0, Job("j", "a", 100.0, 2))
    said = early.at(TICK)
    late.submitted(TICK + 5, Job("next", "a", TICK + 5, 4))
    assert np.array_equal(late.at(TICK + 5), said)
    assert late.at(2 * TICK)[0, 0, NAMES.index("new in 1 ticks")] == 1


def test_a_start_decided_on_at_a_tick_counts_into_the_next():
    features = Features("a", WINDOWS, 0.0)
    job = Job("j", "a", TICK, 1)
    features.submitted(TICK, job)
    running = NAMES.index("running")
    assert features.at(TICK)[0, 0, running] == 0
    features.started(TICK, job, 10.0)
    assert features.at(TICK)[0, 0, running] == 0
    assert features.at(2 * TICK)[0, 0, running] == 1


def test_a_job_that_outlives_its_estimate_is_still_about_to_end():
    features = Features("a", WINDOWS, 0.0)
    job = Job("j", "a", 1.0, 1)
    features.submitted(1.0, job)
    features.started(1.0, job, 7 * TICK)
    soon = NAMES.index("will finish in [0, k]")
    said = [features.at(tick * TICK)[0, 0, soon] for tick in range(1, 20)]
    assert said == [0.0] * 6 + [1.0] * 13
    features.finished(20 * TICK, job)
    assert features.at(20 * TICK)[0, 0, soon] == 0


def test_a_job_that_is_gone_neither_waits_nor_runs():
    features = Features("a", WINDOWS, 0.0)
    waits, runs = (Job(name, "a", 1.0, 4) for name in ("waits", "runs"))
    for job in (waits, runs):
        features.submitted(1.0, job)
    features.started(1.0, runs, 100.0)
    for job in (waits, runs):
        features.withdrawn(2.0, job)
    said = dict(zip(NAMES, features.at(TICK)[0, 0].tolist(), strict=True))
    assert {name: said[name] for name in NAMES if "ing" in name.split()[0]} == {
        "running": 0.0, "waiting": 0.0, "running GPUs": 0.0, "waiting GPUs": 0.0,
    }  # fmt: skip
    assert said["finished in 1 ticks"] == 2


def test_after_years_of_silence_features_are_as_if_every_tick_had_been_looked_at():
    windows = (TICK, 2 * TICK)
    asked, jumped = (Features("ab", windows, 0.0) for _ in range(2))
    ticks = 40 * 288
    for features in (asked, jumped):
        features.submitted(10.0, Job("j", "a", 10.0, 3))
    for tick in range(1, ticks):
        asked.at(tick * TICK)
    for features in (asked, jumped):
        features.submitted(ticks * TICK - 1, Job("late", "a", ticks * TICK - 1, 1))
        features.submitted(ticks * TICK - 1, Job("later", "b", ticks * TICK - 1, 1))
    np.testing.assert_allclose(jumped.at(ticks * TICK), asked.at(ticks * TICK), atol=1e-6)
    jumped.at(1e14)  # does not take years


def bursty_log(seed=0, days=12):
    """Jobs in two pools; submissions are Poisson bursts."""
    rng = Random(seed)
    submits = sorted(rng.random() * days * DAY for _ in range(400))
    jobs = [Job(f"j{i}", rng.choice("ab"), at, rng.randint(1, 4)) for i, at in enumerate(submits)]
    return Trace([Arrival(job, rng.random() * 20_000) for job in jobs])


def leaking(look):
    """The features that know more of a log than its part until then holds."""
    trace, until = bursty_log(), 8 * DAY
    cut = look(Trace([arrival for arrival in trace.arrivals if arrival.job.submit <= until]))
    whole = look(trace)
    seen = len(cut.times)
    differ = (whole.features[:seen] != cut.features).any(axis=(0, 1, 2))
    assert np.array_equal(whole.times[:seen], cut.times)
    return [name for name, leaks in zip(NAMES, differ, strict=True) if leaks]


def test_no_feature_sees_past_its_own_time():
    assert leaking(lambda trace: observe(trace, None)) == []


def test_a_planted_look_into_the_future_is_caught():
    def unclipped(trace):
        rows = observe(trace, None)
        at = NAMES.index("new in (-1h, -1h+k]")
        submits = {p: [a.job.submit for a in trace.arrivals if a.job.pool == p] for p in "ab"}
        pools = list(dict.fromkeys(arrival.job.pool for arrival in trace.arrivals))
        for p, pool in enumerate(pools):
            for w, k in enumerate(WINDOWS):
                times = rows.times - HOUR
                until = np.searchsorted(submits[pool], times + k, "right")
                rows.features[:, p, w, at] = until - np.searchsorted(submits[pool], times, "right")
        return rows

    assert leaking(unclipped) == ["new in (-1h, -1h+k]"]
