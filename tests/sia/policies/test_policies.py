"""Each policy starts every job when its naive model does, and a few stories told by hand."""

from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from sia import Options, Pool, Stream
from sia.contract.proposals import Start
from sia.model import FutureJob
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.gssf import GlobalSsf
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.ssf import Ssf
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from tests.support.budget import budget
from tests.support.builders import SMALL, Workload, job, play_out, pools, random_workload, starts
from tests.support.naive import naive_policies

ROUNDS = budget(ci=40, soak=1_000)
CHECKED = 10  # one round in this many asserts all invariants after every instant


def choices(options: Options, forecast: str) -> naive_policies.Choices:
    return naive_policies.Choices(
        windows=tuple(map(int, options.windows)),
        tick=int(options.tick),
        slack=options.slack,
        priority=options.spare_priority,
        no_lending=options.no_lending,
        foreseen=forecast == "perfect",
    )


def random_choices(rng: Random, owned: list[Pool]) -> Options:
    names = [pool.name for pool in owned]
    kept = rng.sample([(name, window) for name in names for window in SMALL.windows], k=len(names))
    return replace(
        SMALL,
        slack=rng.choice([0.5, 1.0, 1.3, 2.0]),
        spare_priority={name: rng.randint(-1, 2) for name in rng.sample(names, k=len(names) // 2)},
        no_lending=frozenset(kept[: rng.randint(0, 3)]),
    )


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        (Fcfs, naive_policies.fcfs),
        (Ssf, naive_policies.ssf),
        (GlobalSsf, naive_policies.gssf),
        (MaxMin, naive_policies.mmfs),
        (SiaVc, naive_policies.sia_vc),
    ],
)
def test_a_policy_starts_every_job_when_its_naive_model_does(policy, model):
    for seed in range(ROUNDS):
        workload = random_workload(Random(seed))
        played = play_out(policy, *workload, checked=seed % CHECKED == 0)
        assert starts(played) == model(*workload.plain()), f"seed {seed}"


@pytest.mark.parametrize("forecast", ["perfect", "none"])
def test_sia_starts_every_job_when_the_algorithm_of_figures_7_and_8_does(forecast):
    model = partial(naive_policies.sia, choices=choices(SMALL, forecast))
    for seed in range(ROUNDS):
        workload = random_workload(Random(seed))
        played = play_out(Sia, *workload, forecast=forecast, checked=seed % CHECKED == 0)
        assert starts(played) == model(*workload.plain()), f"seed {seed}"


def test_sia_with_operator_settings_starts_every_job_when_the_algorithm_of_figures_7_and_8_does():
    for seed in range(ROUNDS):
        rng = Random(seed)
        workload = random_workload(rng)
        options = random_choices(rng, workload.pools)
        played = play_out(Sia, *workload, options=options, checked=seed % CHECKED == 0)
        expected = naive_policies.sia(*workload.plain(), choices(options, "perfect"))
        assert starts(played) == expected, f"seed {seed}"


def test_sia_keeps_every_invariant_whatever_the_forecasts():
    for seed in range(budget(ci=15, soak=250)):
        workload = random_workload(Random(seed))
        played = play_out(Sia, *workload, forecast="sliding-max", checked=True)
        assert len(played) == len(workload.arrivals), f"seed {seed}"


class BackfillingFcfs(Fcfs):
    def propose(self, now, changes):
        for pool in self.state.pools.values():
            for waiting in list(pool.pending.values()):
                if pool.dedicated + waiting.width <= pool.quota:
                    yield Start(waiting, Stream.DEDICATED, "jumps the queue")


class ShortestFirst(GlobalSsf):
    """Forgets that a wide job is more work."""

    def submitted(self, job):
        self._queues[job.pool.group].add((job.run_time, job.sequence, job.job.id))

    def left(self, job):
        self._queues[job.pool.group].remove((job.run_time, job.sequence, job.job.id))


class ShortestFirstInPool(Ssf):
    """The same in each pool."""

    def rank(self, job):
        return job.run_time, job.sequence, job.job.id


