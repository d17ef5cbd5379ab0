"""How long jobs last, in whole distributions: against what was drawn, and of those that run."""

from math import inf, log
from operator import itemgetter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from predictors.run_time_distribution import (
    AGES,
    LAST,
    THOUSANDTHS,
    HazardCurve,
    RunTimeDistributions,
)
from predictors.run_times.survival import KEPT, PRIOR
from sia.model import Job


def taught(run_times, pool="a", every=1e6):
    """Jobs long apart, so that none is of another's batch, which each ran so long."""
    lasting, now = RunTimeDistributions(), 0.0
    for i, run_time in enumerate(run_times):
        job = Job(f"{pool}{i}", pool, now, 1)
        lasting.submitted(job)
        lasting.started(now, job)
        lasting.finished(now + run_time, job, run_time)
        now += max(every, run_time)
    lasting.advance(now + LAST)
    return lasting


def test_quantiles_are_those_of_what_ran():
    rng = Random(0)
    runs = sorted(rng.lognormvariate(7, 1.5) for _ in range(400))
    curve = taught(runs[i * 7 % 400] for i in range(400)).curve(Job("new", "a", 1e9, 1))
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert curve.quantile(share) == pytest.approx(runs[int(400 * share)], rel=0.35)


def test_a_long_running_job_is_predicted_from_jobs_that_ran_as_long():
    lasting = taught([100.0] * 90 + [50_000.0] * 90)
    curve = lasting.curve(Job("new", "a", 1e9, 1))
    assert curve.quantile(0.5, 1000.0) == pytest.approx(50_000, rel=0.5)
    assert curve.quantile(0.2) < 200
    assert curve.quantile(0.0, 1000.0) >= 1000


def test_unknown_jobs_have_wide_intervals():
    lasting = RunTimeDistributions()
    assert not lasting.knows()
    curve = lasting.curve(Job("new", "a", 0.0, 1))
    assert curve.quantile(0.9) > 4 * curve.quantile(0.5)
    assert curve.quantile(0.5, 10 * LAST) == pytest.approx(20 * LAST)


def test_a_job_that_outlasts_all_others_has_a_finite_estimate():
    """Each time as long again is half as likely: of twelve jobs nobody knows how long one lasts."""
    curve = taught([1000.0] * 12).curve(Job("new", "a", 1e9, 1))
    assert curve.quantile(0.5) == pytest.approx(1000, rel=0.5)
    assert curve.quantile(0.5, 5000.0) == pytest.approx(10_000, rel=0.1)
    assert 1000 < curve.quantile(0.9) < 86400.0


def stating(pairs, user="ann"):
    """Jobs long apart: what was stated of each, and how long it ran."""
    lasting, now = RunTimeDistributions(), 0.0
    for i, (stated, run_time) in enumerate(pairs):
        job = Job(f"{user}{i}", "a", now, 1, user, estimate=stated)
        lasting.submitted(job)
        lasting.started(now, job)
        lasting.finished(now + run_time, job, run_time)
        now += 1e6
    lasting.advance(now + LAST)
    return lasting


def of_user(user, stated):
    return Job("new", "a", 1e9, 1, user, estimate=stated)


def test_a_stated_run_time_counts_however_many_similar_jobs_have_ended():
    lasting = stating([(600.0, 600.0)] * 200)
    curve = lasting.curve(of_user("ann", 7200.0))
    assert curve.quantile(0.5) == pytest.approx(7200, rel=0.02)
    assert lasting.curve(of_user("ann", None)).quantile(0.5) == pytest.approx(600, rel=0.25)


def test_a_stated_run_time_is_corrected_by_what_such_statements_were_worth():
    curve = stating([(4000.0, 1000.0), (400.0, 100.0), (40_000.0, 10_000.0)] * 40).curve(
        of_user("ann", 8000.0)
    )
    assert curve.quantile(0.5) == pytest.approx(2000, rel=0.25)
    assert curve.quantile(0.5, 6000.0) > 6000, "it has run longer than those before"


def test_a_stated_run_time_is_believed_to_a_factor_of_two_where_nobody_stated_any():
    curve = taught([100.0] * 100).curve(of_user("ann", 3600.0))
    assert curve.quantile(0.5) == pytest.approx(3600, rel=0.1)
    assert 4000 < curve.quantile(0.9) < 4 * 3600


@pytest.mark.parametrize("stated", [5e-324, 1e-310, 1e-6])
def test_a_stated_run_time_of_almost_nothing_gives_a_finite_estimate(stated):
    curve = stating([(stated, 100.0)] * 20).curve(of_user("ann", stated))
    assert 0 < curve.quantile(0.5) < LAST
    assert 50.0 <= curve.quantile(0.9, 50.0) < LAST


def test_running_and_cancelled_jobs_count_for_what_was_stated_of_them():
    lasting = stating([(100.0, 100.0)] * 12)
    over = [Job(f"o{i}", "a", 1e9, 1, "ann", estimate=100.0) for i in range(40)]
    for job in over:
        lasting.submitted(job)
        lasting.started(1e9, job)
    lasting.advance(1e9 + 1000)
    assert lasting.curve(of_user("ann", 100.0)).quantile(0.5) > 500
    for job in over:
        lasting.withdrawn(1e9 + 1000, job)
    lasting.advance(1e9 + 1e6)
    late = lasting.curve(of_user("ann", 100.0))
    assert 500 < late.quantile(0.5) < 1e5, "they ran as far as they ran"


