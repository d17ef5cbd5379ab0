"""`sia-reclaim` lends anything to jobs that may be stopped, and nobody ends later than alone.

The property plays random clouds: many pools, ties, jobs of no length, priorities, cancellations,
jobs that take another time when they run again, quotas that change, and forecasts that are wrong.
What really happened is then played again for each pool alone, by a model that simulates it from
scratch.
"""

from heapq import heappop, heappush
from math import inf
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from sia import Core, Job, Pool
from sia.core.playout import play
from sia.decisions import DedicateJob, PreemptJob, ProposalRefused, StartJob, WakeAt
from sia.events import (
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    LendingSwitched,
    PoolChanged,
    PriorityChanged,
    TimePassed,
)
from sia.explain.glance import glance
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, RESTART, Load, Stream
from sia.policies import make
from sia.policies.sia import guests
from sia.policies.sia.reclaim import AS_GUEST, SiaReclaim
from sia.virtual.turns import TurnClock
from tests.support.budget import budget
from tests.support.builders import SMALL, job, pools
from tests.support.naive.naive_turns import Alone, turns

EXAMPLES = budget(ci=60, soak=5000)

HORIZON = 5000.0
"""Seconds after which nothing happens any more: jobs that wait then wait for ever alone, too."""


class Lived(NamedTuple):
    """What happened: each job's end, by number, and how the pools would have gone alone."""

    ends: dict[int, float]
    starts: dict[int, float]  # turns that were given: starts in the own quota, and dedications
    stops: dict[int, int]
    alone_starts: dict[int, float]
    alone_ends: dict[int, float]
    blocked: set[int]
    """Jobs of pools with jobs wider than a quota. Alone these block the queue for ever; the clock
    drops them once they have ended elsewhere."""


