"""The commands with cells: what they write, whom they refuse, and that a strict checker agrees."""

from __future__ import annotations

import csv
import json
import re

import pytest

from replay.cli.options import LIVE
from replay.cluster.cells_file import cells_for, places_of, read_spec, whole_spec
from replay.experiment.design import PieceDesign, plan_pieces
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import Trace, playable
from replay.run.run import Settings, replay_all
from sia.core.playout import Arrival
from sia.model import Job, Options
from sia.wording import DAY
from tests.support.budget import budget
from tests.support.clusters.cells import TYPES_FILE as TYPES
from tests.support.files import refusal, written
from tests.support.logs import first_jobs
from tests.support.pictures import drawn_pictures
from tests.support.shell import digests, sia

pytestmark = pytest.mark.usefixtures("blank_pictures")

LOG = "job_id,pool,submit,width,duration\n" + "".join(
    f"{pool}{i},{pool},{600 * i},{width},{duration}\n"
    for pool, width, duration in (("a", 1, 3000), ("a", 8, 1900), ("b", 4, 900), ("b", 3, 700))
    for i in range(0, 40, 2 if width == 8 else 1)
    if not (pool == "a" and width == 8 and i % 2)
).replace("a0,a,0,8", "wide,a,0,8")

POLICIES = ["fcfs", "ssf", "gssf", "mmfs", "hived", "sia"]


def numbered(text):
    """The same log with ids of its own for each row."""
    header, *rows = text.splitlines()
    return "\n".join([header, *(f"j{i},{row.partition(',')[2]}" for i, row in enumerate(rows))])


@pytest.fixture
def files(tmp_path):
    log = written(tmp_path, numbered(LOG), "log.csv")
    pools = written(tmp_path, "pool,quota\na,16\nb,8\n", "pools.csv")
    return log, pools, written(tmp_path, TYPES, "types.toml")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_replay_in_cells_from_log_to_picture(files, tmp_path, checker):
    log, pools, types = files
    out = tmp_path / "out"
    with drawn_pictures():
        ran = sia("replay", "--trace", log, "--pools", pools, "--cells", types, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert [p.name for p in sorted(out.iterdir()) if p.is_dir()] == sorted([*POLICIES, LIVE])
    for policy in POLICIES:
        violations, _ = checker(log, pools, out / policy, f"{policy} in cells", places=True)
        assert not violations, (policy, violations[:3])
        for row in rows_of(out / policy / "jobs.csv"):
            assert row["nodes"].count(";") == 0, "none is wider than a node"
    spec = read_spec(out / "cells.toml")
    assert [node.name for top in spec.tops for node in top.nodes] == ["node0", "node1", "node2"]
    assert "free cells" in (out / "report.html").read_text()
    shown = sia("cells", "show", out / "cells.toml", "--jobs", out / "sia/jobs.csv", "--at", "1h")
    assert shown.returncode == 0, shown.stderr
    assert "node2" in shown.stdout
    again = tmp_path / "again"
    named = ("--cells", out / "cells.toml", "--out", again, "--no-report")
    ran = sia("replay", "--trace", log, "--pools", pools, *named, hash_seed="7")
    assert ran.returncode == 0, ran.stderr
    same = digests(out)
    del same["report.html"]
    assert digests(again) == same


def test_jobs_that_find_no_cells_in_their_pool_are_counted(files, tmp_path):
    log, _, types = files
    pools = written(tmp_path, "pool,quota\na,12\nb,7\n", "odd.csv")
    out = tmp_path / "out"
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", types, "--policy", "fcfs",
              "--no-report", "--out", out)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    text = log.read_text() + "\nodd,a,9,12,5\nfit,b,9,7,5\n"
    log.write_text(text)
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", types, "--policy", "fcfs",
              "--no-report", "--json", "--out", out)  # fmt: skip
    assert json.loads(ran.stdout)["trace"]["dropped"] == {"too wide for the pool's cells": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--policy", "easy"),
            "--cells: easy does not support cells, only fcfs, gssf, hived, mmfs, sia,",
        ),
        (("--preemptible", "120:5m"), "write the percentage of jobs"),
        (("--preemptible", "30"), "write the percentage of jobs"),
        (("--preemptible", "30:300"), "write the percentage of jobs"),
        (("--preemptible", "30:always"), "30:restart or 30:never"),
        (("--recall", "-1"), "--recall"),
    ],
)
def test_an_impossible_request_for_cells_is_refused(files, tmp_path, options, message):
    log, pools, types = files
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", types, *options,
              "--out", tmp_path / "out")  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert message in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "policies", "said"),
    [
        (("--preemptible", "30:5m"), "fcfs,sia", "none of these policies preempts jobs; add"),
        (("--preemptible", "30:never"), "fcfs,sia", "none of these policies preempts jobs; leave"),
        (("--recall", "0.5"), "sia,srtf", "works only with sia-recall; add it to --policy"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "experiment"])