class FirstNameFirst(MaxMin):
    """Serves the pools by name, whatever they have."""

    def attach(self, state):
        super().attach(state)
        for lineup in self._lineups.values():
            lineup.first = lambda heads=lineup, **_: min(
                (p for p, w in heads._heads.items() if w <= p.idle),
                key=lambda pool: pool.name,
                default=None,
            )


class LendsToLongJobs(Sia):
    """Takes every job to be gone within the first window."""

    def submitted(self, job):
        job.run_time = 1.0
        super().submitted(job)


class ReservesNothing(SiaVc):
    """Starts whatever fits in what is idle."""

    def revealed(self, jobs):
        super().revealed([FutureJob(f.job, f.run_time, f.job.submit) for f in jobs])


@pytest.mark.parametrize(
    ("faulty", "model"),
    [
        (BackfillingFcfs, naive_policies.fcfs),
        (ShortestFirstInPool, naive_policies.ssf),
        (ShortestFirst, naive_policies.gssf),
        (FirstNameFirst, naive_policies.mmfs),
        (LendsToLongJobs, partial(naive_policies.sia, choices=choices(SMALL, "perfect"))),
        (ReservesNothing, naive_policies.sia_vc),
    ],
)
def test_a_naive_model_catches_a_planted_fault(faulty, model):
    workloads = [random_workload(Random(seed)) for seed in range(50)]
    caught = [w for w in workloads if starts(play_out(faulty, *w)) != model(*w.plain())]
    assert caught


def test_the_head_of_a_queue_blocks_it_in_fcfs():
    story = [
        job("runs").gpus(1).runs(10),
        job("wide").gpus(4).at(1).runs(20),
        job("narrow").gpus(1).at(2).runs(1),
    ]
    assert starts(play_out(Fcfs, pools(a=4), story)) == {"runs": 0, "wide": 10, "narrow": 30}


def test_the_least_service_blocks_its_queue_in_ssf():
    story = [
        job("runs").gpus(1).runs(10),
        job("long").gpus(1).at(1).runs(50),
        job("wide").gpus(4).at(1).runs(2),
    ]
    assert starts(play_out(Ssf, pools(a=4), story)) == {"runs": 0, "wide": 10, "long": 12}


def test_gssf_treats_all_pools_of_a_group_as_one():
    story = [
        job("both").gpus(3).runs(10),
        job("long").gpus(2).at(1).runs(50),
        job("short").gpus(2).pool("b").at(2).runs(5),
    ]
    expected = {"both": 0, "short": 10, "long": 10}
    assert starts(play_out(GlobalSsf, pools(a=3, b=1), story)) == expected


def borrower_and_owner(seconds):
    """Pool a is full and wants 4 GPUs for so long; b is idle until its own job arrives at 10."""
    return [
        job("full").gpus(4).pool("a").at(0).runs(50),
        job("borrower").gpus(4).pool("a").at(1).runs(seconds),
        job("owner").gpus(4).pool("b").at(10).runs(30),
    ]


def test_sia_lends_to_a_job_that_ends_before_the_owners_next_job_arrives():
    played = play_out(Sia, pools(a=4, b=4), borrower_and_owner(seconds=5))
    assert starts(played) == {"full": 0, "borrower": 1, "owner": 10}
    assert played["borrower"].stream == "spare"
    assert played["borrower"].loans == [(1, {"b": 4})]


def test_sia_does_not_lend_to_a_job_that_would_delay_the_owners_next_job():
    played = play_out(Sia, pools(a=4, b=4), borrower_and_owner(seconds=15))
    assert starts(played) == {"full": 0, "owner": 10, "borrower": 40}


def test_without_forecasts_sia_lends_to_that_job_and_the_owner_waits():
    played = play_out(Sia, pools(a=4, b=4), borrower_and_owner(seconds=15), forecast="none")
    assert starts(played) == {"full": 0, "borrower": 1, "owner": 16}


def test_a_job_longer_than_every_window_never_starts_spare():
    played = play_out(Sia, pools(a=4, b=4), borrower_and_owner(seconds=101)[:2])
    assert starts(played) == {"full": 0, "borrower": 50}
    assert played["borrower"].stream == "dedicated"


