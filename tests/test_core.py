"""What the core refuses, what it lends, and what may change under it."""

from math import inf, nan
from random import Random

import msgspec
import pytest
from builders import SMALL, job, play_out, pools, random_workload, revealed, starts

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Job, Pool, Stream
from sia.decisions import Decision, MoveLoan, PreemptJob, Refused, ResizeJob, StartJob, WakeAt
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
from sia.limits import MAX_QUOTA, NEVER
from sia.model import Estimate, FutureJob, Load
from sia.playout import play
from sia.policies import Policy, Preempt, Resize, Start
from sia.policies.easy import Easy
from sia.policies.emmfs import ElasticMaxMin
from sia.policies.fcfs import Fcfs
from sia.policies.gssf import GlobalSsf
from sia.policies.hived import HiveD
from sia.policies.las import Las
from sia.policies.mmfs import MaxMin
from sia.policies.sia import Sia
from sia.policies.sia_vc import SiaVc
from sia.policies.sjf import Sjf
from sia.policies.srsf import Srsf
from sia.policies.srtf import Srtf
from sia.policies.ssf import Ssf
from sia.policies.themis import Themis
from sia.state import JobState

POLICIES = [Fcfs, Ssf, GlobalSsf, MaxMin, Sia, SiaVc, Sjf, Easy, HiveD, Themis]
PREEMPTING = [Srtf, Srsf, Las, ElasticMaxMin]


class OnCue(Policy):
    """Proposes what the test tells it to, however foolish."""

    shares = True

    def __init__(self):
        self.cues = []

    def propose(self, _now):
        while self.cues:
            yield self.cues.pop(0)


def on_cue(*arrivals, **quotas):
    """A core that starts nothing by itself, to which these jobs have been submitted."""
    core = Core(pools(**quotas), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, arrival.job, arrival.duration) for arrival in arrivals])
    return core


def propose(core, stream, *job_ids):
    core.policy.cues += [Start(core.state.jobs[job_id], stream, "on cue") for job_id in job_ids]
    decisions = core.step(core.state.now, [])
    core.check()
    return decisions


def start_dedicated(core, *job_ids):
    return propose(core, Stream.DEDICATED, *job_ids)


def start_spare(core, *job_ids):
    return propose(core, Stream.SPARE, *job_ids)


def photograph(core):
    """All that is known, as plain values."""
    state = core.state
    return (
        state.now,
        state.waiting,
        state.arrivals,
        {group.name: group.idle for group in state.groups},
        {
            pool.name: (
                pool.quota,
                pool.dedicated,
                pool.spare,
                pool.lent,
                pool.unused,
                pool.pending_width,
                list(pool.pending),
                list(pool.stopped),
                list(pool.lent_to),
                list(pool.load),
            )
            for pool in state.pools.values()
        },
        {
            job_id: (
                (job.stream, job.start, job.width, job.attempt, job.done, job.run_time),
                {p.name: gpus for p, gpus in job.loans.items()},
            )
            for job_id, job in state.jobs.items()
        },
    )


# What a policy may not do


def refusals(decisions):
    return [decision for decision in decisions if isinstance(decision, Refused)]


def test_a_job_does_not_start_twice():
    core = on_cue(job("j").runs(9), a=4)
    running = core.state.jobs["j"]
    start_dedicated(core, "j")
    before = photograph(core)
    for stream in Stream:
        core.policy.cues.append(Start(running, stream, "again"))
        assert refusals(core.step(0.0, [])) == [Refused("j", "it does not wait")]
        assert photograph(core) == before
        core.check()


def test_a_job_that_was_never_submitted_does_not_start():
    core = on_cue(job("j").runs(9), a=4)
    stranger = JobState(job("stranger").runs(9).job, core.state.pools["a"], 9.0, sequence=1)
    before = photograph(core)
    core.policy.cues.append(Start(stranger, Stream.DEDICATED, "unheard of"))
    assert refusals(core.step(0.0, [])) == [Refused("stranger", "it does not wait")]
    assert photograph(core) == before
    core.check()


