"""Whole replays, as a user runs them, judged by the external checker."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from replay.logs.read import read_pools, read_trace
from replay.logs.slice import slice_trace
from replay.logs.trace import Trace, playable
from replay.report.terminal import show_foresight
from replay.run.output import whole_folder, write_pools, write_schedule, write_trace
from replay.run.run import Settings, replay_all
from replay.run.summary import summarize
from replay.synthetic.paper import PRESETS, synthesize
from sia import Options
from sia.console.errors import UserError
from sia.policies import names
from tests.support.budget import SOAK, budget
from tests.support.logs import first_jobs
from tests.support.shell import digests, sia

POLICIES = ["fcfs", "ssf", "gssf", "mmfs", "sia", "sia-vc"]
RIVALS = ["sjf", "easy", "hived", "themis", "yarn-cs:slo=0"]
ROUNDS = ["gavel", "gandiva-fair", "ossp", "mst", "ftf", "allox", "filter", "shockwave"]
PREEMPTING = [
    "srtf",
    "srsf",
    "las",
    "emmfs",
    "sia-recall",
    "sia-reclaim",
    "kueue-strict",
    "kueue-best-effort",
    "chronus:profile=0",
    "edf",
    "3sigma",
    "genie",
]
ELASTIC = ["elastic-fifo", "elastic-srtf", "elastic-srsf", "afs", "themis-lease", "wfq"]
"""Policies that also tell jobs when they will end; `fair-share` does too, but is a fluid."""
ALL = POLICIES + RIVALS + PREEMPTING + ELASTIC + ROUNDS + ["fair-share", "jvu", "prio"]
SEEDS = budget(ci=2, soak=20)
DAY = 86400.0


def replayed(folder, trace, table, policies=POLICIES, **settings):
    """Replay, write the results, and return the summary of each policy."""
    chosen = Settings(policies, **settings)
    results = replay_all(trace, table, chosen)
    for result in results:
        write_schedule(folder / result.schedule.policy, result.trace, result.schedule)
    return summarize(table, chosen, results)["policies"]


def assert_accepted(checker, trace, pools, folder, summary, warmup=0.0):
    """The checker finds nothing wrong, and measures what we do."""
    for policy, ours in summary.items():
        violations, theirs = checker(trace, pools, folder / policy, policy, warmup)
        assert not violations, (policy, violations[:3])
        for key in theirs.keys() & ours.keys():
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), (policy, key)


def test_all_policies_of_this_file_are_all_there_are():
    assert sorted(label.partition(":")[0] for label in ALL) == names()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_checker_accepts_every_synthetic_workload(preset, tmp_path, checker):
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        trace, table = synthesize(PRESETS[preset], seed)
        write_trace(folder / "trace.csv", trace)
        write_pools(folder / "pools.csv", table)
        summary = replayed(folder, trace, table)
        assert_accepted(checker, folder / "trace.csv", folder / "pools.csv", folder, summary)
        assert summary["sia"]["slowed"] == summary["sia-vc"]["slowed"] == 0, seed


@pytest.mark.parametrize("preset", PRESETS)
def test_the_checker_accepts_every_rival_on_synthetic_workloads(preset, tmp_path, checker):
    place = [*PRESETS].index(preset)
    for seed in range(budget(ci=1, soak=10)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        trace, table = synthesize(PRESETS[preset], seed, days=budget(ci=1.0, soak=3.0))
        write_trace(folder / "trace.csv", trace)
        write_pools(folder / "pools.csv", table)
        options = Options(resume_cost=(0.0, 30.0)[(place + seed) % 2])
        summary = replayed(folder, trace, table, RIVALS + PREEMPTING, options=options)
        assert_accepted(checker, folder / "trace.csv", folder / "pools.csv", folder, summary)


@pytest.mark.parametrize("preset", ["base", "higher-load"])
def test_the_checker_accepts_elastic_policies_on_synthetic_workloads(preset, tmp_path, checker):
    trace, table = synthesize(PRESETS[preset], 3, days=1.0)
    write_trace(tmp_path / "trace.csv", trace)
    write_pools(tmp_path / "pools.csv", table)
    summary = replayed(tmp_path, trace, table, ELASTIC, options=Options(resume_cost=30.0))
    assert_accepted(checker, tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path, summary)
    assert summary["elastic-fifo"]["max_pred_err_pct"] == 0.0


def test_the_checker_accepts_policies_in_rounds_on_a_synthetic_workload(tmp_path, checker):
    """Half a day, as each of hundreds of rounds may take a program to solve."""
    trace, table = synthesize(PRESETS["base"], 3, days=0.5)
    write_trace(tmp_path / "trace.csv", trace)
    write_pools(tmp_path / "pools.csv", table)
    summary = replayed(tmp_path, trace, table, ROUNDS, options=Options(resume_cost=30.0))
    assert_accepted(checker, tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path, summary)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("cost", [0.0, 45.0])
@pytest.mark.parametrize("policy", ["srtf", "srsf", "las"])
def test_segments_do_the_work_and_its_costs_exactly(policy, cost, tmp_path):
    trace, table = synthesize(PRESETS["higher-load"], 2)
    replayed(tmp_path, trace, table, [policy], options=Options(resume_cost=cost))
    segments: dict[str, list[tuple[float, float]]] = {}
    for row in rows(tmp_path / policy / "segments.csv"):
        segments.setdefault(row["job_id"], []).append((float(row["start"]), float(row["end"])))
    assert segments.keys() == {arrival.job.id for arrival in trace.arrivals}
    assert any(len(own) > 1 for own in segments.values())
    for job, duration in trace.arrivals:
        lengths = [end - start for start, end in segments[job.id]]
        costs = sum(min(cost, length) for length in lengths[1:])
        assert sum(lengths) == pytest.approx(duration + costs, abs=1e-6), job.id


@pytest.mark.parametrize("policy", ["emmfs", "afs", "srtf"])
def test_what_segments_lost_is_what_stops_cost_at_any_width(policy, tmp_path):
    trace, table = synthesize(PRESETS["higher-load"], 2, days=0.5)
    arrivals = [
        arrival._replace(job=replace(arrival.job, preemptible=45.0)) for arrival in trace.arrivals
    ]
    replayed(tmp_path, Trace(arrivals), table, [policy])
    did = dict.fromkeys((arrival.job.id for arrival in arrivals), 0.0)
    stopped = 0
    for row in rows(tmp_path / policy / "segments.csv"):
        length, lost = float(row["end"]) - float(row["start"]), float(row["lost"])
        did[row["job_id"]] += length * int(row["width"]) - lost
        stopped += lost > 0.0
    assert stopped
    for job, duration in arrivals:
        assert did[job.id] == pytest.approx(job.width * duration, abs=1e-3), job.id


def test_elastic_max_min_follows_widths_and_demands_of_the_log(tmp_path, checker):
    lines = ["job_id,pool,submit,width,duration,min_width,max_width,demand"]
    lines += ["wide,a,0,2,1000,1,8,", "rigid,a,0,2,1000,2,2,", "late,b,100,4,1000,2,4,"]
    lines += ["lame,b,5000,2,1000,1,4,1:1500;2:1000;4:800"]
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "pools.csv").write_text("pool,quota\na,4\nb,4\n")
    trace, table = read_trace(tmp_path / "trace.csv"), read_pools(tmp_path / "pools.csv")
    summary = replayed(tmp_path, trace, table, ["emmfs"])
    segments = {}
    for row in rows(tmp_path / "emmfs" / "segments.csv"):
        own = float(row["start"]), float(row["end"]), int(row["width"])
        segments.setdefault(row["job_id"], []).append(own)
    assert segments["rigid"] == [(0, 1000, 2)]
    assert segments["wide"][0] == (0, 100, 6)
    assert segments["wide"][1] == (100, 800, 2)  # 300 s of its work were done in the first 100
    assert segments["late"][0] == (100, 1100, 4)
    assert segments["lame"] == [(5000, 5800, 4)]
    assert_accepted(checker, tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path, summary)
    again = tmp_path / "again.csv"
    write_trace(again, trace)
    assert read_trace(again).arrivals == trace.arrivals


@pytest.mark.parametrize("forecast", ["sliding-max", "random", "none"])
@pytest.mark.parametrize("durations", ["history", "random"])
def test_the_checker_accepts_wrong_forecasts_too(forecast, durations, tmp_path, checker):
    trace, table = synthesize(PRESETS["base"], 7)
    write_trace(tmp_path / "trace.csv", trace)
    write_pools(tmp_path / "pools.csv", table)
    summary = replayed(
        tmp_path, trace, table, ["sia", "ssf"], forecast=forecast, durations=durations, warmup=DAY
    )
    assert_accepted(checker, tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path, summary, DAY)
    if forecast != "sliding-max":  # in three days of bursts it never finds GPUs to spare
        assert summary["sia"]["gpu_hours_lent"] > 0


def test_the_checker_accepts_groups_and_pools_that_keep_to_themselves(tmp_path, checker):
    trace, table = synthesize(PRESETS["more-queues"], 3)
    write_trace(tmp_path / "trace.csv", trace)
    rows = ["pool,quota,group,share"]
    rows += [f"q{i},8,{'red' if i % 2 else 'blue'},{'no' if i > 5 else 'yes'}" for i in range(8)]
    (tmp_path / "pools.csv").write_text("\n".join(rows) + "\n")
    table = read_pools(tmp_path / "pools.csv")
    summary = replayed(tmp_path, trace, table)
    assert_accepted(checker, tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path, summary)
    for policy in ("gssf", "mmfs", "sia", "sia-vc"):
        for alone in ("q6", "q7"):
            pool = summary[policy]["pools"][alone]
            assert pool["gpu_hours_lent"] == pool["gpu_hours_borrowed"] == 0, (policy, alone)
    assert summary["mmfs"]["pools"]["q6"]["slowed"] == 0


def test_the_checker_accepts_pools_that_change_size(tmp_path, checker):
    trace, _ = synthesize(PRESETS["base"], 5, days=2.0)
    write_trace(tmp_path / "trace.csv", trace)
    rows = ["pool,quota,from"]
    for i in range(4):
        rows += [f"q{i},8,0", f"q{i},{(4, 12, 0, 9)[i]},{DAY}", f"q{i},8,{1.5 * DAY}"]
    (tmp_path / "pools.csv").write_text("\n".join(rows) + "\n")
    table = read_pools(tmp_path / "pools.csv")
    some = [*POLICIES, *RIVALS, *PREEMPTING, "wfq", "fair-share"]
    summary = replayed(tmp_path, trace, table, some)
    assert all(ours["never_ended"] == 0 for ours in summary.values())
    for policy in some:
        violations, _ = checker(
            tmp_path / "trace.csv", tmp_path / "pools.csv", tmp_path / policy, policy
        )
        assert not violations, (policy, violations[:3])


REAL = {
    "philly": ("philly.csv.gz", "philly_pools.csv"),
    "helios-2vc": ("helios_venus_2vc.csv.gz", "helios_venus_2vc_pools.csv"),
}


SLOW = dict.fromkeys([*ELASTIC, "fair-share"], 150) | {
    "jvu": 80,
    "3sigma": 80,
    "chronus:profile=0": 30,
    "themis-lease": 60,
    "afs": 90,
}
"""Jobs for policies that plan much at each instant; the soak has all of them."""


@pytest.mark.parametrize("policy", [name for name in ALL if name not in ROUNDS])
@pytest.mark.parametrize("log", REAL)
def test_the_checker_accepts_real_logs(log, policy, tmp_path, checker, traces):
    trace_file, pools_file = (traces / name for name in REAL[log])
    if not SOAK:
        jobs = SLOW.get(policy, 700)
        trace_file = first_jobs(trace_file, jobs, tmp_path / "trace.csv")
    table = read_pools(pools_file)
    trace = playable(read_trace(trace_file), table)
    summary = replayed(tmp_path, trace, table, [policy])
    assert_accepted(checker, trace_file, pools_file, tmp_path, summary)


@pytest.fixture(scope="module")
def philly(traces):
    """The whole log and its pools."""
    return read_trace(traces / "philly.csv.gz"), read_pools(traces / "philly_pools.csv")


def philly_piece(philly, number, queues):
    """Two weeks of some Philly pools, at loads from U(0.6, 1.1) (§6.1)."""
    random = Random(f"{number}-{queues}")
    trace, table = philly
    begin = (30 + 8 * number) * DAY
    end = begin + 14 * DAY
    busy = {a.job.pool for a in trace.arrivals if begin <= a.job.submit < end}
    pools = random.sample(sorted(busy & {pool.name for pool in table.pools}), queues)
    loads = {name: random.uniform(0.6, 1.1) for name in pools}
    piece, table = slice_trace(trace, table, begin=begin, end=end, pools=pools, loads=loads)
    return playable(piece, table), table


PIECES = budget(
    ci=[(0, 4), (0, 8), (2, 8)],
    soak=[(number, queues) for number in range(10) for queues in (4, 8)],
)
"""Numbers and pools of pieces; those in CI are short, and max-min slows jobs in each."""


@pytest.fixture(scope="module")
def pieces(philly):
    """What max-min and SIA made of each piece, without SIA-VC."""
    found = {}
    for number, queues in PIECES:
        trace, table = philly_piece(philly, number, queues)
        settings = Settings(["mmfs", "sia"], warmup=2 * DAY)
        results = replay_all(trace, table, settings)
        found[number, queues] = summarize(table, settings, results)["policies"]
    return found


@pytest.mark.xdist_group("pieces")
def test_sia_slows_nobody_on_philly_and_max_min_does(pieces):
    assert [piece for piece, found in pieces.items() if found["sia"]["slowed"]] == []
    slowing = [piece for piece, found in pieces.items() if found["mmfs"]["slowed"]]
    assert len(slowing) > len(PIECES) / 2


@pytest.mark.xdist_group("pieces")
def test_sia_speeds_up_jobs_as_much_as_max_min_on_most_pieces(pieces):
    at_least = [
        piece
        for piece, found in pieces.items()
        if found["sia"]["speedup_mean"] >= found["mmfs"]["speedup_mean"]
    ]
    assert len(at_least) >= budget(ci=1, soak=len(PIECES) // 2 + 1)


@pytest.mark.xdist_group("pieces")
@pytest.mark.parametrize(("number", "queues"), budget(ci=PIECES[1:], soak=PIECES))
def test_sia_vc_slows_nobody_on_philly(number, queues, philly):
    trace, table = philly_piece(philly, number, queues)
    settings = Settings(["sia-vc"], warmup=2 * DAY)
    found = summarize(table, settings, replay_all(trace, table, settings))["policies"]["sia-vc"]
    assert found["slowed"] == 0
    assert found["speedup_mean"] > 1


def test_the_same_bytes_come_out_whatever_the_hash_seed(tmp_path):
    found, chosen = [], [name for name in ALL if name not in ROUNDS]
    for hash_seed in (None, "2"):  # that of this process is random
        folder = tmp_path / str(hash_seed)
        sia("trace", "synth", "--seed", 4, "--days", 0.3, "--out", folder, hash_seed=hash_seed)
        done = sia(
            "replay", "--trace", folder / "trace.csv", "--pools", folder / "pools.csv",
            "--forecast", "random", "--durations", "history", "--policy", ",".join(chosen),
            "--resume-cost", "10s", "--out", folder / "out",
            hash_seed=hash_seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(digests(folder))
    in_segments = [*PREEMPTING, *ELASTIC, "fair-share", "jvu", "prio"]
    told = [*ELASTIC, "fair-share"]
    tables = 3  # two of chronus, one of sia-reclaim
    assert len(found[0]) == 2 + 3 * len(chosen) + len(in_segments) + len(told) + 2 + tables
    assert found[0] == found[1]


@pytest.fixture
def small(tmp_path):
    """A tiny replay's inputs, and its results as the command writes them."""
    trace, table = synthesize(PRESETS["base"], 1, days=0.5)
    write_trace(tmp_path / "trace.csv", trace)
    write_pools(tmp_path / "pools.csv", table)
    return tmp_path


