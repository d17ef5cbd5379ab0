"""Events of one instant, withdrawals, wakes and new estimates; journals and copies."""

from random import Random

import msgspec
import pytest

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Job, Pool, Stream
from sia.contract.proposals import Wake
from sia.core import playout
from sia.core.playout import play
from sia.decisions import (
    Decision,
    MoveLoan,
    PreemptJob,
    ProposalRefused,
    ResizeJob,
    StartJob,
    WakeAt,
)
from sia.events import (
    Event,
    ForecastUpdated,
    FutureRevealed,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    PoolChanged,
    RunTimesUpdated,
    TimePassed,
)
from sia.forecasts import RunTimes
from sia.limits import NEVER
from sia.model import Estimate, FutureJob, Load
from sia.policies.queues.fcfs import Fcfs
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from tests.support.budget import budget
from tests.support.builders import SMALL, job, play_out, pools, random_workload, revealed, starts
from tests.support.cores import POLICIES, PREEMPTING, on_cue, playing, random_quotas, running

# Events of one instant


def shuffled(rng, events):
    """Kinds of events in any order; those of one kind stay in theirs."""
    kinds = [type(event) for event in events]
    rng.shuffle(kinds)
    of_kind = {kind: iter([event for event in events if type(event) is kind]) for kind in kinds}
    return [next(of_kind[kind]) for kind in kinds]


@pytest.mark.parametrize("policy", POLICIES + PREEMPTING)
def test_the_order_of_events_of_one_instant_changes_nothing(policy):
    mixed = 0
    for seed in range(budget(ci=30, soak=500)):
        rng = Random(seed)
        workload = random_workload(rng)
        _, instants = playing(policy, *workload, random_quotas(rng, *workload))
        again = Core(workload.pools, policy(), SMALL)
        for now, events, decisions in instants:
            told = shuffled(rng, events)
            mixed += told != events
            assert again.step(now, told) == decisions, f"seed {seed} at {now}"
    assert mixed > 100


def test_an_arrival_uses_gpus_that_are_freed_at_the_same_instant():
    core = Core(pools(a=1), Fcfs(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("one").runs(5).job, 5.0)])
    decisions = core.step(
        5.0, [JobSubmitted(5.0, job("two").at(5).runs(5).job, 5.0), JobFinished(5.0, "one")]
    )
    assert [decision.job_id for decision in decisions] == ["two"]


def test_a_submission_and_its_cancellation_may_come_at_one_instant():
    core = Core(pools(a=1), Fcfs(), SMALL)
    arrives = JobSubmitted(0.0, job("j").runs(1).job, 1.0)
    assert core.step(0.0, [JobCancelled(0.0, "j"), arrives]) == []
    core.check()
    assert core.state.jobs == {}


# Jobs that are withdrawn


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_behind_a_withdrawn_one_starts_in_its_place(policy):
    story = [
        job("runs").gpus(2).runs(10),
        job("wide").gpus(2).runs(1),
        job("behind").gpus(1).runs(30),
    ]
    core = Core(pools(a=2), policy(), SMALL)
    core.step(0.0, [revealed(pools(a=2), story)] if policy.needs.future else [])
    for arrival in story:
        core.step(0.0, [JobSubmitted(0.0, arrival.job, arrival.duration)])
    assert set(running(core)) == {"runs"}
    core.step(5.0, [JobCancelled(5.0, "wide")])
    core.check()
    assert core.state.pools["a"].pending_width == 1
    core.step(10.0, [JobFinished(10.0, "runs")])
    core.check()
    assert set(running(core)) == set(core.state.jobs) == {"behind"}


@pytest.mark.parametrize("policy", POLICIES + PREEMPTING)
def test_jobs_end_and_are_withdrawn_at_any_time(policy):
    for seed in range(budget(ci=30, soak=500)):
        rng = Random(seed)
        workload = random_workload(rng)
        core = Core(workload.pools, policy(), SMALL)
        core.step(0.0, [revealed(*workload)] if policy.needs.future else [])
        for arrival in workload.arrivals:
            now = arrival.job.submit
            ended = {job_id for job_id in running(core) if rng.random() < 0.3}
            gone = {i for i in core.state.jobs if i not in running(core) and rng.random() < 0.3}
            core.step(
                now,
                [
                    *(JobFinished(now, job_id) for job_id in sorted(ended)),
                    *(JobCancelled(now, job_id) for job_id in sorted(gone)),
                    JobSubmitted(now, arrival.job, arrival.duration),
                ],
            )
            core.check()
            assert not core.state.jobs.keys() & (ended | gone), f"seed {seed} at {now}"


# Wakes


def test_a_wake_up_is_requested_once():
    core = Core(pools(a=1), Sia(), SMALL)
    both = [JobSubmitted(0.0, job(name).runs(50).job, 50.0) for name in ("one", "two")]
    assert core.step(0.0, both)[-1] == WakeAt(5.0)
    assert core.step(3.0, []) == []
    assert core.step(5.0, [TimePassed(5.0)]) == [WakeAt(10.0)]


def test_a_playout_ends_though_a_job_waits_that_can_never_start():
    story = [job("narrow").runs(5), job("wide").gpus(2).runs(200)]
    played = play_out(Sia, pools(a=1), story)
    assert starts(played) == {"narrow": 0}


def test_a_wake_up_that_has_passed_may_be_requested_again():
    core = on_cue(job("j").runs(9), a=4)
    core.policy.cues.append(Wake(5.0))
    assert core.step(1.0, []) == [WakeAt(5.0)]
    core.policy.cues.append(Wake(9.0))
    assert core.step(5.0, [TimePassed(5.0)]) == [WakeAt(9.0)]
    core.policy.cues.append(Wake(13.0))
    assert core.step(9.0, [TimePassed(9.0)]) == [WakeAt(13.0)]


