"""What pools may lend and borrow, who is visited first, and lending switched off."""

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Pool, Stream
from sia.contract.proposals import Resize
from sia.core.playout import play
from sia.decisions import MoveLoan, PreemptJob, ProposalRefused, ResizeJob, StartJob
from sia.events import (
    FutureRevealed,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    LendingSwitched,
    PoolChanged,
)
from sia.explain.explain import explain
from sia.explain.obstacles import Out
from sia.limits import MAX_WEIGHT, UNLIMITED
from sia.model import FutureJob
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.mmfs import MaxMin
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from tests.support.budget import budget
from tests.support.builders import (
    SMALL,
    job,
    limited,
    play_out,
    pools,
    random_workload,
    revealed,
    starts,
)
from tests.support.cores import (
    POLICIES,
    PREEMPTING,
    OnCue,
    on_cue,
    photograph,
    start_dedicated,
    start_spare,
)

SHARING = [policy for policy in [*POLICIES, *PREEMPTING, SiaRecall] if policy.shares]

# Stories


def limits(core, pool, **changed):
    """Give a pool other limits or another weight, now."""
    now = core.state.now
    decisions = core.step(now, [PoolChanged(now, pool, core.state.pools[pool].quota, **changed)])
    core.check()
    return decisions


def lent(core):
    return {pool.name: pool.lends for pool in core.state.pools.values()}


def test_a_pool_lends_no_more_than_its_limit_and_others_lend_the_rest():
    core = on_cue(job("j").gpus(6).pool("b").runs(9), a=8, b=1, c=4)
    limits(core, "a", lend_limit=2)
    loans = (("b", 1), ("c", 4), ("a", 1))
    assert start_spare(core, "j") == [StartJob("j", Stream.SPARE, "on cue", loans)]


def test_a_job_that_fits_only_beyond_a_limit_waits_and_nothing_is_decided():
    core = on_cue(job("j").gpus(6).pool("b").runs(9), job("k").pool("b").runs(9), a=8, b=1)
    limits(core, "a", lend_limit=4)
    before = photograph(core)
    assert start_spare(core, "j") == []
    assert photograph(core) == before
    assert [decision.job_id for decision in start_spare(core, "j", "k")] == ["k"]


def test_a_pool_borrows_no_more_than_its_limit_apart_from_its_own_gpus():
    core = on_cue(*(job(name).gpus(3).pool("b").runs(9) for name in "jk"), a=9, b=2)
    limits(core, "b", borrow_limit=1)
    assert len(start_spare(core, "j")) == 1
    assert start_spare(core, "k") == []
    limits(core, "b", borrow_limit=4)
    assert len(start_spare(core, "k")) == 1
    assert core.state.pools["b"].borrows == 4


def test_gpus_that_a_pool_lends_itself_do_not_count():
    core = on_cue(job("j").gpus(3).pool("a").runs(9), a=4, b=4)
    limits(core, "a", lend_limit=0)
    assert len(start_spare(core, "j")) == 1
    assert lent(core) == {"a": 0, "b": 0}


def on_loan(**changed):
    """Pool b has a guest on 2 GPUs of a; the owner needs 4 of 5."""
    core = on_cue(
        job("guest").gpus(2).pool("b").runs(9),
        job("owner").gpus(4).pool("a").runs(9),
        a=5,
        b=0,
        c=3,
        d=6,
    )
    for name in "cd":
        limits(core, name, lend_limit=0)
    start_spare(core, "guest")
    for name, limit in changed.items():
        limits(core, name, lend_limit=limit)
    return core


def test_a_loan_moves_to_a_lender_below_its_limit():
    core = on_loan(c=3)
    assert start_dedicated(core, "owner")[0] == MoveLoan("guest", "a", "c", 1)


def test_a_lender_at_its_limit_takes_a_loan_over_for_an_owner():
    core = on_loan()
    assert start_dedicated(core, "owner")[0] == MoveLoan("guest", "a", "d", 1)
    assert core.state.pools["d"].over
    assert start_spare(core, "guest")  # refused: it runs
    core.step(9.0, [JobFinished(9.0, "guest")])
    core.check()
    assert not core.committer.accounts.over