@pytest.mark.parametrize("start", [start_dedicated, start_spare])
def test_a_job_wider_than_what_is_idle_does_not_start(start):
    core = on_cue(job("runs").gpus(3).runs(9), job("wide").gpus(4).runs(9), a=4, b=2)
    start_spare(core, "runs")
    before = photograph(core)
    assert refusals(start(core, "wide")) == [Refused("wide", "it needs 4 GPUs, 3 are idle")]
    assert photograph(core) == before


def test_a_dedicated_job_does_not_exceed_its_pools_quota_though_others_are_idle():
    core = on_cue(job("runs").gpus(3).runs(9), job("wide").gpus(2).runs(9), a=4, b=4)
    start_dedicated(core, "runs")
    before = photograph(core)
    assert refusals(start_dedicated(core, "wide")) == [Refused("wide", "a would exceed its quota")]
    assert photograph(core) == before
    assert start_spare(core, "wide") == [
        StartJob("wide", Stream.SPARE, "on cue", (("a", 1), ("b", 1)))
    ]


def test_a_pass_ends_with_the_first_refusal_and_what_was_started_before_stays():
    core = on_cue(job("fits").runs(9), job("wide").gpus(9).runs(9), job("late").runs(9), a=4)
    decisions = start_dedicated(core, "fits", "wide", "late")
    assert [type(decision) for decision in decisions] == [StartJob, Refused, WakeAt]
    assert set(core.state.dirty) == set(core.state.pools.values())  # the next pass sees it all
    assert core.state.jobs["fits"].stream is Stream.DEDICATED
    assert core.state.jobs["late"].stream is None


# What cannot have happened


@pytest.mark.parametrize(
    "impossible",
    [
        JobSubmitted(1.0, job("new").pool("nowhere").runs(1).job, 1.0),
        JobSubmitted(1.0, job("runs").runs(1).job, 1.0),
        JobSubmitted(1.0, job("waits").runs(1).job, 1.0),
        JobSubmitted(1.0, job("new").gpus(0).runs(1).job, 1.0),
        JobSubmitted(1.0, job("new").gpus(MAX_QUOTA + 1).runs(1).job, 1.0),
        JobFinished(1.0, "waits"),
        JobFinished(1.0, "unknown"),
        JobCancelled(1.0, "runs"),
        JobCancelled(1.0, "unknown"),
        PoolChanged(1.0, "nowhere", 4),
        PoolChanged(1.0, "a", -1),
        PoolChanged(1.0, "a", MAX_QUOTA + 1),
        JobSubmitted(1.0, job("new").runs(1).job, inf),
        JobSubmitted(1.0, job("new").runs(1).job, nan),
        ForecastUpdated(1.0, [Load("a", 0, 1), Load("nowhere", 0, 4)]),
        ForecastUpdated(1.0, [Load("a", 0, 1), Load("a", len(SMALL.windows), 4)]),
    ],
    ids=repr,
)
def test_what_cannot_have_happened_is_an_error_and_changes_nothing(impossible):
    core = on_cue(job("runs").runs(9), job("waits").runs(9), a=4)
    start_dedicated(core, "runs")
    core.step(1.0, [])
    before = photograph(core)
    with pytest.raises(ValueError, match=r"\w"):
        core.step(1.0, [impossible])
    assert photograph(core) == before
    core.check()


@pytest.mark.parametrize(
    "impossible",
    [
        Estimate("runs", 7.0),
        Estimate("unknown", 7.0),
        Estimate("also waits", -1.0),
        Estimate("also waits", inf),
        Estimate("also waits", nan),
    ],
    ids=repr,
)
def test_an_estimate_that_cannot_be_is_an_error_and_changes_nothing(impossible):
    core = Core(pools(a=1), Sia(), SMALL)
    arrivals = [job("runs").runs(9), job("waits").runs(9), job("also waits").runs(9)]
    core.step(0.0, [JobSubmitted(0.0, told, seconds) for told, seconds in arrivals])
    core.step(1.0, [])
    before = photograph(core)
    with pytest.raises(ValueError, match=impossible.job_id):
        core.step(1.0, [RunTimesUpdated(1.0, [Estimate("waits", 90.0), impossible])])
    assert photograph(core) == before
    core.check()