def test_an_option_that_has_no_effect_is_refused(files, tmp_path, command, option, policies, said):
    log, pools, _ = files
    asked = (command, "--trace", log, "--pools", pools, *option, "--out", tmp_path / "out")
    ran = sia(*asked, "--policy", policies)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"{option[0]}: {said}" in ran.stderr


def test_both_missing_files_are_named_in_one_line(tmp_path):
    log, pools = tmp_path / "jobs.csv", tmp_path / "pools.csv"
    ran = sia("replay", "--trace", log, "--pools", pools, "--out", tmp_path / "out")
    assert ran.returncode == 2
    assert ran.stderr == f"sia: {log} and {pools}: no such files; check the paths\n"


def test_marks_count_for_all_that_stop_jobs(files, tmp_path):
    log, pools, _ = files
    ran = sia("replay", "--trace", log, "--pools", pools, "--policy", "srtf", "--preemptible",
              "100:5m", "--no-report", "--json", "--out", tmp_path / "out")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["policies"]["srtf"]["gpu_hours_thrown_away"]


@pytest.mark.parametrize(
    ("cost", "lost"),
    [
        ("restart", 7200),  # all that it had done
        ("900", 900),
    ],
)
def test_a_stop_throws_away_no_more_than_the_work_so_far(tmp_path, cost, lost):
    log, pools = tmp_path / "jobs.csv", tmp_path / "pools.csv"
    log.write_text(
        "job_id,submit,duration,width,pool,preemptible\n"
        "own,0,900000,2,a,\n"
        f"guest,0,400000,2,a,{cost}\n"
        "owner,7200,3600,2,b,\n"
    )
    pools.write_text("pool,quota\na,2\nb,2\n")
    ran = sia("replay", "--trace", log, "--pools", pools, "--policy", "sia-recall", "--recall", "1",
              "--no-report", "--json", "--out", tmp_path / "out")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    measures = json.loads(ran.stdout)["policies"]["sia-recall"]
    found = measures["interruptions"], measures["gpu_hours_thrown_away"]
    assert found == (1, pytest.approx(2 * lost / 3600))


def test_recalling_where_there_is_nothing_to_stop_is_noted(files, tmp_path):
    log, pools, _ = files
    asked = ("replay", "--trace", log, "--pools", pools, "--policy", "sia-recall", "--out",
             tmp_path / "out")  # fmt: skip
    ran = sia(*asked)
    assert "note: no job is preemptible, so sia-recall lends as sia does; mark" in ran.stdout
    assert "note: under sia-recall no job had to be stopped\n" in ran.stdout
    assert "no job under sia-recall" in (tmp_path / "out" / "report.html").read_text()
    ran = sia(*asked, "--preemptible", "50:1s")
    assert "no job is preemptible" not in ran.stdout