def test_a_guest_moves_to_its_own_pool_before_a_limit_is_exceeded():
    core = on_cue(
        job("guest").gpus(2).pool("b").runs(9),
        job("own").gpus(2).pool("b").runs(9),
        job("owner").gpus(4).pool("a").runs(9),
        a=4,
        b=2,
        c=6,
    )
    limits(core, "c", lend_limit=0)
    limits(core, "b", lend_limit=0)
    start_dedicated(core, "own")
    start_spare(core, "guest")
    core.step(1.0, [JobFinished(1.0, "own")])
    moved = MoveLoan("guest", "a", "b", 2)
    assert start_dedicated(core, "owner") == [
        moved,
        StartJob("owner", Stream.DEDICATED, "on cue"),
    ]


def test_a_limit_that_is_lowered_lets_loans_end_by_themselves():
    core = on_cue(*(job(name).gpus(2).pool("b").runs(9) for name in "jkl"), a=6, b=0)
    start_spare(core, "j", "k")
    assert limits(core, "a", lend_limit=3) == []
    assert start_spare(core, "l") == []
    core.step(1.0, [JobFinished(1.0, "j")])
    assert start_spare(core, "l") == []
    limits(core, "a", lend_limit=UNLIMITED)
    assert len(start_spare(core, "l")) == 1


def test_a_change_that_does_not_mention_limits_keeps_them():
    told = b'{"type":"PoolChanged","time":1.0,"pool":"a","quota":7}'
    core = Core([Pool("a", 4, lend_limit=1, borrow_limit=2, weight=3.0)], OnCue(), SMALL)
    core.step(1.0, [json.decode(told, type=PoolChanged)])
    core.check()
    pool = core.state.pools["a"]
    kept = (pool.quota, pool.lend_limit, pool.borrow_limit, pool.weight)
    assert kept == (7, 1, 2, 3.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lend_limit": -1}, "lend and borrow limits must be"),
        ({"borrow_limit": -1}, "lend and borrow limits must be"),
        ({"lend_limit": UNLIMITED + 1}, "lend and borrow limits must be"),
        ({"weight": 0.0}, "weight must be"),
        ({"weight": 2 * MAX_WEIGHT}, "weight must be"),
        ({"weight": float("nan")}, "weight must be"),
    ],
)
def test_impossible_limits_are_an_error_and_change_nothing(changed, message):
    core = on_cue(job("j").runs(9), a=4)
    with pytest.raises(ValueError, match=message):
        limits(core, "a", **changed)
    core.check()
    pool = core.state.pools["a"]
    assert (pool.lend_limit, pool.borrow_limit, pool.weight) == (UNLIMITED, UNLIMITED, 1.0)
    with pytest.raises(ValueError, match=message):
        Core([Pool("a", 4, **changed)], OnCue(), SMALL)


def test_a_job_that_is_widened_borrows_no_more_than_limits_let_it():
    core = on_cue(job("j").gpus(2).pool("b").runs(9), a=9, b=1)
    core.state.jobs["j"].job = replace(core.state.jobs["j"].job, max_width=9)
    limits(core, "a", lend_limit=3)
    start_spare(core, "j")
    widened = core.state.jobs["j"]
    core.policy.cues += [Resize(widened, 5, Stream.SPARE, "on cue")]
    assert core.step(1.0, []) == []
    core.policy.cues += [Resize(widened, 4, Stream.SPARE, "on cue")]
    assert [type(decision) for decision in core.step(1.0, [])] == [ResizeJob]
    core.check()
    core.step(2.0, [LendingSwitched(2.0, on=False)])
    core.policy.cues += [Resize(widened, 5, Stream.SPARE, "on cue")]
    assert core.step(2.0, []) == []
    core.check()


def test_the_heavier_of_two_pools_is_visited_first():
    story = [
        *(job(f"{pool}{i}").pool(pool).runs(10) for pool in "ab" for i in range(2)),
        job("full").pool("c").gpus(3).runs(5),
    ]
    owned = [Pool("a", 1), Pool("b", 1), Pool("c", 4)]
    first = play_out(MaxMin, owned, story)
    assert (first["a1"].start, first["b1"].start) == (0, 5)
    owned[1] = Pool("b", 1, weight=2.0)
    heavy = play_out(MaxMin, owned, story)
    assert (heavy["a1"].start, heavy["b1"].start) == (5, 0)


# Lending switched off


