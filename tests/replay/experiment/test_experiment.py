"""Experiments: what is drawn, the same bytes whatever interrupts them, and one line for misuse."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

import pytest
from click import ClickException
from click.testing import CliRunner

from replay.experiment.design import PieceDesign, Sizes, plan_pieces, plan_sizes
from replay.experiment.folder import opened
from replay.experiment.run import RunContext, WholeLog, run_piece
from replay.experiment.table import HEADER, MEASURES
from replay.logs.read import read_pools, read_trace
from replay.logs.slice import scaled_quota
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.hourly_use import gpu_hours
from replay.run.output import write_pools, write_trace
from replay.run.run import Settings
from replay.synthetic.paper import PRESETS, synthesize
from sia.console.errors import UserError
from sia.console.main import cli
from sia.events import PoolChanged
from sia.model import Pool
from sia.wording import percent
from tests.support.budget import budget
from tests.support.builders import job
from tests.support.pictures import drawn_pictures
from tests.support.shell import digests, sia

pytestmark = [pytest.mark.xdist_group("experiment"), pytest.mark.usefixtures("blank_pictures")]

DAY, WEEK = 86400.0, 604800.0
LOADS = (0.6, 1.1)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Twelve days of eight pools, as files."""
    folder = tmp_path_factory.mktemp("log")
    trace, table = synthesize(PRESETS["more-queues"], 3, days=12.0)
    write_trace(folder / "trace.csv", trace)
    write_pools(folder / "pools.csv", table)
    return folder


@pytest.fixture(scope="module")
def trace(log):
    return read_trace(log / "trace.csv")


@pytest.fixture(scope="module")
def table(log):
    return read_pools(log / "pools.csv")


def logged(*arrivals):
    """A log of these jobs."""
    return Trace(sorted(arrivals, key=lambda arrival: arrival.job.submit))


def steady(pool, days, *, gpus=1, every=0.1):
    """Jobs of an hour, ten a day."""
    return [
        job(f"{pool}{i}").pool(pool).gpus(gpus).at(i * every * DAY).runs(3600)
        for i in range(int(days / every) + 1)
    ]


# What is drawn


def test_the_draw_of_a_run_depends_on_seed_queues_and_number_only(trace):
    asked = PieceDesign([2, 4], 6, WEEK, LOADS, seed=5)
    pieces = plan_pieces(trace, None, asked)
    assert [piece.run for piece in pieces] == list(range(12))
    assert [len(piece.table.pools) for piece in pieces] == [2, 4] * 6
    assert plan_pieces(trace, None, asked._replace(runs=3)) == pieces[:6]
    of_four = plan_pieces(trace, None, asked._replace(queues=[4]))
    assert [piece._replace(run=0) for piece in of_four] == [
        piece._replace(run=0) for piece in pieces[1::2]
    ]
    others = plan_pieces(trace, None, asked._replace(seed=6))
    assert all(a.begin != b.begin for a, b in zip(pieces, others, strict=True))


def test_a_quota_is_what_makes_the_drawn_load(trace):
    for piece in plan_pieces(trace, None, PieceDesign([3], 20, WEEK, LOADS)):
        jobs = piece.cut(trace).arrivals
        assert {arrival.job.pool for arrival in jobs} == set(piece.loads)
        for pool in piece.table.pools:
            work = sum(a.job.width * a.duration for a in jobs if a.job.pool == pool.name)
            load = piece.loads[pool.name]
            assert LOADS[0] <= load <= LOADS[1]
            assert pool.quota == max(1, round(work / (load * WEEK)))


def test_a_piece_holds_its_pools_jobs_of_its_weeks_counted_from_its_begin(trace):
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    for piece in plan_pieces(trace, None, PieceDesign([2], 20, WEEK, LOADS)):
        end = piece.begin + WEEK
        assert first <= piece.begin <= end <= last
        expected = [
            (job.id, job.submit - piece.begin, job.width, duration)
            for job, duration in trace.arrivals
            if job.pool in piece.loads and piece.begin <= job.submit < end
        ]
        found = [(j.id, j.submit, j.width, duration) for j, duration in piece.cut(trace).arrivals]
        assert found == expected