def test_a_cluster_too_broken_for_its_pools_is_told_of(files, tmp_path):
    """One node of three is left: a job of two nodes, and all behind it, wait for ever."""
    _, pools, _ = files
    rows = "wide,a,0,16,60\nbehind,a,5,1,60\nother,b,9,4,60\n"
    log = written(tmp_path, f"job_id,pool,submit,width,duration\n{rows}")
    bad = re.sub('"([yz])"', r'{ name = "\1", bad = true }', CLUSTER)
    cells = written(tmp_path, bad, "cells.toml")
    out = tmp_path / "out"
    asked = ("replay", "--trace", log, "--pools", pools, "--cells", cells, "--out", out)
    ran = sia(*asked, "--policy", "sia")
    assert ran.returncode == 0, ran.stderr
    short = "pools a, b together own 3 node, 2 of these are missing: y, z are bad"
    summary = json.loads((out / "summary.json").read_text())
    assert short in summary["trace"]["notes"]
    assert summary["policies"]["sia"]["baseline_never_ended"] == 2
    assert f"note: {short}\n" in ran.stdout
    assert "note: 2 jobs never ended under fcfs and are in no measure\n" in ran.stdout
    report = (out / "report.html").read_text()
    assert short in report
    assert "2 jobs that never ended under fcfs" in report
    one = sia(*asked, "--policy", "fcfs")
    assert one.stdout.count("never ended") == 1


CLUSTER = (
    TYPES
    + """
cells = [{ type = "node", nodes = ["x"] }, { type = "node", nodes = ["y"] },
         { type = "node", nodes = ["z"] }]
[quota.a.node]
node = 2
[quota.b.node]
node = 1
"""
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[quota.b.node]\nnode = 1", "", "quota: no cells of pool 'b', which has 8 GPUs in "),
        (
            "[quota.b.node]\nnode",
            "[quota.b.node]\nquad",
            "quota.b: its cells have 4 GPUs, but the pool's",
        ),
        ("node = 2", "node = 1", "quota.a: its cells have 8 GPUs, but the pool's quota is 16"),
        ("quota.b.", "quota.c.", "pools.csv has no pool 'c', only a, b; name one of them, or add"),
        ("quota.b.", "quota.c.", "cells.toml: quota.c: "),
        (
            "[quota.a",
            "pinned = [{name = '', pool = 'c', type = 'gpu', nodes = ['x'], gpus = [0]}]\n[quota.a",
            "cells.toml: pinned[0].pool: ",
        ),
        ('"z"', '"z:1"', "'z:1' is no name of a node"),
        ('cells = [{ type = "node", nodes = ["x"] }', "pinned = []\ncells = [", "cells"),
    ],
)
def test_a_cells_file_that_contradicts_the_pools(files, tmp_path, old, new, message):
    log, pools, _ = files
    assert old in CLUSTER
    cells = written(tmp_path, CLUSTER.replace(old, new, 1), "cells.toml")
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", cells, "--out", tmp_path / "o")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith(f"sia: {cells}: ")
    assert message in ran.stderr


NAMED = CLUSTER[: CLUSTER.index("[quota")]
BOX = "    { name = 'box', child = 'gpu', count = 9, node = true },\n"
TWO_CHAINS = NAMED.replace("]\n\ncells", f"{BOX}]\n\ncells").replace(
    'node", nodes = ["z', 'box", nodes = ["z'
)


@pytest.mark.parametrize(
    ("quotas", "cells"),
    [
        ("a,16\nb,8\n", {"a": {"node": 2}, "b": {"node": 1}}),
        ("a,13\nb,8\n", {"a": {"node": 1, "quad": 1, "gpu": 1}, "b": {"node": 1}}),
        ("a,0\nb,5\n", {"b": {"quad": 1, "gpu": 1}}),
    ],
)
def test_nodes_without_quota_are_shared_out_as_the_pools_file_says(tmp_path, quotas, cells):
    pools = written(tmp_path, f"pool,quota\n{quotas}", "pools.csv")
    spec = cells_for(written(tmp_path, NAMED, "cells.toml"), read_pools(pools))
    found = {}
    for quota in spec.quotas:
        found.setdefault(quota.pool, {})[quota.type] = quota.count
    assert found == cells
    assert [node.name for top in spec.tops for node in top.nodes] == ["x", "y", "z"]


def test_pinned_cells_are_part_of_what_a_pool_has(tmp_path):
    pools = written(tmp_path, "pool,quota\na,16\nb,8\n", "pools.csv")
    pin = "pinned = [{name = 'p', pool = 'a', type = 'node', nodes = ['y']}]\n"
    spec = cells_for(written(tmp_path, pin + NAMED, "cells.toml"), read_pools(pools))
    assert [(quota.pool, quota.count) for quota in spec.quotas] == [("a", 1), ("b", 1)]
    few = written(tmp_path, "pool,quota\na,4\nb,8\n", "few.csv")
    said = refusal(cells_for, tmp_path / "cells.toml", read_pools(few))
    assert "pinned[0]: pool 'a' has fewer GPUs in the pools file; pin less" in said