def test_with_lending_off_a_job_starts_within_its_own_pool_only():
    core = on_cue(job("own").gpus(2).runs(9), job("wide").gpus(5).runs(9), a=4, b=4)
    core.step(0.0, [LendingSwitched(0.0, on=False)])
    assert start_spare(core, "wide") == []
    assert len(start_spare(core, "own")) == 1
    core.step(1.0, [LendingSwitched(1.0, on=True)])
    assert len(start_spare(core, "wide")) == 1


def test_with_lending_off_loans_go_on_and_still_move_for_owners():
    core = on_loan(c=2, d=2)
    core.step(0.0, [LendingSwitched(0.0, on=False)])
    core.check()
    assert lent(core)["a"] == 2
    assert start_dedicated(core, "owner")[0] == MoveLoan("guest", "a", "d", 1)


def test_all_pending_jobs_are_considered_when_lending_is_on_again():
    core = Core(pools(a=1, b=4), MaxMin(), SMALL)
    core.step(0.0, [LendingSwitched(0.0, on=False)])
    assert core.step(1.0, [JobSubmitted(1.0, job("j").gpus(3).at(1).runs(9).job, 9.0)]) == []
    decisions = core.step(2.0, [LendingSwitched(2.0, on=True)])
    assert [decision.job_id for decision in decisions] == ["j"]


@pytest.mark.parametrize("policy", SHARING)
def test_spare_jobs_leave_as_many_gpus_idle_as_are_down_and_owners_get_their_turns(policy):
    wide, narrow = job("wide").gpus(7).at(1).runs(9), job("narrow").gpus(5).at(2).runs(9)
    own = job("own").pool("b").gpus(4).at(3).runs(9)
    core = Core(pools(a=1, b=8), policy(), SMALL)
    if policy.needs.future:
        later = [FutureJob(each.job, 9.0, 1e6) for each in (wide, narrow)]
        core.step(0.0, [FutureRevealed(0.0, [*later, FutureJob(own.job, 9.0, 3.0)])])
    core.step(0.0, [GpusOut(0.0, "b", 3)])
    assert started(core.step(1.0, [JobSubmitted(1.0, wide.job, 9.0)])) == []
    core.step(2.0, [JobCancelled(2.0, "wide")])
    begun = started(core.step(2.0, [JobSubmitted(2.0, narrow.job, 9.0)]))
    assert begun == [("narrow", Stream.SPARE)]
    assert started(core.step(3.0, [JobSubmitted(3.0, own.job, 9.0)])) == [("own", Stream.DEDICATED)]
    core.check()


def test_jobs_that_wait_for_gpus_start_when_these_return():
    core = Core(pools(a=1, b=4), Sia(), SMALL)
    core.step(0.0, [GpusOut(0.0, "a", 3)])
    submitted = JobSubmitted(1.0, job("j").gpus(3).at(1).runs(9).job, 9.0)
    assert started(core.step(1.0, [submitted])) == []
    (said,) = explain(core, core.state.jobs["j"]).obstacles
    assert said == Out(3)
    assert started(core.step(2.0, [GpusOut(2.0, "b", 1)])) == [("j", Stream.SPARE)]


def test_an_impossible_number_of_gpus_that_are_down_is_an_error():
    core = Core(pools(a=1, b=4), Sia(), SMALL)
    for wrong in (GpusOut(0.0, "nobody", 1), GpusOut(0.0, "a", -1), GpusOut(0.0, "a", 10**12)):
        with pytest.raises(ValueError, match="pool"):
            core.step(0.0, [wrong])


def started(decisions):
    """(Job, stream) of those that were started."""
    return [(d.job_id, d.stream) for d in decisions if isinstance(d, StartJob)]


# Random histories