def test_a_policy_that_does_not_ask_for_new_estimates_gets_none():
    core = Core(pools(a=1), Fcfs(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("waits").gpus(2).runs(9).job, 9.0)])
    with pytest.raises(ValueError, match="takes no new estimates"):
        core.step(1.0, [RunTimesUpdated(1.0, [Estimate("waits", 90.0)])])


@pytest.mark.parametrize("earlier", [0.0, 4.999, float("-inf"), float("nan")])
def test_time_does_not_run_backwards(earlier):
    core = on_cue(job("waits").runs(9), a=4)
    core.step(5.0, [])
    before = photograph(core)
    with pytest.raises(ValueError, match="time runs backwards"):
        core.step(earlier, [JobCancelled(earlier, "waits")])
    assert photograph(core) == before


def test_a_job_that_sia_vc_was_not_told_of_is_an_error_and_changes_nothing():
    foreseen, surprise = job("foreseen").runs(9), job("surprise").runs(9)
    core = Core(pools(a=1), SiaVc(), SMALL)
    core.step(0.0, [revealed(pools(a=1), [foreseen])])
    before = photograph(core)
    with pytest.raises(ValueError, match="surprise"):
        core.step(0.0, [JobSubmitted(0.0, surprise.job, 9.0)])
    assert photograph(core) == before
    core.check()


def test_a_future_job_of_an_unknown_pool_is_an_error_and_changes_nothing():
    known, lost = job("known").runs(9).job, job("lost").pool("nowhere").runs(9).job
    core = Core(pools(a=1), SiaVc(), SMALL)
    with pytest.raises(ValueError, match="nowhere"):
        core.step(0.0, [FutureRevealed(0.0, [FutureJob(j, 9.0, 0.0) for j in (known, lost)])])
    with pytest.raises(ValueError, match="known"):
        core.step(0.0, [JobSubmitted(0.0, known, 9.0)])


@pytest.mark.parametrize(
    ("owned", "complaint"),
    [
        ([Pool("a", 1), Pool("a", 2)], "stands twice"),
        ([Pool("a", -1)], "a quota is"),
        ([Pool("a", MAX_QUOTA + 1)], "a quota is"),
        ([Pool(f"p{i}", MAX_QUOTA) for i in range(65)], "a sharing group owns at most"),
    ],
)
def test_a_cluster_that_cannot_be_is_an_error(owned, complaint):
    with pytest.raises(ValueError, match=complaint):
        Core(owned, Fcfs())


# What check() sees


def lively():
    """A core with a dedicated job, a spare one that borrows, and one that waits."""
    core = on_cue(
        job("dedicated").gpus(2).pool("a").runs(9),
        job("spare").gpus(4).pool("b").runs(9),
        job("waits").gpus(1).pool("b").runs(9),
        a=4,
        b=3,
    )
    start_dedicated(core, "dedicated")
    start_spare(core, "spare")
    return core


def shift(attribute, by, *where):
    """Move a number of the state away from what it should be."""

    def corrupt(state):
        holder = state
        for step in where:
            holder = holder[step] if isinstance(step, int | str) else step(holder)
        setattr(holder, attribute, getattr(holder, attribute) + by)

    return corrupt


def of_pool(name, attribute, by):
    return shift(attribute, by, lambda state: state.pools[name])


def loses_a_loan(state):
    state.pools["a"].lent_to.clear()


def forgets_its_donors(state):
    state.jobs["spare"].loans.clear()


def borrows_one_more(state):
    state.jobs["spare"].loans[state.pools["a"]] += 1


def runs_while_it_waits(state):
    state.jobs["waits"].stream = Stream.DEDICATED


def waits_while_it_runs(state):
    state.jobs["dedicated"].stream = None


def changes_its_stream(state):
    state.jobs["dedicated"].stream = Stream.SPARE


def is_lost_while_it_runs(state):
    del state.jobs["dedicated"]


def is_lost_while_it_waits(state):
    del state.jobs["waits"]


def leaves_its_queue(state):
    state.pools["b"].pending.clear()


