"""Learned loads: what is said of them, when, and how true it is."""

from random import Random

import numpy as np
import pytest

from predictors.learning.features import NAMES
from predictors.learning.model import (
    BEYOND,
    QUANTILES,
    Manifest,
    Scores,
    WindowModel,
    as_gpus,
    between,
    place,
)
from predictors.learning.training import best_threshold, pinball, score
from predictors.loads.learned import LearnedLoads, LoadCalibration
from sia import Job
from sia.limits import MAX_GROUP, TICK
from tests.predictors.test_predictors import random_instants, random_jobs, sliding_maximum, told
from tests.support.budget import budget

WINDOWS = (TICK, 4 * TICK)
AT_ONCE = NAMES.index("new in [-1k, 0]")


def learned(covered=QUANTILES):
    return WindowModel(0.5, Scores(1.0, 1.0, 1.0, 1, 1), tuple(covered), 0.0, "", "")


class Busy:
    """A model that needs no trees: arrivals go on, and load quantiles are multiples of the last."""

    manifest = Manifest(
        1, NAMES, WINDOWS, TICK, QUANTILES, 0.0, 1.0, 1, "", {}, (learned(), learned())
    )

    def arrives(self, features, window):
        return features[:, AT_ONCE] > 0

    def quantiles(self, features, window):
        return features[:, AT_ONCE, None].astype(int) * np.arange(len(QUANTILES))


def jobs_in_ticks(seed, count=80, ticks=40):
    return random_jobs(Random(seed), span=int(ticks * TICK), count=count)


def came(jobs, pool, now, window):
    return [j for j in jobs if j.pool == pool and now - window < j.submit <= now]