class Cloud:
    """Plays a core and keeps what happened."""

    def __init__(self, label, owned, planned, lengths, options=SMALL):
        """Take pools, (time, kind, details) in order, and the lengths of each job's attempts."""
        self.core = Core(owned, make(label), options)
        self.planned, self.lengths, self.owned = planned, lengths, owned
        self.jobs, self.ran, self.gone, self.ranked = {}, {}, {}, {}
        self.ends, self.given, self.stops = {}, {}, {}
        self.quotas = {pool.name: [(-1.0, pool.quota)] for pool in owned}
        self.heap, self.wake, self.order = [], inf, 0

    def live(self):
        planned, at = self.planned, 0
        while True:
            while self.heap and not self.holds(self.heap[0]):
                heappop(self.heap)
            nexts = [planned[at][0]] if at < len(planned) else []
            now = min([*nexts, *(end[0] for end in self.heap[:1]), self.wake])
            if now > HORIZON or (at == len(planned) and not self.core.state.jobs):
                return self.judged()
            events = [*self.ended(now)]
            while at < len(planned) and planned[at][0] == now:
                events += self.event(*planned[at])
                at += 1
            if self.wake <= now:
                self.wake = inf
                events.append(TimePassed(now))
            self.follow(now, self.core.step(now, events))
            self.core.check()

    def holds(self, end):
        state = self.core.state.jobs.get(end[2])
        return state is not None and state.attempt == end[3] and state.stream is not None

    def ended(self, now):
        while self.heap and self.heap[0][0] <= now:
            end = heappop(self.heap)
            if self.holds(end):
                state = self.core.state.jobs[end[2]]
                kept = state.attempt > 1 and state.job.preemptible != RESTART
                ran = self.length(state) if kept else now - state.start
                self.ends[state.arrival], self.ran[state.arrival] = now, ran
                yield JobFinished(now, end[2])

    def event(self, now, kind, what):
        state = self.core.state.jobs
        if kind == "submit":
            self.jobs[what.id] = len(self.jobs) + 1
            yield JobSubmitted(now, what, self.lengths[what.id][-1])
        elif kind == "quota":
            name, quota = what
            self.quotas[name].append((now, quota))
            yield PoolChanged(now, name, quota)
        elif kind in {"cancel", "rank"}:
            job_id, priority = what
            if job_id not in state or state[job_id].stream is not None:
                return
            number = state[job_id].arrival
            if kind == "cancel":
                if number not in self.gone:
                    self.gone[number] = now
                    yield JobCancelled(now, job_id)
            else:
                self.ranked.setdefault(number, []).append((now, priority))
                yield PriorityChanged(now, job_id, priority)
        else:
            yield what

    def length(self, state):
        """The length of this attempt: that of a job that keeps its work is always the same."""
        lengths = self.lengths[state.job.id]
        again = state.job.preemptible == RESTART
        return lengths[(state.attempt - 1) % (len(lengths) - 1)] if again else lengths[0]

    def follow(self, now, decisions):
        for each in decisions:
            assert not isinstance(each, ProposalRefused), each
            if isinstance(each, WakeAt):
                self.wake = each.time
            elif isinstance(each, PreemptJob):
                number = self.jobs[each.job_id]
                assert number not in self.given, "an own job was stopped"
                self.stops[number] = self.stops.get(number, 0) + 1
            elif isinstance(each, StartJob):
                if each.stream is Stream.DEDICATED:
                    self.given[self.jobs[each.job_id]] = now
            elif isinstance(each, DedicateJob):
                self.given[self.jobs[each.job_id]] = now
        for job_id in dict.fromkeys(d.job_id for d in decisions if isinstance(d, StartJob)):
            state = self.core.state.jobs[job_id]
            if state.stream is not None:
                self.order += 1
                end = state.end(self.length(state))
                heappush(self.heap, (end, self.order, job_id, state.attempt))

    def judged(self):
        alone_starts, alone_ends, blocked = {}, {}, set()
        submitted = {w.id: (t, w) for t, kind, w in self.planned if kind == "submit"}
        for name, quotas in self.quotas.items():
            mine = [
                Alone(
                    number, submitted[job_id][0], submitted[job_id][1].width,
                    submitted[job_id][1].priority, self.ran.get(number, inf),
                    self.gone.get(number, inf), tuple(self.ranked.get(number, ())),
                )
                for job_id, number in self.jobs.items()
                if submitted[job_id][1].pool == name
            ]  # fmt: skip
            starts, ends = turns(quotas, mine)
            alone_starts |= starts
            alone_ends |= ends
            if any(job.width > quota for job in mine for _, quota in quotas):
                blocked |= {job.arrival for job in mine}
        return Lived(self.ends, self.given, self.stops, alone_starts, alone_ends, blocked)


@st.composite
def clouds(draw, costs=(RESTART, RESTART, 0.0, 2.0, 7.0)):
    """Pools, what happens to them, and how long each attempt of each job takes."""
    owned = [
        Pool(name, draw(st.integers(1, 8)), group=draw(st.sampled_from(["", "", "", "east"])))
        for name in "abcd"[: draw(st.integers(2, 4))]
    ]
    planned, lengths = [], {}
    step = draw(st.sampled_from([1.0, 5.0]))
    for number in range(draw(st.integers(2, 14))):
        pool = draw(st.sampled_from(owned))
        job_id = f"j{number}"
        submit = draw(st.integers(0, 20)) * step
        made = Job(
            job_id, pool.name, submit, draw(st.integers(1, pool.quota)),
            preemptible=draw(st.sampled_from(costs)),
            priority=draw(st.sampled_from([0, 0, 0, 1, -2])),
            min_run_time=draw(st.sampled_from([None, None, None, 5.0])),
        )  # fmt: skip
        planned.append((submit, 2, "submit", made))
        attempts = st.sampled_from([0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 80.0])
        estimate = draw(st.sampled_from([0.0, 1.0, 30.0, UNKNOWN_RUN_TIME]))
        lengths[job_id] = [*draw(st.lists(attempts, min_size=1, max_size=4)), estimate]
        for kind in draw(st.lists(st.sampled_from(["cancel", "rank"]), max_size=1)):
            when = submit + draw(st.integers(1, 12)) * step
            planned.append((when, 3, kind, (job_id, draw(st.integers(-2, 2)))))
    for _ in range(draw(st.integers(0, 3))):
        pool, when = draw(st.sampled_from(owned)), draw(st.integers(1, 30)) * step
        gpus, on = draw(st.integers(0, 8)), draw(st.booleans())
        planned.append(draw(st.sampled_from([
            (when, 1, "quota", (pool.name, gpus)),
            (when, 1, "lending", LendingSwitched(when, on)),
            (when, 1, "out", GpusOut(when, pool.name, min(gpus, 3))),
            (when, 1, "load", ForecastUpdated(when, [Load(pool.name, gpus % 3, gpus)])),
        ])))  # fmt: skip
    planned.sort(key=lambda each: each[:2])
    return owned, [(when, kind, what) for when, _, kind, what in planned], lengths