def test_windows_loads_and_pools_are_spread_out(trace):
    pieces = plan_pieces(trace, None, PieceDesign([2], 200, WEEK, LOADS))
    begins = [piece.begin for piece in pieces]
    room = trace.arrivals[-1].job.submit - WEEK
    assert min(begins) < 0.1 * room < 0.9 * room < max(begins)
    loads = [load for piece in pieces for load in piece.loads.values()]
    assert sum(loads) / len(loads) == pytest.approx(0.85, abs=0.02)
    counts = [sum(f"q{i}" in piece.loads for piece in pieces) for i in range(8)]
    assert min(counts) > 25  # 50 expected of each


def test_a_pool_without_a_job_that_fits_is_not_drawn():
    wide = [job(f"w{i}").pool("wide").gpus(8).at(i * DAY).runs(60) for i in range(21)]
    early = steady("early", 3)
    log = logged(*steady("a", 20), *steady("b", 20), *wide, *early)
    pieces = plan_pieces(log, None, PieceDesign([2], 60, WEEK, LOADS))
    drawn = {name for piece in pieces for name in piece.loads}
    assert drawn == {"a", "b", "early"}
    for piece in pieces:
        runnable = {a.job.pool for a in playable(piece.cut(log), piece.table).arrivals}
        assert runnable == set(piece.loads)
        assert "early" not in piece.loads or piece.begin <= 3 * DAY


def test_pools_of_a_file_keep_their_groups_and_nothing_else_is_drawn():
    log = logged(*steady("a", 20), *steady("b", 20), *steady("c", 20))
    table = PoolTable([Pool("b", 5, "east"), Pool("a", 900, "", share=False)])
    for piece in plan_pieces(log, table, PieceDesign([2], 5, WEEK, LOADS)):
        assert [(p.name, p.group, p.share) for p in piece.table.pools] == [
            ("a", "", False), ("b", "east", True),
        ]  # fmt: skip
        assert max(pool.quota for pool in piece.table.pools) == 1


def test_sizes_multiply_every_quota_and_never_down_to_nothing():
    log = logged(*steady("a", 5), *steady("b", 5))
    changes = [PoolChanged(DAY, "a", 0), PoolChanged(2 * DAY, "a", 21)]
    table = PoolTable([Pool("a", 10), Pool("b", 1)], changes)
    small, large = plan_sizes(log, table, Sizes([0.4, 1.5]))
    assert small.table.quotas() == {"a": [(-float("inf"), 4), (DAY, 0), (2 * DAY, 8)],
                                    "b": [(-float("inf"), 1)]}  # fmt: skip
    assert [pool.quota for pool in large.table.pools] == [15, 2]
    assert [(p.run, p.size, p.withdraw) for p in plan_sizes(log, table, Sizes([1, 2], 1))] == [
        (0, 1, 0), (1, 1, 1), (2, 2, 0), (3, 2, 1),
    ]  # fmt: skip
    assert small.cut(log).arrivals == log.arrivals