class Ledger:
    """Track loans between pools from the decisions alone."""

    def __init__(self, owned):
        self.quota = {pool.name: pool.quota for pool in owned}
        self.lend = {pool.name: pool.lend_limit for pool in owned}
        self.borrow = {pool.name: pool.borrow_limit for pool in owned}
        self.lending = True
        self.out = dict.fromkeys(self.quota, 0)
        self.pool, self.width, self.loans, self.own = {}, {}, {}, {}
        self.sees = True  # who has what unused
        self.yields = self.left_alone = 0
        self.groups = {
            pool.name: {
                o.name
                for o in owned
                if o is pool or (o.share and pool.share and o.group == pool.group)
            }
            for pool in owned
        }

    def lends(self, name):
        return sum(loans.get(name, 0) for i, loans in self.loans.items() if self.pool[i] != name)

    def borrows(self, name):
        loans = [loans for i, loans in self.loans.items() if self.pool[i] == name]
        return sum(gpus for each in loans for donor, gpus in each.items() if donor != name)

    def unused(self, name):
        dedicated = sum(gpus for i, gpus in self.own.items() if self.pool[i] == name)
        used = sum(loans.get(name, 0) for loans in self.loans.values())
        return max(0, self.quota[name] - dedicated) - used

    def below(self, name, job_id):
        """GPUs that a pool has for a job without a limit in the way."""
        unused, limit = self.unused(name), self.lend[name]
        if limit is None or name == self.pool[job_id]:
            return unused
        return min(unused, limit - self.lends(name))

    def happens(self, event):
        if isinstance(event, JobSubmitted):
            self.pool[event.job.id], self.width[event.job.id] = event.job.pool, event.job.width
        elif isinstance(event, JobFinished):
            self.stops(event.job_id)
        elif isinstance(event, LendingSwitched):
            self.lending = event.on
        elif isinstance(event, GpusOut):
            self.out |= dict.fromkeys(self.groups[event.pool], event.gpus)
        elif isinstance(event, PoolChanged):
            self.quota[event.pool] = event.quota
            if event.lend_limit is not None:
                self.lend[event.pool] = event.lend_limit
            if event.borrow_limit is not None:
                self.borrow[event.pool] = event.borrow_limit

    def stops(self, job_id):
        self.loans.pop(job_id, None)
        self.own.pop(job_id, None)

    def is_decided(self, decision):
        if isinstance(decision, PreemptJob):
            self.stops(decision.job_id)
        elif isinstance(decision, MoveLoan):
            self.moves(decision)
        elif isinstance(decision, StartJob | ResizeJob):
            self.runs(decision)

    def runs(self, decision):
        """Limits hold for whatever is new; a job that gives some back may keep the rest."""
        job_id = decision.job_id
        before = self.loans.get(job_id, {})
        self.stops(job_id)
        if decision.stream is Stream.DEDICATED:
            self.own[job_id] = decision.width or self.width[job_id]
            return
        loans = dict(decision.loans)
        self.loans[job_id] = loans
        if all(gpus <= before.get(donor, 0) for donor, gpus in loans.items()):
            return
        name = self.pool[job_id]
        if self.out[name]:
            idle = sum(max(0, self.unused(other)) for other in self.groups[name])
            assert idle >= self.out[name], decision
            self.left_alone += 1
        if not loans.keys() - {name}:
            return
        assert self.lending, decision
        assert self.borrow[name] is None or self.borrows(name) <= self.borrow[name], decision
        for donor in loans.keys() - {name}:
            assert self.lend[donor] is None or self.lends(donor) <= self.lend[donor], decision

    def moves(self, decision):
        """To who is below its limit; to somebody else only where there is nobody."""
        job_id, donor = decision.job_id, decision.donor
        if self.sees and decision.gpus > self.below(donor, job_id):
            others = self.groups[donor] - {decision.previous}
            assert all(self.below(name, job_id) <= 0 for name in others), decision
            self.yields += 1
        loans = self.loans[job_id]
        loans[decision.previous] -= decision.gpus
        loans[donor] = loans.get(donor, 0) + decision.gpus


class History(NamedTuple):
    ledger: Ledger
    starts: dict[str, float]
    jobs: int
    borrowed: int


def random_facts(rng, owned, arrivals):
    """Limits and quotas that change, and lending that is off for a while; at last all as it was."""
    span = int(arrivals[-1].job.submit) + 50
    facts = []
    for time in sorted(rng.randint(0, span) for _ in range(2 * len(owned))):
        pool = rng.choice(owned)
        (other,) = limited(rng, [pool])
        quota = rng.choice([pool.quota, pool.quota, rng.randint(0, 12)])
        facts.append(changed(float(time), other, quota))
    if rng.random() < 0.5:
        off, on = sorted(rng.randint(0, span) for _ in range(2))
        facts += [LendingSwitched(float(off), on=False), LendingSwitched(float(on), on=True)]
    if rng.random() < 0.5:
        name = rng.choice(owned).name
        facts += [GpusOut(float(rng.randint(0, span)), name, rng.randint(0, 9)) for _ in range(2)]
        facts.append(GpusOut(span + 1.0, name, 0))
    facts.sort(key=lambda fact: fact.time)
    return facts + [changed(span + 1.0, pool, pool.quota) for pool in owned]


