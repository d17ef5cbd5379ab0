"""`sia wfq search`: same bytes whatever interrupts it, what the front is, one line for misuse."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_trace
from replay.search.algorithms import dominates
from replay.search.search import GENERATION
from sia.core.playout import Arrival
from sia.model import Job, Pool
from tests.support.builders import job, pools
from tests.support.shell import digests, sia

pytestmark = pytest.mark.xdist_group("search")

DEMAND = ((1, 100.0), (2, 55.0), (4, 35.0), (8, 30.0))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Jobs of three sizes, some of which scale badly, in two pools."""
    folder = tmp_path_factory.mktemp("log")
    random = Random(1)
    now, found = 0.0, []
    for i in range(160):
        now += random.expovariate(1 / 60)
        owner = "vision" if i % 4 else "speech"
        demand = DEMAND if i % 3 else ()
        seconds = random.choice((30.0, 300.0, 2000.0)) + i
        found.append(Arrival(Job(f"j{i}", owner, now, 1, max_width=8, demand=demand), seconds))
    write_trace(folder / "trace.csv", Trace(found))
    write_pools(folder / "pools.csv", PoolTable(pools(vision=16, speech=8)))
    return folder


def options(log, out, *more):
    return (
        *("wfq", "search", "--trace", log / "trace.csv", "--pools", log / "pools.csv"),
        *("--pool", "vision", "--arrivals", 60, "--samples", 2, "--out", out),
        *("--processes", 1, *more),
    )  # fmt: skip


MANY = ("--simulations", 60)


def done(log, out, *more):
    found = sia(*options(log, out, *more))
    assert found.returncode == 0, found.stderr
    return found


@pytest.fixture(scope="module")
def found(log, tmp_path_factory):
    """What an undisturbed search leaves."""
    out = tmp_path_factory.mktemp("found") / "out"
    done(log, out, *MANY)
    return out


def front_of(out):
    return json.loads((out / "front.json").read_text())


def rows_of(out):
    return list(csv.DictReader((out / "points.csv").read_text().splitlines()))


def test_the_front_has_configurations_and_objectives_on_both_sides(found):
    front = front_of(found)
    assert front["gpus"] == 16
    assert front["pool"] == "vision"
    assert front["objectives"] == ["avg:jct", "avg:pred_err"]
    assert front["simulations"]["train"] == 60
    for point in front["points"]:
        assert point["label"].startswith("wfq:T=")
        assert len(point["weights"]) == len(point["sizes"]) + 1
        for sides in point["objectives"].values():
            for side in ("train", "test"):
                values = sides[side]
                assert values["least"] <= values["mean"] <= values["most"]
                assert values["deviation"] >= 0
    means = [[v["train"]["mean"] for v in p["objectives"].values()] for p in front["points"]]
    assert means == sorted(means)
    assert not any(dominates(a, b) for a in means for b in means)


def test_fifo_is_the_first_point_and_predicts_every_job(found):
    fifo = front_of(found)["fifo"]
    assert fifo["number"] == 0
    assert fifo["sizes"] == []
    assert fifo["objectives"]["avg:pred_err"]["test"]["mean"] == pytest.approx(0, abs=1e-9)
    rows = rows_of(found)
    assert rows[0]["queues"] == "1"
    assert {row["queues"] for row in rows} > {"1"}
    assert len(rows) == 30


def test_presets_name_points_of_the_front(found):
    front = front_of(found)
    named = {name for point in front["points"] for name in point["presets"]}
    assert named >= {"fast", "predictable", "balanced"}
    assert front["presets"].keys() == {"fifo", "fast", "predictable", "balanced"}
    first = front["points"][0]
    assert "fast" in first["presets"]
    assert front["presets"]["fast"] == first["exact"]


def test_a_point_is_described_in_plain_words(found):
    front = front_of(found)
    fast = next(p for p in front["points"] if p["words"].startswith("shortest on average"))
    others = [point["words"] for point in front["points"] if point is not fast]
    assert all("in place of" in words and "worst error" in words for words in others)


