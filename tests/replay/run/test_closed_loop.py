"""A closed loop: who gets results earlier submits the next jobs earlier."""

from random import Random

import pytest
from msgspec.structs import replace

from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.closed_loop import ClosedLoop
from replay.run.output import write_schedule
from replay.run.run import BASELINE, Settings, replay_all, replay_one
from replay.run.summary import summarize
from sia.core.playout import Arrival
from sia.events import PoolChanged
from tests.support.builders import job, pools
from tests.support.shell import sia

pytestmark = pytest.mark.usefixtures("blank_pictures")


def by(user, arrival):
    return Arrival(replace(arrival.job, user=user), arrival.duration)


def closed(owned, arrivals, policy, **settings):
    """What became of a log in a closed loop: (submissions, ends, result)."""
    chosen = Settings([policy], forecast="none", closed_loop=True, **settings)
    result = replay_all(Trace(arrivals), PoolTable(owned), chosen)[0]
    submits = {a.job.id: a.job.submit for a in result.trace.arrivals}
    ends = dict(zip(submits, result.schedule.ends, strict=True))
    return submits, ends, result


def shared_pools():
    """Pool a is full until 100; max-min runs ann's first job on b's GPUs at once."""
    return [
        by("cat", job("full").gpus(2).runs(100)),
        by("ann", job("first").at(10).runs(20)),
        by("ann", job("second").at(150).runs(20)),
        by("bob", job("other").at(150).runs(20)),
    ]


def test_a_user_with_earlier_results_submits_the_next_job_earlier():
    submits, ends, _ = closed(pools(a=2, b=2), shared_pools(), "mmfs")
    assert ends["first"] == 30  # 120 alone
    assert submits == {"full": 0, "first": 10, "second": 60, "other": 150}


def test_a_job_without_a_user_or_a_predecessor_comes_when_the_log_says():
    anonymous = [by("", arrival) for arrival in shared_pools()]
    submits, _, _ = closed(pools(a=2, b=2), anonymous, "mmfs")
    assert submits == {arrival.job.id: arrival.job.submit for arrival in anonymous}


def test_a_user_with_later_results_submits_the_next_job_later():
    story = [
        by("eve", job("thief").gpus(2).runs(50)),
        by("eve", job("more").gpus(2).at(1).runs(50)),
        by("ann", job("mine").gpus(2).pool("b").at(10).runs(20)),
        by("ann", job("next").gpus(2).pool("b").at(35).runs(20)),
    ]
    submits, ends, _ = closed(pools(a=2, b=2), story, "mmfs")
    assert ends["mine"] == 70  # 30 alone: eve's jobs are on its GPUs until 50 and 51
    assert submits["next"] == 75


def test_a_job_that_follows_at_once_follows_at_once():
    story = [
        by("cat", job("full").gpus(2).runs(100)),
        by("ann", job("one").at(10).runs(20)),
        by("ann", job("two").at(120).runs(10)),  # the very instant at which `one` ends alone
    ]
    submits, ends, _ = closed(pools(a=2, b=2), story, "mmfs")
    assert (ends["one"], submits["two"], ends["two"]) == (30, 30, 40)


def test_submissions_never_run_ahead_of_what_they_follow():
    """Differences of times that are no whole numbers round; time must not run backwards."""
    for seed in range(300):
        rng = Random(seed)
        story = [
            by(f"u{i % 3}", job(f"j{i}").at(rng.uniform(0, 50)).runs(rng.uniform(0.1, 9)))
            for i in range(12)
        ]
        story.sort(key=lambda arrival: arrival.job.submit)
        alone = replay_one(Trace(story), PoolTable(pools(a=1, b=2)), BASELINE, Settings([]), None)
        at_once = [  # some follow the end of the one before without any time in between
            Arrival(replace(a.job, submit=end), a.duration) if i % 2 and end else a
            for i, (a, end) in enumerate(zip(story, [None, *alone.ends[:-1]], strict=True))
        ]
        at_once.sort(key=lambda arrival: arrival.job.submit)
        submits, ends, _ = closed(pools(a=1, b=2), at_once, "mmfs")
        assert all(ends[job_id] >= submit for job_id, submit in submits.items())


def test_the_summary_says_how_much_sooner_jobs_end(helios):
    _, _, result = closed(pools(a=2, b=2), shared_pools(), "mmfs")
    # first: 120 to 30, second: 170 to 80, full and other as before
    assert result.loop.sooner == (90 + 90) / 4


def test_a_job_that_is_never_resumed_is_named_and_not_written(tmp_path):
    table = PoolTable(pools(a=4), [PoolChanged(12.0, "a", 2)])
    story = [
        by("ann", job("long").gpus(4).runs(100)),
        job("short").at(10).runs(5),
        job("other").at(20).runs(5),
        by("ann", job("next").at(150).runs(5)),
    ]
    chosen = Settings(["srtf"], closed_loop=True)
    results = replay_all(Trace(story), table, chosen)
    found = summarize(table, chosen, results)["policies"]["srtf"]
    assert (found["never_ended"], found["skipped"], found["jobs"]) == (1, 1, 2)
    write_schedule(tmp_path / "srtf", results[0].trace, results[0].schedule)
    for name in ("jobs.csv", "segments.csv"):
        assert "long" not in (tmp_path / "srtf" / name).read_text()


