"""The cloud that is made up after §2: does it look like Figs. 2 and 3, and is its loop closed?"""

import os
import subprocess
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from math import log2
from statistics import correlation, fmean, median

import pytest

from replay.profile.profile import in_short, over_pools, shape_of
from replay.run.closed_loop import ClosedLoop
from replay.run.output import write_trace
from replay.run.run import Settings, replay_one
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from replay.synthetic.paper import DAY, MINUTE, PRESETS, synthesize
from sia.console.errors import UserError
from sia.limits import WINDOWS
from tests.support.budget import budget
from tests.support.shell import sia

SMALL = Cloud(pools=16, days=21.0)
SEEDS = budget(ci=(1,), soak=(1, 2, 3))

pytestmark = pytest.mark.xdist_group("cloud")  # in one process, which makes each cloud once

each_seed = pytest.mark.parametrize("seed", SEEDS)


@cache
def made(seed):
    return make_cloud(SMALL, seed)


@cache
def shape(seed):
    return shape_of(*made(seed))


@cache
def alone(seed):
    """First come, first served in each pool."""
    return replay_one(*made(seed), "fcfs", Settings(["fcfs"]), None)


def bursts_of(trace):
    """Positions of the jobs of each user's bursts, in the order in which they came."""
    bursts = defaultdict(lambda: defaultdict(list))
    for i, (job, _) in enumerate(trace.arrivals):
        bursts[job.user][int(job.id.split("-")[2][1:])].append(i)
    return {user: [own[n] for n in sorted(own)] for user, own in bursts.items()}


# Figs. 2 and 3


@each_seed
def test_half_of_the_gpus_idle_and_that_varies_by_the_hour(seed):
    facts, short = shape(seed), in_short(shape(seed))
    assert 33 < facts["utilisation_pct"] < 67
    assert 33 < short["hourly_p50"] < 67
    assert short["hourly_p95"] - short["hourly_p5"] > 30


def test_pools_are_of_all_sizes_and_the_larger_are_not_used_more():
    pools = [pool for seed in SEEDS for pool in shape(seed)["pools"].values()]
    sizes = [log2(pool["gpus"]) for pool in pools]
    assert min(sizes) < 3
    assert max(sizes) > 7
    used = [pool["utilisation_pct"] for pool in pools]
    assert abs(correlation(sizes, used)) < 0.3
    assert min(used) < 25
    assert max(used) > 70


def test_a_pool_comes_close_to_the_load_that_was_drawn_for_it():
    few = Cloud(pools=6, days=14.0, load=(0.3, 0.3))
    facts = shape_of(*make_cloud(few, 5))
    used = [pool["utilisation_pct"] for pool in facts["pools"].values()]
    assert all(20 < share < 40 for share in used), used
    assert fmean(used) == pytest.approx(30, abs=5)


@each_seed
def test_more_arrives_in_five_minutes_than_the_whole_pool_owns(seed):
    assert in_short(shape(seed))["burst_over_100_pct"] > 50


def test_bursts_differ_between_pools():
    largest = [share for seed in SEEDS for share in over_pools(shape(seed), "burst_pct")]
    assert min(largest) < 80
    assert 300 < max(largest) <= 700  # two bursts may meet


@each_seed
def test_few_jobs_run_far_longer_than_most(seed):
    assert in_short(shape(seed))["ratio_over_10_pct"] > 50
    durations = [duration for _, duration in made(seed)[0].arrivals]
    assert MINUTE <= min(durations) < 5 * MINUTE
    assert 2 * DAY < max(durations) <= 5 * DAY


@each_seed
def test_times_between_arrivals_are_skewed(seed):
    assert over_pools(shape(seed), "gap_cv")[0] > 1  # a Poisson process has 1
    assert in_short(shape(seed))["gap_cv"] > 2


def test_most_pools_have_one_width_and_some_do_not():
    widths = [count for seed in SEEDS for count in over_pools(shape(seed), "widths")]
    assert widths.count(1) > len(widths) / 2
    assert max(widths) > 2


