"""JVuPredict against its definition, recomputed from all ended jobs at every question."""

from itertools import pairwise
from math import ceil, exp, inf, log, sqrt
from random import Random
from statistics import fmean, median

import pytest

from predictors.run_times import estimators, jvupredict
from predictors.run_times.estimators import DECAY, REACH, RunTimeEstimators, densest
from predictors.run_times.jvupredict import ENOUGH, KEPT, JVuPredict, logical_name, values_of
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job


def job(job_id="j", name="", user="", pool="a", width=1, hour=0, **said):
    return Job(job_id, pool, hour * 3600.0 + 1.0, width, user, name, **said)


def random_job(rng, i):
    name = rng.choice(["", "", "train-1", "train-2", "eval", f"one-off-{i}"])
    user, pool, width = rng.choice(["", "ann", "bob"]), rng.choice("ab"), rng.randint(1, 2)
    said = {"estimate": rng.choice([None, 60.0, 3600.0]), "priority": rng.choice([0, 0, 5])}
    return job(f"j{i}", name, user, pool, width, rng.randint(0, 50), **said)


def random_seconds(rng):
    return rng.choice([rng.uniform(1, 9), rng.uniform(100, 900), rng.lognormvariate(5, 2)])


def ended_jobs(seed, count=150):
    rng = Random(seed)
    for i in range(count):
        yield rng, random_job(rng, i), random_seconds(rng)


def naive_estimates(runs):
    rolling = runs[0]
    for run in runs[1:]:
        rolling = (rolling + run) / 2
    return {
        "average": fmean(runs),
        "median": median(runs),
        "rolling": rolling,
        "recent": fmean(runs[-20:]),
    }


