"""`sia-reclaim` where a stop takes time, and where some jobs must not be stopped.

A stopped guest keeps its GPUs for a grace time, as in the daemon. What starts on them begins when
they are free, in the order of the decisions.
"""

from heapq import heappop, heappush
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sia import Core, Job, Pool
from sia.decisions import PreemptJob, ProposalRefused, StartJob, WakeAt
from sia.events import JobFinished, JobProgressed, JobSubmitted, TimePassed
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, RESTART
from sia.policies import make
from sia.policies.sia.reclaim import SiaReclaim
from sia.policies.sia.reclaim_cells import ReclaimParams
from tests.support.budget import budget
from tests.support.builders import SMALL
from tests.support.naive.naive_turns import Alone, turns

EXAMPLES = budget(ci=36, soak=3000)
GRACE = 7.0

HORIZON = 5000.0
"""Seconds within which all jobs would end one after another."""


class Graceful:
    """A cloud of one group in which stops take a grace time. Jobs are (Job, run time) in order."""

    def __init__(self, policy, owned, jobs, grace=GRACE, estimate=1.0):
        self.core = Core(owned, policy, replace(SMALL, grace=grace))
        self.owned, self.jobs, self.grace, self.estimate = owned, jobs, grace, estimate
        self.times = {job.id: seconds for job, seconds in jobs}
        self.seats, self.begun, self.leaving, self.heap, self.ends = [], {}, {}, [], {}
        self.wake, self.at, self.reasons = inf, 0, {}

    def lateness(self):
        """Each job's end minus that in its pool alone, by id."""
        return {
            job_id: self.ends[job_id] - end
            for pool in self.compared()
            for job_id, (_, end) in pool.items()
        }

    def compared(self):
        """Live to the end; of each pool, turn and end alone of each of its jobs."""
        while self.at < len(self.jobs) or self.core.state.jobs:
            self.live()
        found = []
        for pool in self.owned:
            mine = [
                Alone(number, job.submit, job.width, job.priority, seconds)
                for number, (job, seconds) in enumerate(self.jobs)
                if job.pool == pool.name
            ]
            came, alone = turns([(-1.0, pool.quota)], mine)
            found.append({self.jobs[n][0].id: (came[n], end) for n, end in alone.items()})
        return found

    def live(self):
        nexts = [job.submit for job, _ in self.jobs[self.at : self.at + 1]]
        left = [at for _, at in self.leaving.values()]
        now = min([self.wake, *nexts, *left, *(end[0] for end in self.heap[:1])])
        assert now < HORIZON, "somebody waits for ever"
        events = []
        while self.heap and self.heap[0][0] <= now:
            _, job_id, attempt = heappop(self.heap)
            if job_id in self.begun and self.core.state.jobs[job_id].attempt == attempt:
                del self.begun[job_id]
                self.ends[job_id] = now
                events.append(JobFinished(now, job_id))
        self.leaving = {j: (width, at) for j, (width, at) in self.leaving.items() if at > now}
        while self.at < len(self.jobs) and self.jobs[self.at][0].submit <= now:
            events.append(JobSubmitted(now, self.jobs[self.at][0], self.estimate))
            self.at += 1
        if self.wake <= now:
            self.wake = inf
            events.append(TimePassed(now))
        while True:
            self.follow(now, self.core.step(now, events))
            self.core.check()
            events = [*self.begin(now)]
            if not events:
                return

    def follow(self, now, decisions):
        for each in decisions:
            assert not isinstance(each, ProposalRefused), each
            if isinstance(each, WakeAt):
                self.wake = each.time
            elif isinstance(each, StartJob):
                self.seats.append(each.job_id)
                self.reasons[each.job_id] = each.reason
            elif isinstance(each, PreemptJob):
                if each.job_id not in self.begun:
                    self.seats.remove(each.job_id)
                elif self.grace:
                    self.leaving[each.job_id] = self.begun.pop(each.job_id), now + self.grace
                else:
                    del self.begun[each.job_id]

    def begin(self, now):
        """Begin what has its GPUs, in order; nobody passes those ahead."""
        free = sum(pool.quota for pool in self.owned) - sum(self.begun.values())
        free -= sum(width for width, _ in self.leaving.values())
        for job_id in [*self.seats]:
            state = self.core.state.jobs[job_id]
            if state.width > free:
                return
            if job_id in self.leaving:
                continue
            free -= state.width
            self.seats.remove(job_id)
            self.begun[job_id] = state.width
            left = state.overhead + self.times[job_id] - state.done
            heappush(self.heap, (now + left, job_id, state.attempt))
            if state.since < now:
                yield JobProgressed(now, job_id, state.done, 1.0, overhead=state.overhead)


@st.composite
def clouds(draw, costs=(RESTART,), priorities=(0,)):
    owned = [Pool(name, draw(st.integers(1, 6))) for name in "abc"[: draw(st.integers(2, 3))]]
    jobs = []
    for number in range(draw(st.integers(2, 24))):
        pool = draw(st.sampled_from(owned))
        job = Job(
            f"j{number}", pool.name, draw(st.integers(0, 30)) * 1.0,
            draw(st.integers(1, pool.quota)), preemptible=draw(st.sampled_from(costs)),
            priority=draw(st.sampled_from(priorities)),
        )  # fmt: skip
        jobs.append((job, draw(st.sampled_from([0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 80.0]))))
    return owned, sorted(jobs, key=lambda each: each[0].submit)


