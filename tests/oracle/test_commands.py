"""`sia oracle` as somebody meets it: what it says, what it refuses, what it leaves of a folder."""

import json
import os
import signal
import subprocess
import sys
from threading import Timer
from time import sleep

import pytest
from click.testing import CliRunner

from oracle.bounds.lp import LpBound
from oracle.cli.oracle import oracle as group
from oracle.problem.cutoffs import read_cutoffs
from oracle.problem.inputs import read_inputs
from oracle.problem.problem import Goal
from oracle.run.bound import Bounding
from oracle.run.console import ProgressReporter
from oracle.run.run import instance_of, lp_bound
from oracle.search.answer import SolverProgress
from replay.logs.trace import Trace
from replay.run.output import write_trace
from replay.synthetic.paper import PRESETS, synthesize
from sia.console.errors import UserError
from tests.oracle.test_solve import SLOT, STORY, TWO, files_of, log_of
from tests.support.builders import crowded
from tests.support.files import written
from tests.support.shell import digests, sia

COMMANDS = "solve", "bound", "sweep"
QUICK = "--time-limit", "2m"
SOLVED = ["deadlines.csv", "jobs.csv", "loans.csv", "oracle.json", "pools.csv", "real", "trace.csv"]
SWEPT = ["sweep.csv", "sweep.json", "sweep.png", "sweep.svg"]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def ok(*arguments):
    ran = sia("oracle", *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran


def refused(*arguments):
    """What it says in its one line."""
    ran = sia("oracle", *arguments)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    return ran.stderr


def quietly_refused(*arguments):
    """The same without a process of its own."""
    found = CliRunner().invoke(group, [*map(str, arguments)], standalone_mode=False)
    assert isinstance(found.exception, UserError), found.exception
    return str(found.exception)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_problem_without_jobs_is_refused(command, tmp_path):
    out = tmp_path / "out"
    words = refused(command, *files_of(tmp_path), "--window", "0", "--out", out)
    assert "--window 0s: no job was submitted in that time; use a longer window" in words
    write_trace(tmp_path / "log.csv", Trace([]))
    given = "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv"
    assert "log.csv" in quietly_refused(command, *given, "--out", out)
    given = files_of(tmp_path, log_of(("x", "a", 0, 9, 60), ("y", "a", 0, 9, 60)))
    assert "(2 jobs wider than their pool)" in quietly_refused(command, *given, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_rows_are_left_out_where_asked(command, tmp_path):
    given = files_of(tmp_path)
    with (tmp_path / "log.csv").open("a") as log:
        log.write("bad,a,1000,none,60,,\n")
    out = "--out", tmp_path / "out"
    assert "--skip-invalid" in quietly_refused(command, *given, *out)
    ran = ok(command, *given, "--skip-invalid", *QUICK, *out)
    assert "dropped: 1 job" in ran.stderr


def test_a_window_that_takes_hardly_a_job_is_told(tmp_path, capsys):
    log = log_of(*[(f"j{i}", "a", 60 * i, 1, 60) for i in range(300)])
    given = files_of(tmp_path, log)
    read_inputs(given[1], given[3], 180.0)
    said = capsys.readouterr().err
    assert "note: --window 3m selects 3 of 300 jobs" in said
    assert "sia trace slice --from" in said
    read_inputs(given[1], given[3], 240.0)
    assert "note" not in capsys.readouterr().err


def test_unknown_results_are_not_shown(capsys):
    inf = float("inf")
    ProgressReporter(SLOT, Goal())(SolverProgress(inf, 0.0, 0, 90.0))
    ProgressReporter(SLOT, Goal())(SolverProgress(12.0, 0.0, 1, 90.0))
    ProgressReporter(SLOT, Goal(beta=1.0))(SolverProgress(12.5, 10.0, 1, 90.0))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "waiting: best none yet, bound none yet, 0 nodes, 1 m 30 s left",
        "waiting: best 1 h, bound none yet, 1 node, 1 m 30 s left",
        "objective (slots): best 12.50, bound 10.00, gap 20.00 %, 1 node, 1 m 30 s left",
    ]


def test_the_summary_is_enough_to_repeat_a_run(tmp_path, checker):
    out = tmp_path / "out"
    more = "--window", "1d", "--seed", "7", "--form", "pulse"
    ran = ok("solve", *files_of(tmp_path), *more, *QUICK, "--out", out)
    told = json.loads((out / "oracle.json").read_text())
    expected = {
        "command": "sia oracle solve", "trace": "log.csv", "pools": "pools.csv", "slot_s": 300.0,
        "window_s": 86400.0, "form": "pulse", "time_limit_s": 120.0, "skip_invalid": False,
        "beta": 0.0, "weighted": False, "slowdown_allowed_pct": 0.0, "slowdown_price": None,
        "cutoffs": None, "cutoffs_jobs": 0, "seed": 7, "jobs": 3, "objective_unit": "slots",
    }  # fmt: skip
    assert {key: told[key] for key in expected} == expected
    lines = ran.stdout.splitlines()
    assert lines[0] == (
        "optimal: total waiting 0 s; no schedule that delays no job has less than 0 s, gap 0; "
        "without sharing 1 h"
    )
    assert lines[1] == (
        "with the times of the log: total waiting 0 s; without sharing 59 m 50 s; no job ends later"
    )
    assert (told["real"]["total_wait_s"], told["real"]["baseline_wait_s"]) == (0.0, 3590.0)
    given = tmp_path / "log.csv", tmp_path / "pools.csv", out / "real", "oracle"
    assert checker(*given)[0] == []


def test_other_objectives_have_a_line_of_their_own(tmp_path):
    more = "--beta", "2", "--weighted", "--slowdown-pct", "10"
    lines = ok(
        "solve", *files_of(tmp_path), *more, *QUICK, "--out", tmp_path / "out"
    ).stdout.splitlines()
    assert lines[0].startswith("optimal: objective ")
    assert " weighted slots; no schedule within the cutoffs has less than " in lines[0]
    assert lines[0].endswith("gap 0")
    assert lines[1].startswith("total waiting ")


def test_a_price_of_slowdowns_without_any_is_refused(tmp_path):
    given = *files_of(tmp_path), "--slowdown-price", "3", "--out", tmp_path / "out"
    assert "give both" in quietly_refused("solve", *given)


def cutoffs_of(folder, text):
    return read_cutoffs(written(folder, "job_id,start\n" + text, "cut.csv"), STORY,
                        {"long", "behind", "b's", "later"})  # fmt: skip


def test_cutoffs_between_slots_are_rounded_up_as_submissions_are(tmp_path):
    """The job comes at 20 s, starts at 25 s: its slot is the one from 300 s on, for both."""
    found = cutoffs_of(tmp_path, "behind,25\nb's,1300\nlater,9\n")
    assert found == {"behind": 25.0, "b's": 1300.0}
    instance = instance_of(STORY, TWO, SLOT, Goal(), found)
    [(origin, problem)] = instance.problems
    latest = {STORY.arrivals[t.position].job.id: origin + SLOT * t.latest for t in problem.tasks}
    assert latest == {"long": 300.0, "behind": 300.0, "b's": 1500.0}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("behind,25\nstrange,9\n", "row 3, column job_id: 'strange' is not a job of the log; give"),
        ("behind,25\nbehind,26\n", "row 3, column job_id: duplicate 'behind'; remove one"),
        (
            "behind,19\n",
            "'behind' starts at 19 s, before its submission at 20 s; give the jobs.csv",
        ),
        ("later,19\n", "contains none of the 3 selected jobs; give the jobs.csv"),
        ("", "contains none of the 3 selected jobs; give the jobs.csv"),
    ],
)
def test_cutoffs_that_are_of_no_schedule_of_the_log_are_refused(rows, words, tmp_path):
    with pytest.raises(UserError) as caught:
        cutoffs_of(tmp_path, rows)
    assert str(caught.value).startswith(f"{tmp_path / 'cut.csv'}: ")
    assert words in str(caught.value)


