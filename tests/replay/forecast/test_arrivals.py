"""How forecasts of arrivals are judged: tables, recalls, truth of quantiles, ageing; drawings."""

from operator import itemgetter
from random import Random

import numpy as np
import pytest

from predictors.learning.features import GROUPS, NAMES
from predictors.learning.model import QUANTILES, Manifest, Scores, WindowModel
from predictors.learning.training import TrainingRows
from replay.forecast.arrivals import BASE, OWN, STATED, ageing, evaluate_arrivals, mean_durations
from replay.forecast.arrivals_figures import draw_ageing, draw_recall, draw_reliability
from replay.forecast.train import learn, observe
from replay.logs.trace import Trace
from sia import Job
from sia.core.playout import Arrival
from sia.limits import TICK
from sia.wording import HOUR, WEEK

pytestmark = pytest.mark.xdist_group("arrivals")  # in one process, which trains one model

WINDOWS = (TICK, HOUR)
POOLS = ["short", "long"]
AT_ONCE = NAMES.index("new in [-1k, 0]")
ASKED = NAMES.index("GPUs in [-1k, 0]")


class Stated:
    """A model that reads its answers off the features: `running` says yes, `waiting` says GPUs."""

    def __init__(self, until=0.0):
        of = WindowModel(0.5, Scores(1.0, 1.0, 1.0, 1, 1), QUANTILES, 0.0, "", "")
        self.manifest = Manifest(
            1, NAMES, WINDOWS, TICK, QUANTILES, 0.0, until, 1, "", {}, (of, of)
        )

    def arrives(self, features, window):
        return features[:, NAMES.index("running")] > 0

    def quantiles(self, features, window):
        gpus = features[:, NAMES.index("waiting"), None].astype(int)
        return np.repeat(gpus, len(QUANTILES), axis=1)


def by_lot(seed=0, ticks=300):
    """Rows of two pools in which what is said and what comes is drawn by lot."""
    rng = np.random.default_rng(seed)
    shape = (ticks, len(POOLS), len(WINDOWS))
    jobs = rng.integers(0, 3, shape, np.int32)
    features = np.zeros((*shape, len(NAMES)), np.float32)
    for name in ("running", "waiting", "new in [-1k, 0]"):
        features[..., NAMES.index(name)] = rng.integers(0, 3, shape)
    times = np.arange(ticks) * TICK
    return TrainingRows(times, features, jobs, jobs * 2, times[-1] + WINDOWS[1], WINDOWS, TICK)


def durations(short=60.0, long=90_000.0):
    return Trace(
        [Arrival(Job("s", "short", 0.0, 1), short), Arrival(Job("l", "long", 0.0, 1), long)]
    )


def judged(rows, since=0.0):
    return evaluate_arrivals(
        rows, Stated(), durations(), POOLS, name="lots", since=since, sets=False
    )


def counted(answers):
    """Precision, recall, F and counts, one answer after the other."""
    hits = sum(1 for said, true in answers if said and true)
    yes, positives = (sum(1 for answer in answers if answer[i]) for i in (0, 1))
    precision, recall = hits / yes if yes else 0.0, hits / positives if positives else 0.0
    f = 2 * precision * recall / (precision + recall) if hits else 0.0
    return [round(x, 4) for x in (precision, recall, f)] + [positives, len(answers)]


def answers(rows, window, feature, pools=(0, 1), since=0.0):
    return [
        (rows.features[tick, pool, window, feature] > 0, rows.jobs[tick, pool, window] > 0)
        for tick in range(len(rows.times))
        for pool in pools
        if rows.times[tick] >= since
    ]


MEASURES = ("precision", "recall", "f", "positives", "n")


@pytest.mark.parametrize("since", [0.0, 40 * HOUR / 4])
def test_the_table_counts_over_pools_and_ticks(since):
    rows = by_lot()
    found = judged(rows, since)
    features = {BASE: AT_ONCE, OWN: NAMES.index("running")}
    assert [(row["trace"], row["window_s"], row["feature_set"]) for row in found.table] == [
        ("lots", window, name) for window in WINDOWS for name in (BASE, OWN)
    ]
    for row in found.table:
        window, feature = WINDOWS.index(row["window_s"]), features[row["feature_set"]]
        true = counted(answers(rows, window, feature, since=since))
        assert [row[key] for key in MEASURES] == true


def test_pools_are_judged_in_groups_of_similar_durations():
    rows = by_lot()
    own = [row for row in judged(rows).groups if row["feature_set"] == OWN]
    bounds = [(row["over_min"], row["up_to_min"], row["pools"]) for row in own]
    assert bounds == [(0.0, 5.0, 1), (720.0, None, 1)] * 2
    for row in own:
        pool = 0 if row["over_min"] == 0 else 1
        feature, window = NAMES.index("running"), WINDOWS.index(row["window_s"])
        assert [row[key] for key in MEASURES] == counted(answers(rows, window, feature, (pool,)))


def test_mean_durations_are_by_pool_and_0_without_jobs():
    assert mean_durations(durations(), ["long", "none", "short"]).tolist() == [90_000, 0, 60]