def test_every_quota_suits_the_width_of_its_pool():
    for seed in SEEDS:
        trace, table = made(seed)
        widths = defaultdict(Counter)
        for job, _ in trace.arrivals:
            widths[job.pool][job.width] += 1
        for pool in table.pools:
            assert max(widths[pool.name]) <= pool.quota / 2
            if len(widths[pool.name]) <= 2:
                assert pool.quota % widths[pool.name].most_common(1)[0][0] == 0


# People


@each_seed
def test_jobs_come_soon_after_others_end(seed):
    facts = shape(seed)
    by_pool = [pool["soon_pct"] - pool["soon_control_pct"] for pool in facts["pools"].values()]
    assert median(by_pool) > 15
    assert sum(more > 5 for more in by_pool) > 0.8 * len(by_pool)


def test_users_sleep_and_have_weekends():
    submits = [job.submit for seed in SEEDS for job, _ in made(seed)[0].arrivals]
    by_day = Counter(int(submit // DAY) % 7 for submit in submits)
    assert max(by_day[5], by_day[6]) < min(by_day[day] for day in range(5))
    by_user = defaultdict(list)
    for seed in SEEDS:
        for job, _ in made(seed)[0].arrivals:
            by_user[seed, job.user].append(job.submit % DAY)
    busy = [times for times in by_user.values() if len(times) > 100]
    rest = [longest_rest(times) for times in busy]
    assert sum(hours > 7 for hours in rest) > 0.5 * len(rest)  # people
    assert sum(hours < 5 for hours in rest) > 0.1 * len(rest)  # programs


def longest_rest(times):
    """Hours of the day, at a stretch, in which a user never submits."""
    times = sorted(times)
    gaps = [b - a for a, b in pairwise([*times, times[0] + DAY])]
    return max(gaps) / 3600


def test_a_user_belongs_to_one_pool_and_a_pool_has_several():
    trace, table = made(1)
    pools = defaultdict(set)
    for job, _ in trace.arrivals:
        pools[job.user].add(job.pool)
    assert all(len(own) == 1 for own in pools.values())
    users = Counter(next(iter(own)) for own in pools.values())
    assert all(users[pool.name] >= 2 for pool in table.pools)


@each_seed
def test_jobs_of_one_tag_are_alike(seed):
    kinds = defaultdict(set)
    durations = defaultdict(list)
    for job, duration in made(seed)[0].arrivals:
        kinds[job.name].add((job.user, job.width))
        durations[job.name].append(duration)
    assert all(len(kind) == 1 for kind in kinds.values())
    large = [own for own in durations.values() if len(own) >= 20]
    alike = [sum(d / 2 < median(own) < d * 2 for d in own) / len(own) for own in large]
    assert median(alike) > 0.85


@each_seed
def test_a_tag_foretells_a_duration_better_than_its_pool(seed):
    by_tag = hits(made(seed)[0], alone(seed), lambda job: job.name)
    by_pool = hits(made(seed)[0], alone(seed), lambda job: job.pool)
    assert by_tag > by_pool + 0.15
    assert by_tag > 0.75


def hits(trace, schedule, kind):
    """How often the bin (§5.4.2) is that of the median of the ended jobs of its kind.

    Of jobs of whose tag and pool five have ended when they come.
    """
    ended = defaultdict(list)
    right = judged = 0
    events = sorted(
        [(end, 0, i) for i, end in enumerate(schedule.ends)]
        + [(job.submit, 1, i) for i, (job, _) in enumerate(trace.arrivals)]
    )
    for _, is_submission, i in events:
        job, duration = trace.arrivals[i]
        if not is_submission:
            ended["tags", job.name].append(duration)
            ended[kind(job)].append(duration)
        elif len(ended["tags", job.name]) >= 5:
            judged += 1
            right += bin_of(median(ended[kind(job)])) == bin_of(duration)
    assert judged > 500
    return right / judged


def bin_of(seconds):
    return bisect_left(WINDOWS, seconds)


# The closed loop


@each_seed
def test_a_burst_comes_after_the_last_of_its_users_jobs_has_ended(seed):
    trace, _ = made(seed)
    followed = 0
    for bursts in bursts_of(trace).values():
        for before, after in pairwise(bursts):
            last = max(alone(seed).ends[i] for i in before)
            assert last <= trace.arrivals[after[0]].job.submit + 0.0005  # as rounded
            followed += 1
    assert followed > 200


@each_seed
def test_a_replay_in_a_closed_loop_shifts_nothing(seed):
    trace, table = made(seed)
    loop = ClosedLoop(trace, alone(seed))
    assert len(loop.without_predecessor) < 0.2 * len(trace.arrivals)
    schedule = replay_one(trace, table, "fcfs", Settings(["fcfs"]), None, None, loop)
    effective, schedule = loop.effective(schedule)
    assert what_became(effective, schedule) == what_became(trace, alone(seed))


def what_became(trace, schedule):
    """By id: jobs of two pools that came in one millisecond may change places."""
    rows = zip(trace.arrivals, schedule.starts, schedule.ends, strict=True)
    return {arrival.job.id: (arrival, start, end) for arrival, start, end in rows}


# The same seed, the same bytes


def test_no_hash_seed_changes_a_byte():
    script = (
        "from replay.synthetic.cloud import make_cloud\n"
        "from replay.synthetic.cloud_parameters import Cloud\n"
        "print(make_cloud(Cloud(pools=4, days=7.0), 7))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": "2"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert len(other) > 10_000
    # The hash seed of this process is random.
    assert other == f"{make_cloud(Cloud(pools=4, days=7.0), 7)}\n"


def test_another_seed_is_another_cloud_and_more_pools_leave_the_first_as_they_are():
    few, more = (make_cloud(Cloud(pools=n, days=5.0), 3) for n in (2, 4))
    assert more[1].pools[:2] == few[1].pools
    assert [a for a in more[0].arrivals if a.job.pool in ("p0", "p1")] == few[0].arrivals
    assert make_cloud(Cloud(pools=2, days=5.0), 4)[0].arrivals != few[0].arrivals


# The command


def test_the_command_writes_the_cloud_and_a_replay_reads_it(tmp_path):
    done = sia("trace", "synth", "--preset", "cloud", "--seed", 2, "--days", 3, "--pools", 3,
               "--out", tmp_path / "cloud")  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace, _ = make_cloud(Cloud(pools=3, days=3.0), 2)
    write_trace(tmp_path / "expected.csv", trace)
    written = tmp_path / "cloud" / "trace.csv"
    assert written.read_bytes() == (tmp_path / "expected.csv").read_bytes()
    assert f"{len(trace.arrivals):,} jobs in 3 pools" in done.stdout
    replayed = sia("replay", "--trace", written, "--pools", tmp_path / "cloud" / "pools.csv",
                   "--policy", "fcfs,sia", "--out", tmp_path / "out")  # fmt: skip
    assert replayed.returncode == 0, replayed.stderr


def test_the_papers_presets_are_as_they_were(tmp_path):
    done = sia("trace", "synth", "--preset", "base", "--seed", 7, "--out", tmp_path / "base")
    assert done.returncode == 0, done.stderr
    write_trace(tmp_path / "expected.csv", synthesize(PRESETS["base"], 7, 3.0)[0])
    written = tmp_path / "base" / "trace.csv"
    assert written.read_bytes() == (tmp_path / "expected.csv").read_bytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--preset", "base", "--pools", 4], "--pools 4: works only with --preset cloud"),
        (["--preset", "cloud", "--pools", 0], "0 is not in the range"),
        (["--preset", "cloud", "--days", 0], "0.0 is not in the range"),
        (["--preset", "cloud", "--days", "nan"], "'--days': nan: write a number, like 0.5"),
        (["--preset", "cloud", "--days", "inf"], "'--days': inf: write a number, like 0.5"),
        (["--days", 1e9], "give fewer days"),
        (["--preset", "cloud", "--pools", 10**7, "--days", 0.01], "make at most 10000000"),
        (["--preset", "cloud", "--pools", 1, "--days", 1e-6], "no job was submitted in that time"),
    ],
)
def test_an_impossible_cloud_is_refused_in_one_line(tmp_path, options, says):
    done = sia("trace", "synth", *options, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_cloud_without_a_job_is_refused():
    with pytest.raises(UserError, match="make it longer"):
        make_cloud(Cloud(pools=1, days=1e-6), 1)