def late_in(lived):
    """Return the jobs that end later than alone, or never, by number."""
    late = {n: end for n, end in lived.ends.items() if end > lived.alone_ends.get(n, inf) + SLOWED}
    return late | {n: inf for n in lived.alone_starts if n not in lived.ends}


@settings(max_examples=EXAMPLES, deadline=None)
@given(clouds(), st.sampled_from(["sia-reclaim", "sia-reclaim:0", "sia-reclaim:5"]))
def test_no_job_ends_later_than_alone_whatever_happens(cloud, label):
    lived = Cloud(label, *cloud).live()
    assert not late_in(lived), lived
    for number, turn in lived.starts.items():
        alone = lived.alone_starts.get(number, inf)
        assert turn <= alone, "a turn never comes later than alone"
        if number not in lived.blocked:
            assert turn == alone, "nor sooner"


class Greedy(SiaReclaim):
    """Forgets to stop guests."""

    def _stop(self, own, missing, heads):
        yield from ()


ALWAYS = {"LONGER": 0.0, "LEAST_SAVED": 0.0, "MOST_LOST": 1e99}
"""Guests make room for whoever asks."""


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(clouds(costs=(0.0, 2.0, 7.0)))
def test_nobody_is_later_if_guests_make_room_for_guests_at_every_chance(cloud):
    with patch.multiple(guests, **ALWAYS):
        lived = Cloud("sia-reclaim:stops=5", *cloud).live()
    assert not late_in(lived), lived


def test_the_property_detects_a_policy_that_does_not_reclaim():
    jobs = [
        (0.0, "submit", Job("guest", "a", 0.0, 2, preemptible=RESTART)),
        (1.0, "submit", Job("owner", "b", 1.0, 2, preemptible=RESTART)),
        (1.0, "submit", Job("own", "a", 1.0, 1, preemptible=RESTART)),
    ]
    late = {}
    for policy in (SiaReclaim, Greedy):
        lengths = {planned[2].id: [30.0, 0.0] for planned in jobs}
        cloud = Cloud("sia-reclaim", [Pool("a", 1), Pool("b", 2)], jobs, lengths)
        cloud.core = Core(cloud.owned, policy(), SMALL)
        lived = cloud.live()
        late[policy] = {n for n, end in lived.ends.items() if end > lived.alone_ends.get(n, inf)}
    assert late == {SiaReclaim: set(), Greedy: {2}}


@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(clouds(), st.integers(0, 3))
def test_no_guest_is_stopped_more_often_than_the_option_allows(cloud, most):
    lived = Cloud(f"sia-reclaim:{most}", *cloud).live()
    assert max(lived.stops.values(), default=0) <= most


# Stories