@pytest.mark.parametrize("seed", range(20))
def test_the_sliding_maximum_is_forecast_only_if_arrivals_are_expected(seed):
    jobs = jobs_in_ticks(seed)
    forecast = LearnedLoads("ab", WINDOWS, 0.0, Busy())
    instants = [
        (tick * TICK, [job for job in jobs if (tick - 1) * TICK < job.submit <= tick * TICK])
        for tick in range(60)
    ]
    for now, before, changes in told(forecast, instants):
        for pool in "ab":
            for i, window in enumerate(WINDOWS):
                goes_on = came(jobs, pool, now, window) or now < window
                at_ticks = [Job(j.id, j.pool, -(-j.submit // TICK) * TICK, j.width) for j in jobs]
                true = sliding_maximum(at_ticks, pool, window, now) if goes_on else 0
                assert (before | changes).get((pool, i), 0) == true, (pool, i, now)
        assert all(before.get(key, 0) != gpus for key, gpus in changes.items())


def test_forecasts_do_not_change_between_ticks():
    jobs = jobs_in_ticks(0)
    forecast = LearnedLoads("ab", WINDOWS, 0.0, Busy())
    ticks = set()
    for now, _, changes in told(forecast, random_instants(Random(1), jobs, int(45 * TICK))):
        assert not changes or now // TICK not in ticks, now
        ticks.add(now // TICK)
    assert len(ticks) > 30


def test_a_late_question_is_answered_as_of_the_tick():
    forecast = LearnedLoads("a", WINDOWS, 0.0, Busy(), load_quantile=QUANTILES[1])
    forecast.submitted(10.0, Job("j", "a", 10.0, 1))
    for tick in range(1, 5):
        forecast.changes(tick * TICK)
    assert forecast.changes(5 * TICK) == [("a", 1, 0)]  # four ticks ago, and no longer in a window
    forecast.submitted(6 * TICK + 9, Job("late", "a", 6 * TICK + 9, 1))
    assert forecast.changes(6 * TICK + 9) == []
    assert [load.gpus for load in forecast.changes(7 * TICK)] == [1, 1]


def test_until_a_window_has_gone_by_anything_may_arrive_in_it():
    for quantile in (None, 0.9):
        forecast = LearnedLoads("a", WINDOWS, 50.0, Busy(), load_quantile=quantile)
        assert sorted(forecast.changes(50.0)) == [("a", 0, MAX_GROUP), ("a", 1, MAX_GROUP)]
        assert forecast.changes(TICK) == []
        assert forecast.changes(2 * TICK) == [("a", 0, 0)]
        assert forecast.changes(5 * TICK) == [("a", 1, 0)]


def test_a_model_of_other_windows_or_features_is_refused():
    class Other(Busy):
        manifest = Manifest(1, NAMES[1:], WINDOWS, TICK, QUANTILES, 0.0, 1.0, 1, "", {}, ())

    with pytest.raises(ValueError, match="has windows"):
        LearnedLoads("a", (1.0,), 0.0, Busy())
    with pytest.raises(ValueError, match="has other features"):
        LearnedLoads("a", WINDOWS, 0.0, Other())
    with pytest.raises(ValueError, match=f"at most {QUANTILES[-1]}"):
        LearnedLoads("a", WINDOWS, 0.0, Busy(), load_quantile=0.999)


def test_a_stated_quantile_becomes_true_though_the_learned_ones_are_wrong():
    rng = np.random.default_rng(0)
    loads = np.floor(rng.exponential(30.0, (5_000, 12))).astype(int)
    for factor in budget(ci=(0.3, 3.0), soak=(0.3, 1.0, 3.0)):
        wrong = np.quantile(loads, QUANTILES, axis=0).T * factor
        for quantile in (0.5, 0.9, 0.95):
            for ticks in (1, 12):
                calibration = LoadCalibration(learned(), quantile, ticks)
                covered = []
                for tick in range(len(loads)):
                    past = loads[tick - ticks] if tick >= ticks else loads[0]
                    stated = calibration.state(tick, wrong.astype(int), past)
                    covered.append(loads[tick] <= stated)
                assert abs(np.mean(covered[2000:]) - quantile) < 0.02, (factor, quantile, ticks)


def test_a_calibration_that_missed_ticks_learns_from_the_last_before_a_window():
    gpus = np.arange(len(QUANTILES))[None] * 10
    for ticks, step in ((1, 2), (2, 3), (12, 5)):
        calibration = LoadCalibration(learned(), 0.9, ticks)
        asked = range(0, 40 * step, step)
        stated = [int(calibration.state(at, gpus, np.array([999]))[0]) for at in asked]
        assert stated[0] == 40, (ticks, step)
        assert stated[-1] > stated[0], (ticks, step)
        late = next(i for i, of in enumerate(stated) if of > stated[0])
        assert asked[late] == next(at for at in asked if at >= ticks), (ticks, step)


def test_between_two_quantiles_gpus_are_in_proportion_and_beyond_the_last_they_double():
    gpus = np.array([[0, 10, 30]])
    assert [int(between(gpus, at)[0]) for at in (0, 0.5, 1, 1.25, 2, 3, 4)] == [
        0, 5, 10, 15, 30, 60, 120,
    ]  # fmt: skip
    assert between(np.array([[0, 0, MAX_GROUP]]), 2 + BEYOND)[0] == MAX_GROUP
    nothing = np.zeros((1, 3), int)
    assert [int(between(nothing, at)[0]) for at in (2, 2.1, 3, 4)] == [0, 1, 1, 3]


def test_a_quantile_is_looked_for_where_so_much_was_covered():
    covered = [0.1 * i for i in range(1, 1 + len(QUANTILES))]
    assert place(0.35, covered) == pytest.approx(2.5)
    assert place(0.05, covered) == 0
    assert place(0.95, covered) == len(QUANTILES) - 1
    assert place(0.5, [0.6] * len(QUANTILES)) == 0


def test_gpus_of_quantiles_rise_begin_with_nothing_and_are_never_rounded_away():
    logs = np.log1p([[0.0, 5.01, 3.0, 8.0], [-0.5, 0.01, 0.4, 1.0]])
    assert as_gpus(logs).tolist() == [[0, 0, 5, 5, 8], [0, 0, 0, 1, 1]]


def test_the_threshold_is_in_the_middle_of_those_with_nearly_the_best_f():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        chances = rng.choice([0.1, 0.2, 0.35, 0.5, 0.8, 0.9], 40).astype(np.float32)
        true = rng.random(40) < chances
        if true.all() or not true.any():
            continue
        f = {float(at): score(chances >= at, true).f for at in set(chances)}
        good = [at for at in f if f[at] >= 0.99 * max(f.values())]
        assert best_threshold(chances, true) == pytest.approx((min(good) + max(good)) / 2), seed


@pytest.mark.parametrize("true", [False, True])
def test_a_classifier_with_one_class_always_answers_yes(true):
    chances = np.array([0.1, 0.9], np.float32)
    assert best_threshold(chances, np.array([true, true])) == 0.0


def test_scores_by_hand():
    said, true = np.array([1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 1, 0], bool)
    assert score(said, true) == Scores(1 / 3, 1 / 2, 2 / 5, 2, 5)
    assert score(np.zeros(2, bool), np.zeros(2, bool)) == Scores(0.0, 0.0, 0.0, 0, 2)


def test_pinball_is_least_for_the_true_quantiles():
    loads = np.random.default_rng(0).integers(0, 100, 4000)
    true = np.quantile(loads, QUANTILES).astype(int)[None].repeat(len(loads), 0)
    assert pinball(true, loads) < min(pinball(true * 2, loads), pinball(true // 2, loads))
