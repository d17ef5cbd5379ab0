"""Starts as several say them, together: who was nearer counts for more."""

from math import exp, inf, log
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.insight.blend import RATES, Blend
from daemon.insight.calibration import Calibration, Given, Said
from daemon.insight.outlook import Spread, Times
from daemon.insight.plain import LEAST, RECENT, Plain

WAITS = st.floats(1.0, 1e6)


def learn(blend, answers, came):
    """All that is learned once it came."""
    moved = blend.moved(answers)
    for who, answer in moved:
        blend.judge(who, covered=came <= answer)
    blend.weigh(moved, came)


def test_who_is_nearer_counts_for_more():
    blend, rng = Blend(0.5, RATES[0]), Random(1)
    for _ in range(200):
        came = rng.uniform(3, 12)
        learn(blend, [came + rng.uniform(-0.1, 0.1), rng.uniform(3, 12)], came)
    assert blend.of([5.0, 11.0]) == pytest.approx(5.0, abs=0.5)
    assert blend.of([None, 11.0]) == pytest.approx(11.0, abs=1.0), "it is all there is"


def test_who_is_always_off_by_the_same_factor_is_set_right():
    blend, rng = Blend(0.5, RATES[0]), Random(2)
    for _ in range(300):
        came = rng.uniform(3, 12)
        learn(blend, [came + 1.5], came)
    assert blend.of([8.0]) == pytest.approx(6.5, abs=0.1)


@pytest.mark.parametrize(("share", "rate"), [(0.5, RATES[0]), (0.9, RATES[1])])
def test_what_is_blended_is_the_quantile_that_it_should_be(share, rate):
    blend, rng, held = Blend(share, rate), Random(3), 0
    for _ in range(2000):
        came = rng.gauss(7, 1)
        held += came <= blend.of([6.0, 9.0])
        learn(blend, [6.0, 9.0], came)
    assert held / 2000 == pytest.approx(share, abs=0.05)


@given(st.lists(st.tuples(WAITS, WAITS, WAITS), max_size=60), WAITS, WAITS)
@settings(deadline=None)
def test_it_lies_between_those_that_it_has_moved(lives, one, other):
    blend = Blend(0.9, RATES[1])
    for first, second, came in lives:
        learn(blend, [log(first), log(second)], log(came))
    moved = [answer for _, answer in blend.moved([log(one), log(other)])]
    assert min(moved) - 1e-9 <= blend.of([log(one), log(other)]) <= max(moved) + 1e-9


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=80), st.floats(0, 1e6))
@settings(deadline=None)
def test_waits_are_those_of_who_waited_as_long(waits, here):
    plain = Plain()
    for wait in (*waits, 0.0):
        plain.started("a", wait)
    longer = [wait - here for wait in waits if wait > here]
    if len(longer) < LEAST:
        assert plain.waits("a", here) == (None, None)
    else:
        expected = [np.quantile(longer, share) for share in (0.5, 0.9)]
        assert plain.waits("a", here) == pytest.approx(expected, abs=1e-3)
    assert plain.waits("b", here) == (None, None)


def test_only_the_newest_are_gone_by():
    plain = Plain()
    for i in range(RECENT + 5):
        plain.started("a", 1e6 if i < 5 else 7.0)
        plain.ended("a", 1e6 if i < 5 else 7.0, 3)
    assert plain.waits("a", 0.0) == (7.0, 7.0)
    assert plain.wait("a", 4, 12) == pytest.approx(7.0)


def test_of_a_pool_that_nobody_knows_nothing_is_said():
    plain = Plain()
    assert plain.wait("a", 1, 4) is None
    for _ in range(LEAST):
        plain.ended("a", 100.0, 2)
    assert plain.wait("a", 3, 4) == pytest.approx(150.0)
    assert plain.wait("a", 3, 0) is None


def wait_of(calibration, worlds, others):
    """The median of a wait as it is stated, where the worlds have it so."""
    at = Spread(worlds, 2 * worlds, worlds)
    _, start = calibration.corrected("a", 0.0, Times(at, at), others)
    return start.p50


def test_starts_go_by_who_was_right_and_a_restart_knows():
    """The worlds are wild; who waited before says it right."""
    calibration, again, rng = Calibration(), Calibration(), Random(4)
    for i in range(150):
        now, came = i * 1e5, rng.uniform(900.0, 1100.0)
        raw = now + exp(rng.uniform(3, 11))
        at = Spread(raw, raw, raw)
        end, start = calibration.corrected("a", now, Times(at, at), ((1000.0, 1100.0),))
        given = Given(f"j{i}", "a", now, now, end, start)
        for each in (calibration, again):
            each.give(given)
            each.started(given.job, now + came)
    assert wait_of(calibration, 50_000.0, ((1000.0, 1100.0),)) == pytest.approx(1000.0, rel=0.3)
    assert wait_of(again, 50_000.0, ((1000.0, 1100.0),)) == wait_of(
        calibration, 50_000.0, ((1000.0, 1100.0),)
    )


def test_what_is_beyond_a_week_stays_so_and_old_rows_teach_the_worlds_alone():
    calibration = Calibration()
    _, start = calibration.corrected(
        "a", 0.0, Times(at := Spread(inf, inf, inf), at), ((5.0, 9.0),)
    )
    assert (start.p50, start.p90) == (None, None)
    old = Said(100.0, 200.0, 150.0, (100.0, None))
    calibration.give(Given("x", "a", 0.0, 0.0, old, old))
    calibration.started("x", 40.0)
    assert wait_of(calibration, 100.0, ((None, None),)) < 100.0
