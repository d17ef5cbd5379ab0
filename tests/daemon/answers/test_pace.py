"""How often the present is played forward: as the machine bears it."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.answers.estimates.pacing import FEWER, SELDOM, WITHIN, SimulationBudget
from daemon.answers.estimates.worlds import WORLDS


def test_long_simulations_take_at_most_half_of_the_time():
    pace = SimulationBudget(30.0)
    assert (pace.worlds, pace.wait) == (WORLDS, 30.0)
    pace.done(1.0)
    assert pace.wait == 30.0
    pace.done(76.0)
    assert (pace.worlds, pace.wait) == (WORLDS, 76.0)


def test_each_failure_doubles_the_wait_and_halves_the_worlds():
    pace = SimulationBudget(30.0)
    seen = []
    for _ in range(7):
        pace.failed(WITHIN)
        seen.append((pace.worlds, pace.wait))
    assert seen[:3] == [(11, 600.0), (5, 1200.0), (5, 2400.0)]
    assert seen[-2:] == [(5, SELDOM), (5, SELDOM)]
    assert pace.failures == 7


def test_the_number_of_worlds_grows_again_once_there_is_twice_the_time():
    pace = SimulationBudget(30.0)
    pace.failed(WITHIN)
    pace.done(400.0)
    assert (pace.worlds, pace.wait) == (11, 400.0), "19 would take longer than it may"
    pace.done(100.0)
    assert (pace.worlds, pace.wait) == (19, 100.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, WITHIN)), max_size=40))
def test_simulations_take_at_most_half_of_the_time_and_never_wait_forever(lives):
    pace = SimulationBudget(30.0)
    for fails, took in lives:
        (pace.failed if fails else pace.done)(took)
        assert min(took, SELDOM) <= pace.wait <= SELDOM
        assert pace.worlds in FEWER


def test_a_question_is_answered_by_as_many_worlds_as_fit_while_somebody_waits():
    pace = SimulationBudget(30.0)
    assert [pace.fits(jobs) for jobs in (0, 1000, 2000, 5000, 6000)] == [19, 19, 11, 5, 0]
    pace.done(19 * 0.4)  # so long each of the newest took
    assert pace.fits(100) == 11
    pace.done(19 * 4.0)
    assert pace.fits(100) == 0