def recounted(jobs, until):
    """The curve of ratios of all jobs, counted anew: (start, stated, run time or None, gone)."""
    hazards = []
    for age, left in enumerate(THOUSANDTHS):
        before = THOUSANDTHS[age - 1] if age else 0.0
        passes = []
        for start, stated, ran, gone in jobs:
            ratio = inf if ran is None else ran * 1000.0 / stated
            at = start + stated * left / 1000.0
            if ratio > before and at < min(until, gone):
                passes.append((at, ratio > left))
        reached = lasted = 0.0
        for _, on in sorted(passes):
            reached, lasted = reached * KEPT + 1.0, lasted * KEPT + on
        here, there = (1.0 + (each / 1000.0) ** 2 for each in (left, before))
        hazards.append((lasted + PRIOR * there / here) / (reached + PRIOR))
    return HazardCurve(hazards, 0, [0.0, *map(log, THOUSANDTHS)])


@pytest.mark.parametrize("seed", range(20))
def test_ratios_are_those_of_a_recount(seed):
    """Of jobs that overlap, end, are cancelled or still run, each with another stated time."""
    rng, jobs, events = Random(seed), [], []
    for i in range(60):
        start, stated = rng.uniform(0, 1e5), rng.choice((60.0, 3600.0, rng.uniform(1, 1e5)))
        ran = stated * rng.lognormvariate(-0.5, 1.5)
        gone = start + ran / 2 if rng.random() < 0.2 else inf
        job = Job(f"j{i}", rng.choice("ab"), start, rng.choice((1, 4)), rng.choice("xy"))
        job = replace(job, estimate=stated)
        events += [(start, "started", job, ran), (min(gone, start + ran), "over", job, ran)]
        jobs.append((start, stated, ran if gone == inf else None, gone))
    lasting, until = RunTimeDistributions(), 1.2e5
    for now, what, job, ran in sorted(events, key=itemgetter(0)):
        if now > until:
            break
        lasting.advance(now)
        if what == "started":
            lasting.submitted(job)
            lasting.started(now, job)
        elif jobs[int(job.id[1:])][3] < inf:
            lasting.withdrawn(now, job)
        else:
            lasting.finished(now, job, ran)
    lasting.advance(until)
    seen = [job if job[0] <= until else (inf, *job[1:]) for job in jobs]
    found = lasting.curve(Job("new", "elsewhere", until, 1, estimate=1000.0))
    counted = recounted(seen, until)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert found.quantile(share) == pytest.approx(counted.quantile(share))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.0, 1e6)), max_size=12),
    st.floats(1.0, 1e6), st.floats(0.0, 1e7), st.floats(0.0, 0.99), st.floats(0.0, 0.99),
)  # fmt: skip
def test_quantiles_of_stated_run_times_are_ordered_and_not_before_the_age(jobs, own, age, one, two):
    curve = stating(jobs).curve(of_user("ann", own))
    low, high = sorted((one, two))
    assert age <= curve.quantile(low, age) <= curve.quantile(high, age)


def test_a_batch_that_runs_on_is_believed_before_it_ends():
    lasting = taught([100.0] * 100)
    mates = [Job(f"m{i}", "a", 1e9 + i, 1) for i in range(20)]
    for job in mates:
        lasting.submitted(job)
        lasting.started(job.submit, job)
    before = lasting.curve(mates[0]).quantile(0.5)
    lasting.advance(1e9 + 4000)
    assert lasting.curve(mates[0]).quantile(0.5) > 10 * before
    assert lasting.curve(Job("other", "a", 1e9 + 9000, 1)).quantile(0.2) < 200


@given(
    st.lists(st.floats(0, 1), min_size=len(AGES), max_size=len(AGES)),
    st.floats(0, 1e8),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_ascend_and_lie_after_the_age(hazards, age, chances):
    curve = HazardCurve(hazards, 0)
    found = [curve.quantile(chance, age) for chance in sorted(chances)]
    assert found == sorted(found)
    assert all(age <= seconds <= max(age, 1.001e12) for seconds in found)


@given(st.floats(0, 0.99), st.floats(1, 5e6))
@settings(max_examples=100, deadline=None)
def test_a_quantile_leaves_the_chance_that_was_asked_for(chance, age):
    curve = HazardCurve([0.8] * len(AGES), 0)
    risk = curve._risk(log(curve.quantile(chance, age))) - curve._risk(log(age))
    assert risk == pytest.approx(-log(1 - chance), abs=1e-6)


def test_chances_are_one_of_each_part_and_always_the_same():
    lasting = RunTimeDistributions()
    found = lasting.chances(Job("x", "a", 0.0, 1), 19)
    assert sorted(int(chance * 19) for chance in found) == [*range(19)]
    assert found == RunTimeDistributions().chances(Job("x", "a", 5.0, 2), 19)
    mates = [Job(f"m{i}", "a", float(i), 1) for i in range(2)]
    for job in mates:
        lasting.submitted(job)
    one, other = (lasting.chances(job, 19) for job in mates)
    assert one != other
    assert [int(chance * 19) for chance in one] == [int(chance * 19) for chance in other]
