"""What every policy keeps to, present and to come: whatever happens, in every state.

Policies are those that are installed. Each goes through random histories of jobs of all kinds, with
stops, widths, progress, priorities, limits, lost GPUs and invalid proposals.
"""

from math import inf
from random import Random

import pytest
from msgspec.structs import replace

from sia import Core, Job
from sia.contract.policy import Policy, next_multiple
from sia.contract.proposals import (
    Lease,
    Preempt,
    Promise,
    ProposalResult,
    Reconsider,
    Reject,
    Resize,
    Solve,
    Start,
    Wake,
)
from sia.core.playout import Arrival, play
from sia.core.snapshot import decode, dump, encode, plain_params, restore
from sia.decisions import (
    JobPromised,
    JobRejected,
    PreemptJob,
    ProposalRefused,
    SolveProgram,
    StartJob,
    WakeAt,
)
from sia.events import JobProgressed, JobSubmitted, ProgramSolved, TimePassed
from sia.model import Stream
from sia.policies import load, names
from sia.program import Program, SolveLimit
from tests.support.budget import budget
from tests.support.builders import SMALL, job, pools
from tests.support.clusters.troubled import step, troubled, troubled_in_cells
from tests.support.cores import on_cue, start_dedicated

ROUNDS = budget(ci=4, soak=200)


def lived(policy, rng, story=troubled):
    """Repeat a random history step by step; yield the core after each step."""
    history = story(policy, rng)
    core = history.first.copy()
    for now, events, answer in history.steps:
        yield core, now, events, answer
        assert step(core, now, events)[1] == answer


@pytest.mark.parametrize("name", names())
def test_every_policy_keeps_all_invariants_whatever_happens(name):
    for seed in range(ROUNDS):
        for core, *_ in lived(load(name), Random(seed)):
            core.check()


@pytest.mark.parametrize("name", [name for name in names() if load(name).places])
def test_every_policy_for_cells_keeps_all_invariants_there(name):
    for seed in range(ROUNDS):
        for core, *_ in lived(load(name), Random(seed), troubled_in_cells):
            core.check()


def failing(policy, after):
    """Have the policy fail in its next pass, after so many proposals."""
    real = policy.propose

    def propose(now, changes):
        proposals, result = real(now, changes), None
        for _ in range(after):
            try:
                result = yield proposals.send(result)
            except StopIteration:
                break
        raise LookupError(policy, "lost")

    policy.propose = propose


@pytest.mark.parametrize("name", names())
def test_every_policy_continues_after_an_exception_as_after_a_restart(name):
    failed = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        for core, now, events, _ in lived(load(name), Random(seed)):
            if rng.random() > 0.1:
                continue
            broken = core.copy()
            broken.tolerate()
            failing(broken.policy, rng.randint(0, 3))
            told, _ = step(broken, now, events)
            if not any(
                isinstance(each, ProposalRefused)
                and each.impossible
                and each.why == "the policy failed in propose: LookupError: lost"
                for each in told
            ):
                continue  # one of the events is invalid
            failed += 1
            broken.check()
            policy = type(broken.policy)(broken.policy.params)
            other = restore(decode(encode(dump(broken))), policy)
            assert encode(dump(other)) == encode(dump(broken))
            later = broken.wake
            assert later <= next_multiple(now, broken.state.options.tick)
            passed = [TimePassed(later)]
            assert step(other, later, passed)[1] == step(broken, later, passed)[1], f"seed {seed}"
            broken.check()
    assert failed


@pytest.mark.parametrize("name", names())
def test_no_policy_stops_or_resizes_a_job_that_must_never_be_stopped(name):
    for seed in range(ROUNDS):
        for made in troubled(load(name), Random(seed)).steps:
            assert b'"must not be stopped"' not in made.answer, f"seed {seed} at {made.now}"


# Results


class Asks(Policy):
    """Makes the proposals of a test and keeps their results."""

    shares = True

    def __init__(self, params=None):
        super().__init__(params)
        self.cues, self.results, self.seen, self.answers = [], [], [], []

    def propose(self, now, changes):
        self.seen.append((now, [job.job.id for job in changes.expired], changes.round))
        for cue in self.cues:
            self.results.append((yield cue))
        self.cues.clear()

    def solved(self, answer):
        self.answers.append(answer)


def asking(*arrivals, policy=Asks, **quotas):
    core = Core(pools(**quotas), policy(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, each.job, each.duration) for each in arrivals])
    return core