def test_the_number_of_processes_changes_nothing(log, found, tmp_path):
    done(log, tmp_path / "out", *MANY, "--processes", 2)
    assert digests(tmp_path / "out") == digests(found)


def test_another_seed_finds_something_else(log, found, tmp_path):
    done(log, tmp_path / "out", "--simulations", 24, "--seed", 1)
    assert front_of(tmp_path / "out")["points"] != front_of(found)["points"]


def test_an_interrupted_search_goes_on_to_the_same_bytes(log, found, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sia", *map(str, options(log, out, *MANY, "--processes", 2))]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 120
    while not (out / "runs").exists() or len(list((out / "runs").glob("[0-9]*"))) < 5:
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.002)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "repeat the command to continue" in said
    assert "Traceback" not in said
    assert not (out / "front.json").exists()
    done(log, out, *MANY)
    assert digests(out) == digests(found)


def test_more_simulations_go_on_with_the_same_search(log, found, tmp_path):
    out = tmp_path / "out"
    done(log, out, "--simulations", 30)
    assert len(rows_of(out)) == 15 < GENERATION
    done(log, out, *MANY)
    for name in ("front.json", "points.csv", "front.svg"):
        assert (out / name).read_bytes() == (found / name).read_bytes()


def test_any_number_of_objectives_can_be_searched(log, tmp_path):
    three = ("avg:jct", "p99:pred_err", "max:unfairness")
    picked = [option for each in three for option in ("--objective", each)]
    said = done(log, tmp_path / "three", "--simulations", 24, *picked).stdout
    front = front_of(tmp_path / "three")
    assert front["objectives"] == list(three)
    assert "fair" in front["presets"]
    assert "p99:pred_err" in said
    done(log, tmp_path / "one", "--simulations", 24, "--objective", "p99:jct")
    assert len(front_of(tmp_path / "one")["points"]) == 1


def test_raw_queues_and_chance_can_be_searched_too(log, tmp_path):
    raw = ("--space", "queues", "--queues", 4, "--simulations", 24)
    done(log, tmp_path / "raw", *raw)
    labels = {point["label"] for point in front_of(tmp_path / "raw")["points"]}
    assert all(label.startswith(("wfq:sizes=", "wfq:weights=1:")) for label in labels)
    done(log, tmp_path / "chance", "--algorithm", "random", "--simulations", 24)


def test_the_front_can_be_shown_again(found):
    shown = sia("wfq", "front", found)
    assert shown.returncode == 0
    assert "in plain words" in shown.stdout
    assert json.loads(sia("wfq", "front", found, "--json").stdout) == front_of(found)


def test_a_point_says_what_it_means_for_whom(found):
    shown = sia("wfq", "front", found, "--point", "balanced").stdout
    assert "balanced" in shown
    assert "under FIFO" in shown
    fifo = json.loads(sia("wfq", "front", found, "--point", 0, "--json").stdout)
    assert fifo["sizes"] == []
    quarters = fifo["by_size"]
    assert len(quarters) == 4
    assert all(each["jct_s"] == each["fifo_jct_s"] for each in quarters)
    refused = sia("wfq", "front", found, "--point", "fastest")
    assert refused.returncode == 2
    assert "no such point or preset" in refused.stderr


def test_json_is_the_front(log, tmp_path):
    printed = done(log, tmp_path / "out", "--simulations", 20, "--json").stdout
    assert json.loads(printed) == front_of(tmp_path / "out")


WORKLOADS = """workload,quantity,value,cdf
w,service,60,0
w,service,600,0.5
w,service,9000,1
w,trials,1,0
w,trials,8,1
w,gpus_per_trial,1,0
w,gpus_per_trial,1,0.5
w,gpus_per_trial,2,1
v,service,60,1
"""