def test_jobs_that_follow_one_that_never_ends_are_dropped_and_counted():
    trace, table = Trace(shared_pools()), PoolTable(pools(a=2, b=2))
    baseline = replay_one(trace, table, BASELINE, Settings([]), None)
    loop = ClosedLoop(trace, baseline)
    schedule = replay_one(trace, table, BASELINE, Settings([]), None)
    effective, schedule = loop.effective(schedule)  # nobody told it of an end
    assert [arrival.job.id for arrival in effective.arrivals] == ["full", "first", "other"]
    assert effective.dropped == {"that follow a job that never ended": 1}
    assert len(schedule.ends) == 3


@pytest.fixture(scope="module")
def helios(traces):
    table = read_pools(traces / "helios_venus_2vc_pools.csv")
    return playable(read_trace(traces / "helios_venus_2vc.csv.gz"), table), table


def test_under_the_baseline_nothing_is_shifted(helios):
    trace, table = helios
    baseline = replay_one(trace, table, BASELINE, Settings([]), None)
    loop = ClosedLoop(trace, baseline)
    assert len(loop.without_predecessor) < len(trace.arrivals)
    schedule = replay_one(trace, table, BASELINE, Settings([]), None, None, loop)
    effective, schedule = loop.effective(schedule)
    order = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
    assert {a.job.id: a for a in effective.arrivals} == {a.job.id: a for a in trace.arrivals}
    for arrival, end in zip(effective.arrivals, schedule.ends, strict=True):
        assert end == baseline.ends[order[arrival.job.id]], arrival.job.id


@pytest.mark.parametrize("policy", ["mmfs", "gssf", "sia", "las", "emmfs", "hived"])
def test_a_closed_loop_is_measured_against_the_baseline_of_its_own_log(policy, helios):
    trace, table = helios
    chosen = Settings([policy], forecast="none", durations="history", closed_loop=True)
    result = replay_all(trace, table, chosen)[0]
    alone = replay_one(result.trace, table, BASELINE, chosen, None)
    assert result.baseline.ends == alone.ends
    assert [a.job.submit for a in result.trace.arrivals] != [a.job.submit for a in trace.arrivals]
    measured = summarize(table, chosen, [result])["policies"][policy]
    assert measured["measured"] == len(trace.arrivals)


def test_think_times_are_kept(helios):
    """Between the end of a job and what its user submits next lies what lay there in the log."""
    trace, table = helios
    chosen = Settings(["mmfs"], closed_loop=True)
    result = replay_all(trace, table, chosen)[0]
    before = replay_one(trace, table, BASELINE, chosen, None)
    loop = ClosedLoop(trace, before)
    was = {a.job.id: (a.job, end) for a, end in zip(trace.arrivals, before.ends, strict=True)}
    now = {
        a.job.id: (a.job, end)
        for a, end in zip(result.trace.arrivals, result.schedule.ends, strict=True)
    }
    followed = 0
    for job_id, (_, end) in was.items():
        for follower, _ in loop.followers(end, job_id):
            think = was[follower.id][0].submit - end
            assert now[follower.id][0].submit - now[job_id][1] == pytest.approx(think, abs=1e-6)
            followed += 1
    assert followed > 100


def test_the_checker_accepts_a_closed_loop_on_its_own_log(tmp_path, checker, traces):
    log, table = traces / "helios_venus_2vc.csv.gz", traces / "helios_venus_2vc_pools.csv"
    done = sia(
        "replay", "--trace", log, "--pools", table, "--policy", "fcfs,mmfs,sia,srtf,emmfs",
        "--forecast", "sliding-max", "--durations", "history", "--closed-loop",
        "--no-report", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for policy in ("fcfs", "mmfs", "sia", "srtf", "emmfs"):
        folder = tmp_path / "out" / policy
        violations, measures = checker(folder / "trace.csv", table, folder, policy)
        assert not violations, (policy, violations[:3])
        assert measures["jobs"] == 1867


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--policy", "sia"], "--forecast"),
        (["--policy", "mmfs,sia-vc", "--forecast", "none"], "sia-vc"),
        (["--policy", "sia@perfect+history", "--forecast", "none"], "sia@perfect+history"),
    ],
)
def test_policies_that_know_the_future_are_refused_in_a_closed_loop(arguments, named, tmp_path):
    sia("trace", "synth", "--days", 1, "--out", tmp_path)
    done = sia(
        "replay", "--trace", tmp_path / "trace.csv", "--pools", tmp_path / "pools.csv",
        "--closed-loop", "--out", tmp_path / "out", *arguments,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr
