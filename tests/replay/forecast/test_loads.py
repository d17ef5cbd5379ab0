"""How forecasts of load are judged, against a recount of a whole story at every tick."""

from math import ceil
from random import Random

import numpy as np
import pytest

from replay.forecast import train
from replay.forecast.loads import LEVELS, RECENTS, judge_loads
from replay.forecast.train import observe
from replay.logs.trace import PoolTable, Trace
from sia import Job, Pool
from sia.core.playout import Arrival
from sia.limits import MAX_GROUP, TICK
from tests.predictors.test_predictors import new_load, sliding_maximum

WINDOWS = (TICK, 4 * TICK)
DAY = 86400.0


def story(seed, days=1):
    """Jobs of two pools at whole minutes, some at ticks; without pools none of them waits."""
    rng = Random(seed)
    submits = sorted(60.0 * rng.randrange(int(days * 1440)) for _ in range(int(150 * days)))
    return [
        Arrival(Job(f"j{i}", rng.choice("ab"), at, rng.randint(1, 4)), 60.0 * rng.randint(1, 40))
        for i, at in enumerate(submits)
    ]


def peak(arrivals, pool, now, window):
    """The most that jobs of (now, now + window] hold at once in it."""
    new = [a for a in arrivals if a.job.pool == pool and now < a.job.submit <= now + window]
    return max(
        (
            sum(
                b.job.width for b in new if b.job.submit <= a.job.submit < b.job.submit + b.duration
            )
            for a in new
        ),
        default=0,
    )


@pytest.mark.parametrize(("seed", "every"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_sliding_maxima_are_enough_as_often_as_counted(seed, every, monkeypatch):
    """Of large logs, at the ticks alone that were looked at."""
    arrivals, since = story(seed), 0.5 * DAY
    trace = Trace(arrivals)
    observed = ceil(trace.arrivals[-1].job.submit / TICK) * 2 * len(WINDOWS)
    monkeypatch.setattr(train, "MAX_OBSERVED", ceil(observed / every))
    rows = observe(trace, None, windows=WINDOWS)
    assert set(np.diff((rows.times - rows.times[0]) // (every * TICK))) == {1}
    found = judge_loads(trace, None, rows, since)
    jobs, start = [a.job for a in arrivals], arrivals[0].job.submit
    names = list(dict.fromkeys(job.pool for job in jobs))
    for window in WINDOWS:
        ticks = [t for t in range(int(DAY // TICK)) if since <= t * TICK <= rows.end - window]
        ticks = [t for t in ticks if t * TICK in rows.times]
        for recent in RECENTS:
            enough_sum = enough_peak = total = 0
            for now in (tick * TICK for tick in ticks):
                for pool in names:
                    said = sliding_maximum(jobs, pool, window, now, recent)
                    assert now > start + window
                    enough_sum += new_load(jobs, pool, window, now) <= said
                    enough_peak += peak(arrivals, pool, now, window) <= said
                    total += said
            n = len(ticks) * len(names)
            row = of(found, window, "sliding-max", recent)
            assert row["covered_sum"] == pytest.approx(enough_sum / n, abs=1e-4)
            assert row["covered_peak"] == pytest.approx(enough_peak / n, abs=1e-4)
            assert row["mean_gpus"] == pytest.approx(total / n, abs=1e-3)


def of(found, window, forecast, setting):
    [row] = [
        r for r in found
        if (r["window_s"], r["forecast"], r["setting"]) == (window, forecast, setting)
    ]  # fmt: skip
    return row


def test_peaks_are_enough_as_often_as_they_state_where_every_day_is_alike():
    trace = Trace(story(1, days=12))
    rows = observe(trace, None, windows=WINDOWS)
    found = judge_loads(trace, None, rows, 7 * DAY)
    for window in WINDOWS:
        of_levels = [of(found, window, "peaks", level) for level in LEVELS]
        for row in of_levels:
            assert row["covered_peak"] >= row["setting"] - 0.03
        assert [row["mean_gpus"] for row in of_levels] == sorted(r["mean_gpus"] for r in of_levels)
    for level in LEVELS:  # in 20 minutes something comes: no quantile is just 0
        row = of(found, WINDOWS[1], "peaks", level)
        assert row["covered_peak"] <= level + 0.08
        if level == LEVELS[0]:  # some end in time to make room for others
            assert row["covered_sum"] < row["covered_peak"]


def test_a_load_without_evidence_counts_as_the_quota_or_not_at_all():
    trace = Trace(story(2))
    for table, most in ((PoolTable([Pool("a", 5), Pool("b", 7)]), 6.0), (None, None)):
        rows = observe(trace, table, windows=WINDOWS)
        found = judge_loads(trace, table, rows._replace(end=5 * TICK), 0.0)
        row = of(found, WINDOWS[1], "peaks", 0.99)
        assert row["mean_gpus"] == most
        assert row["covered_sum"] == 1
        assert (row["mean_gpus"] or 0) < MAX_GROUP