def replay(folder, *arguments):
    return sia(
        "replay", "--trace", folder / "trace.csv", "--pools", folder / "pools.csv",
        "--out", folder / "out", "--no-report", *arguments,
    )  # fmt: skip


def edited(path, edit):
    """Rewrite a CSV file's rows."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    rows = edit(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def forget_a_job(rows):
    return rows[1:]


def run_one_twice(rows):
    return [*rows, rows[0]]


def end_one_early(rows):
    rows[5]["end"] = str(float(rows[5]["end"]) - 60)
    return rows


def start_one_before_it_came(rows):
    late = next(row for row in rows if float(row["submit"]) > 0)
    shift = float(late["start"]) - float(late["submit"]) + 10
    late["start"], late["end"] = (str(float(late[key]) - shift) for key in ("start", "end"))
    return rows


def call_all_dedicated(rows):
    return [{**row, "stream": "dedicated"} for row in rows]


def start_all_at_once(rows):
    for row in rows:
        row["end"] = str(float(row["end"]) - float(row["start"]) + float(row["submit"]))
        row["start"] = row["submit"]
    return rows


def lend_too_long(rows):
    rows[0]["end"] = str(float(rows[0]["end"]) + 60)
    return rows


def lend_one_too_many(rows):
    rows[0]["gpus"] = str(int(rows[0]["gpus"]) + 1)
    return rows


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("jobs.csv", forget_a_job),
        ("jobs.csv", run_one_twice),
        ("jobs.csv", end_one_early),
        ("jobs.csv", start_one_before_it_came),
        ("jobs.csv", call_all_dedicated),
        ("jobs.csv", start_all_at_once),
        ("loans.csv", lend_too_long),
        ("loans.csv", lend_one_too_many),
        ("loans.csv", forget_a_job),
    ],
)
def test_the_checker_catches_a_planted_fault(file, fault, small, checker):
    assert replay(small, "--policy", "mmfs").returncode == 0
    folder = small / "out" / "mmfs"
    violations, _ = checker(small / "trace.csv", small / "pools.csv", folder, "mmfs")
    assert not violations
    edited(folder / file, fault)
    violations, _ = checker(small / "trace.csv", small / "pools.csv", folder, "mmfs")
    assert violations


def test_the_checker_catches_a_wrong_fcfs_start(small, checker):
    assert replay(small, "--policy", "fcfs,mmfs").returncode == 0
    violations, _ = checker(
        small / "trace.csv", small / "pools.csv", small / "out" / "mmfs", "fcfs"
    )
    assert violations


def test_json_on_stdout_is_the_summary(small):
    done = replay(small, "--policy", "sia", "--json")
    assert json.loads(done.stdout) == json.loads((small / "out" / "summary.json").read_text())


def test_the_tables_name_every_policy_and_pool(small):
    done = replay(small)
    assert done.returncode == 0
    for word in (*POLICIES, "q0", "q3", "% slowed", "GPU-h lent", "known in advance"):
        assert word in done.stdout


FORESIGHT = {
    "fcfs,mmfs": None,
    "ssf,sia,sia-vc": "run times to ssf; arrivals and run times to sia, sia-vc; "
    "compare with --forecast peaks --durations survival for ssf, sia",
    "ssf,sia": "run times to ssf; arrivals and run times to sia; "
    "compare with --forecast peaks --durations survival",
    "ssf,sia,sia@peaks+survival": "run times to ssf; arrivals and run times to sia; "
    "compare with --durations survival for ssf",
    "ssf": "run times to ssf; compare with --durations survival",
    "sia,sia@sliding-max+history": "arrivals and run times to sia",
    "sia-vc": "arrivals and run times to sia-vc",
    "sia@sliding-max+history": None,
}


@pytest.mark.parametrize("policies", FORESIGHT)
def test_policies_that_know_the_future_are_named_with_an_alternative(policies, capsys):
    show_foresight(Settings(policies.split(",")))
    expected = FORESIGHT[policies]
    said = (
        "" if expected is None else f"note: known in advance, unlike in a live system: {expected}\n"
    )
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("pools", "lonely"),
    [("pool,quota,share\nq0,8,\nq1,8,no\n", True), ("pool,quota,group\nq0,8,x\nq1,8,y\n", True),
     ("pool,quota\nq0,8\nq1,8\n", False)],
)  # fmt: skip
def test_pools_that_have_nobody_to_lend_to_are_told(pools, lonely, small):
    (small / "pools.csv").write_text(pools)
    done = replay(small, "--policy", "sia")
    assert done.returncode == 0
    assert ("every pool is alone in its sharing group" in done.stdout) == lonely


def test_a_log_of_many_widths_is_described_in_short_lines(tmp_path):
    rows = [f"j{w}x{i},a,0,{w},60" for w in range(1, 10) for i in range(w % 5 + 1)]
    (tmp_path / "trace.csv").write_text("\n".join(["job_id,pool,submit,width,duration", *rows]))
    done = sia("trace", "info", "--trace", tmp_path / "trace.csv")
    assert "2:10% 3:14% 4:17% 8:14% 9:17% +4" in done.stdout
    assert done.stdout.startswith("29 jobs from 0 s to 0 s")


def test_a_publishers_log_names_the_mend(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("job_id,user,vc,gpu_num\n1,u,a,1\n")
    said = sia("trace", "info", "--trace", log).stderr
    assert "found 'job_id', 'user', 'vc', 'gpu_num';" in said
    assert "sia trace convert --format" in said
    for form in ("helios", "philly", "swf", "google", "alibaba"):
        second = [log] if form == "alibaba" else []
        done = sia("trace", "convert", log, *second, "--format", form, "--out", tmp_path / "out")
        assert done.returncode == 2, form
        assert len(done.stderr.splitlines()) == 1
        assert "if it has another format, choose it with --format" in done.stderr, form


def test_jobs_that_cannot_be_replayed_are_dropped_counted_and_shown(small):
    with (small / "trace.csv").open("a") as file:
        file.write("stranger,elsewhere,5,1,60,,\nwide,q0,6,9,60,,\n")
    done = replay(small, "--policy", "fcfs")
    assert "note: the pools file lacks elsewhere" in done.stdout
    assert "1 job of a pool that the pools file lacks" in done.stdout
    assert "1 job wider than its pool" in done.stdout
    assert "were sorted" in done.stdout
    dropped = json.loads((small / "out" / "summary.json").read_text())["trace"]["dropped"]
    assert dropped == {"of a pool that the pools file lacks": 1, "wider than its pool": 1}


def test_invalid_rows_are_left_out_counted_and_shown_where_asked(small):
    with (small / "trace.csv").open("a") as file:
        file.write("odd,q0,5,1.5,60,,\n")
    assert replay(small, "--policy", "fcfs").returncode == 2
    done = replay(small, "--policy", "fcfs", "--skip-invalid")
    assert done.returncode == 0
    assert "1 job invalid: width is no whole number" in done.stdout


MISUSE = {
    "an unknown policy": (["--policy", "fcfs,fifo"], "fifo"),
    "an unknown forecast": (["--forecast", "crystal-ball"], "crystal-ball"),
    "unknown durations": (["--durations", "long"], "long"),
    "durations without a percentage": (["--durations", "noisy"], "noisy:20"),
    "a percentage out of bounds": (["--durations", "within:100"], "0 to 99"),
    "a percentage without effect": (["--durations", "survival:0.9"], "takes no percentage"),
    "no policy": (["--policy", ""], "policy"),
    "windows that fall": (["--windows", "1h,5m"], "ascending"),
    "no window": (["--windows", "0s"], "ascending"),
    "no number": (["--windows", "soon"], "soon"),
    "a negative warm-up": (["--warmup", "-5m"], "-5m"),
    "a pool that is not there": (["--no-lending", "vision"], "vision"),
    "a window that is not there": (["--no-lending", "q0:7m"], "7m"),
    "a priority without a number": (["--spare-priority", "q0=high"], "POOL=N"),
    "a slack that is no number": (["--slack", "nan"], "--slack"),
    "an unknown option": (["--frobnicate"], "--frobnicate"),
    "a missing trace": (["--trace", "nowhere.csv"], "nowhere.csv"),
    "a missing pools file": (["--pools", "nowhere.csv"], "nowhere.csv"),
    "a seed that is no number": (["--seed", "x"], "x"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_line_and_exit_code_2_and_leaves_nothing(case, small):
    arguments, named = MISUSE[case]
    before = set(small.iterdir())
    done = replay(small, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert set(small.iterdir()) == before


def test_an_output_that_cannot_be_written_is_one_line(small):
    (small / "out").write_text("a file stands here")
    done = replay(small, "--policy", "fcfs")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert (small / "out").read_text() == "a file stands here"
    below = sia("trace", "synth", "--out", small / "out" / "x")
    assert below.returncode == 2
    assert len(below.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_leaves_nothing(number, traces, tmp_path):
    log, pools = tmp_path / "log.csv", traces / "philly_pools.csv"
    first_jobs(traces / "philly.csv.gz", 15_000, log)
    running = subprocess.Popen(
        [sys.executable, "-m", "sia", "replay", "--trace", log, "--pools", pools,
         "--policy", "fcfs,mmfs,sia", "--out", tmp_path / "out"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "fcfs" in running.stderr.readline()  # it is in the midst of it
    running.send_signal(number)
    _, said = running.communicate()
    assert running.returncode == 130
    assert said.splitlines()[-1] == "sia: interrupted"
    assert list(tmp_path.iterdir()) == [log]


def test_no_job_that_can_run_is_an_error(small):
    (small / "pools.csv").write_text("pool,quota\nelsewhere,8\n")
    done = replay(small)
    assert done.returncode == 2
    assert "no job can run" in done.stderr
    assert "the pools file lacks q" in done.stderr
    assert "a row for each pool" in done.stderr
    assert not (small / "out").exists()


def test_results_replace_all_earlier_ones_and_leave_other_files_alone(small):
    assert replay(small, "--policy", "fcfs,mmfs").returncode == 0
    (small / "out" / "notes.txt").write_text("mine")
    (small / "out" / "report.html").write_text("of an earlier replay")
    assert replay(small, "--policy", "fcfs,sia").returncode == 0
    found = sorted(path.name for path in (small / "out").iterdir())
    assert found == ["fcfs", "notes.txt", "sia", "summary.json"]


def test_files_that_no_replay_wrote_are_neither_removed_nor_replaced(small):
    out = small / "out"
    out.mkdir()
    (out / "cells.toml").write_text("mine")
    for _ in range(2):  # the second time there are results of the first
        assert replay(small, "--policy", "fcfs").returncode == 0
        assert (out / "cells.toml").read_text() == "mine"
    other = small / "other"
    other.mkdir()
    (other / "report.html").write_text("mine")
    done = sia(
        "replay", "--trace", small / "trace.csv", "--pools", small / "pools.csv",
        "--policy", "fcfs", "--out", other,
    )  # fmt: skip
    assert done.returncode == 2
    assert "report.html: would be replaced by a result; change --out" in done.stderr
    assert [path.name for path in other.iterdir()] == ["report.html"]


def test_files_that_are_not_results_are_not_replaced(small):
    (small / "out" / "sia").mkdir(parents=True)
    (small / "out" / "sia" / "core.py").write_text("precious")
    done = replay(small, "--policy", "fcfs,sia")
    assert done.returncode == 2
    [said] = done.stderr.splitlines()  # nothing was replayed before
    assert "not an earlier result" in said
    assert [path.name for path in (small / "out").rglob("*")] == ["sia", "core.py"]


def test_no_input_is_replaced(small):
    before = digests(small)
    cut = sia(
        "trace", "slice", "--trace", small / "trace.csv", "--pools", small / "pools.csv",
        "--length", "1h", "--out", small,
    )  # fmt: skip
    assert cut.returncode == 2
    assert "would be replaced" in cut.stderr
    assert digests(small) == before


def test_a_users_log_is_not_overwritten_by_a_generated_one(tmp_path):
    (tmp_path / "pools.csv").write_text("pool,quota\nmine,8\n")
    done = sia("trace", "synth", "--days", 1, "--out", tmp_path)
    assert done.returncode == 2
    [said] = done.stderr.splitlines()
    assert "pools.csv: already exists with other contents; remove it" in said
    assert [path.name for path in tmp_path.iterdir()] == ["pools.csv"]
    assert (tmp_path / "pools.csv").read_text() == "pool,quota\nmine,8\n"


def test_an_identical_result_is_not_rewritten(tmp_path):
    def make(seed):
        return sia("trace", "synth", "--days", 1, "--seed", seed, "--out", tmp_path).returncode

    assert make(1) == 0
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    (tmp_path / "pools.csv").unlink()
    assert make(1) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"trace.csv", "pools.csv"}
    assert (tmp_path / "trace.csv").stat().st_ino == before[tmp_path / "trace.csv"]
    assert make(2) == 2


@pytest.mark.parametrize("left", [{"experiments.csv": ""}, {"settings.json": "sia experiment"}])
def test_an_experiments_folder_is_no_place_for_a_replay(left, small):
    (small / "out").mkdir()
    for name, command in left.items():
        (small / "out" / name).write_text(json.dumps({"command": command}))
    done = replay(small)
    assert done.returncode == 2
    assert "out: holds results of sia experiment; choose another --out" in done.stderr
    assert [path.name for path in (small / "out").iterdir()] == list(left)


def test_parquet_is_written_and_read_without_a_word_on_stderr(small):
    pytest.importorskip("duckdb")
    made = sia("trace", "convert", small / "trace.csv", "--to", "parquet", "--out", small / "p")
    assert (made.returncode, made.stderr) == (0, "")
    read = sia("trace", "info", "--trace", small / "p" / "trace.parquet")
    assert (read.returncode, read.stderr) == (0, "")


def test_a_swap_that_fails_is_undone(small, monkeypatch):
    out = small / "out"
    for name in ("a", "b"):
        (out / name).mkdir(parents=True)
        (out / name / "jobs.csv").write_text("old")
    rename = Path.rename

    def fail_at_the_last(self, target):
        if self.parent.name == "new" and self.name == "b":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_the_last)

    def write():
        with whole_folder(out) as folder:
            for name in ("a", "b"):
                (folder / name).mkdir()
                (folder / name / "jobs.csv").write_text("new")

    with pytest.raises(UserError, match="No space left"):
        write()
    assert {path.read_text() for path in out.rglob("jobs.csv")} == {"old"}
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]


def test_a_full_stdout_is_one_line(small):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sia", "trace", "info", "--trace", small / "trace.csv"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("submits", [(1e14, 1e14 + 0.02), (0.0, 1e-320), (1.7e9, 1.7e9 + 1e-5)])
def test_odd_but_legal_times_are_drawn(submits, tmp_path):
    rows = [f"j{i},a,{submit!r},1,60" for i, submit in enumerate(submits)]
    (tmp_path / "trace.csv").write_text("\n".join(["job_id,pool,submit,width,duration", *rows]))
    (tmp_path / "pools.csv").write_text("pool,quota\na,1\n")
    done = sia(
        "replay", "--trace", tmp_path / "trace.csv", "--pools", tmp_path / "pools.csv",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_the_operators_choices_reach_the_summary_and_the_schedule(small):
    plain = json.loads(replay(small, "--policy", "sia", "--json").stdout)
    kept = [f"--no-lending=q{i}" for i in range(4)]
    held = json.loads(replay(small, "--policy", "sia", *kept, "--json").stdout)
    assert held["configuration"]["no_lending"]
    assert held["policies"]["sia"]["gpu_hours_lent"] == 0
    assert plain["policies"]["sia"]["gpu_hours_lent"] > 0


def test_help_names_every_command():
    done = sia("--help")
    assert done.returncode == 0
    assert "replay" in done.stdout
    assert "trace" in done.stdout
    for command in ("synth", "convert", "slice", "info"):
        assert sia("trace", command, "--help").returncode == 0


def test_trace_commands_work_on_what_they_make(small):
    out = small / "piece"
    done = sia(
        "trace", "slice", "--trace", small / "trace.csv", "--pools", small / "pools.csv",
        "--queues", 2, "--load", "0.6-1.1", "--seed", 1, "--from", "1h", "--length", "6h",
        "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    described = sia(
        "trace", "info", "--trace", out / "trace.csv", "--pools", out / "pools.csv", "--json"
    )
    facts = json.loads(described.stdout)
    assert len(facts["pools"]) == 2
    assert facts["jobs"] == sum(pool["jobs"] for pool in facts["pools"].values())
    converted = sia(
        "trace", "convert", out / "trace.csv", out / "pools.csv", "--to", "parquet",
        "--out", small / "parquet",
    )  # fmt: skip
    assert converted.returncode == 0, converted.stderr
    assert (
        read_trace(small / "parquet" / "trace.parquet").arrivals
        == read_trace(out / "trace.csv").arrivals
    )
