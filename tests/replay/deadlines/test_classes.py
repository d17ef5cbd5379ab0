"""Workloads of JamaisVu's Table 3, drawn from classes of a log."""

import json
from math import log

import pytest

from replay.deadlines.classes import (
    RackCluster,
    classes_of,
    composition,
    draw_workload,
)
from replay.logs.nodes import read_nodes
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from replay.run.output import write_trace
from sia.core.playout import Arrival
from sia.model import Job
from tests.support.shell import sia

pytestmark = pytest.mark.usefixtures("blank_pictures")

LOG = [
    Arrival(
        Job(f"j{i}", "p", float(i), 1 + i % 3, user=f"u{i % 2}"), (10 if i % 2 else 900) + i / 10
    )
    for i in range(200)
]
CLUSTER = RackCluster(32, 4)


def drawn(name, seed=1, load=2.0):
    classes = classes_of(LOG, 2)
    return draw_workload(classes, [1, 2, 4], composition(name), CLUSTER, load, 7200.0, seed)


def test_classes_are_what_k_means_finds():
    short, long = classes_of(LOG, 2)
    assert {each.job.user for each in short.members} == {"u1"}
    assert {each.job.user for each in long.members} == {"u0"}
    assert log(short.shortest) <= short.mean <= log(short.longest)
    for each in LOG:  # every job is nearer to its own centre
        own, other = (short, long) if each in short.members else (long, short)
        assert abs(log(each.duration) - own.mean) <= abs(log(each.duration) - other.mean)
    assert [len(each.members) for each in classes_of(LOG[:1], 8)] == [1]
    assert classes_of([Arrival(Job("z", "p", 0.0, 1), 0.0)], 3) == []


@pytest.mark.parametrize(
    ("name", "hard", "soft", "slacks"),
    [
        ("EXP1", 0.25, 0.25, {20, 40, 60, 80}),
        ("EXP2", 1 / 6, 1 / 3, {25, 50, 75}),
        ("EXP3", 0, 0.5, {50, 60, 70, 80}),
        ("DEADLINE-60", 0, 0, {60}),
    ],
)
def test_a_row_of_table_3_says_shares_and_slacks(name, hard, soft, slacks):
    found = drawn(name).trace.arrivals
    slo = [each for each in found if each.job.deadline is not None]
    prefer = [each.job for each in found if each.job.prefers]
    count = len(found)
    assert count > 400
    assert len(slo) / count == pytest.approx(0.5, abs=0.08)
    assert sum(job.slowdown is None for job in prefer) / count == pytest.approx(hard, abs=0.08)
    assert sum(job.slowdown is not None for job in prefer) / count == pytest.approx(soft, abs=0.08)
    assert {
        round(100 * ((each.job.deadline - each.job.submit) / each.duration - 1)) for each in slo
    } == slacks
    assert all(job.width <= 8 for job in prefer)


def test_the_load_is_what_was_asked_for_and_the_seed_decides():
    made = drawn("EXP1", load=0.5)
    asked = sum(each.job.width * each.duration for each in made.trace.arrivals)
    assert made.load == pytest.approx(asked / (32 * 7200.0))
    assert 0.5 <= made.load < 0.52
    assert drawn("EXP1", seed=1) == drawn("EXP1", seed=1)
    assert drawn("EXP1", seed=1) != drawn("EXP1", seed=2)
    times = [each.job.submit for each in made.trace.arrivals]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["EXP4", "DEADLINE-", "DEADLINE-x", "DEADLINE--5", "deadline"])
def test_other_rows_are_refused(name):
    with pytest.raises(ValueError, match="use EXP1, EXP2, EXP3, or DEADLINE-n"):
        composition(name)


def test_the_command_writes_a_log_that_jvu_replays(tmp_path):
    write_trace(tmp_path / "log.csv", Trace(LOG))
    options = ("trace", "classes", "--trace", tmp_path / "log.csv", "--workload", "EXP1")
    done = sia(*options, "--nodes", 32, "--racks", 4, "--length", "1h", "--load", 20, "--json",
               "--out", tmp_path / "out")  # fmt: skip
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout)
    out = tmp_path / "out"
    assert told["jobs"] == len(read_trace(out / "trace.csv").arrivals)
    assert 20 <= told["load_pct"] < 40
    nodes = read_nodes(out / "nodes.csv")
    assert len(nodes) == 32
    assert sum("gpu" in node.attributes for node in nodes) == 8
    replayed = sia("replay", "--trace", out / "trace.csv", "--pools", out / "pools.csv", "--nodes",
                   out / "nodes.csv", "--policy", "jvu:puo:greedy,prio", "--no-report", "--json",
                   "--out", tmp_path / "replayed")  # fmt: skip
    assert not replayed.returncode, replayed.stderr
    assert json.loads(replayed.stdout)["policies"]["prio"]["slo_jobs"] == told["slo"]
    refused = sia(*options, "--racks", 7, "--out", tmp_path / "no")
    assert refused.returncode == 2
    assert "--racks 7: 256 nodes make no equal racks" in refused.stderr
    refused = sia(*options, "--load", "nan", "--out", tmp_path / "no")
    assert refused.returncode == 2
    assert "nan: write a number, like 0.5" in refused.stderr