@pytest.mark.parametrize(
    ("quotas", "text", "message"),
    [
        ("a,16\nb,16\n", NAMED, "4 node requested in chain node, but only 3 fit"),
        ("a,12\nb,13\n", NAMED, "lower a quota (b 1) of the pools file, or give quota here"),
        (
            "a,8\nb,8\n",
            TWO_CHAINS,
            "several chains (node, box); say which cells each pool owns",
        ),
    ],
)
def test_nodes_without_quota_that_the_pools_do_not_fit(tmp_path, quotas, text, message):
    pools = written(tmp_path, f"pool,quota\n{quotas}", "pools.csv")
    assert message in refusal(cells_for, written(tmp_path, text, "c.toml"), read_pools(pools))


def test_a_quota_that_changes_contradicts_its_cells(files, tmp_path):
    log, _, _ = files
    pools = written(tmp_path, "pool,quota,from\na,16,0\na,8,900\nb,8,0\n", "varies.csv")
    cells = written(tmp_path, CLUSTER, "cells.toml")
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", cells, "--out", tmp_path / "o")
    assert ran.returncode == 2
    assert "quota.a: the pool's quota changes at second 900" in ran.stderr


def test_jobs_drawn_to_be_stopped_are_the_only_ones_whatever_the_log_says(tmp_path):
    rows = "".join(f"j{i},a,{i},1,5,{i % 2 * 60 or ''}\n" for i in range(2000))
    log = written(tmp_path, f"job_id,pool,submit,width,duration,preemptible\n{rows}")
    trace = read_trace(log)

    def stoppable(marked, seed=0):
        jobs = [job for job, _ in mark(trace, marked, seed).arrivals]
        return {job.id: job.preemptible for job in jobs if job.preemptible is not None}

    assert stoppable(None) == {f"j{i}": 60.0 for i in range(1, 2000, 2)}
    drawn = stoppable(PreemptibleShare(30.0, 300.0))
    assert set(drawn.values()) == {300.0}
    assert 540 < len(drawn) < 660
    assert (
        drawn
        == stoppable(PreemptibleShare(30.0, 300.0))
        != stoppable(PreemptibleShare(30.0, 300.0), seed=1)
    )
    assert not stoppable(PreemptibleShare(0.0, 300.0))


def test_a_negative_cost_of_stopping_a_job_is_refused(tmp_path):
    log = written(tmp_path, "job_id,pool,submit,width,duration,preemptible\nj,a,0,1,5,-3\n")
    said = refusal(read_trace, log)
    assert "row 2, column preemptible: '-3' is negative; write seconds of at least 0" in said


def test_an_experiment_in_cells_draws_whole_nodes(traces, tmp_path, checker):
    types = written(tmp_path, TYPES, "types.toml")
    log = first_jobs(
        traces / "philly.csv.gz", budget(ci=20_000, soak=200_000), tmp_path / "log.csv"
    )
    asked = ("experiment", "--trace", log, "--pools",
             traces / "philly_pools.csv", "--queues", "3", "--weeks", "0.5", "--runs", "2",
             "--warmup", "6h", "--cells", types, "--policy", "mmfs,sia", "--keep")  # fmt: skip
    for jobs in (1, 2):
        ran = sia(*asked, "--jobs", jobs, "--out", tmp_path / str(jobs))
        assert ran.returncode == 0, ran.stderr
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    for run in sorted((tmp_path / "1" / "runs").iterdir()):
        table = read_pools(run / "pools.csv")
        assert all(pool.quota % 8 == 0 for pool in table.pools)
        assert read_trace(run / "trace.csv").arrivals
        assert read_spec(run / "cells.toml").quotas
        for policy in ("fcfs", "mmfs", "sia"):
            violations, _ = checker(
                run / "trace.csv", run / "pools.csv", run / policy, "", 21600.0, places=True
            )
            assert not violations, (policy, violations[:3])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CLUSTER, (), "give a file with types only"),
        (CLUSTER, ("--size", "1"), "with --size too; give a file with types only"),
        (
            TYPES,
            ("--quota-step", "12"),
            "must be a multiple of 8, the GPUs of a node; use one, or leave it out",
        ),
        (TYPES.replace("pair", "gpu", 1), (), "duplicate name"),
        (TYPES.replace(', { name = "x" }', "") + "quota.a.node.node = 1", (), "but no cells"),
        (
            TYPES.replace("]\n", '{ name = "slice" }]\n'),
            (),
            "types: several top types (node, slice)",
        ),
    ],
)
def test_an_experiment_refuses_cells_that_it_cannot_draw_from(
    files, tmp_path, text, options, message
):
    log, pools, _ = files
    cells = written(tmp_path, text, "cells.toml")
    ran = sia("experiment", "--trace", log, "--pools", pools, "--cells", cells, *options,
              "--out", tmp_path / "o")  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert message in ran.stderr