@pytest.mark.parametrize(
    "corrupt",
    [
        *(
            pytest.param(of_pool(name, attribute, by), id=f"{name}.{attribute} {by:+}")
            for attribute in ("quota", "dedicated", "spare", "lent", "unused", "pending_width")
            for name in "ab"
            for by in (1, -1)
        ),
        *(
            pytest.param(shift("idle", by, lambda state: state.groups[0]), id=f"idle {by:+}")
            for by in (1, -1)
        ),
        pytest.param(shift("waiting", 1), id="waiting +1"),
        loses_a_loan,
        forgets_its_donors,
        borrows_one_more,
        runs_while_it_waits,
        waits_while_it_runs,
        changes_its_stream,
        is_lost_while_it_runs,
        is_lost_while_it_waits,
        leaves_its_queue,
    ],
)
def test_check_sees_what_cannot_be(corrupt):
    core = lively()
    core.check()
    corrupt(core.state)
    with pytest.raises(AssertionError):
        core.state.check()


# Loans


def test_a_spare_job_takes_its_own_pools_gpus_first_then_those_of_who_has_most():
    core = on_cue(job("j").gpus(13).pool("b").runs(9), a=3, b=4, c=5, d=3)
    loans = (("b", 4), ("c", 5), ("a", 3), ("d", 1))  # a before d by name
    assert start_spare(core, "j") == [StartJob("j", Stream.SPARE, "on cue", loans)]


def test_a_pool_gets_back_what_it_lent_when_others_are_idle_the_newest_loans_first():
    core = on_cue(
        job("old").gpus(3).pool("b").runs(9),
        job("new").gpus(2).pool("b").runs(9),
        job("owner").gpus(3).pool("a").runs(9),
        a=4,
        b=1,
        c=3,
    )
    start_spare(core, "old")  # of b 1, of a 2
    core.step(1.0, [PoolChanged(1.0, "c", 1)])
    start_spare(core, "new")  # of a 2
    core.step(2.0, [PoolChanged(2.0, "c", 3)])
    assert start_dedicated(core, "owner") == [
        MoveLoan("new", "a", "c", 2),
        MoveLoan("old", "a", "c", 1),
        StartJob("owner", Stream.DEDICATED, "on cue"),
    ]
    lent = {pool.name: pool.lent for pool in core.state.pools.values()}
    assert lent == {"a": 1, "b": 1, "c": 3}


def test_a_job_that_ends_gives_back_what_it_borrowed():
    core = on_cue(job("j").gpus(5).pool("a").runs(9), a=3, b=4)
    idle = photograph(on_cue(a=3, b=4))[3:]
    start_spare(core, "j")
    core.step(9.0, [JobFinished(9.0, "j")])
    core.check()
    assert photograph(core)[3:] == idle


def test_a_loan_moves_in_a_story_that_is_played_out():
    story = [
        job("short").gpus(2).pool("c").at(0).runs(3),
        job("full").gpus(2).pool("b").at(0).runs(50),
        job("borrower").gpus(2).pool("b").at(1).runs(5),
        job("owner").gpus(3).pool("a").at(4).runs(50),
    ]
    played = play_out(MaxMin, pools(a=3, b=2, c=2), story, checked=True)
    assert played["borrower"].loans == [(1, {"a": 2}), (4, {"c": 2})]


# Quotas that change


def test_a_pool_that_shrinks_below_what_it_lends_has_others_lend_it():
    core = on_cue(job("j").gpus(3).pool("a").runs(9), a=0, b=4, c=3)
    start_spare(core, "j")
    decisions = core.step(1.0, [PoolChanged(1.0, "b", 1)])
    core.check()
    assert decisions == [MoveLoan("j", "b", "c", 2)]


def test_a_pool_that_shrinks_below_what_it_lends_when_nobody_is_idle_waits_for_an_end():
    core = on_cue(
        job("spare").gpus(3).pool("a").runs(9), job("busy").gpus(3).pool("c").runs(5), a=0, b=4, c=3
    )
    start_spare(core, "spare")
    start_dedicated(core, "busy")
    assert core.step(1.0, [PoolChanged(1.0, "b", 1)]) == []
    core.check()
    assert core.step(5.0, [JobFinished(5.0, "busy")]) == [MoveLoan("spare", "b", "c", 2)]
    core.check()