def changed(time, pool, quota):
    lend = UNLIMITED if pool.lend_limit is None else pool.lend_limit
    borrow = UNLIMITED if pool.borrow_limit is None else pool.borrow_limit
    return PoolChanged(
        time, pool.name, quota, lend_limit=lend, borrow_limit=borrow, weight=pool.weight
    )


def history(policy, seed, *, troubled=True):
    """A playout with perfect forecasts; the ledger and `check` look on."""
    rng = Random(seed)
    owned, arrivals = random_workload(rng)
    owned = limited(rng, owned)
    facts = random_facts(rng, owned, arrivals) if troubled else []
    core, ledger = Core(owned, policy(), SMALL), Ledger(owned)
    if policy.needs.future:
        changes = [fact for fact in facts if isinstance(fact, PoolChanged)]
        told = revealed(owned, arrivals, changes)
        facts = sorted([told, *facts], key=lambda fact: fact.time)
    begun, borrowed = {}, 0
    for now, events, decisions in play(
        core,
        arrivals,
        run_times=PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals}),
        loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
        facts=facts,
    ):
        for event in events:
            ledger.happens(event)
        # A job that is resized gives back what it had before loans are moved for it, and its
        # decision is the last to be told: in such a moment nobody can tell who had what unused.
        ledger.sees = not any(isinstance(decision, ResizeJob) for decision in decisions)
        for decision in decisions:
            assert not isinstance(decision, ProposalRefused), f"seed {seed} at {now}: {decision}"
            ledger.is_decided(decision)
            if isinstance(decision, StartJob):
                begun.setdefault(decision.job_id, now)
        core.check()
        states = core.state.pools.values()
        assert [pool.lends for pool in states] == [ledger.lends(pool.name) for pool in states]
        assert [pool.borrows for pool in states] == [ledger.borrows(pool.name) for pool in states]
        borrowed += sum(pool.borrows for pool in states)
    return History(ledger, begun, len(arrivals), borrowed)


@pytest.mark.parametrize("policy", SHARING)
@settings(max_examples=budget(ci=36, soak=600), derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_limits_hold_whatever_happens_and_every_job_runs(policy, seed):
    played = history(policy, seed)
    assert len(played.starts) == played.jobs


def test_the_drawn_histories_contain_every_kind_of_event():
    """Or else the test above would show little."""
    played = [history(MaxMin, seed) for seed in range(budget(ci=60, soak=300))]
    assert sum(each.borrowed > 0 for each in played) > 20
    assert sum(each.ledger.yields > 0 for each in played) > 5
    assert sum(each.ledger.left_alone > 0 for each in played) > 10


@pytest.mark.parametrize("policy", [Sia, SiaRecall])
def test_with_perfect_forecasts_no_limit_is_exceeded(policy):
    count = budget(ci=30, soak=200)
    played = [history(policy, seed, troubled=False) for seed in range(count)]
    assert sum(each.ledger.yields for each in played) == 0
    assert sum(each.borrowed > 0 for each in played) > count // 3


def without_loans(owned):
    """Each of the ways to have nobody lend anything."""
    yield [replace(pool, lend_limit=0) for pool in owned], []
    yield [replace(pool, borrow_limit=0) for pool in owned], []
    yield owned, [LendingSwitched(0.0, on=False)]


@pytest.mark.parametrize("forecast", ["perfect", "none"])
def test_sia_decides_as_fcfs_if_no_pool_may_lend(forecast):
    for seed in range(budget(ci=36, soak=300)):
        owned, arrivals = random_workload(Random(seed))
        baseline = starts(play_out(Fcfs, owned, arrivals))
        for pools_, facts in without_loans(owned):
            played = play_out(
                Sia, pools_, arrivals, forecast=forecast, quotas=facts, checked=seed % 10 == 0
            )
            assert starts(played) == baseline, f"seed {seed}"
