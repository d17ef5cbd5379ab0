"""No promise is broken where estimates are true: random loads, costs, steps and options."""

from random import Random

import pytest

from replay.deadlines.rewards import GUARANTEED, LOST, UNGUARANTEED
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Job, Options, Pool
from sia.policies.chronus import promises
from sia.policies.chronus.book import LeaseBook
from sia.policies.chronus.promises import Promises
from sia.state.steps import PAPER_STEPS
from tests.support.budget import budget

ROUNDS = budget(ci=6, soak=1000)


def drawn(rng, pools, jobs=40):
    """A load of jobs, most of which compete for deadlines."""
    arrivals, now = [], 0.0
    for number in range(jobs):
        now += rng.choice([0.0, 60.0, 500.0, rng.uniform(0, 2000)])
        pool = rng.choice(pools)
        width = min(pool.quota, rng.choice([1, 1, 2, 3, 4, 5, 8, 12]))
        duration = rng.choice([100.0, 1200.0, 2400.0, rng.uniform(10, 9000)])
        deadline = None
        if rng.random() < 0.7:
            deadline = now + duration * rng.uniform(0.9, 4) + rng.choice([0.0, 2400.0])
        soft = rng.choice([(), (), PAPER_STEPS, ((1.0, 90.0), (2.0, 10.0))])
        cost = rng.choice([None, None, None, 0.0, 30.0, 200.0, "restart", "never"])
        user = rng.choice(["", "ann", "bob"])
        job = Job(f"j{number}", pool.name, now, width, user, deadline=deadline, soft=soft,
                  preemptible=cost)  # fmt: skip
        arrivals.append(Arrival(job, duration))
    return Trace(arrivals)


def options(rng):
    """A label with options that Chronus may have."""
    lease, be = rng.choice([(1200, 300), (600, 300), (900, 900), (1000, 250)])
    flags = [flag for flag in (":fill", ":roundup=no", ":patience=3600") if rng.random() < 0.5]
    trials = rng.choice(["0", "0", "300:floor=8", "200:capacity=8", "100:capacity=16:user=8"])
    return f"chronus:lease={lease}:be={be}:profile={trials}{''.join(flags)}"


def replayed(label, trace, pools, **settings):
    chosen = Settings([label], **settings)
    return replay_one(trace, PoolTable(pools), label, chosen, None)


def story(seed):
    """A label, a load, pools and options of the core."""
    rng = Random(seed)
    pools = [Pool(f"p{i}", rng.choice([4, 8, 10, 16, 24])) for i in range(rng.randint(1, 2))]
    trace = drawn(rng, pools)
    cost = rng.choice([0.0, 0.0, 45.0])
    asked = Options(resume_cost=cost, owners=rng.random() < 0.5)
    return options(rng), trace, pools, asked


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_guaranteed_job_misses_its_last_step_with_true_estimates(seed):
    label, trace, pools, asked = story(seed)
    schedule = replayed(label, trace, pools, options=asked)
    labels = {job_id: promised.label for job_id, promised in schedule.promises.items()}
    assert LOST not in labels.values()
    for (job, _), end in zip(trace.arrivals, schedule.ends, strict=True):
        assert end is not None or job.width > sum(pool.quota for pool in pools) - 32, job
        if labels.get(job.id) == GUARANTEED:
            assert job.step_met(end) is not None, (job, end, schedule.promises[job.id])


@pytest.mark.parametrize("most", [0, 1000])
def test_no_solver_is_asked_for_room_among_more_leases_than_it_can_search(most, monkeypatch):
    kinds, ask = [], Promises._ask

    def noted(deciding, book, question, *program):
        kinds.append(question.kind)
        return ask(deciding, book, question, *program)

    monkeypatch.setattr(Promises, "_ask", noted)
    monkeypatch.setattr(promises, "MOST_ASKED", most)
    label, trace, pools, asked = story(2)
    schedule = replayed(label, trace, pools, options=asked)
    assert ("join" in kinds) is (most > 0)
    for (job, _), end in zip(trace.arrivals, schedule.ends, strict=True):
        promised = schedule.promises.get(job.id)
        if promised is not None and promised.label == GUARANTEED:
            assert job.step_met(end) is not None


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_plan_that_is_kept_decides_as_one_that_is_made_anew_for_each_question(
    seed, monkeypatch
):
    label, trace, pools, asked = story(seed)
    kept = replayed(label, trace, pools, options=asked)
    current = LeaseBook.current

    def anew(book, now, lease):
        book._current = None
        return current(book, now, lease)

    monkeypatch.setattr(LeaseBook, "current", anew)
    made_anew = replayed(label, trace, pools, options=asked)
    assert made_anew.segments == kept.segments
    assert made_anew.promises == kept.promises


def test_jobs_without_promises_leave_nothing_behind(monkeypatch):
    """Without a question, nobody reads which jobs have changed."""
    books, reserve = {}, LeaseBook.reserve

    def seen(book):
        books[id(book)] = book
        reserve(book)

    monkeypatch.setattr(LeaseBook, "reserve", seen)
    trace = Trace([Arrival(Job(f"j{n}", "p", 60.0 * n, 1), 100.0) for n in range(50)])
    replayed("chronus:profile=0", trace, [Pool("p", 8)])
    assert books
    assert not any(book._touched for book in books.values())