def propose(core, now, *cues):
    core.policy.cues += cues
    decisions = core.step(now, [TimePassed(now)])
    core.check()
    return decisions


def test_a_policy_receives_the_result_of_each_proposal_and_the_pass_continues():
    core = asking(job("wide").gpus(9).runs(9), job("j").runs(9), a=2, b=2)
    wide, narrow = core.state.jobs.values()
    decisions = propose(
        core, 1.0, Start(wide, Stream.DEDICATED, "x"), Start(narrow, Stream.DEDICATED, "y")
    )
    assert core.policy.results == [ProposalResult.REFUSED, ProposalResult.DONE]
    refused, started, _ = decisions
    assert (refused.job_id, refused.impossible) == ("wide", True)
    assert (type(started), started.job_id) == (StartJob, "j")


def test_an_outdated_proposal_is_not_impossible():
    core = asking(job("early").gpus(2).runs(9), job("late").gpus(2).runs(9), a=2)
    early, late = core.state.jobs.values()
    propose(core, 1.0, Start(early, Stream.DEDICATED, "first"))
    refused = propose(core, 2.0, Start(late, Stream.DEDICATED, "planned"))[0]
    assert (refused.why, refused.impossible) == ("needs 2 GPUs, 0 idle", False)


def test_a_policy_that_repeats_a_refused_proposal_does_not_block_the_core():
    class Stubborn(Policy):
        def propose(self, now, changes):
            while True:
                yield Start(self.state.jobs["wide"], Stream.DEDICATED, "again")

    core = Core(pools(a=2), Stubborn(), SMALL)
    decisions = core.step(0.0, [JobSubmitted(0.0, Job("wide", "a", 0.0, 9), 1.0)])
    assert len([each for each in decisions if isinstance(each, ProposalRefused)]) < 10


# Leases and rounds


def test_a_policy_hears_that_a_lease_is_over_and_the_job_goes_on():
    core = asking(job("j").runs(90), a=2)
    leased = core.state.jobs["j"]
    decisions = propose(core, 1.0, Start(leased, Stream.DEDICATED, "x", until=20.0))
    assert decisions[-1] == WakeAt(20.0)
    propose(core, 10.0, Lease(leased, 30.0))
    core.step(20.0, [])
    assert core.policy.seen[-1] == (20.0, [], False)
    core.step(30.0, [TimePassed(30.0)])
    assert core.policy.seen[-1] == (30.0, ["j"], False)
    assert leased.stream is Stream.DEDICATED


def test_a_lease_ends_with_its_job():
    core = asking(job("j").runs(90), a=2)
    leased = core.state.jobs["j"]
    propose(core, 1.0, Start(leased, Stream.DEDICATED, "x", until=20.0))
    propose(core, 5.0, Preempt(leased, "y"))
    core.step(25.0, [])
    assert core.policy.seen[-1] == (25.0, [], False)
    assert core.wake == inf


def test_a_lease_cannot_end_before_it_begins():
    core = asking(job("j").runs(90), a=2)
    leased = core.state.jobs["j"]
    refused = propose(core, 1.0, Start(leased, Stream.DEDICATED, "x", until=1.0))[0]
    assert (refused.why, refused.impossible) == ("a lease cannot end at 1.0", True)
    assert leased.stream is None


class InRounds(Asks):
    round = 60.0


def test_rounds_begin_at_multiples_of_their_length_while_there_are_jobs():
    core = Core(pools(a=2), InRounds(), SMALL)
    assert core.wake == inf
    assert core.step(70.0, [JobSubmitted(70.0, job("j").runs(9).job, 9.0)]) == [WakeAt(120.0)]
    core.step(100.0, [TimePassed(100.0)])
    assert core.policy.seen[-1][2] is False
    assert core.step(120.0, [TimePassed(120.0)]) == [WakeAt(180.0)]
    assert core.policy.seen[-1][2] is True


def test_leases_and_rounds_survive_a_restart():
    core = asking(job("j").runs(90), policy=InRounds, a=2)
    propose(core, 1.0, Start(core.state.jobs["j"], Stream.DEDICATED, "x", until=70.0))
    other = restore(decode(encode(dump(core))), InRounds())
    for now in (60.0, 70.0):
        assert other.wake == core.wake == now
        assert other.step(now, [TimePassed(now)]) == core.step(now, [TimePassed(now)])
    assert other.policy.seen == core.policy.seen[-2:] == [(60.0, [], True), (70.0, ["j"], False)]