def naive_filter(runs):
    """Return the median of each run time and the two before it; of two, the longer."""
    lasts = [sorted(runs[max(0, i - 2) : i + 1]) for i in range(len(runs))]
    return [last[len(last) // 2] for last in lasts]


def naive_nrmse(runs, said):
    """`said` is what was predicted before each of the runs but the first."""
    squares = [(guess - run) ** 2 for guess, run in zip(said, runs[1:], strict=True)]
    return sqrt(fmean(squares)) / fmean(runs) if squares else inf


def naive_pairs(ended, asked, *, median_filter=False):
    """(feature, estimator): estimate, normalised RMSE; of all jobs that had ended, in order."""
    pairs = {}
    for value in values_of(asked):
        runs = [run for old, run in ended if value in values_of(old)]
        versions = [("", runs)] + [(", filtered", naive_filter(runs))] * median_filter
        for suffix, seen in versions if runs else ():
            past = [naive_estimates(seen[: i + 1]) for i in range(len(seen))]
            for name in past[-1]:
                wrong = naive_nrmse(runs, [estimate[name] for estimate in past[:-1]])
                pairs[value[0], name + suffix] = past[-1][name], wrong
    return pairs


@pytest.mark.parametrize("median_filter", [False, True])
def test_pairs_are_their_definition(median_filter):
    predictor, ended = JVuPredict(median_filter=median_filter), []
    for rng, old, seconds in ended_jobs(seed=1):
        asked = random_job(rng, -1)
        found = {
            (p.feature, p.estimator): (p.run_time, p.nrmse) for p in predictor.candidates(asked)
        }
        expected = naive_pairs(ended, asked, median_filter=median_filter)
        assert found.keys() == expected.keys()
        for pair, numbers in found.items():
            assert numbers == pytest.approx(expected[pair]), pair
        ended.append((old, seconds))
        predictor.finished(0.0, old, seconds)


def test_the_paper_chooses_the_least_wrong_pair_and_all_jobs_only_for_want_of_others():
    predictor, ended = JVuPredict(choice="nrmse"), []
    by_all = 0
    for rng, old, seconds in ended_jobs(seed=2):
        asked = random_job(rng, -1)
        pairs = naive_pairs(ended, asked)
        own = {pair: said for pair, said in pairs.items() if pair[0] != "all"} or pairs
        chosen = predictor.predict(asked)
        if not own:
            assert chosen is None
        else:
            assert chosen.nrmse == pytest.approx(min(wrong for _, wrong in own.values()))
            assert (chosen.run_time, chosen.nrmse) == pytest.approx(
                own[chosen.feature, chosen.estimator]
            )
            by_all += chosen.feature == "all"
        ended.append((old, seconds))
        predictor.finished(0.0, old, seconds)
    assert by_all == 0  # pools a and b are soon known


def test_quantiles_of_a_job_that_has_run_are_of_jobs_that_ran_longer_by_the_same_factor():
    rng, predictor = Random(5), JVuPredict()
    ratios = []
    for i in range(60):
        asked = job(f"j{i}")
        said, run = predictor.run_time(asked), rng.lognormvariate(4, 1)
        if said < UNKNOWN_RUN_TIME:
            ratios = [*ratios, run / said][-KEPT:]
        predictor.finished(0.0, asked, run)
    asked = job("new")
    said = predictor.run_time(asked)
    for elapsed in (0.0, said / 2, said, 1.5 * said):
        longer = sorted(ratio for ratio in ratios if ratio > elapsed / said)
        assert len(longer) >= ENOUGH
        found = predictor.quantiles_after(asked, [0.1, 0.5, 0.9], elapsed)
        ranks = [ceil((len(longer) + 1) * p) for p in (0.1, 0.5, 0.9)]
        assert found == [said * longer[min(rank, len(longer)) - 1] for rank in ranks]
        assert predictor.running(asked, elapsed) == (said if elapsed < said else found[1])
    far = 100.0 * said
    assert predictor.quantiles_after(asked, [0.5, 0.75], far) == [2 * far, 4 * far]
    assert JVuPredict().running(asked, 5.0) == UNKNOWN_RUN_TIME


def test_a_constant_width_is_no_feature():
    predictor = JVuPredict(choice="nrmse")
    for seconds in (10.0, 20.0, 40.0):
        predictor.finished(0.0, job(user="ann"), seconds)
    assert predictor.predict(job(user="ann")).feature == "user"


def test_a_job_of_an_unknown_pool_is_predicted_from_all():
    for choice in ("nearest", "nrmse"):
        predictor = JVuPredict(choice=choice)
        predictor.finished(0.0, job(user="ann"), 10.0)
        assert predictor.predict(job(pool="new", hour=1))[:2] == (10.0, "all")


def naive_densest(runs):
    """The first of the candidates that counts most: each run, and between it and the next two."""
    logs = sorted(map(log, runs))
    spots = [*logs]
    spots += [(a + b) / 2 for a, b in pairwise(logs)]
    spots += [(a + b) / 2 for a, b in zip(logs, logs[2:], strict=False)]

    def count(spot):
        return sum(
            DECAY ** (len(runs) - 1 - i) * (1 - min(1, abs(spot - log(run)) / REACH) ** 6)
            for i, run in enumerate(runs)
        )

    return max(count(spot) for spot in spots), count


def test_the_densest_run_time_is_where_most_others_are():
    rng = Random(3)
    for _ in range(200):
        runs = [random_seconds(rng) for _ in range(rng.randint(1, KEPT))]
        most, count = naive_densest(runs)
        found = densest(runs)
        assert min(runs) * 0.999 <= found <= max(runs) * 1.001
        assert count(log(found)) == pytest.approx(most)


def test_of_two_alternating_kinds_the_densest_run_time_is_one_of_them():
    runs = [10.0, 1000.0, 11.0, 9.0, 1010.0, 10.0]
    assert densest(runs) == pytest.approx(10.0, rel=0.1)
    assert densest([*runs, *[1000.0] * 9]) == pytest.approx(1000.0, rel=0.1)


def test_the_most_telling_past_predicts():
    predictor = JVuPredict()
    asked = job("new", "train-3", "ann", "a", 2, 25, estimate=60.0, priority=5, sched_class="2")
    assert predictor.predict(asked) is None
    assert predictor.run_time(asked) == UNKNOWN_RUN_TIME
    for seconds, old, feature in (
        (1.0, job(pool="b"), "all"),
        (3.0, job(pool="b", hour=49), "hour"),
        (2.0, job(pool="a"), "pool"),
        (3.0, job(pool="a", width=2), "pool, width"),
        (5.0, job(pool="b", priority=5), "priority"),
        (6.0, job(pool="b", priority=5, width=2), "priority, width"),
        (4.0, job(pool="b", sched_class="2"), "class"),
        (7.0, job(pool="b", estimate=60.0), "stated"),
        (8.0, job(pool="b", estimate=60.0, width=2), "stated, width"),
        (4.0, job(pool="b", user="ann"), "user"),
        (5.0, job(pool="b", user="ann", width=2), "user, width"),
        (9.0, job(pool="b", user="ann", sched_class="2"), "user, class"),
        (3.0, job(pool="b", user="ann", estimate=60.0), "user, stated"),
        (2.0, job(pool="b", user="ann", estimate=60.0, width=2), "user, stated, width"),
        (6.0, job(pool="b", name="train-1"), "logical name"),
        (7.0, job(pool="b", name="train-2", width=2), "logical name, width"),
        (8.0, job(pool="b", name="train-3"), "name"),
        (9.0, job(pool="b", name="train-3", width=2), "name, width"),
    ):
        predictor.finished(0.0, old, seconds)
        chosen = predictor.predict(asked)
        assert (chosen.feature, chosen.estimator) == (feature, "densest")
        assert chosen.run_time / 2 <= seconds <= chosen.run_time * 2


@pytest.mark.parametrize(
    ("name", "logical"),
    [
        ("train-0815", "train-#"),
        ("resnet50_lr0.1", "resnet#_lr#.#"),
        ("eval-3fa94c1d", "eval-#"),
        ("exp/deadbeef01/run7", "exp/#/run#"),
        ("facade", ""),  # no digit: a word
        ("train", ""),  # it is its own
        ("n3775", ""),  # too little is left to tell anything
        ("2024-05-01", ""),
        ("", ""),
    ],
)
def test_a_logical_name_is_without_counts_and_hashes(name, logical):
    assert logical_name(name) == logical


def test_a_name_that_is_its_own_logical_name_is_tracked_once():
    features = [feature for feature, _, _ in values_of(job(name="train", user="ann"))]
    assert features == [
        "name, width", "name", "user, width", "user", "pool, width", "pool", "hour", "all",
    ]  # fmt: skip


def test_a_job_with_a_run_time_of_zero_is_accepted():
    predictor = JVuPredict()
    for i in range(3):
        predictor.run_time(job(f"j{i}"))
        predictor.finished(0.0, job(f"j{i}"), 0.0)
    assert 0 < predictor.run_time(job()) < 1


def naive_quantile(errors, probability):
    ranked = sorted(errors[-KEPT:])
    return next(
        (e for rank, e in enumerate(ranked, 1) if rank >= probability * (len(errors[-KEPT:]) + 1)),
        ranked[-1],
    )


def test_quantiles_are_the_prediction_times_what_came_of_such_predictions(monkeypatch):
    """Without calibration: by errors of the user once there are enough, before of the pool."""
    monkeypatch.setattr(jvupredict.Conformal, "update", lambda *_, **__: None)
    rng, predictor = Random(4), JVuPredict()
    errors = {"ann": [], "bob": [], "pool": []}
    for i in range(300):
        user = "ann" if rng.random() < 0.1 else "bob"
        asked = job(f"j{i}", user=user)
        chosen = predictor.predict(asked)
        stated = predictor.quantiles(asked, [0.5, 0.9, 0.99])
        seen = errors[user] if len(errors[user]) >= ENOUGH else errors["pool"]
        if len(seen) >= ENOUGH:
            expected = [chosen.run_time * naive_quantile(seen, p) for p in (0.5, 0.9, 0.99)]
            assert stated == pytest.approx(expected), i
        else:
            assert stated == [UNKNOWN_RUN_TIME] * 3
        seconds = random_seconds(rng) * (3 if user == "ann" else 1)
        predictor.finished(0.0, asked, seconds)
        if chosen is not None:
            for kind in (user, "pool"):
                errors[kind].append(seconds / chosen.run_time)


def covered_of_users_with_few_jobs(quantile):
    """The share of jobs that run no longer than stated; no user has more than 20."""
    rng, predictor, hits = Random(5), JVuPredict(quantile=quantile), []
    for i in range(6000):
        asked = job(f"j{i}", user=f"u{i // 20}")
        stated = predictor.run_time(asked)
        seconds = rng.lognormvariate(4, 1)
        hits.append(seconds <= stated)
        predictor.finished(0.0, asked, seconds)
    return sum(hits[3000:]) / 3000


def test_quantiles_are_moved_to_where_they_are_true(monkeypatch):
    """Of 10 to 20 errors the largest is no 99th percentile."""
    assert covered_of_users_with_few_jobs(0.99) == pytest.approx(0.99, abs=0.005)
    monkeypatch.setattr(jvupredict.Conformal, "update", lambda *_, **__: None)
    assert covered_of_users_with_few_jobs(0.99) < 0.98


def test_quantiles_never_cross_and_come_in_the_order_asked():
    rng, predictor = Random(6), JVuPredict()
    levels = [0.99, 0.1, 0.5, 0.9, 0.49]
    for i in range(400):
        asked = random_job(rng, i)
        stated = dict(zip(levels, predictor.quantiles(asked, levels), strict=True))
        ascending = [stated[level] for level in sorted(levels)]
        assert ascending == sorted(ascending)
        predictor.finished(0.0, asked, random_seconds(rng))


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0, 2.0])
def test_a_quantile_that_is_none_is_refused(quantile):
    with pytest.raises(ValueError, match="between 0 and 1"):
        JVuPredict(quantile=quantile)