def test_a_philly_log_can_be_replayed_in_cells(traces, tmp_path, checker):
    """A day of a real log with jobs of 12 GPUs, under all policies."""
    log, pools = traces / "philly.csv.gz", traces / "philly_pools.csv"
    types = written(tmp_path, TYPES, "types.toml")
    piece = tmp_path / "piece"
    cut = ("--from", "73d", "--length", budget(ci="1d", soak="14d"), "--out", piece)
    ran = sia("trace", "slice", "--trace", log, "--pools", pools, *cut)
    assert ran.returncode == 0, ran.stderr
    log, pools = piece / "trace.csv", piece / "pools.csv"
    assert any(row["width"] == "12" for row in rows_of(log))
    out = tmp_path / "out"
    ran = sia("replay", "--trace", log, "--pools", pools, "--cells", types, "--out", out,
              "--policy", ",".join([*POLICIES, "sia-recall", "sia@peaks+survival"]),
              "--preemptible", "30:1m", "--no-report")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for folder in out.iterdir():
        if folder.is_dir():
            violations, _ = checker(log, pools, folder, "", places=True)
            assert not violations, (folder.name, violations[:3])


def test_sizes_of_quotas_that_change_are_refused(files, tmp_path):
    log, _, types = files
    pools = written(tmp_path, "pool,quota,from\na,16,0\na,8,900\nb,8,0\n", "varies.csv")
    ran = sia("experiment", "--trace", log, "--pools", pools, "--size", "1", "--cells", types,
              "--out", tmp_path / "o")  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "pool a's quota changes over time" in ran.stderr


def test_two_seeds_mark_different_halves():
    trace = Trace([Arrival(Job(f"j{i}", "a", 0.0, 1), 1.0) for i in range(2000)])
    first, second = (
        {
            job.id
            for job, _ in mark(trace, PreemptibleShare(50.0, 60.0), seed).arrivals
            if job.preemptible
        }
        for seed in (0, 1)
    )
    assert 900 < len(first) < 1100
    assert 400 < len(first & second) < 600


def test_long_windows_slow_nobody_on_a_real_log(traces, tmp_path):
    """A piece in which SIA once ignored the cells reserved for jobs that had started elsewhere."""
    trace, table = read_trace(traces / "philly.csv.gz"), read_pools(traces / "philly_pools.csv")
    piece = plan_pieces(trace, table, PieceDesign([8], 20, 14 * DAY, (0.6, 1.1), 0, None, 8))[16]
    spec = whole_spec(read_spec(written(tmp_path, TYPES, "types.toml")), piece.table)
    jobs = playable(piece.cut(trace), piece.table, places_of(spec, piece.table))
    some = (5, 60, 480, 1440, 8640)  # with these the fault slowed a job, too
    more = (10, 15, 30, 120, 180, 240, 360, 720, 2880, 4320)
    minutes = sorted((*some, *budget(ci=(), soak=more)))
    options = Options(windows=tuple(60.0 * each for each in minutes))
    settings = Settings(["sia"], options=options, cells=spec)
    (result,) = replay_all(jobs, piece.table, settings)
    ends = zip(result.schedule.ends, result.baseline.ends, strict=True)
    assert all(shared <= alone + 1e-3 for shared, alone in ends)
    assert sum(result.schedule.spare) > 1000