def test_a_pool_that_shrinks_below_its_running_jobs_starts_none_until_enough_have_ended():
    story = [job("one").gpus(2).runs(10), job("two").gpus(2).runs(20), job("next").runs(5)]
    shrunk = [PoolChanged(1.0, "a", 2)]
    played = play_out(Fcfs, pools(a=4), story, quotas=shrunk, checked=True)
    assert starts(played) == {"one": 0, "two": 0, "next": 20}


def test_a_pool_that_grows_starts_what_waits():
    story = [job("one").gpus(2).runs(10), job("two").gpus(2).runs(20)]
    played = play_out(Fcfs, pools(a=2), story, quotas=[PoolChanged(3.0, "a", 4)], checked=True)
    assert starts(played) == {"one": 0, "two": 3}


def random_quotas(rng, owned, arrivals):
    """Pools shrink and grow while jobs arrive; in the end each has its first quota again."""
    span = int(arrivals[-1].job.submit) + 50
    times = sorted(rng.randint(0, span) for _ in range(2 * len(owned)))
    changed = [
        PoolChanged(float(time), pool.name, rng.randint(0, 12))
        for time in times
        for pool in [rng.choice(owned)]
    ]
    return changed + [PoolChanged(span + 1.0, pool.name, pool.quota) for pool in owned]


def playing(policy, owned, arrivals, quotas):
    """A core, and its playout with perfect forecasts."""
    core = Core(owned, policy(), SMALL)
    facts = [revealed(owned, arrivals, quotas)] if policy.needs.future else []
    instants = play(
        core,
        arrivals,
        run_times=PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals}),
        loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
        facts=sorted([*facts, *quotas], key=lambda fact: fact.time),
    )
    return core, instants


def running(core):
    jobs = core.state.jobs.items()
    return {i: (job.start, job.stream, job.width) for i, job in jobs if job.stream is not None}


@pytest.mark.parametrize("policy", POLICIES)
def test_quotas_change_and_no_running_job_is_touched(policy):
    for seed in range(100):
        rng = Random(seed)
        workload = random_workload(rng)
        quotas = random_quotas(rng, *workload)
        core, instants = playing(policy, *workload, quotas)
        ran = {}
        for instant in instants:
            core.check()
            for event in instant.events:
                if isinstance(event, JobFinished):
                    del ran[event.job_id]
            runs = running(core)
            assert ran.items() <= runs.items(), f"seed {seed} at {instant.now}"
            ran = runs
        assert not core.state.jobs, f"seed {seed}: not every job has run"


# Events of one instant


def shuffled(rng, events):
    """Kinds of events in any order; those of one kind stay in theirs."""
    kinds = [type(event) for event in events]
    rng.shuffle(kinds)
    of_kind = {kind: iter([event for event in events if type(event) is kind]) for kind in kinds}
    return [next(of_kind[kind]) for kind in kinds]


@pytest.mark.parametrize("policy", POLICIES + PREEMPTING)
def test_the_order_in_which_kinds_of_events_are_told_changes_nothing(policy):
    mixed = 0
    for seed in range(100):
        rng = Random(seed)
        workload = random_workload(rng)
        _, instants = playing(policy, *workload, random_quotas(rng, *workload))
        again = Core(workload.pools, policy(), SMALL)
        for now, events, decisions in instants:
            told = shuffled(rng, events)
            mixed += told != events
            assert again.step(now, told) == decisions, f"seed {seed} at {now}"
    assert mixed > 100


def test_an_arrival_takes_what_an_end_of_the_same_instant_frees():
    core = Core(pools(a=1), Fcfs(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("one").runs(5).job, 5.0)])
    decisions = core.step(
        5.0, [JobSubmitted(5.0, job("two").at(5).runs(5).job, 5.0), JobFinished(5.0, "one")]
    )
    assert [decision.job_id for decision in decisions] == ["two"]


# Jobs that are withdrawn


