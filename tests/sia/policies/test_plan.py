"""The plan of §5.1 against an array of seconds."""

from itertools import combinations
from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sia import Core
from sia.contract.plan import PlannedOutage, ReservationProfile
from sia.events import ForecastUpdated
from sia.model import Load
from sia.policies.sia.policy import Sia
from tests.support.builders import SMALL, job, pools
from tests.support.cores import on_cue, start_dedicated
from tests.support.naive.naive_policies import SecondsPlan

LAST = 16
GPUS = st.integers(1, 9)
SPANS = st.sampled_from(list(combinations(range(LAST + 1), 2)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), GPUS, SPANS),
        st.tuples(st.just("ask"), st.just(0), SPANS),
        st.tuples(st.just("clear"), st.just(0), st.just((0, 1))),
    ),
    max_size=30,
)


def agrees_with_seconds(plan, steps):
    """Do the same to both plans: they must answer alike, and in the end be alike everywhere."""
    seconds = SecondsPlan()
    for what, gpus, (start, end) in steps:
        if what == "reserve":
            plan.reserve(gpus, float(start), float(end))
            seconds.reserve(gpus, start, end)
        elif what == "clear":
            plan.clear()
            seconds.clear()
        assert plan.max_reservation(start, end) == seconds.max_reservation(start, end)
        plan.check()
    for span in combinations(range(LAST + 1), 2):
        assert plan.max_reservation(*span) == seconds.max_reservation(*span), span


@given(STEPS)
def test_a_plan_answers_as_an_array_of_seconds_does(steps):
    agrees_with_seconds(ReservationProfile(), steps)


class Hasty(ReservationProfile):
    """Forgets the last second of every reservation that has more than one."""

    def reserve(self, gpus, start, end):
        super().reserve(gpus, start, max(start + 1, end - 1))


class Deaf(ReservationProfile):
    """Does not see what is reserved before the moment it is asked about."""

    def max_reservation(self, start, end):
        later = ReservationProfile()
        for time, change in self._changes.items():
            if time >= start:
                later._change(time, change)
        return later.max_reservation(start, end)


class Hoarder(ReservationProfile):
    """Never releases anything."""

    def clear(self):
        pass


@pytest.mark.parametrize("wrong", [Hasty, Deaf, Hoarder])
def test_the_comparison_with_an_array_of_seconds_detects_a_wrong_plan(wrong):
    steps = [("reserve", 2, (0, 10)), ("ask", 0, (9, 20)), ("clear", 0, (0, 1))]
    with pytest.raises(AssertionError):
        agrees_with_seconds(wrong(), steps)


def test_reservations_add_up_where_they_overlap_and_end_before_their_end():
    plan = ReservationProfile()
    plan.reserve(3, 0.0, 10.0)
    plan.reserve(2, 5.0, 15.0)
    assert plan.max_reservation(0.0, 5.0) == 3
    assert plan.max_reservation(0.0, 6.0) == 5
    assert plan.max_reservation(10.0, 15.0) == 2
    assert plan.max_reservation(15.0, 99.0) == 0


@pytest.mark.parametrize(
    ("gpus", "start", "end"), [(0, 0.0, 1.0), (-1, 0.0, 1.0), (1, 1.0, 1.0), (1, 2.0, 1.0)]
)
def test_a_reservation_of_nothing_is_an_error(gpus, start, end):
    plan = ReservationProfile()
    plan.reserve(1, 0.0, 3.0)
    with pytest.raises(ValueError, match="empty reservation of"):
        plan.reserve(gpus, start, end)
    plan.check()
    assert plan.max_reservation(0.0, 3.0) == 1


def negative_in_between(plan):
    plan._change(1.0, -2)
    plan._change(2.0, 2)


def never_released(plan):
    plan._change(1.0, 1)


def a_change_that_is_not_in_order(plan):
    plan._changes[1.0] = 0


@pytest.mark.parametrize(
    "corrupt", [negative_in_between, never_released, a_change_that_is_not_in_order]
)
def test_check_detects_an_impossible_plan(corrupt):
    plan = ReservationProfile()
    plan.reserve(1, 0.0, 3.0)
    plan.check()
    corrupt(plan)
    with pytest.raises(AssertionError):
        plan.check()


# The plan of a group


def planning():
    """Two jobs run, one of them beyond its estimate, and one is planned."""
    core = on_cue(job("runs").gpus(2).runs(50), job("over").runs(5), job("next").runs(9), a=4, b=2)
    start_dedicated(core, "runs", "over")
    core.step(10.0, [])
    (group,) = core.state.groups
    plan = core.policy.plan[group]
    plan.intend(core.state.jobs["next"], 20.0, 30.0, 3)
    return core, plan


def steps(core, plan, *outages):
    return [*plan.until(10.0, core.state.jobs.values(), outages).steps()]


def test_a_plan_has_estimated_ends_overruns_and_planned_starts():
    core, plan = planning()
    soon = nextafter(10.0, inf)
    assert steps(core, plan) == [(10.0, 3), (soon, 2), (20.0, 5), (30.0, 2), (50.0, 0)]
    plan.check()


def test_a_plan_counts_nodes_that_will_be_down():
    core, plan = planning()
    plan.clear_starts()
    maintenance = PlannedOutage(40.0, 60.0, 1)
    assert steps(core, plan, maintenance)[2:] == [(40.0, 3), (50.0, 1), (60.0, 0)]


def test_a_planned_start_can_be_removed():
    core, plan = planning()
    plan.forget("next", 20.0)
    plan.forget("next", 20.0)
    assert plan.starts == []
    with pytest.raises(ValueError, match=r"a plan of 1 GPUs from 5\.0 to 5\.0"):
        plan.intend(core.state.jobs["next"], 5.0, 5.0, 1)


def test_every_policy_shows_what_it_reserves():
    core = Core(pools(a=4, b=4), Sia(), SMALL)
    core.step(
        0.0, [ForecastUpdated(0.0, [Load("a", 1, 3)]), ForecastUpdated(0.0, [Load("b", 1, 9)])]
    )
    (group,) = core.state.groups
    assert core.policy.plan[group].reserved == [0, 7, 0]
    assert core.policy.plan[group].held[core.state.pools["b"]] == [0, 4, 0]