def story(*jobs, label="sia-reclaim", **quotas):
    """Play jobs given as builders; return (time, decision, job) of starts, stops, dedications."""
    core, seen = Core(pools(**quotas), make(label), SMALL), []
    run_times = PerfectRunTimes({each.job.id: each.duration for each in jobs})
    for now, _, decisions in play(core, jobs, run_times=run_times):
        core.check()
        for each in decisions:
            if isinstance(each, StartJob):
                seen.append((now, each.stream.value, each.job_id))
            elif isinstance(each, PreemptJob | DedicateJob):
                seen.append((now, type(each).__name__, each.job_id))
    return seen


def stoppable(arrival, cost=RESTART):
    return arrival._replace(job=replace(arrival.job, preemptible=cost))


def test_a_guest_is_stopped_at_the_turn_of_an_owner_and_starts_again_at_its_own_turn():
    assert story(
        job("own").pool("a").runs(50),
        stoppable(job("guest").pool("a").runs(100)),
        job("owner").pool("b").at(10).runs(20),
        a=1, b=1,
    ) == [
        (0.0, "dedicated", "own"), (0.0, "spare", "guest"),
        (10.0, "PreemptJob", "guest"), (10.0, "dedicated", "owner"),
        (30.0, "spare", "guest"), (50.0, "DedicateJob", "guest"),
    ]  # fmt: skip


@pytest.mark.parametrize(("cost", "stopped"), [(300.0, True), (RESTART, False)])
def test_a_guest_that_keeps_its_work_makes_room_for_a_much_shorter_one(cost, stopped):
    seen = story(
        job("own").pool("a").runs(20_000),
        stoppable(job("long").pool("a").runs(10_000), cost),
        stoppable(job("short").pool("a").at(1000).runs(100), cost),
        stoppable(job("medium").pool("a").at(1000).runs(6000), cost),
        a=1, b=1,
    )  # fmt: skip
    start = (1000.0, "spare", "short")
    assert (((1000.0, "PreemptJob", "long") in seen), start in seen) == (stopped, stopped)
    assert (1000.0, "spare", "medium") not in seen


def test_a_guest_that_has_ended_keeps_its_place_in_the_virtual_schedule_of_its_pool():
    """So the jobs behind it have their turns when they would have had them."""
    assert story(
        job("own").pool("a").runs(50),
        stoppable(job("guest").pool("a").runs(10)),
        job("never").pool("a").runs(500),
        job("owner").pool("b").at(20).gpus(2).runs(200),
        a=1, b=2,
    ) == [
        (0.0, "dedicated", "own"), (0.0, "spare", "guest"), (20.0, "dedicated", "owner"),
        (50.0, "spare", "never"), (60.0, "DedicateJob", "never"),
    ]  # fmt: skip


def test_a_first_job_that_fits_beside_those_ahead_of_it_starts_before_its_turn():
    """The guest ran elsewhere and has ended: nobody who is ahead needs its pool's quota."""
    seen = story(
        job("own").pool("a").runs(50),
        stoppable(job("guest").pool("a").gpus(2).runs(10)),
        job("never").pool("a").runs(500),
        a=2, b=2,
    )  # fmt: skip
    assert (10.0, "spare", "never") in seen


def test_a_job_does_not_wait_for_a_late_one_of_lower_priority_and_is_no_guest_at_its_turn():
    """The guest of b runs longer than expected, and must not be stopped; so `low` is late."""
    core = Core(pools(a=5, b=4), make("sia-reclaim"), SMALL)
    own, guest = Job("own", "b", 0.0, 4), Job("guest", "b", 1.0, 3)
    low, urgent = Job("low", "a", 14.0, 3), Job("urgent", "a", 24.0, 1, priority=1)
    urgent = replace(urgent, preemptible=RESTART)
    started = [
        (each.job_id, each.stream)
        for job, estimate in ((own, 900.0), (guest, 10.0), (low, 900.0), (urgent, 900.0))
        for each in core.step(job.submit, [JobSubmitted(job.submit, job, estimate)])
        if isinstance(each, StartJob)
    ]
    core.check()
    assert started == [
        ("own", Stream.DEDICATED), ("guest", Stream.SPARE), ("urgent", Stream.DEDICATED),
    ]  # fmt: skip