@settings(max_examples=EXAMPLES, deadline=None)
@given(clouds(), st.sampled_from([0.0, GRACE]))
def test_nobody_waits_longer_than_the_grace_time_once_its_turn_is_known(cloud, grace):
    """A turn is known once all jobs of the pool have ended that have ended alone by then."""
    life = Graceful(make("sia-reclaim"), *cloud, grace)
    for pool in life.compared():
        for job_id, (turn, end) in pool.items():
            over = [life.ends[other] for other, (_, gone) in pool.items() if gone <= turn]
            known = max([turn, *over])
            assert life.ends[job_id] - end <= known - turn + grace + SLOWED, job_id


def test_lateness_can_grow_along_a_queue_where_others_come_at_the_worst_moments():
    """Each job of `p` needs one GPU more than the one before, which is kept for it.

    Just before it starts, a job of `q` takes that GPU, while the guest in its own place leaves.
    """
    owned = [Pool("p", 6), Pool("q", 20), Pool("r", 26)]
    rows = [("own", "r", 0.0, 26, 400.0)] + [(f"g{i}", "r", 1.0, 1, 390.0) for i in range(26)]
    rows += [(f"p{width}", "p", 10.0, width, 20.0) for width in range(1, 7)]
    rows += [(f"q{n}", "q", 10.0 + n * (19.0 + GRACE), 6 - n, 300.0) for n in range(1, 6)]
    rows.sort(key=lambda row: row[2])
    jobs = [(Job(n, p, at, width, preemptible=RESTART), took) for n, p, at, width, took in rows]
    late = Graceful(make("sia-reclaim"), owned, jobs).lateness()
    assert [late[f"p{width}"] for width in range(1, 7)] == [7.0, 7.0, 7.0, 13.0, 19.0, 25.0]


class Naive(SiaReclaim):
    """A naive model that reclaims no GPU before its owner's turn."""

    def _held(self, own, besides=None):
        return 0


def test_without_taking_back_ahead_of_turns_a_late_start_makes_the_next_one_later():
    """Each own job of `a` hides the end that brings the next turn; a guest sits in its way."""
    owned = [Pool("a", 2), Pool("b", 2)]
    rows = [("own", "b", 0.0, 2, 500.0)]
    rows += [(f"g{i}", "b", 0.0, 1, 400.0) for i in range(2)]
    rows += [("a0", "a", 1.0, 1, 20.0), ("a1", "a", 2.0, 2, 20.0), ("a2", "a", 3.0, 1, 20.0)]
    rows += [("a3", "a", 4.0, 2, 20.0), ("a4", "a", 5.0, 1, 20.0), ("a5", "a", 6.0, 2, 20.0)]
    jobs = [(Job(n, p, at, width, preemptible=RESTART), took) for n, p, at, width, took in rows]
    often = ReclaimParams(stops=3)
    late = {
        policy: max(Graceful(policy(often), owned, jobs).lateness().values())
        for policy in (SiaReclaim, Naive)
    }
    assert late[SiaReclaim] == GRACE
    assert late[Naive] > 2 * GRACE


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    clouds((RESTART, 2.0, NEVER_STOPPED, None), (0, 5)),
    st.sampled_from([0.0, 1.0, 30.0, UNKNOWN_RUN_TIME]),
)
def test_in_hard_mode_nobody_is_late_for_jobs_that_must_not_be_stopped(cloud, estimate):
    late = Graceful(make("sia-reclaim:hard"), *cloud, 0.0, estimate).lateness()
    assert max(late.values()) <= SLOWED


@pytest.mark.parametrize("label", ["sia-reclaim", "sia-reclaim:hard"])
def test_a_job_that_must_not_be_stopped_does_not_delay_one_of_higher_priority(label):
    """It fits in its pool's quota: what is ahead of it alone, until 35, has ended as a guest."""
    owned = [Pool("a", 2), Pool("b", 3)]
    jobs = [
        (Job("long", "b", 3.0, 1, preemptible=RESTART), 30.0),
        (Job("wide", "b", 8.0, 3, preemptible=RESTART, priority=5), 2.0),
        (Job("never", "b", 15.0, 2), 80.0),
        (Job("urgent", "b", 27.0, 3, preemptible=RESTART, priority=5), 30.0),
        (Job("other", "a", 29.0, 2, preemptible=RESTART, priority=5), 80.0),
    ]
    late = Graceful(make(label), owned, jobs, 0.0, UNKNOWN_RUN_TIME).lateness()
    assert late["urgent"] == -2.0


@pytest.mark.parametrize("label", ["sia-reclaim", "sia-reclaim:hard"])
def test_a_turn_delayed_by_a_job_that_must_not_be_stopped_is_named(label):
    """Its forecast says one second; it runs for a hundred."""
    owned = [Pool("a", 1), Pool("b", 1)]
    jobs = [
        (Job("own", "a", 0.0, 1), 300.0), (Job("never", "a", 0.0, 1), 100.0),
        (Job("owner", "b", 10.0, 1), 5.0),
    ]  # fmt: skip
    cloud = Graceful(make(label), owned, jobs, 0.0)
    late = cloud.lateness()
    if label.endswith("hard"):
        assert late["owner"] == 0.0
        assert cloud.reasons["owner"] == "its turn has come"
    else:
        assert late["owner"] == 90.0
        assert cloud.reasons["owner"] == "its turn came 90s ago; must not be stopped: never"