def test_recall_is_drawn_for_each_pool_and_hour_in_which_jobs_arrived():
    rows = by_lot(ticks=30)
    rows.jobs[12:24, 0] = 0  # the second hour of the first pool
    found = judged(rows)
    running = NAMES.index("running")
    for window, seconds in enumerate(WINDOWS):
        hours = []
        for pool in range(2):
            for hour in range(3):
                of = answers(rows, window, running, (pool,))[12 * hour : 12 * hour + 12]
                if any(true for _, true in of):
                    hours.append(counted(of)[1])
        assert found.hour_recall[seconds] == sorted(hours)
        assert len(hours) == 5
        pools = [counted(answers(rows, window, running, (pool,)))[1] for pool in range(2)]
        assert found.pool_recall[seconds] == sorted(pools)


def test_reliability_says_how_much_was_covered():
    rows = by_lot()
    waiting = rows.features[..., NAMES.index("waiting")]
    for row in judged(rows).reliability:
        window = WINDOWS.index(row["window_s"])
        learned = (rows.gpus[:, :, window] <= waiting[:, :, window]).mean()
        assert row["covered_as_learned"] == round(learned, 4)
        assert row["nothing_came"] == round((rows.gpus[:, :, window] == 0).mean(), 4)


def test_online_a_quantile_is_held_to_what_it_states():
    rng = np.random.default_rng(1)
    rows = by_lot(ticks=6000)
    for window, back in enumerate((1, 12)):
        rows.gpus[:, :, window] = rng.integers(1, 100, rows.gpus.shape[:2])
        rows.features[back:, :, window, ASKED] = rows.gpus[:-back, :, window]
    rows.features[..., NAMES.index("waiting")] = 10
    for row in judged(rows).reliability:
        assert abs(row["covered"] - row["stated"]) < 0.07, row
        assert abs(row["covered_as_learned"] - row["stated"]) > 0.35, row


def clockwork(weeks):
    """A pool that submits every 40 minutes for that long, and ever less regularly one beside it."""
    rng = Random(0)
    clock = [("short", 2400.0 * i + 1) for i in range(int(weeks * WEEK / 2400))]
    chance = [("long", rng.random() * weeks * WEEK) for _ in range(int(weeks * 70))]
    jobs = [
        Job(f"j{i}", p, at, 1)
        for i, (p, at) in enumerate(sorted(clock + chance, key=itemgetter(1)))
    ]
    return Trace([Arrival(job, 600.0) for job in jobs])


@pytest.fixture(scope="module")
def learned(few_trees):
    pytest.importorskip("xgboost", reason="the extra `learn` is not installed")
    trace = clockwork(3.3)
    rows = observe(trace, None, windows=WINDOWS)
    return trace, rows, learn(rows, until=WEEK, trace_sha256="")


def test_every_set_of_features_learns_and_all_of_them_are_the_model(learned):
    trace, rows, model = learned
    pools = list(dict.fromkeys(arrival.job.pool for arrival in trace.arrivals))
    found = evaluate_arrivals(rows, model, trace, pools, name="clock", since=WEEK)
    sets = [row["feature_set"] for row in found.table if row["window_s"] == TICK]
    assert sets == [BASE, *GROUPS]
    own = [row for row in found.table if row["feature_set"] == OWN]
    for window, row in enumerate(own):
        ticks = rows.ticks(window, WEEK, np.inf)
        said = model.arrives(rows.inputs(ticks, window), window)
        true = counted(list(zip(said, rows.some(ticks, window), strict=True)))
        assert [row[key] for key in MEASURES] == true
    f = {row["feature_set"]: row["f"] for row in found.table if row["window_s"] == TICK}
    assert f[BASE] < f["periodic"] <= f[OWN] + 0.05
    assert [row["stated"] for row in found.reliability] == [*STATED] * 2


def test_a_model_ages_by_whole_weeks(learned):
    _, rows, model = learned
    found = ageing(rows, model)
    assert [(row["week"], row["window_s"]) for row in found] == [
        (week, window) for week in (1, 2) for window in WINDOWS
    ]
    for row in found:
        window = WINDOWS.index(row["window_s"])
        ticks = rows.ticks(window, row["week"] * WEEK, (row["week"] + 1) * WEEK)
        said = model.arrives(rows.inputs(ticks, window), window)
        true = counted(list(zip(said, rows.some(ticks, window), strict=True)))
        assert [row[key] for key in ("precision", "recall", "f", "n")] == [*true[:3], true[4]]


def test_pictures_show_every_window_and_are_the_same_twice():
    found = judged(by_lot())
    ages = [
        {"week": week, "window_s": window, "f": 0.5, "f_persistence": 0.4}
        for week in (1, 2)
        for window in WINDOWS
    ]
    for draw, facts in (
        (draw_recall, found),
        (draw_reliability, found.reliability),
        (draw_ageing, ages),
    ):
        picture = draw(facts)
        assert picture.svg == draw(facts).svg
        assert b"within 5m" in picture.svg
        assert b"within 1h" in picture.svg


def test_pictures_of_nothing_are_drawn():
    nothing = judged(by_lot(ticks=2))._replace(hour_recall={TICK: []}, pool_recall={TICK: []})
    assert draw_recall(nothing).svg
    assert draw_reliability([]).svg
    assert draw_ageing([]).svg