def test_an_estimate_that_is_up_as_a_cycle_begins_keeps_no_gpus_from_other_promises():
    """The first job runs longer than it says; its one lease more would break the second promise."""
    pools = [Pool("p", 8)]
    long = Job("long", "p", 0.0, 8, deadline=1300.0, estimate=1200.0)
    due = Job("due", "p", 0.0, 8, deadline=2400.0, estimate=1100.0)
    trace = Trace([Arrival(long, 1500.0), Arrival(due, 1100.0)])
    schedule = replayed("chronus:profile=0", trace, pools, durations="stated")
    assert schedule.promises["long"].label == LOST
    assert schedule.promises["due"] == (GUARANTEED, 2300.0)
    assert schedule.ends == [2700.0, 2300.0]


# Where pools lend


OWNERS = Options(owners=True)


def test_without_owners_first_jobs_are_promised_any_gpus_of_the_group():
    pools = [Pool("a", 8), Pool("b", 8)]
    jobs = [Job(f"{name}{i}", name, 0.0, 8, deadline=1200.0) for name in "ab" for i in range(2)]
    trace = Trace([Arrival(job, 1200.0) for job in jobs])
    labels = replayed("chronus:profile=0", trace, pools).promises
    assert [labels[job.id].label for job in jobs] == 2 * [GUARANTEED] + 2 * [UNGUARANTEED]


def test_gpus_of_other_pools_are_not_promised():
    pools = [Pool("a", 8), Pool("b", 8)]
    twice = [Job(f"a{i}", "a", 0.0, 8, deadline=1200.0) for i in range(2)]
    owner = Job("owner", "b", 100.0, 8, deadline=2400.0)
    trace = Trace([*(Arrival(job, 1200.0) for job in twice), Arrival(owner, 1200.0)])
    schedule = replayed("chronus:profile=0", trace, pools, options=OWNERS)
    assert [schedule.promises[job.id].label for job, _ in trace.arrivals] == [
        GUARANTEED, UNGUARANTEED, GUARANTEED,
    ]  # fmt: skip
    assert schedule.ends == [1200.0, 1200.0, 2400.0]  # the second one borrows for one lease


@pytest.mark.parametrize("fill", ["", ":fill"])
def test_a_borrower_gives_gpus_back_at_the_next_cycle_even_if_it_is_shorter(fill):
    pools = [Pool("a", 8), Pool("b", 8)]
    short = [Job(f"a{i}", "a", 0.0, 8) for i in range(2)]
    owner = Job("owner", "b", 400.0, 8)
    trace = Trace([*(Arrival(job, 1000.0) for job in short), Arrival(owner, 3000.0)])
    schedule = replayed(f"chronus:profile=0{fill}", trace, pools, options=OWNERS)
    assert (schedule.ends[0], schedule.ends[2]) == (1000.0, 600.0 + 3000.0)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_at_each_cycle_borrowers_leave_owners_what_is_theirs(seed):
    """Nobody borrows at a cycle while a job waits that fits in what its pool has left."""
    rng = Random(seed)
    pools = [Pool(f"p{i}", rng.choice([4, 8, 12])) for i in range(rng.randint(2, 3))]
    trace = drawn(rng, pools, jobs=60)
    fill = rng.choice(["", ":fill"])
    schedule = replayed(f"chronus:profile=0:roundup=no{fill}", trace, pools, options=OWNERS)
    runs = [(s.job_id, s.start, s.end) for s in schedule.segments]
    jobs = {job.id: (job, end) for (job, _), end in zip(trace.arrivals, schedule.ends, strict=True)}
    never = {job.id for job, _ in jobs.values() if job.preemptible == "never"}
    quotas = {pool.name: pool.quota for pool in pools}
    for cycle in range(1, 200):
        now = cycle * 300.0
        busy = {job_id for job_id, start, end in runs if start <= now < end}
        left = dict(quotas)
        for job_id in busy:
            left[jobs[job_id][0].pool] -= jobs[job_id][0].width
        if min(left.values()) >= 0:
            continue
        for job, end in jobs.values():
            waits = job.submit <= now < (end or now + 1) and job.id not in busy | never
            best_effort = fill or schedule.promises.get(job.id, ("",))[0] != GUARANTEED
            if waits and best_effort:
                assert job.width > left[job.pool], (now, job, left)


def test_jobs_that_take_turns_by_patience_make_progress_although_stops_cost_more_than_a_cycle():
    pools = [Pool("a", 4)]
    jobs = [Job(f"j{number}", "a", 0.0, 4, preemptible=30.0) for number in range(3)]
    trace = Trace([Arrival(job, 100.0) for job in jobs])
    schedule = replayed("chronus:lease=40:be=20:profile=0:patience=50", trace, pools)
    assert None not in schedule.ends
    assert sum(schedule.stops.values()) > 0, "they did take turns"