def test_a_job_that_becomes_first_after_a_spare_start_starts_at_the_next_tick():
    story = [
        job("runs").gpus(1).pool("a").at(0).runs(60),
        job("wide").gpus(2).pool("a").at(1).runs(5),
        job("head then").gpus(1).pool("a").at(1).runs(101),
    ]
    played = play_out(Sia, pools(a=2, b=2), story)
    assert starts(played) == {"runs": 0, "wide": 1, "head then": 5}


def figure_1():
    """Green is full and wants a long job and two short ones; orange will want its GPUs back."""
    return [
        job("J0").gpus(4).pool("green").at(0).runs(110),
        job("J1").gpus(4).pool("orange").at(0).runs(10),
        job("J2").gpus(4).pool("green").at(5).runs(90),
        job("J3").gpus(2).pool("green").at(6).runs(5),
        job("J4").gpus(2).pool("green").at(6).runs(5),
        job("J6").gpus(4).pool("orange").at(20).runs(50),
        job("J7").gpus(4).pool("orange").at(21).runs(10),
    ]


def test_figure_1_max_min_lends_to_the_long_job_and_slows_the_lender():
    played = starts(play_out(MaxMin, pools(green=4, orange=4), figure_1()))
    expected = {"J0": 0, "J1": 0, "J2": 10, "J6": 100, "J3": 110, "J4": 110, "J7": 115}
    assert played == expected


@pytest.mark.parametrize("policy", [Sia, SiaVc])
def test_figure_1_anticipation_lends_to_the_short_jobs_and_slows_nobody(policy):
    played = starts(play_out(policy, pools(green=4, orange=4), figure_1()))
    expected = {"J0": 0, "J1": 0, "J3": 10, "J4": 10, "J6": 20, "J7": 70, "J2": 80}
    assert played == expected


def lender_of_two():
    """Pool b has 4 GPUs and foresees a job of 2 in a moment; a would borrow 2."""
    return [
        job("full").gpus(2).pool("a").at(0).runs(50),
        job("borrower").gpus(2).pool("a").at(1).runs(5),
        job("owner").gpus(2).pool("b").at(4).runs(5),
    ]


def test_slack_reserves_more_gpus():
    lax = play_out(Sia, pools(a=2, b=4), lender_of_two())
    wary = play_out(Sia, pools(a=2, b=4), lender_of_two(), options=replace(SMALL, slack=1.5))
    assert (lax["borrower"].start, wary["borrower"].start) == (1, 4)


def two_borrowers(options):
    """Pools a and b are full and want the 2 GPUs that c has."""
    story = [
        job("full a").gpus(2).pool("a").at(0).runs(50),
        job("full b").gpus(2).pool("b").at(0).runs(50),
        job("of a").gpus(2).pool("a").at(1).runs(5),
        job("of b").gpus(2).pool("b").at(1).runs(5),
    ]
    played = play_out(Sia, pools(a=2, b=2, c=2), story, options=options)
    return played["of a"].start, played["of b"].start


def test_spare_gpus_are_offered_by_name_and_first_to_those_of_higher_priority():
    assert two_borrowers(SMALL) == (1, 6)
    assert two_borrowers(replace(SMALL, spare_priority={"b": 1})) == (6, 1)
    assert two_borrowers(replace(SMALL, spare_priority={"a": -1})) == (6, 1)


def test_a_pool_that_lends_nothing_for_a_window_lends_for_longer_ones():
    kept = replace(SMALL, no_lending=frozenset({("c", 5.0)}))
    assert two_borrowers(kept) == (1, 6)  # the window of 20 s offers the same GPUs
    kept = replace(SMALL, no_lending=frozenset(("c", window) for window in SMALL.windows))
    assert two_borrowers(kept) == (50, 50)


@pytest.mark.parametrize(
    "apart",
    [Pool("b", 4, share=False), Pool("b", 4, group="elsewhere")],
    ids=["alone", "elsewhere"],
)
@pytest.mark.parametrize("policy", [GlobalSsf, MaxMin, Sia, SiaVc])
def test_pools_lend_only_inside_their_group(policy, apart):
    workload = Workload([Pool("a", 4), apart], borrower_and_owner(seconds=5))
    assert starts(play_out(policy, *workload)) == {"full": 0, "owner": 10, "borrower": 50}