def test_a_workload_can_be_given_by_distributions(tmp_path):
    (tmp_path / "w.csv").write_text(WORKLOADS)
    search = ("wfq", "search", "--arrivals", 60, "--simulations", 12, "--gpus", 8)
    found = sia(*search, "--workload", f"{tmp_path / 'w.csv'}:w", "--out", tmp_path / "out")
    assert found.returncode == 0, found.stderr
    front = front_of(tmp_path / "out")
    assert front["workload"] == "w"
    assert front["load"] == pytest.approx(0.8)


def test_the_search_can_use_another_load(log, tmp_path):
    done(log, tmp_path / "out", "--simulations", 20, "--load", 0.5)
    assert front_of(tmp_path / "out")["load"] == pytest.approx(0.5)


def refused(said, *arguments):
    found = sia("wfq", "search", *arguments)
    assert found.returncode == 2, (found.stdout, found.stderr)
    last = found.stderr.strip().splitlines()[-1]
    assert said in last, last
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("no metric 'jtc'", ("--objective", "avg:jtc")),
        ("no measure 'mean'", ("--objective", "mean:jct")),
        ("is no objective", ("--objective", "jct")),
        ("given twice", ("--objective", "avg:jct", "--objective", "avg:jct")),
        ("fewer than the 2 of one point", ("--simulations", 1)),
        ("only with --space queues", ("--queues", 4)),
        ("more queues than the 16 GPUs", ("--space", "queues", "--queues", 17)),
        ("no job of the log is of this pool", ("--pool", "visoin")),
        ("either --pools or --gpus", ("--gpus", 4)),
        ("either --trace or --workload", ("--workload", "w.csv")),
        ("--load", ("--load", "nan")),
        ("--algorithm", ("--algorithm", "spea3")),
    ],
)
def test_misuse_is_one_line(said, more, log, tmp_path):
    refused(said, *options(log, tmp_path / "out", *more)[2:])
    assert not (tmp_path / "out").exists()


def written(folder, arrivals):
    write_trace(folder / "trace.csv", Trace(arrivals))
    write_pools(folder / "pools.csv", PoolTable([Pool("a", 8)]))
    return (
        *("--trace", folder / "trace.csv", "--pools", folder / "pools.csv"),
        *("--out", folder / "out"),
    )  # fmt: skip


def test_a_history_that_is_too_small_or_all_alike_is_one_line(log, tmp_path):
    few = [job(f"j{i}").at(i).runs(10 + i) for i in range(5)]
    refused("the history has 5 jobs to draw from", *written(tmp_path, few))
    alike = [job(f"j{i}").at(i).runs(10) for i in range(50)]
    refused("have the same size", *written(tmp_path, alike))
    at_once = [job(f"j{i}").at(3).runs(10 + i) for i in range(50)]
    refused("submitted at once", *written(tmp_path, at_once))
    both = options(log, tmp_path / "out")[2:]
    refused("choose one with --pool", *both[:4], *both[6:])


def test_a_front_of_something_else_is_one_line(log, found, tmp_path):
    refused("with --seed 0, not 1", *options(log, found, *MANY, "--seed", 1)[2:])
    (tmp_path / "front.json").write_text("{}")
    shown = sia("wfq", "front", tmp_path)
    assert shown.returncode == 2
    assert "not a front.json of sia wfq search" in shown.stderr
    refused("change --out", *options(log, tmp_path)[2:])


@pytest.mark.parametrize(
    ("name", "said"),
    [(":x", "no workload 'x'"), ("", "write FILE:NAME"), (":v", "the cdf of service")],
)
def test_a_bad_workload_is_one_line(name, said, tmp_path):
    (tmp_path / "w.csv").write_text(WORKLOADS)
    workload = f"{tmp_path / 'w.csv'}{name}"
    refused(said, "--workload", workload, "--gpus", 8, "--out", tmp_path / "out")