@pytest.mark.parametrize("policy", POLICIES)
def test_who_waits_behind_a_withdrawn_job_starts_in_its_place(policy):
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
    for seed in range(100):
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


def test_a_wish_to_be_woken_is_said_once():
    core = Core(pools(a=1), Sia(), SMALL)
    both = [JobSubmitted(0.0, job(name).runs(50).job, 50.0) for name in ("one", "two")]
    assert core.step(0.0, both)[-1] == WakeAt(5.0)
    assert core.step(3.0, []) == []
    assert core.step(5.0, [TimePassed(5.0)]) == [WakeAt(10.0)]


def test_a_playout_ends_though_a_job_waits_that_can_never_start():
    story = [job("narrow").runs(5), job("wide").gpus(2).runs(200)]
    played = play_out(Sia, pools(a=1), story)
    assert starts(played) == {"narrow": 0}


# New estimates


def test_a_job_that_is_thought_shorter_than_before_starts_on_spare_gpus():
    core = Core(pools(a=1, b=4), Sia(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("long").gpus(2).runs(200).job, 200.0)])
    shorter = RunTimesUpdated(1.0, [Estimate("long", 90.0)])
    (started, *_) = core.step(1.0, [shorter])
    assert (started.job_id, started.stream) == ("long", Stream.SPARE)


class SecondThoughts(RunTimes):
    """At every instant says nonsense of all that wait, and takes it back in the same breath."""

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


def test_what_was_thought_of_a_job_before_does_not_matter():
    for seed in range(200):
        owned, arrivals = random_workload(Random(seed))
        durations = {arrival.job.id: arrival.duration for arrival in arrivals}
        core = Core(owned, Sia(), SMALL)
        loads = PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows)
        again = {}
        for instant in play(core, arrivals, run_times=SecondThoughts(durations, seed), loads=loads):
            core.check()
            again |= {d.job_id: instant.now for d in instant.decisions if type(d) is StartJob}
        assert again == starts(play_out(Sia, owned, arrivals)), f"seed {seed}"


def test_a_queue_does_not_grow_with_every_change_of_mind():
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
    Refused("j", "why"),
]


@pytest.mark.parametrize(("kind", "facts"), [(Event, EVENTS), (Decision, DECISIONS)])
def test_a_journal_of_events_and_decisions_is_their_json(kind, facts):
    journal = msgspec.json.encode(facts)
    assert msgspec.json.decode(journal, type=list[kind]) == facts


@pytest.mark.parametrize("policy", POLICIES + PREEMPTING)
def test_a_copy_goes_on_as_the_core_it_was_taken_from(policy):
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


def test_a_submission_and_its_cancellation_may_come_at_one_instant():
    core = Core(pools(a=1), Fcfs(), SMALL)
    arrives = JobSubmitted(0.0, job("j").runs(1).job, 1.0)
    assert core.step(0.0, [JobCancelled(0.0, "j"), arrives]) == []
    core.check()
    assert core.state.jobs == {}


def test_a_group_does_not_grow_beyond_its_limit():
    owned = [Pool(f"p{i:02}", MAX_QUOTA) for i in range(64)] + [Pool("small", 0)]
    core = Core(owned, Fcfs(), SMALL)
    with pytest.raises(ValueError, match="sharing group"):
        core.step(0.0, [PoolChanged(0.0, "small", 1)])
    core.check()


def test_a_loan_does_not_move_to_a_job_that_ends_at_the_same_instant():
    owned = [Pool("a", 8), Pool("b", 8)]
    story = [
        job("z").pool("b").gpus(4).at(0).runs(100),
        job("pre").pool("b").gpus(4).at(0).runs(10_000),
        job("y").pool("b").gpus(4).at(1).runs(200),
        job("x").pool("b").gpus(4).at(1).runs(99),
        job("late").pool("a").gpus(1).at(5000).runs(10),
    ]
    play_out(MaxMin, owned, story, quotas=[PoolChanged(50.0, "a", 0)], checked=True)


