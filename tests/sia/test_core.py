"""What the core refuses, and what its checks see."""

from math import inf, nan

import pytest

from sia import Core, Pool, Stream
from sia.contract.proposals import Start
from sia.decisions import ProposalRefused, StartJob, WakeAt
from sia.events import (
    ForecastUpdated,
    FutureRevealed,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    PoolChanged,
    RunTimesUpdated,
)
from sia.limits import MAX_QUOTA
from sia.model import Estimate, FutureJob, Load
from sia.policies.queues.fcfs import Fcfs
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from sia.state.state import JobState
from tests.support.builders import SMALL, job, pools, revealed
from tests.support.cores import on_cue, photograph, refusals, start_dedicated, start_spare

# What a policy may not do


def test_a_job_does_not_start_twice():
    core = on_cue(job("j").runs(9), a=4)
    running = core.state.jobs["j"]
    start_dedicated(core, "j")
    before = photograph(core)
    for stream in Stream:
        core.policy.cues.append(Start(running, stream, "again"))
        assert refusals(core.step(0.0, [])) == [ProposalRefused("j", "not pending")]
        assert photograph(core) == before
        core.check()


def test_a_job_that_was_never_submitted_does_not_start():
    core = on_cue(job("j").runs(9), a=4)
    stranger = JobState(job("stranger").runs(9).job, core.state.pools["a"], 9.0, arrival=1)
    before = photograph(core)
    core.policy.cues.append(Start(stranger, Stream.DEDICATED, "unheard of"))
    assert refusals(core.step(0.0, [])) == [ProposalRefused("stranger", "not pending")]
    assert photograph(core) == before
    core.check()


@pytest.mark.parametrize("start", [start_dedicated, start_spare])
def test_a_job_wider_than_what_is_idle_does_not_start(start):
    core = on_cue(job("runs").gpus(3).runs(9), job("wide").gpus(4).runs(9), a=4, b=2)
    start_spare(core, "runs")
    before = photograph(core)
    assert refusals(start(core, "wide")) == [ProposalRefused("wide", "needs 4 GPUs, 3 idle")]
    assert photograph(core) == before


def test_a_dedicated_job_does_not_exceed_its_pools_quota_though_others_are_idle():
    core = on_cue(job("runs").gpus(3).runs(9), job("wide").gpus(2).runs(9), a=4, b=4)
    start_dedicated(core, "runs")
    before = photograph(core)
    assert refusals(start_dedicated(core, "wide")) == [
        ProposalRefused("wide", "a would exceed its quota")
    ]
    assert photograph(core) == before
    assert start_spare(core, "wide") == [
        StartJob("wide", Stream.SPARE, "on cue", (("a", 1), ("b", 1)))
    ]


def test_a_refusal_affects_one_proposal_and_its_pool_is_looked_at_again():
    core = on_cue(job("fits").runs(9), job("wide").gpus(9).runs(9), job("late").runs(9), a=4)
    decisions = start_dedicated(core, "fits", "wide", "late")
    kinds = [type(decision) for decision in decisions]
    assert kinds == [StartJob, ProposalRefused, StartJob, WakeAt]
    assert [*core.state.dirty] == [core.state.pools["a"]]
    assert core.state.jobs["late"].stream is Stream.DEDICATED


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
def test_an_impossible_event_is_an_error_and_changes_nothing(impossible):
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
def test_an_impossible_estimate_is_an_error_and_changes_nothing(impossible):
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
    with pytest.raises(ValueError, match="does not accept updated estimates"):
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
        ([Pool("a", 1), Pool("a", 2)], "duplicate pool"),
        ([Pool("a", -1)], "quota must be"),
        ([Pool("a", MAX_QUOTA + 1)], "quota must be"),
        ([Pool(f"p{i}", MAX_QUOTA) for i in range(65)], "a sharing group may own at most"),
    ],
)
def test_an_impossible_cluster_is_an_error(owned, complaint):
    with pytest.raises(ValueError, match=complaint):
        Core(owned, Fcfs())


def test_a_group_does_not_grow_beyond_its_limit():
    owned = [Pool(f"p{i:02}", MAX_QUOTA) for i in range(64)] + [Pool("small", 0)]
    core = Core(owned, Fcfs(), SMALL)
    with pytest.raises(ValueError, match="sharing group"):
        core.step(0.0, [PoolChanged(0.0, "small", 1)])
    core.check()


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
def test_check_detects_an_impossible_state(corrupt):
    core = lively()
    core.check()
    corrupt(core.state)
    with pytest.raises(AssertionError):
        core.state.check()