@pytest.mark.parametrize("length", [0.1, 90.1, 599.9, 2.3, 0.7])
def test_the_next_multiple_is_later_however_lengths_are_rounded(length):
    now = 0.0
    for _ in range(1000):
        following = next_multiple(now, length)
        assert now < following <= now + 2.0 * length
        now = following


def test_a_replay_ends_although_every_proposal_is_refused():
    class Hopeless(Policy):
        def propose(self, now, changes):
            for pool in changes.pools:
                if pool.head is not None:
                    yield Start(pool.head, Stream.DEDICATED, "beyond its quota")

    core = Core(pools(a=1, b=3), Hopeless(), SMALL)
    assert [*play(core, [job("wide").gpus(2).runs(9)])]
    assert core.state.waiting == 1


# Stops that cost everything


def test_jobs_that_lose_all_work_end_under_every_policy_that_stops_jobs():
    for name in ("srtf", "srsf", "las", "emmfs", "sia-recall"):
        stories = [
            Arrival(Job(f"j{i}", "a", float(i), 1, preemptible="restart"), 50_000.0)
            for i in range(3)
        ]
        core = Core(pools(a=1), load(name)(), SMALL)
        for instant in play(core, stories):
            assert instant.now < 400_000.0, name
        assert not core.state.jobs, name


def test_a_policy_takes_over_jobs_on_other_widths_than_their_own():
    """As after a change of `daemon.policy`."""
    core = Core(pools(a=4), load("emmfs")(), SMALL)
    elastic = [Job(name, "a", 0.0, 4, min_width=1, max_width=4) for name in ("one", "two")]
    core.step(0.0, [JobSubmitted(0.0, each, 100.0) for each in elastic])
    assert {each.width for each in core.state.jobs.values()} == {2}
    for name in ("srtf", "srsf", "las"):
        policy = load(name)()
        kept = replace(
            dump(core), policy=type(policy).__name__, params=plain_params(policy),
            memory=Core(pools(a=4), load(name)(), SMALL).policy.memory(),
        )  # fmt: skip
        if name == "las":
            kept = replace(
                kept, memory={"lives": [[0, 0.0, 0.0, 0.0]] * 2, "timers": [], "reranked": []}
            )
        other = restore(kept, policy)
        other.step(1.0, [JobSubmitted(1.0, Job("short", "a", 1.0, 4), 1.0)])
        other.check()


# Solvers

PROGRAM = Program(costs=(-1.0,), lows=(0.0,), highs=(1.0,), whole=(True,))
LIMIT = SolveLimit(seconds=1.0, nodes=10, iterations=100)


def test_an_answer_reaches_the_policy_unless_it_is_to_an_older_question():
    core = asking(a=1)
    first, second = (propose(core, now, Solve(PROGRAM, LIMIT))[0] for now in (1.0, 2.0))
    assert first == SolveProgram(1, PROGRAM, LIMIT)
    assert second.request == 2
    answers = [ProgramSolved(3.0, request, "optimal", (1.0,)) for request in (1, 2, 2)]
    for answer in answers:
        core.step(3.0, [answer])
    assert core.policy.answers == [answers[1]]


def test_an_open_question_is_still_open_after_a_restart():
    core = asking(a=1)
    propose(core, 1.0, Solve(PROGRAM, LIMIT))
    other = restore(decode(encode(dump(core))), Asks())
    answer = ProgramSolved(3.0, 1, "feasible", (1.0,))
    other.step(3.0, [answer])
    assert other.policy.answers == [answer]


# The rest of the language


@pytest.mark.parametrize(("cue", "why"), [
    (Wake(2.0), "cannot wake at 2.0"), (Wake(float("nan")), "cannot wake at nan"),
    (Solve(replace(PROGRAM, lows=()), LIMIT), "not a program"),
    (Solve(PROGRAM, replace(LIMIT, nodes=0)), "not a program"),
])  # fmt: skip
def test_an_invalid_proposal_is_refused_without_effect_on_others(cue, why):
    core = asking(job("j").runs(9), a=1)
    start = Start(core.state.jobs["j"], Stream.DEDICATED, "x")
    refused, started, *_ = propose(core, 2.0, cue, start)
    assert refused.why.startswith(why)
    assert refused.impossible
    assert started.job_id == "j"