def test_a_playout_waits_for_what_is_still_to_come():
    owned = [Pool("a", 0)]
    story = [job("early").runs(1), job("late").at(4_000_100).runs(1)]
    grows = [PoolChanged(4_000_000.0, "a", 8)]
    played = play_out(Sia, owned, story, quotas=grows)
    assert starts(played) == {"early": 4_000_000.0, "late": 4_000_100.0}


# Jobs that are stopped, go on and change their width


def say(core, now, *cues):
    """Have these proposed at that time; the decisions."""
    core.policy.cues += cues
    decisions = core.step(now, [])
    core.check()
    return decisions


def test_a_job_that_is_stopped_waits_where_it_was_and_goes_on_with_its_work():
    core = on_cue(job("one").gpus(2).runs(50), job("two").gpus(2).runs(50), a=2)
    one, two = core.state.jobs["one"], core.state.jobs["two"]
    say(core, 0.0, Start(two, Stream.DEDICATED, "first"))
    decisions = say(core, 20.0, Preempt(two, "stop"), Start(one, Stream.DEDICATED, "now"))
    assert decisions == [PreemptJob("two", "stop"), StartJob("one", Stream.DEDICATED, "now")]
    assert (two.stream, two.done, core.state.pools["a"].head) == (None, 20.0, two)
    say(core, 30.0, Preempt(one, "stop"))
    assert core.state.pools["a"].head is one  # it came first
    assert [waiting.job.id for waiting in core.state.pools["a"].waiting()] == ["one", "two"]
    say(core, 30.0, Start(two, Stream.DEDICATED, "again"))
    assert (two.attempt, two.work(40.0), two.end(50.0)) == (2, 30.0, 60.0)


def test_a_job_that_stops_gives_back_what_it_borrowed():
    core = on_cue(job("j").gpus(4).runs(9), a=2, b=3)
    say(core, 0.0, Start(core.state.jobs["j"], Stream.SPARE, "go"))
    assert core.state.groups[0].idle == 1
    say(core, 1.0, Preempt(core.state.jobs["j"], "stop"))
    assert core.state.groups[0].idle == 5
    assert not core.state.pools["b"].lent_to


def test_a_job_is_withdrawn_after_it_was_stopped():
    core = on_cue(job("j").runs(9), a=2)
    say(core, 0.0, Start(core.state.jobs["j"], Stream.DEDICATED, "go"))
    say(core, 1.0, Preempt(core.state.jobs["j"], "stop"))
    core.step(2.0, [JobCancelled(2.0, "j")])
    core.check()
    assert not core.state.jobs
    assert not core.state.pools["a"].waiting()