CANNOT = {
    "too few pools": (PieceDesign([3], 1, WEEK, LOADS), None, "only 2 pools"),
    "a log too short": (
        PieceDesign([2], 1, 4 * WEEK, LOADS), None, "--weeks 4: the log spans only 2.86 weeks",
    ),
    "a pool without a job": (
        PieceDesign([1], 1, WEEK, LOADS), PoolTable([Pool("a", 8), Pool("void", 8)]),
        "void: no job",
    ),
    "jobs wider than their quota": (
        PieceDesign([2], 1, WEEK, LOADS), None, "wide had only jobs wider than its quota in 1,000;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT)
def test_an_impossible_draw_is_refused_before_anything_runs(case):
    asked, table, said = CANNOT[case]
    wide = [job(f"w{i}").pool("wide").gpus(8).at(i * DAY).runs(60) for i in range(21)]
    with pytest.raises(UserError) as error:
        plan_pieces(logged(*steady("a", 20), *wide), table, asked)
    assert said in error.value.message


def test_a_begin_too_late_is_refused_with_the_latest_there_is():
    log = logged(*steady("a", 20))
    with pytest.raises(UserError, match="--from 900d: too late for a piece of --weeks") as late:
        plan_pieces(log, None, PieceDesign([1], 1, WEEK, LOADS, since=900 * DAY))
    latest = float(re.search(r"at most (\d+)s", late.value.message)[1])
    [piece] = plan_pieces(log, None, PieceDesign([1], 1, WEEK, LOADS, since=latest))
    assert latest <= piece.begin < latest + 1
    with pytest.raises(UserError, match=r"at most \d+s"):
        plan_pieces(log, None, PieceDesign([1], 1, WEEK, LOADS, since=latest + 1))


def test_a_pool_with_jobs_in_no_window_is_named():
    log = logged(*steady("a", 20), job("late").pool("rare").at(20 * DAY).runs(3600))
    with pytest.raises(UserError, match=r"rare had no job in 1,000;"):
        plan_pieces(log, None, PieceDesign([2], 1, WEEK, LOADS))


def test_too_many_gpus_are_refused():
    giant = logged(*(job(f"g{i}").at(i * DAY).gpus(2**20).runs(1e14) for i in range(9)))
    with pytest.raises(UserError, match="more work than any quota allows"):
        plan_pieces(giant, None, PieceDesign([1], 1, WEEK, LOADS))
    with pytest.raises(UserError, match="more than 1,048,576"):
        plan_sizes(giant, PoolTable([Pool("a", 2**20)]), Sizes([1.5]))
    long = logged(job("a").runs(5), job("b").at(1e12).runs(5))
    with pytest.raises(UserError, match="in seconds"):
        plan_sizes(long, PoolTable([Pool("a", 1)]), Sizes([1.0]))
    with pytest.raises(UserError, match="no job of the log can run"):
        plan_sizes(logged(job("a").runs(5)), PoolTable([Pool("b", 1)]), Sizes([1.0]))


def test_scaled_quotas_are_at_least_one_gpu():
    assert scaled_quota(3600.0, 1.0, WEEK) == 1
    assert scaled_quota(10 * WEEK, 0.8, WEEK) == 12


# How much is used hour by hour


def test_gpu_hours_by_hand():
    spans = [(0.0, 5400.0, 4), (1800.0, 3600.0, 2), (-9e9, 9e9, 1), (7200.0, 7200.0, 100)]
    assert gpu_hours(spans, 0.0, 3) == [6.0, 3.0, 1.0]
    assert gpu_hours(spans, 1800.0, 1) == [4.0 + 1.0 + 1.0]
    assert gpu_hours([(-float("inf"), float("inf"), 8)], 0.0, 2) == [8, 8]
    assert gpu_hours(spans, 0.0, 0) == []


def test_gpu_hours_agree_with_counting_each_span_in_each_hour():
    rng = Random(1)
    for _ in range(50):
        starts = [rng.uniform(-5, 30) * 3600 for _ in range(20)]
        spans = [(s, s + rng.choice([60, 3600, 40_000]), rng.randint(1, 8)) for s in starts]
        begin, hours = rng.uniform(0, 5000), rng.randint(1, 24)
        expected = []
        for hour in range(hours):
            low, high = begin + 3600 * hour, begin + 3600 * (hour + 1)
            inside = [g * max(0.0, min(e, high) - max(s, low)) for s, e, g in spans]
            expected.append(sum(inside) / 3600)
        assert gpu_hours(spans, begin, hours) == pytest.approx(expected, abs=1e-9)


# The command


ASKED = ["--queues", "2,4", "--weeks", 0.5, "--policy", "mmfs,sia@random+history"]


def command(log, out, *arguments):
    return [
        "experiment",
        "--trace",
        log / "trace.csv",
        "--jobs",
        1,
        *ASKED,
        "--out",
        out,
        *arguments,
    ]


def done(log, out, *arguments, hash_seed=None):
    """Run an experiment to its end."""
    ended = sia(*command(log, out, *arguments), hash_seed=hash_seed)
    assert ended.returncode == 0, ended.stderr
    return ended


def rows_in(folder):
    with (folder / "experiments.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def reference(log, tmp_path_factory):
    """What an undisturbed experiment of 8 runs leaves, in one process."""
    out = tmp_path_factory.mktemp("reference") / "out"
    done(log, out, "--runs", 4, "--jobs", 1)
    return out


@pytest.fixture(scope="module")
def pictured(log, reference, tmp_path_factory):
    """The reference with its pictures drawn."""
    out = tmp_path_factory.mktemp("pictured") / "out"
    shutil.copytree(reference, out)
    with drawn_pictures():
        done(log, out, "--runs", 4)
    return out


def test_an_experiment_leaves_a_row_a_run_and_policy(pictured):
    rows = rows_in(pictured)
    assert tuple(rows[0]) == HEADER
    drawn = [(row["run"], row["queues"], row["policy"]) for row in rows]
    labels = ("fcfs", "mmfs", "sia@random+history")  # the baseline is not asked for, and is there
    assert drawn == [
        (str(run), str(queues), label) for run, queues in enumerate([2, 4] * 4) for label in labels
    ]
    for row in rows:
        run = json.loads((pictured / "runs" / f"{int(row['run']):03d}" / "run.json").read_text())
        measures = run["policies"][row["policy"]]
        assert {key: float(row[key]) for key in MEASURES} == {
            key: measures[key] for key in MEASURES
        }
        assert run["jobs"] == measures["jobs"] == sum(pool["jobs"] for pool in run["pools"])
        assert sum(run["dropped"].values()) == measures["skipped"]
    assert (pictured / "report.html").stat().st_size > 1000
    assert {path.suffix for path in (pictured / "figures").iterdir()} == {".svg", ".png"}


def test_the_same_bytes_come_out_whatever_the_processes_and_the_hash_seed(log, pictured, tmp_path):
    done(log, tmp_path / "out", "--runs", 4, "--jobs", 2, hash_seed="2")
    assert digests(tmp_path / "out") == digests(pictured)


def finished(out):
    runs = out / "runs"
    return [p for p in runs.iterdir() if not p.name.startswith(".")] if runs.exists() else []


def started(log, out, *arguments, runs):
    """An experiment in a process group of its own, of which some runs are done."""
    running = subprocess.Popen(
        [sys.executable, "-m", "sia", *map(str, command(log, out, *arguments))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: len(finished(out)) >= runs or running.poll() is not None)
    assert running.poll() is None, running.stderr.read()
    return running


MANY = ("--runs", 4)
"""As many as the reference has: what is interrupted and continued ends as the reference."""


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_experiment_killed_again_and_again_ends_with_the_same_bytes(
    jobs, log, reference, tmp_path
):
    out = tmp_path / "out"
    for runs in (1, 3):
        running = started(log, out, *MANY, "--jobs", jobs, runs=runs)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        assert runs <= len(finished(out)) < 8
    kept = {path.name: path.stat().st_mtime_ns for path in finished(out)}
    # as if killed while it wrote
    (out / "runs" / ".007-partial").mkdir(exist_ok=True)
    (out / "runs" / ".007-partial" / "run.json").write_text('{"run": 3')
    (out / ".results-partial").mkdir()
    (out / ".settings.json-partial").write_text("{")
    assert "runs were done before" in done(log, out, *MANY, "--jobs", jobs).stderr
    assert digests(out) == digests(reference)
    now = {path.name: path.stat().st_mtime_ns for path in finished(out)}
    assert kept.items() <= now.items()


@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_an_interrupted_experiment_says_how_to_go_on(number, whole_group, log, reference, tmp_path):
    out = tmp_path / "out"
    running = started(log, out, *MANY, "--jobs", 2, runs=2)
    workers = children(running.pid)
    (os.killpg if whole_group else os.kill)(running.pid, number)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    count = len(finished(out))
    assert said.splitlines()[-1] == (
        f"sia: interrupted; {count} of 8 runs are done, repeat the command to continue"
    )
    assert "Traceback" not in said
    wait_for(lambda: not any(map(alive, workers)))
    assert not list(out.rglob(".*"))
    done(log, out, *MANY)
    assert digests(out) == digests(reference)


def children(pid):
    """The processes that a process started, by id."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    found = [int(child) for child in text.split()]
    assert len(found) >= 2
    return found


def test_processes_end_with_the_one_that_started_them(log, tmp_path):
    running = started(log, tmp_path / "out", *MANY, "--jobs", 2, runs=2)
    workers = children(running.pid)
    running.kill()
    running.communicate()
    wait_for(lambda: not any(map(alive, workers)))


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_is_killed_is_one_line(log, reference, tmp_path):
    out = tmp_path / "out"
    running = started(log, out, *MANY, "--jobs", 2, runs=2)
    workers = [
        pid for pid in children(running.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    os.kill(workers[0], signal.SIGKILL)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 2
    assert "fewer --jobs" in said.splitlines()[-1]
    assert "Traceback" not in said
    done(log, out, *MANY)
    assert digests(out) == digests(reference)


def test_more_runs_later_are_the_same_experiment(log, reference, tmp_path):
    out = tmp_path / "out"
    done(log, out, "--runs", 2)
    done(log, out, "--runs", 4)
    assert digests(out) == digests(reference)
    fewer = done(log, out, "--runs", 1, "--json")
    assert {row["run"] for row in json.loads(fewer.stdout)} == {0, 1}
    assert {row["run"] for row in rows_in(out)} == {"0", "1"}
    assert len(finished(out)) == 8


OTHER = {
    "another seed": (["--seed", 1], "with --seed 0, not 1"),
    "other queues": (["--queues", "4"], "with --queues 2,4, not 4"),
    "other weeks": (["--weeks", 1.5], "with --weeks 0.5, not 1.5"),
    "another load": (["--load", "0.9"], "with --load 0.6-1.1, not 0.9"),
    "other policies": (
        ["--policy", "mmfs"],
        "--policy fcfs,mmfs,sia@random+history, not fcfs,mmfs;",
    ),
    "another forecast": (["--forecast", "none"], "with --forecast perfect, not none"),
    "another warm-up": (["--warmup", "1d"], "with --warmup 2d, not 1d"),
    "other contents": (["--keep"], "contains an experiment without --keep; to continue it"),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_folder_of_other_settings_is_refused(case, log, reference):
    options, said = OTHER[case]
    before = digests(reference)
    assert_refused(command(log, reference, "--runs", 4, *options), said)
    assert digests(reference) == before


def test_another_log_or_other_pools_are_refused(log, reference, tmp_path):
    lines = (log / "trace.csv").read_text().splitlines()
    (tmp_path / "trace.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert_refused(command(tmp_path, reference), "on another log than --trace")
    pools = ["--pools", log / "pools.csv"]
    assert_refused(command(log, reference, *pools), "without --pools")
    cells = tmp_path / "types.toml"
    cells.write_text(
        'types = [{ name = "gpu" }, { name = "node", child = "gpu", count = 2, node = true }]'
    )
    asked = ["--cells", cells, "--policy", "mmfs"]
    assert_refused(command(log, reference, *asked), "an experiment without --cells; to continue it")
    sizes = ["--trace", log / "trace.csv", "--size", 1, *pools, "--out", reference]
    assert_refused(["experiment", *sizes], "without --size, not with it")


def assert_refused(arguments, said):
    """It ends with exit code 2 and one line, as `sia` shows them, which says so."""
    ended = CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False)
    assert isinstance(ended.exception, ClickException), ended.exception
    assert ended.exception.exit_code == 2
    assert not ended.output
    assert said in ended.exception.format_message()


MISUSE = {
    "an unknown policy": (["--policy", "fifo"], "fifo"),
    "an unknown forecast of a label": (["--policy", "sia@crystal+history"], "crystal"),
    "too many queues": (["--queues", "9"], "only 8 pools"),
    "no number of queues": (["--queues", "many"], "many"),
    "no queue": (["--queues", "0"], "from 1"),
    "a log too short": (["--weeks", 2], "--weeks 2"),
    "no week": (["--weeks", 0], "--weeks"),
    "weeks that are no number": (["--weeks", "nan"], "--weeks"),
    "no run": (["--runs", 0], "--runs"),
    "a load that falls": (["--load", "1.1-0.6"], "ascending"),
    "no load": (["--load", "0"], "from 0.001"),
    "weeks shorter than the warm-up": (["--weeks", "0.2"], "--warmup 2d (the default)"),
    "a load in percent": (["--load", "60-110"], "0.6 is 60 %"),
    "a warm-up as long as the piece": (["--warmup", "1w"], "leaves no job to measure"),
    "no process": (["--jobs", 0], "--jobs"),
    "a withdrawal of pieces": (["--withdraw", 1], "--size"),
    "sizes of pieces": (["--size", "1"], "--queues does not work with --size"),
    "a missing trace": (["--trace", "nowhere.csv"], "nowhere.csv"),
    "missing pools": (["--pools", "nowhere.csv"], "nowhere.csv"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_line_and_leaves_nothing(case, log, tmp_path):
    options, said = MISUSE[case]
    assert_refused(command(log, tmp_path / "out", *options), said)
    assert list(tmp_path.iterdir()) == []


MISUSE_OF_SIZES = {
    "no pools": (["--size", "1"], "--pools"),
    "no size": (["--size", "0", "--pools"], "from 0.001"),
    "a size that is no number": (["--size", "nan", "--pools"], "from 0.001"),
    "all pools withdrawn": (["--size", "1", "--withdraw", 8, "--pools"], "8 pools"),
    "a warm-up longer than the log": (
        ["--size", "1", "--warmup", "9w", "--pools"],
        "leaves no job",
    ),
    "runs": (["--size", "1", "--runs", 3, "--pools"], "--runs"),
}


@pytest.mark.parametrize("case", MISUSE_OF_SIZES)
def test_misuse_of_sizes_is_one_line_and_leaves_nothing(case, log, tmp_path):
    options, said = MISUSE_OF_SIZES[case]
    pools = [log / "pools.csv"] if options[-1] == "--pools" else []
    arguments = ["--trace", log / "trace.csv", "--out", tmp_path / "out", *options, *pools]
    assert_refused(["experiment", *arguments], said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["settings.json", "experiments.csv", "runs", "report.html"])
def test_a_folder_with_foreign_files_is_refused(name, log, tmp_path):
    precious = tmp_path / name
    if name == "runs":
        precious.mkdir()
        precious = precious / "marathon.txt"
    precious.write_text('{"editor": "mine"}')
    assert_refused(command(log, tmp_path), "not a file of an experiment")
    assert digests(tmp_path).keys() == {str(precious.relative_to(tmp_path))}


def test_a_replays_folder_is_no_place_for_an_experiment(log, tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    assert_refused(command(log, tmp_path), "contains results of sia replay; change --out")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_other_things_in_the_folder_are_left_alone(log, reference, tmp_path):
    out = tmp_path / "out"
    (out / "figures").parent.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / ".mine-partial").write_text("mine")
    done(log, out, "--runs", 4)
    (out / "figures" / "sketch.png").write_bytes(b"mine")
    (out / "runs" / "notes").mkdir()
    done(log, out, "--runs", 4)
    extra = digests(out).keys() - digests(reference).keys()
    assert extra == {"notes.txt", ".mine-partial", "figures/sketch.png"}
    assert (out / "runs" / "notes").is_dir()


def test_two_experiments_do_not_share_a_folder(log, tmp_path):
    out = tmp_path / "out"
    running = started(log, out, *MANY, "--jobs", 1, runs=1)
    assert_refused(command(log, out, *MANY), "another sia experiment")
    running.kill()
    running.communicate()


def test_a_damaged_run_is_named(log, reference, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(reference, out)
    (out / "runs" / "003" / "run.json").write_text('{"run": 3, "see')
    ended = sia(*command(log, out, "--runs", 4))
    assert ended.returncode == 2
    assert "003/run.json: missing or damaged; remove" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    shutil.rmtree(out / "runs" / "003")
    done(log, out, "--runs", 4)
    assert digests(out) == digests(reference)


# Full disks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 48 kB: enough for some runs, not for all."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(place)]
    if (
        not shutil.which("mount")
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_is_one_line_and_the_experiment_goes_on_when_there_is_space(
    jobs, log, reference, small_disk
):
    out = small_disk / "out"
    ended = sia(*command(log, out, *MANY, "--jobs", jobs))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].endswith(
        "cannot be written (No space left on device); free some space and repeat the command "
        "to continue"
    )
    kept = len(finished(out))
    assert 0 < kept < 8
    assert not list(out.rglob(".*"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    done(log, out, *MANY)
    assert digests(out) == digests(reference)


def test_a_disk_that_is_full_from_the_start_is_one_line(monkeypatch, tmp_path):
    def fill(self, data):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", fill)
    with (
        pytest.raises(UserError, match="free some space"),
        opened(tmp_path / "out", {"command": "sia experiment"}),
    ):
        raise AssertionError("it was opened")


# What the runs give


def assert_checked(checker, run, warmup=2 * DAY):
    """The checker accepts what a run kept, and measures what its run.json says."""
    facts = json.loads((run / "run.json").read_text())
    for policy, ours in facts["policies"].items():
        violations, theirs = checker(
            run / "trace.csv", run / "pools.csv", run / policy, policy, warmup
        )
        assert not violations, (policy, violations[:3])
        shared = theirs.keys() & ours.keys()
        assert len(shared) >= 16
        for key in shared:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), (run.name, policy, key)
    return facts


def test_the_checker_accepts_what_is_kept_and_measures_the_same(log, tmp_path, checker):
    out = tmp_path / "out"
    policies = ["--policy", "fcfs,ssf,mmfs,sia,sia-vc,sia@random+history"]
    done(log, out, "--runs", 2, "--keep", *policies)
    for run in finished(out):
        facts = assert_checked(checker, run)
        assert facts["policies"]["sia"]["slowed"] == 0
        assert facts["policies"]["sia"]["measured"] < facts["jobs"]
        for policy in ("fcfs", "mmfs"):
            hourly = facts["policies"][policy]["hourly_pct"]
            assert hourly == pytest.approx(used_by_hour(run, policy), abs=1e-4)


def used_by_hour(run, policy):
    """Percent of all GPUs in use, hour by hour from the end of the warm-up, by its files."""
    total = sum(pool.quota for pool in read_pools(run / "pools.csv").pools)
    with (run / policy / "jobs.csv").open() as file:
        jobs = [
            (*(float(row[key]) for key in ("submit", "start", "end")), int(row["width"]))
            for row in csv.DictReader(file)
        ]
    last = max(submit for submit, *_ in jobs)
    shares = []
    for hour in range(int((last - 2 * DAY) / 3600)):
        low, high = (2 * DAY + 3600 * (hour + i) for i in (0, 1))
        used = sum(w * max(0.0, min(e, high) - max(s, low)) for _, s, e, w in jobs)
        shares.append(100 * used / (3600 * total))
    return shares


DAYS = budget(ci=4, soak=12)
"""Length of the log whose pools all are replayed, in each size."""


def test_the_checker_accepts_sizes_and_withdrawn_pools(log, trace, tmp_path, checker):
    out = tmp_path / "out"
    days = [arrival for arrival in trace.arrivals if arrival.job.submit < DAYS * DAY]
    write_trace(tmp_path / "trace.csv", Trace(days))
    ended = sia(
        "experiment", "--trace", tmp_path / "trace.csv", "--pools", log / "pools.csv", "--keep",
        "--jobs", 1, "--size", "0.8,1", "--withdraw", 2, "--policy", "fcfs,mmfs,sia", "--out", out,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = [assert_checked(checker, run, 0.0) for run in sorted(finished(out))]
    assert [run["size"] for run in found] == [0.8, 0.8, 1, 1]
    assert [len(run["withdrawn"]) for run in found] == [0, 2, 0, 2]
    assert [pool["quota"] for pool in found[0]["pools"]] == [6] * 8
    for number, run in enumerate(found):
        assert run["policies"]["sia"]["slowed"] == 0
        for name in run["withdrawn"]:
            assert lent_by(out / "runs" / f"{number:03d}" / "mmfs", name) == 0
    assert found[3]["withdrawn"] == most_idle(out / "runs" / "002", 2)
    assert "0.8 without" in ended.stdout


def lent_by(folder, pool):
    """Loans of a pool to another's jobs."""
    with (folder / "jobs.csv").open() as file:
        owners = {row["job_id"]: row["pool"] for row in csv.DictReader(file)}
    with (folder / "loans.csv").open() as file:
        loans = [row for row in csv.DictReader(file) if row["donor"] == pool]
    return sum(owners[row["job_id"]] != pool for row in loans)


def most_idle(run, count):
    """The pools of a run that use least of equal quotas under FCFS, as its files tell."""
    with (run / "fcfs" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    begin, end = (float(rows[i]["submit"]) for i in (0, -1))
    used = {}
    for row in rows:
        seconds = max(0.0, min(float(row["end"]), end) - max(float(row["start"]), begin))
        used[row["pool"]] = used.get(row["pool"], 0.0) + seconds * int(row["width"])
    return sorted(used, key=used.get)[:count]


def test_a_withdrawn_pool_is_the_one_that_idles_most_in_gpus_not_in_share(tmp_path):
    """Pool b uses less of what it has, pool a has more that is unused."""
    log = logged(
        *(job(f"a{i}").pool("a").gpus(50).at(i * 3600).runs(3600) for i in range(5)),
        *(job(f"b{i}").pool("b").gpus(1).at(i * 3600).runs(600) for i in range(5)),
    )
    table = PoolTable([Pool("a", 100), Pool("b", 8)])
    (tmp_path / "runs").mkdir()
    piece = plan_sizes(log, table, Sizes([1.0], 1))[1]
    run_piece(WholeLog(log, {}), piece, RunContext(tmp_path, Path("log"), "", Settings(["sia"])))
    facts = json.loads((tmp_path / "runs" / "001" / "run.json").read_text())
    assert facts["withdrawn"] == ["a"]


def test_the_table_says_what_the_rows_say(log, reference):
    shown = done(log, reference, "--runs", 4).stdout
    slowing = [float(row["slowed_pct"]) > 0 for row in rows_in(reference) if row["queues"] == "4"]
    assert "% runs slowing" in shown
    assert "mmfs, " not in shown  # it needs to be told nothing
    lines = [line.split() for line in shown.splitlines() if line.startswith("4 ")]
    labels = ["fcfs", "mmfs", "sia@random+history"]
    assert [line[1:3] for line in lines] == [[label, "4"] for label in labels]
    assert lines[1][7] == f"{100 * sum(slowing[1::3]) / 4:.0f}"
    slowed = [float(row["slowed_pct"]) for row in rows_in(reference) if row["queues"] == "4"]
    assert "worst run" in shown
    assert lines[1][8:10] == [percent(median(slowed[1::3])), percent(max(slowed[1::3]))]


def test_json_on_stdout_is_the_rows(log, reference):
    rows = json.loads(done(log, reference, "--runs", 4, "--json").stdout)
    as_text = [{key: "" if row[key] is None else str(row[key]) for key in HEADER} for row in rows]
    assert as_text == rows_in(reference)


def test_invalid_rows_are_left_out_in_every_process_where_asked(log, tmp_path):
    shutil.copy(log / "trace.csv", tmp_path / "trace.csv")
    with (tmp_path / "trace.csv").open("a") as file:
        file.write("odd,q0,5,1.5,60,,\n")
    assert_refused(command(tmp_path, tmp_path / "out"), "--skip-invalid")
    ended = done(tmp_path, tmp_path / "out", "--runs", 1, "--jobs", 2, "--skip-invalid")
    assert "dropped: 1 job invalid: width is no whole number" in ended.stdout


def test_two_runs_of_philly(traces, tmp_path, checker):
    out = tmp_path / "out"
    ended = sia(
        "experiment", "--trace", traces / "philly.csv.gz", "--pools", traces / "philly_pools.csv",
        "--queues", budget(ci="4", soak="4,8"), "--weeks", budget(ci=1, soak=2), "--runs", 1,
        "--jobs", 1, "--seed", 2,
        "--policy", "fcfs,mmfs,sia", "--keep", "--out", out,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for run in finished(out):
        facts = assert_checked(checker, run)
        assert facts["policies"]["sia"]["slowed"] == 0
        assert facts["policies"]["sia"]["speedup_mean"] > 1