def test_one_wide_guest_is_stopped_rather_than_several_narrow_ones():
    own = job("own").pool("a").gpus(3).runs(900)
    wide = stoppable(job("wide").pool("a").gpus(3).runs(800))
    narrow = [stoppable(job(f"n{i}").pool("a").at(1).runs(800)) for i in range(3)]
    owner = job("owner").pool("b").at(20).gpus(3).runs(900)
    seen = story(own, wide, *narrow, owner, a=3, b=6)
    assert [name for _, what, name in seen if what == "PreemptJob"] == ["wide"]


@pytest.mark.parametrize(("most", "starts"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_a_job_that_was_stopped_as_often_as_allowed_waits_for_its_turn(most, starts):
    owners = [job(f"o{i}").pool("b").at(10 + 20 * i).runs(10) for i in range(5)]
    guest = stoppable(job("guest").pool("a").runs(100))
    seen = story(job("own").pool("a").runs(400), guest, *owners, label=f"sia-reclaim:{most}",
                 a=1, b=1)  # fmt: skip
    assert len([1 for _, what, name in seen if name == "guest" and what != "PreemptJob"]) == starts
    assert seen[-1] == (400.0, "dedicated", "guest")


@pytest.mark.parametrize(
    ("cost", "label", "again"),
    [
        (RESTART, "sia-reclaim", False),
        (RESTART, "sia-reclaim:3", True),
        (RESTART, "sia-reclaim:1", False),
        (5.0, "sia-reclaim", True),
    ],
)
def test_a_job_that_lost_all_its_work_is_a_guest_again_only_if_no_other_pool_waits(
    cost, label, again
):
    own = job("own").pool("a").runs(400)
    guest = stoppable(job("guest").pool("a").runs(100), cost)
    owner = job("owner").pool("b").at(10).runs(10)
    others = [job(name).pool("c").gpus(2).runs(200) for name in ("busy", "next")]
    seen = story(own, guest, owner, *others, label=label, a=1, b=1, c=2)
    assert (10.0, "PreemptJob", "guest") in seen
    assert ((20.0, "spare", "guest") in seen) is again
    later = [time for time, what, name in seen if name == "guest" and what != "PreemptJob"]
    assert later[1] == (20.0 if again else 400.0 if label == "sia-reclaim:1" else 200.0)


@pytest.mark.parametrize("cost", [None, NEVER_STOPPED])
def test_a_job_that_must_not_be_stopped_borrows_only_within_the_windows_of_sia(cost):
    def first_start(*estimates):
        core = Core(pools(a=1, b=1), make("sia-reclaim"), SMALL)
        jobs = [Job("own", "a", 0.0, 1), Job("never", "a", 0.0, 1, preemptible=cost)]
        events = zip(jobs, estimates, strict=True)
        decisions = core.step(0.0, [JobSubmitted(0.0, each, runs) for each, runs in events])
        return [each.job_id for each in decisions if isinstance(each, StartJob)]

    assert first_start(90.0, 10.0) == ["own", "never"]
    assert first_start(90.0, UNKNOWN_RUN_TIME) == ["own"]


def lasting(arrival, seconds):
    return arrival._replace(job=replace(arrival.job, min_run_time=seconds, preemptible=RESTART))


@pytest.mark.parametrize(
    ("seconds", "early"), [(None, True), (SMALL.windows[0], True), (1e6, False)]
)
def test_a_job_with_a_minimum_run_time_borrows_only_in_a_window_that_is_long_enough(seconds, early):
    own = job("own").pool("a").runs(90)
    seen = story(own, lasting(job("guest").pool("a").runs(1e5), seconds), a=1, b=1)
    assert ((0.0, "spare", "guest") in seen) is early


def test_a_start_in_a_window_says_what_holds_for_the_job():
    core = Core(pools(a=1, b=2), make("sia-reclaim"), SMALL)
    jobs = [Job("own", "a", 0.0, 1), Job("never", "a", 0.0, 1)]
    jobs.append(Job("lasting", "a", 0.0, 1, preemptible=RESTART, min_run_time=SMALL.windows[0]))
    estimates = zip(jobs, (90.0, SMALL.windows[0], 1e5), strict=True)
    decisions = core.step(0.0, [JobSubmitted(0.0, each, runs) for each, runs in estimates])
    reasons = {each.job_id: each.reason for each in decisions if isinstance(each, StartJob)}
    assert reasons["lasting"] == AS_GUEST
    assert reasons["never"].startswith("ends within")


def test_a_minimum_run_time_counts_pending_jobs_and_guests_that_may_become_dedicated():
    """Pool b has a job whose turn comes when its first one ends: that may be at any moment."""
    seen = story(
        job("own").pool("a").runs(90),
        job("big").pool("b").gpus(2).runs(5),
        job("next").pool("b").gpus(3).runs(9),
        lasting(job("guest").pool("a").runs(50), 10.0),
        a=1, b=3,
    )  # fmt: skip
    assert (0.0, "spare", "guest") not in seen


def test_a_guest_within_its_minimum_run_time_is_stopped_last():
    def stopped(at):
        return [
            name
            for _, what, name in story(
                job("own").pool("a").gpus(2).runs(900),
                stoppable(job("old").pool("a").runs(800)),
                lasting(job("new").pool("a").at(1).runs(700), 10.0),
                job("owner").pool("b").at(at).runs(900),
                a=2, b=2,
            )
            if what == "PreemptJob"
        ]  # fmt: skip

    assert stopped(5.0) == ["old"]
    assert stopped(20.0) == ["new"], "else the newest is"


def test_a_preemptible_job_waits_for_idle_gpus_and_not_for_a_forecast():
    core = Core(pools(a=1, b=1), make("sia-reclaim"), SMALL)
    jobs = [Job("one", "a", 0.0, 1), Job("two", "b", 0.0, 1)]
    jobs += [Job("any", "a", 0.0, 1, preemptible=RESTART), Job("never", "a", 0.0, 1)]
    core.step(0.0, [JobSubmitted(0.0, each, UNKNOWN_RUN_TIME) for each in jobs])
    found = {
        name: [
            type(each).__name__
            for each in glance(core.policy, core.state.jobs[name]).ways[1].obstacles
        ]
        for name in ("any", "never")
    }
    assert found == {"any": ["RoomObstacle"], "never": ["Length", "RoomObstacle"]}


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), max_size=12),
)
def test_turns_come_when_expected_if_run_times_are_known(quota, jobs):
    clock, runs = TurnClock(quota), dict(enumerate(run for _, run in jobs))
    for number, (width, _) in enumerate(jobs):
        clock.submitted(number, sequence=number, width=width, submit=0.0)
    came = dict.fromkeys(clock.advance(0.0), 0.0)
    for number in [*runs][::2]:
        if clock.waits(number):  # it was stopped as a guest
            clock.submitted(number, sequence=number, width=jobs[number][0], submit=0.0)
    expected = {
        number: clock.expected_turn(number, 0.0, runs.__getitem__)
        for number in runs
        if clock.waits(number)
    }
    for now in range(200):
        for number, turn in [*came.items()]:
            if clock.turn(number) is not None and turn + runs[number] == now:
                clock.ended(float(now), number, float(runs[number]))
        while more := clock.advance(float(now)):
            came |= dict.fromkeys(more, float(now))
            for number in more:
                if not runs[number]:
                    clock.ended(float(now), number, 0.0)
    assert expected == {number: came.get(number, inf) for number in expected}