def test_a_job_that_changes_its_width_works_as_its_demand_says():
    elastic = Job("j", "a", 0.0, 2, max_width=4, demand=((1, 100.0), (2, 60.0), (4, 40.0)))
    core = Core(pools(a=4), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    j = core.state.jobs["j"]
    say(core, 0.0, Start(j, Stream.DEDICATED, "narrow", 1))
    assert (j.width, j.speed, j.end(60.0)) == (1, 0.6, 100.0)
    decisions = say(core, 50.0, Resize(j, 4, Stream.DEDICATED, "wide"))
    assert decisions == [ResizeJob("j", 4, Stream.DEDICATED, "wide")]
    assert (j.done, j.speed, j.end(60.0)) == (30.0, 1.5, 70.0)


def test_a_wider_job_borrows_what_its_pool_has_not():
    elastic = Job("j", "a", 0.0, 2, max_width=4)
    core = Core(pools(a=2, b=2), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    j = core.state.jobs["j"]
    say(core, 0.0, Start(j, Stream.DEDICATED, "go"))
    loans = (("a", 2), ("b", 2))
    decisions = say(core, 1.0, Resize(j, 4, Stream.SPARE, "more"))
    assert decisions == [ResizeJob("j", 4, Stream.SPARE, "more", loans)]
    decisions = say(core, 2.0, Resize(j, 3, Stream.SPARE, "less"))
    assert decisions == [ResizeJob("j", 3, Stream.SPARE, "less", (("a", 2), ("b", 1)))]


@pytest.mark.parametrize(
    ("cue", "why"),
    [
        (lambda j: Preempt(j["waits"], "x"), "it does not run"),
        (lambda j: Resize(j["waits"], 1, Stream.DEDICATED, "x"), "it does not run"),
        (lambda j: Resize(j["runs"], 3, Stream.DEDICATED, "x"), "it cannot run on 3 GPUs"),
        (lambda j: Resize(j["runs"], 0, Stream.DEDICATED, "x"), "it cannot run on 0 GPUs"),
        (lambda j: Start(j["waits"], Stream.DEDICATED, "x", 2), "it cannot run on 2 GPUs"),
        (lambda j: Start(j["waits"], Stream.DEDICATED, "x", -1), "it cannot run on -1 GPUs"),
        (lambda j: Resize(j["elastic"], 7, Stream.SPARE, "x"), "it cannot run on 7 GPUs"),
        (lambda j: Resize(j["elastic"], 5, Stream.SPARE, "x"), "it needs 5 GPUs, 4 would be idle"),
        (lambda j: Resize(j["elastic"], 3, Stream.DEDICATED, "x"), "a would exceed its quota"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(cue, why):
    core = on_cue(job("runs").gpus(2).runs(9), job("waits").runs(9), a=4, b=2)
    elastic = Job("elastic", "a", 0.0, 2, min_width=1, max_width=6)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    for name in ("runs", "elastic"):
        start_dedicated(core, name)
    before = photograph(core)
    core.policy.cues.append(cue(core.state.jobs))
    assert [refused.why for refused in refusals(core.step(0.0, []))] == [why]
    assert photograph(core) == before
    core.check()


@pytest.mark.parametrize(
    "job",
    [
        Job("j", "a", 0.0, 2, min_width=3),
        Job("j", "a", 0.0, 2, max_width=1),
        Job("j", "a", 0.0, 2, demand=((2, 10.0), (1, 20.0))),
        Job("j", "a", 0.0, 2, demand=((1, 0.0),)),
        Job("j", "a", 0.0, 2, demand=((0, 5.0),)),
    ],
)
def test_widths_and_demands_that_cannot_be_are_an_error(job):
    core = Core(pools(a=4), OnCue(), SMALL)
    with pytest.raises(ValueError, match="job j"):
        core.step(0.0, [JobSubmitted(0.0, job, 1.0)])
    core.check()


def test_what_runs_already_may_be_stopped_in_a_playout():
    core = Core(pools(a=1), Srtf(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("long").runs(100).job, 100.0)])
    short = job("short").at(10).runs(5)
    ends = {
        event.job_id: now
        for now, events, _ in play(
            core, [short], run_times=PerfectRunTimes({"short": 5.0}), running=[(100.0, "long")]
        )
        for event in events
        if isinstance(event, JobFinished)
    }
    assert ends == {"short": 15.0, "long": 105.0}


class Fickle(Policy):
    """Starts each job narrow, widens it, stops it and starts it again, in one pass."""

    def propose(self, now):
        for waiting in [w for w in self.state.jobs.values() if w.stream is None]:
            yield Start(waiting, Stream.DEDICATED, "narrow", 1)
            yield Resize(waiting, 2, Stream.DEDICATED, "wide")
            yield Preempt(waiting, "no")
            yield Start(waiting, Stream.DEDICATED, "yes")


def test_a_job_that_is_moved_about_in_one_pass_ends_once():
    core = Core(pools(a=2), Fickle(), SMALL)
    ended = [
        (event.job_id, now)
        for now, events, _ in play(core, [job("j").gpus(2).runs(10)])
        for event in events
        if isinstance(event, JobFinished)
    ]
    assert ended == [("j", 10.0)]


def test_a_wish_that_has_come_may_be_wished_again():
    core = on_cue(job("j").runs(9), a=4)
    core.policy.cues.append(5.0)
    assert core.step(1.0, []) == [WakeAt(5.0)]
    core.policy.cues.append(9.0)
    assert core.step(5.0, [TimePassed(5.0)]) == [WakeAt(9.0)]
    core.policy.cues.append(9.0)
    assert core.step(9.0, [TimePassed(9.0)]) == [WakeAt(9.0)]
