"""The profiler: trials in order, users by interval, capacity by the hour, what is written."""

import pytest

from sia.policies.chronus.params import ChronusParams
from sia.policies.chronus.profiler import Profiler
from tests.support.files import tables
from tests.support.shell import sia

HEAD = "job_id,pool,submit,width,duration,deadline,user\n"


@pytest.fixture
def tried(tmp_path):
    """The rows of a replay's tables by name, for a log on 48 GPUs."""

    def run(rows, label="chronus"):
        (tmp_path / "log.csv").write_text(HEAD + rows)
        (tmp_path / "pools.csv").write_text("pool,quota\np,48\n")
        done = sia("replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
                   "--policy", label, "--no-report", "--out", tmp_path / "out")  # fmt: skip
        assert not done.returncode, done.stderr
        return tables(tmp_path / "out" / label)

    return run


def test_a_job_that_ends_during_its_trial_has_finished_and_others_restart(tried):
    found = tried("short,p,0,4,200,900,\nlong,p,0,4,1000,9000,\n")
    assert found["profiling"] == [("short", "0.0", "200.0", "4"), ("long", "0.0", "300.0", "4")]
    assert found["segments"] == [
        ("short", "0.0", "200.0", "4", "", "0.0"), ("long", "1200.0", "2200.0", "4", "", "0.0"),
    ]  # fmt: skip
    assert [row[:3] for row in found["deadlines"]] == [
        ("short", "in the profiler", ""), ("long", "guaranteed", "2200.0"),
    ]  # fmt: skip
    assert [row[4] for row in found["jobs"]] == ["0.0", "1200.0"]


def test_a_wide_job_is_tried_on_one_node_and_on_two_and_the_head_blocks(tried):
    found = tried("wide,p,0,24,1000,,\nslim,p,1,1,1000,,\n")
    assert found["profiling"] == [
        ("wide", "0.0", "300.0", "8"), ("wide", "300.0", "600.0", "16"),
        ("slim", "600.0", "900.0", "1"),
    ]  # fmt: skip


def test_each_user_may_use_a_limited_number_of_trial_gpus_per_interval(tried):
    rows = "a,p,0,8,1000,,ann\nb,p,1,8,1000,,ann\nc,p,2,8,1000,,ann\nd,p,3,8,1000,,ann\n"
    found = tried(f"{rows}e,p,4,8,1000,,\n", "chronus:capacity=40")
    starts = {row[0]: row[1] for row in found["profiling"]}
    assert starts == {"a": "0.0", "b": "1.0", "c": "2.0", "d": "300.0", "e": "4.0"}
    alone = tried("w,p,0,24,1000,,ann\nx,p,1,1,1000,,ann\n", "chronus:capacity=40:user=10")
    assert sorted(row[:2] for row in alone["profiling"]) == [
        ("w", "0.0"), ("w", "0.0"), ("x", "300.0"),
    ]  # fmt: skip


def test_jobs_that_are_let_in_together_are_queued_in_order_of_arrival(tried):
    """Ann's jobs that waited for their interval precede a job without a user, and bob's."""
    first = "a,p,0,8,1000,,ann\nb,p,1,8,1000,,ann\nc,p,2,8,1000,,ann\nd,p,3,8,9000,,ann\n"
    found = tried(f"{first}e,p,300,8,1000,,\nf,p,300,8,1000,,bob\n", "chronus:capacity=24")
    starts = [row[:2] for row in found["profiling"]]
    assert starts[3:] == [("d", "300.0"), ("e", "301.0"), ("f", "302.0")]


def test_the_capacity_is_a_row_at_0_and_at_each_change(tried):
    found = tried("a,p,30,8,1300,9000,\n", "chronus:profile=0")
    assert found["profiling"] == []
    assert found["capacity"] == [
        ("0", "0", "0", "48"), ("1200.0", "0", "8", "40"), ("2500.0", "0", "0", "48"),
    ]  # fmt: skip


def test_the_capacity_follows_the_last_hour_and_shrinks_as_trials_end():
    profiler = Profiler(ChronusParams(), 960, 8)
    assert profiler.capacity == 16
    for i in range(40):
        profiler.submit(f"j{i}", "", 8, 60.0 * i)
    profiler.aim(3600.0)
    profiler.resize(profiler.kept.target)
    assert profiler.capacity == 32, "320 GPUs an hour for 300 s each are 26.7, in whole nodes 32"
    profiler.let_in(3600.0)
    assert len(profiler.begin(3600.0, 960)) == 4
    profiler.aim(7200.0)
    profiler.resize(0)
    assert profiler.capacity == 32, "its trials go on"
    profiler.over(3900.0)
    profiler.resize(0)
    assert profiler.capacity == 16


def test_the_trial_capacity_grows_no_further_than_its_limit():
    profiler = Profiler(ChronusParams(), 960, 8)
    for i in range(40):
        profiler.submit(f"j{i}", "", 8, 60.0 * i)
    profiler.aim(3600.0)
    profiler.resize(24)
    assert profiler.capacity == 24


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("chronus:capacity=48", "a profiler of 48 GPUs leaves nothing of the 48"),
        ("chronus:capacity=8", "the widest trial takes 16 GPUs and the profiler has 8"),
    ],
)
def test_a_profiler_that_cannot_work_is_refused_in_one_line(tmp_path, label, problem):
    (tmp_path / "log.csv").write_text(f"{HEAD}a,p,0,24,1000,,\n")
    (tmp_path / "pools.csv").write_text("pool,quota\np,48\n")
    done = sia("replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
               "--policy", label, "--no-report", "--out", tmp_path / "out")  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr


def test_jobs_that_can_never_run_or_be_promised_are_reported(tmp_path):
    """48 GPUs less 16 are too few for the wide job; nobody has an estimate."""
    (tmp_path / "log.csv").write_text(f"{HEAD}wide,p,0,40,1000,,\ndue,p,0,8,1000,9000,\n")
    (tmp_path / "pools.csv").write_text("pool,quota\np,48\n")
    done = sia("replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
               "--policy", "chronus", "--durations", "stated", "--no-report",
               "--out", tmp_path / "out")  # fmt: skip
    assert "a profiler of 16 GPUs leaves too few for wide, which can end only" in done.stdout
    assert "1 job with a deadline, due, has no estimate and is promised nothing" in done.stdout


def test_it_never_grows_to_all_gpus_however_many_trials_are_asked_for(tried):
    found = tried("".join(f"j{i},p,{20 * i},8,{200 + 800 * (i % 2)},,\n" for i in range(150)))
    assert [row[1:] for row in found["capacity"][:2]] == [("16", "0", "32"), ("40", "0", "8")]
