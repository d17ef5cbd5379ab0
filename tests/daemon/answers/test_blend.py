"""Starts as worlds and waits say them, together: who was nearer counts for more."""

from math import exp, inf, log
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.answers.estimates.blend import EstimateEnsemble
from daemon.answers.estimates.calibration import Calibration, Given, StatedMoment, horizon
from daemon.answers.estimates.recent_waits import LEAST, RECENT, UNKNOWN, WaitHistory
from daemon.answers.estimates.worlds import MomentQuantiles, Times

WAITS = st.floats(1.0, 1e6)


def test_the_more_accurate_estimate_has_the_larger_weight():
    blend, rng = EstimateEnsemble(0.5), Random(1)
    assert blend.of([5.0, 11.0]) == 8.0
    for _ in range(200):
        came = rng.uniform(3, 12)
        blend.learn([came + rng.uniform(-0.1, 0.1), rng.uniform(3, 12)], came)
    assert blend.of([5.0, 11.0]) == pytest.approx(5.0, abs=0.1)
    assert blend.of([None, 11.0]) == 11.0, "it is all there is"


def test_estimators_are_not_compared_if_one_has_no_estimate():
    blend = EstimateEnsemble(0.9)
    blend.learn([100.0, None], 1.0)
    assert blend.of([5.0, 11.0]) == 8.0


def test_for_a_p90_an_estimate_that_is_too_short_costs_more_than_one_too_long():
    blend = EstimateEnsemble(0.9)
    for _ in range(50):
        blend.learn([6.0, 8.0], 7.0)
    assert blend.of([6.0, 8.0]) == pytest.approx(8.0, abs=0.01)


@given(st.lists(st.tuples(WAITS, WAITS, WAITS), max_size=60), WAITS, WAITS)
@settings(deadline=None)
def test_the_ensemble_lies_between_its_members(lives, one, other):
    blend = EstimateEnsemble(0.9)
    for first, second, came in lives:
        blend.learn([log(first), log(second)], log(came))
    found = exp(blend.of([log(one), log(other)]))
    assert min(one, other) * 0.999 <= found <= max(one, other) * 1.001


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=80), st.floats(0, 1e6))
@settings(deadline=None)
def test_remaining_waits_follow_from_jobs_that_waited_at_least_as_long(every, here):
    waits = WaitHistory()
    for wait in (*every, 0.0):
        waits.started("a", wait)
    longer = [wait - here for wait in every if wait > here]
    if len(longer) < LEAST:
        assert waits.beyond("a", here) == UNKNOWN
    else:
        expected = [np.quantile(longer, share) for share in (0.5, 0.9)]
        assert waits.beyond("a", here) == pytest.approx(expected, abs=1e-3)
    assert waits.beyond("b", here) == UNKNOWN


def test_only_the_newest_waits_count():
    waits = WaitHistory()
    for i in range(RECENT + 5):
        waits.started("a", 1e6 if i < 5 else 7.0)
    assert waits.beyond("a", 0.0) == (7.0, 7.0)


def wait_of(calibration, worlds, waits):
    """The median of a wait as it is stated, where the worlds have it so."""
    at = MomentQuantiles(worlds, 2 * worlds, worlds)
    _, start = calibration.corrected("a", 0.0, Times(at, at), waits)
    return start.p50


def test_starts_follow_the_more_accurate_estimator_also_after_a_restart():
    """The worlds are wild; who waited before says it right."""
    calibration, again, rng = Calibration(), Calibration(), Random(4)
    known = 1000.0, 1100.0
    before = wait_of(calibration, 50_000.0, known)
    for i in range(150):
        now, came = i * 1e5, rng.uniform(900.0, 1100.0)
        raw = now + exp(rng.uniform(3, 11))
        at = MomentQuantiles(raw, raw, raw)
        end, start = calibration.corrected("a", now, Times(at, at), known)
        given = Given(f"j{i}", "a", now, now, end, start)
        for each in (calibration, again):
            each.give(given)
            each.started(given.job, now + came)
    after = wait_of(calibration, 50_000.0, known)
    assert before > 5000
    assert after == pytest.approx(1000.0, rel=0.5)
    assert wait_of(again, 50_000.0, known) == after


def test_short_waits_move_a_p90_at_most_half_way():
    """Who waits for one moment with others is one of a few misses, heard of hours later."""
    calibration = Calibration()
    for i in range(300):
        now = i * 1e5
        at = MomentQuantiles(now + 1000.0, now + 50_000.0, now + 1000.0)
        end, start = calibration.corrected("a", now, Times(at, at), (20.0, 40.0))
        calibration.give(Given(f"j{i}", "a", now, now, end, start))
        calibration.started(f"j{i}", now + 30.0)
    at = MomentQuantiles(1000.0, 50_000.0, 1000.0)
    _, start = calibration.corrected("a", 0.0, Times(at, at), (20.0, 40.0))
    assert start.p50 < 500.0
    assert start.p90 == pytest.approx((1030.0 * 50_030.0) ** 0.5 - 30.0)
    assert calibration.shift(("start", "a", horizon(1000.0)), 0.9) > -0.5, "misses count at once"


def test_estimates_beyond_a_week_stay_so_and_old_rows_are_read():
    calibration, never = Calibration(), MomentQuantiles(inf, inf, inf)
    _, start = calibration.corrected("a", 0.0, Times(never, never), (5.0, 9.0))
    assert (start.p50, start.p90) == (None, None)
    old = StatedMoment(100.0, 200.0, 150.0, (100.0, None))
    calibration.give(Given("x", "a", 0.0, 0.0, old, old))
    calibration.started("x", 40.0)
    assert wait_of(calibration, 100.0, UNKNOWN) == pytest.approx(100.0, rel=0.1)
