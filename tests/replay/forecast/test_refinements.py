"""Kruskal-Wallis tests of secondary features (JamaisVu, §3.2)."""

from random import Random

import pytest

from replay.forecast.refinements import chance_beyond, kruskal_wallis, refinements
from sia.core.playout import Arrival
from sia.model import Job


def test_the_statistic_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = Random(1)
    for _ in range(100):
        parts = [
            [float(rng.choice([rng.randint(1, 5), rng.lognormvariate(2, 1)]))
             for _ in range(rng.randint(2, 40))]
            for _ in range(rng.randint(2, 6))
        ]  # fmt: skip
        found, expected = kruskal_wallis(parts), stats.kruskal(*parts)
        assert tuple(found) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-9)
    for value in (1e-9, 0.1, 1.0, 5.0, 30.0, 300.0, 2000.0):
        for freedom in (1, 2, 3, 10, 100):
            expected = stats.chi2.sf(value, freedom)
            assert chance_beyond(value, freedom) == pytest.approx(expected, abs=1e-12)


def test_equal_values_tell_nothing_apart():
    assert kruskal_wallis([[2.0, 2.0], [2.0]]) == (0.0, 1.0)


def test_a_feature_that_divides_run_times_is_found_and_one_that_does_not_is_not():
    rng, arrivals = Random(2), []
    for i in range(300):
        telling, random = str(i % 2), rng.randint(1, 2)
        job = Job(f"j{i}", "a", 0.0, random, f"u{i % 3}", sched_class=telling)
        arrivals.append(Arrival(job, rng.lognormvariate(4 + 2 * (i % 2), 1)))
    found = {(each.primary, each.secondary): each for each in refinements(arrivals)}
    assert found.keys() == {("user", "width"), ("user", "scheduling class")}
    telling = found["user", "scheduling class"]
    assert (telling.values, telling.significant) == (3, 1.0)
    assert telling.median_p < 1e-6 < found["user", "width"].median_p


def test_few_jobs_are_not_tested():
    jobs = [Job(f"j{i}", "a", 0.0, 1 + i % 2, "ann") for i in range(20)]
    assert refinements(Arrival(job, 1.0 + i) for i, job in enumerate(jobs)) == []