def test_a_withdrawn_job_teaches_nothing():
    predictor, other = JVuPredict(quantile=0.9), JVuPredict(quantile=0.9)
    for i in range(30):
        for each in (predictor, other):
            each.run_time(job(f"j{i}"))
            each.finished(0.0, job(f"j{i}"), float(i + 1))
    predictor.run_time(job("gone"))
    predictor.withdrawn(1.0, job("gone"))
    for each in (predictor, other):
        each.finished(2.0, job("gone"), 1e6)  # as if never asked about
    other_said, said = other.run_time(job("next")), predictor.run_time(job("next"))
    assert said == other_said


def test_no_more_feature_values_are_kept_than_may_be(monkeypatch):
    monkeypatch.setattr(jvupredict, "MOST_VALUES", 9)
    predictor = JVuPredict()
    predictor.finished(0.0, job(user="old"), 1.0)
    for i in range(50):
        predictor.finished(0.0, job(user="kept"), 5.0)
        predictor.finished(0.0, job(user=f"u{i}"), 9.0)
        assert len(predictor._pasts) <= 9
    assert predictor.predict(job(user="kept")).feature == "user, width"
    assert predictor.predict(job(user="old")).feature == "pool, width"  # the least recently used


def test_jobs_that_never_end_are_forgotten(monkeypatch):
    monkeypatch.setattr(jvupredict, "MOST_STATED", 5)
    predictor = JVuPredict()
    predictor.finished(0.0, job(), 1.0)
    for i in range(50):
        predictor.run_time(job(f"j{i}"))
    assert list(predictor._stated) == [f"j{i}" for i in range(45, 50)]


def test_a_median_of_ever_more_runs_is_exact_until_it_is_thinned(monkeypatch):
    monkeypatch.setattr(estimators, "MOST_RUNS", 64)
    rng, kept, runs = Random(7), RunTimeEstimators(), []
    for i in range(4000):
        runs.append(rng.lognormvariate(3, 1))
        found = kept.add(runs[-1])[1]
        if i < 64:
            assert found == median(runs)
        assert len(kept._low) + len(kept._high) <= 66
    assert found == pytest.approx(exp(3), rel=0.25)