def test_starts_of_a_replay_of_the_same_log_are_cutoffs(tmp_path):
    given, out = files_of(tmp_path), tmp_path / "out"
    assert sia("replay", *given, "--policy", "fcfs", "--no-report", "--out", out).returncode == 0
    cutoffs = "--cutoffs", out / "fcfs" / "jobs.csv"
    ran = ok("solve", *given, *cutoffs, *QUICK, "--out", tmp_path / "solved")
    told = json.loads((tmp_path / "solved" / "oracle.json").read_text())
    assert (told["cutoffs"], told["cutoffs_jobs"], told["status"]) == ("jobs.csv", 3, "optimal")
    assert "3 of 3 jobs" in ran.stdout
    assert "no schedule within the cutoffs has less" in ran.stdout


def test_results_of_its_own_are_replaced_whole(tmp_path):
    given, out = files_of(tmp_path), tmp_path / "out"
    ok("solve", *given, *QUICK, "--out", out)
    assert names_in(out) == SOLVED
    ok("bound", *given, "--out", out)
    assert names_in(out) == ["oracle.json"]
    ok("solve", *given, *QUICK, "--out", out)
    ok("solve", *given, *QUICK, "--window", "100s", "--out", out)
    assert names_in(out) == SOLVED
    assert json.loads((out / "oracle.json").read_text())["jobs"] == 2
    before = digests(out)
    of_itself = "--trace", out / "trace.csv", "--pools", out / "pools.csv"
    assert "would be replaced" in quietly_refused("bound", *of_itself, "--out", out)
    assert digests(out) == before


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("summary.json", "{}", "contains results of sia replay"),
        ("settings.json", '{"command": "sia oracle study"}', "results of sia oracle study"),
        ("settings.json", '{"command": "sia experiment"}', "results of sia experiment"),
        ("jobs.csv", "mine", "jobs.csv: not a result of sia oracle"),
        ("notes.txt", "mine", "notes.txt: not a result of sia oracle"),
        ("oracle.json", "[]", "oracle.json: not a result of sia oracle"),
    ],
)
def test_foreign_folders_are_not_touched(command, name, text, words, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(text)
    before = digests(out)
    said = quietly_refused(command, *files_of(tmp_path), "--out", out)
    assert words in said
    assert said.endswith("; change --out")
    assert digests(out) == before


def test_the_commands_of_the_oracle_do_not_overwrite_each_other(tmp_path):
    given, out = files_of(tmp_path), tmp_path / "out"
    ok("sweep", *given, "--beta", "0", *QUICK, "--out", out)
    ok("sweep", *given, "--beta", "1", *QUICK, "--out", out)
    assert names_in(out) == SWEPT
    assert "contains results of sia oracle sweep" in quietly_refused("solve", *given, "--out", out)
    assert "contains results of sia oracle sweep" in refused("study", "--out", out)
    solved = tmp_path / "solved"
    ok("solve", *given, *QUICK, "--out", solved)
    (solved / "notes.txt").write_text("mine")
    assert "notes.txt: not a result" in quietly_refused("solve", *given, "--out", solved)
    (solved / "notes.txt").unlink()
    before = digests(solved)
    assert "contains results of sia oracle solve" in refused("study", "--out", solved)
    assert "contains results of sia oracle solve" in quietly_refused(
        "sweep", *given, "--out", solved
    )
    assert digests(solved) == before


def test_a_bound_says_what_stopped_it(monkeypatch):
    instance = instance_of(STORY, TWO, SLOT, Goal())
    said = []
    bounding = Bounding(instance, "step", float("inf"))
    assert bounding.run(lambda *told: said.append(told)) == "bound only"
    assert bounding.bound == 0.0
    assert said
    assert Bounding(instance, "step", 0.0).run(lambda *_: None) == "time"

    def interrupt(*_):
        raise KeyboardInterrupt

    assert Bounding(instance, "step", float("inf")).run(interrupt) == "interrupted"

    def fills(*_):
        raise MemoryError

    monkeypatch.setattr("oracle.run.bound.lp_bound", fills)
    assert Bounding(instance, "step", float("inf")).run(lambda *_: None) == "memory"


def test_a_bound_grows_to_what_is_proven_in_the_end():
    log, table = synthesize(PRESETS["base"], 1, 0.5)
    instance, rose = instance_of(log, table, SLOT, Goal()), []
    total = lp_bound(instance, "step", float("inf"), rose.append).bound
    assert rose == sorted(rose)
    assert 0 < rose[-1] == total
    assert lp_bound(instance, "step", float("inf"), stop=lambda: True) == (0.0, False, 0, 0)


def test_a_bound_that_is_interrupted_waits_for_its_solver(monkeypatch):
    """It must not run on while the process ends."""
    ended = []

    def slow(instance, form, until, rose, stop):
        Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        while not stop():
            sleep(0.01)
        sleep(0.3)
        ended.append(True)
        return LpBound(0.0, finished=False)

    monkeypatch.setattr("oracle.run.bound.lp_bound", slow)
    instance = instance_of(STORY, TWO, SLOT, Goal())
    assert Bounding(instance, "step", float("inf")).run(lambda *_: None) == "interrupted"
    assert ended


def interrupted(*arguments):
    """Start it, wait for its first line of progress, and send SIGINT."""
    command = [sys.executable, "-m", "sia", "oracle", *map(str, arguments)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        while " left" not in process.stderr.readline():
            assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in said
    [last] = [line for line in said.splitlines() if line.startswith("sia:")]
    return process.returncode, out, last


def test_each_interrupted_command_says_what_it_keeps(tmp_path, checker):
    log, table = crowded(1, 1.0)
    given = files_of(tmp_path, log, table)
    out = tmp_path / "solve"
    code, _, said = interrupted("solve", *given, "--out", out)
    assert (code, said) == (130, "sia: interrupted; the best schedule so far is kept")
    told = json.loads((out / "oracle.json").read_text())
    assert told["status"] == "interrupted"
    assert told["bound_wait_s"] < told["total_wait_s"]
    assert checker(out / "trace.csv", out / "pools.csv", out, "oracle")[0] == []
    out = tmp_path / "sweep"
    code, shown, said = interrupted("sweep", *given, "--beta", "30,100", "--out", out)
    kept = "0 of 2 prices are done and kept, and the best schedule so far for beta 30"
    assert (code, said) == (130, f"sia: interrupted; {kept}")
    assert "interrupted" in shown
    told = json.loads((out / "sweep.json").read_text())
    assert [(p["beta"], p["status"]) for p in told["points"]] == [(30.0, "interrupted")]


def test_an_interrupted_bound_keeps_what_is_proven(tmp_path):
    """On slots of a minute it takes half a minute, all of it in the solver."""
    log, table = crowded(1, 3.0)
    given = files_of(tmp_path, log, table)
    out = tmp_path / "out"
    code, shown, said = interrupted("bound", *given, "--slot", "1m", "--out", out)
    assert (code, said) == (130, "sia: interrupted; the bound so far is kept")
    assert shown.startswith("interrupted: ")
    assert json.loads((out / "oracle.json").read_text())["status"] == "interrupted"