def test_a_playout_waits_for_later_events(monkeypatch):
    monkeypatch.setattr(playout, "MAX_IDLE_WAKES", 100)
    grown = 1_000 * SMALL.tick
    owned = [Pool("a", 0)]
    story = [job("early").runs(1), job("late").at(grown + 100).runs(1)]
    grows = [PoolChanged(grown, "a", 8)]
    played = play_out(Sia, owned, story, quotas=grows)
    assert starts(played) == {"early": grown, "late": grown + 100}


# New estimates


def test_a_job_that_is_thought_shorter_than_before_starts_on_spare_gpus():
    core = Core(pools(a=1, b=4), Sia(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("long").gpus(2).runs(200).job, 200.0)])
    shorter = RunTimesUpdated(1.0, [Estimate("long", 90.0)])
    (started, *_) = core.step(1.0, [shorter])
    assert (started.job_id, started.stream) == ("long", Stream.SPARE)


class SecondThoughts(RunTimes):
    """Send random estimates for all pending jobs at each instant, and correct them at once."""

    def __init__(self, durations, seed):
        self.durations, self.rng, self.waiting = durations, Random(seed), {}

    def run_time(self, job):
        self.waiting[job.id] = None
        return self.rng.choice([1.0, 10.0, 50.0, 500.0])

    def started(self, now, job):
        del self.waiting[job.id]

    def changes(self, now):
        waiting = self.rng.sample(sorted(self.waiting), len(self.waiting))
        nonsense = [Estimate(job_id, self.rng.choice([1.0, 500.0])) for job_id in waiting]
        return [*nonsense, *(Estimate(job_id, self.durations[job_id]) for job_id in waiting)]


def test_earlier_estimates_of_a_job_do_not_matter():
    for seed in range(budget(ci=60, soak=1000)):
        owned, arrivals = random_workload(Random(seed))
        durations = {arrival.job.id: arrival.duration for arrival in arrivals}
        core = Core(owned, Sia(), SMALL)
        loads = PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows)
        again = {}
        for instant in play(core, arrivals, run_times=SecondThoughts(durations, seed), loads=loads):
            core.check()
            again |= {d.job_id: instant.now for d in instant.decisions if type(d) is StartJob}
        assert again == starts(play_out(Sia, owned, arrivals)), f"seed {seed}"


def test_a_queue_does_not_grow_with_each_change_of_an_estimate():
    core = Core(pools(a=4), Sia(), SMALL)
    arrivals = [job("runs").gpus(4).runs(1e6), *(job(f"j{i}").gpus(4).runs(9) for i in range(5))]
    core.step(0.0, [JobSubmitted(0.0, told, 9.0) for told, _ in arrivals])
    for i in range(500):
        now = float(i)
        core.step(now, [RunTimesUpdated(now, [Estimate("j3", 9.0 + 50 * (i % 2))])])
    (own,) = core.policy._groups.values()
    queues = [queue for bins in own.queues.values() for bin_ in bins for queue in bin_.values()]
    assert sum(len(queue.jobs) for queue in queues) == 5
    assert sum(len(queue._order) for queue in queues) < 50


# Journals and copies


EVENTS = [
    JobSubmitted(1.0, Job("j", "a", 1.0, 2, "ann", "train"), 60.0),
    JobSubmitted(1.0, Job("k", "a", 1.0, 2, "", "", 1, 4, ((1, 60.0), (4, 20.0))), 60.0),
    JobFinished(2.5, "j"),
    JobCancelled(2.5, "j"),
    PoolChanged(3.0, "a", 8),
    ForecastUpdated(3.0, [Load("a", 0, 4)]),
    RunTimesUpdated(3.0, [Estimate("j", 90.0)]),
    FutureRevealed(0.0, [FutureJob(Job("j", "a", 1.0, 2), 60.0, NEVER)]),
    TimePassed(300.0),
]
DECISIONS = [
    StartJob("j", Stream.SPARE, "why", (("a", 1), ("b", 1))),
    MoveLoan("j", "a", "b", 1),
    PreemptJob("j", "why"),
    ResizeJob("j", 3, Stream.SPARE, "why", (("a", 3),)),
    WakeAt(300.0),
    ProposalRefused("j", "why"),
]


@pytest.mark.parametrize(("kind", "facts"), [(Event, EVENTS), (Decision, DECISIONS)])
def test_a_journal_of_events_and_decisions_is_their_json(kind, facts):
    journal = msgspec.json.encode(facts)
    assert msgspec.json.decode(journal, type=list[kind]) == facts


@pytest.mark.parametrize("policy", POLICIES + PREEMPTING)
def test_a_copy_decides_as_the_original_core(policy):
    for seed in range(20):
        workload = random_workload(Random(seed))
        log = []  # what happened at each instant, and what was decided
        copy = None
        core = Core(workload.pools, policy(), SMALL)
        facts = [revealed(*workload)] if policy is SiaVc else []
        times = PerfectRunTimes({a.job.id: a.duration for a in workload.arrivals})
        for instant in play(core, workload.arrivals, run_times=times, facts=facts):
            if copy is not None:
                assert copy.step(instant.now, instant.events) == instant.decisions, seed
            log.append(instant)
            if len(log) == 5:
                copy = core.copy()
        if copy is not None:
            copy.check()
            assert copy.state is not core.state
