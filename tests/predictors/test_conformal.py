"""Stated quantiles become true, whatever the data."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.run_times.conformal import MOST, Conformal


@given(
    st.lists(st.booleans(), min_size=1, max_size=300),
    st.floats(0.01, 0.99),
    st.floats(0.001, 0.5),
)
def test_the_stated_quantile_moves_by_the_missing_hits(hits, target, rate):
    """So that the share covered is off by no more than what the shift can be, by n and rate."""
    calibration = Conformal(rate)
    for covered in hits:
        calibration.update(target, covered=covered)
    share = sum(hits) / len(hits)
    moved = calibration.shift(target)
    assert moved == pytest.approx(rate * len(hits) * (target - share), abs=1e-9) or (
        abs(moved) <= MOST and rate * len(hits) > MOST
    )


HALF = 10_000


def covered_shares(target, rate):
    """Shares covered of so many draws, and of as many after the world has moved by 5."""
    rng, calibration, hits = Random(0), Conformal(rate), []
    for i in range(2 * HALF):
        hits.append(rng.gauss(5.0 if i >= HALF else 0.0, 1.0) <= calibration.shift(target))
        calibration.update(target, covered=hits[-1])
    return sum(hits[:HALF]) / HALF, sum(hits[HALF:]) / HALF


@pytest.mark.parametrize("target", [0.1, 0.5, 0.9, 0.99])
def test_a_quantile_covers_what_it_states_even_when_the_world_changes(target):
    assert covered_shares(target, rate=0.1) == pytest.approx((target, target), abs=0.01)


def test_an_uncalibrated_quantile_does_not_cover_what_it_states():
    assert covered_shares(0.5, rate=0.0)[1] < 0.01


def test_targets_and_keys_learn_apart():
    calibration = Conformal()
    calibration.update(0.9, covered=False, key="a")
    assert calibration.shift(0.9, "a") > 0
    assert calibration.shift(0.5, "a") == calibration.shift(0.9, "b") == 0.0


def test_a_thousand_misses_keep_the_quantile_within_bounds():
    calibration = Conformal(rate=1.0)
    for _ in range(1000):
        calibration.update(0.9, covered=False)
    assert calibration.shift(0.9) == MOST
    calibration.update(0.9, covered=True)
    assert calibration.shift(0.9) < MOST