def test_a_job_without_a_promise_stays_in_its_queue():
    core = asking(job("j").runs(9), a=1)
    decisions = propose(core, 1.0, Reject(core.state.jobs["j"], "no room before its deadline"))
    assert decisions == [JobRejected("j", "no room before its deadline")]
    assert core.state.jobs["j"].stream is None


@pytest.mark.parametrize("step", [-1, 1])
def test_only_steps_that_a_deadline_has_are_promised(step):
    core = asking(Arrival(Job("due", "a", 0.0, 1, deadline=50.0), 9.0), a=1)
    due = core.state.jobs["due"]
    refused, promised = propose(core, 1.0, Promise(due, step, 9.0), Promise(due, 0, 9.0))[:2]
    assert (refused.why, refused.impossible) == (f"its deadline has no step {step}", True)
    assert promised == JobPromised("due", 0, 9.0)


def test_a_policy_may_ask_to_look_at_a_pool_again():
    core = asking(a=1, b=1)
    propose(core, 1.0, Reconsider(core.state.pools["b"]))
    assert [pool.name for pool in core.state.dirty] == ["b"]


@pytest.mark.parametrize("cue", [
    lambda job: Preempt(job, "x"), lambda job: Resize(job, 1, Stream.DEDICATED, "x"),
])  # fmt: skip
def test_a_proposal_to_stop_a_job_that_must_never_be_stopped_is_refused(cue):
    core = on_cue(a=4)
    never = Job("never", "a", 0.0, 2, min_width=1, preemptible="never")
    core.step(0.0, [JobSubmitted(0.0, never, 9.0)])
    start_dedicated(core, "never")
    core.policy.cues.append(cue(core.state.jobs["never"]))
    assert core.step(1.0, [])[0].why == "must not be stopped"


@pytest.mark.parametrize(("cost", "left", "pause"), [
    (None, 4.0, 0.0), (1.0, 4.0, 1.0), (100.0, 4.0, 4.0), ("restart", 0.0, 0.0),
])  # fmt: skip
def test_a_stop_costs_what_the_job_says_and_at_most_what_it_has_done(cost, left, pause):
    core = on_cue(a=1)
    core.step(0.0, [JobSubmitted(0.0, Job("j", "a", 0.0, 1, preemptible=cost), 9.0)])
    start_dedicated(core, "j")
    stopped = core.state.jobs["j"]
    core.policy.cues.append(Preempt(stopped, "x"))
    assert isinstance(core.step(4.0, [])[0], PreemptJob)
    assert stopped.done == left
    start_dedicated(core, "j")
    assert stopped.overhead == pause


def test_reported_progress_replaces_the_progress_by_the_clock():
    core = on_cue(a=1)
    core.step(0.0, [JobSubmitted(0.0, Job("j", "a", 0.0, 1), 100.0)])
    start_dedicated(core, "j")
    running = core.state.jobs["j"]
    core.step(10.0, [JobProgressed(10.0, "j", 20.0, 2.0, 60.0, 1)])
    assert (running.work(15.0), running.end(running.run_time)) == (30.0, 30.0)
    assert (running.start, running.regime) == (0.0, 1)


def test_a_reported_speed_outlasts_a_stop():
    core = on_cue(a=1)
    core.step(0.0, [JobSubmitted(0.0, Job("j", "a", 0.0, 1), 100.0)])
    start_dedicated(core, "j")
    job = core.state.jobs["j"]
    core.step(10.0, [JobProgressed(10.0, "j", 20.0, 2.0)])
    core.policy.cues.append(Preempt(job, "x"))
    core.step(10.0, [])
    start_dedicated(core, "j")
    assert job.end(job.run_time) == 50.0


def test_a_job_that_reports_a_slow_speed_is_not_stopped_and_started_forever():
    """It would rank as slow while it runs and as fast while it waits."""
    core = Core(pools(a=1), load("srtf")(), SMALL)
    jobs = [JobSubmitted(0.0, Job(name, "a", 0.0, 1), 100.0) for name in ("slow", "other")]
    core.step(0.0, jobs)
    core.step(1.0, [JobProgressed(1.0, "slow", 1.0, 0.1)])
    assert core.state.jobs["slow"].stream is None
    for now in (2.0, 3.0, 4.0):
        assert not core.step(now, [TimePassed(now)])
