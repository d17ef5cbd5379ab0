"""`sia replay --progress` and column `progress`: jobs report while a log is replayed."""

import csv
import json

import pytest
from click.testing import CliRunner

from replay.cli.replay import replay
from replay.logs.progress import parse_progress, progress_of
from replay.logs.read import read_trace
from replay.run.output import write_trace
from sia.console.errors import UserError
from sia.core.playout import ProgressPoint
from sia.limits import MAX_SPEED
from tests.support.shell import sia

LOG = """\
job_id,pool,submit,width,duration,user,team
one,a,0,1,100,ann,red
two,a,0,1,100,bob,blue
three,a,0,2,50,ann,red
"""
REPORTS = """\
job_id,done,speed,regime
one,0.25,1,
one,0.5,2,1
two,0,0.5,
"""


@pytest.fixture
def ends(tmp_path):
    """Replay a log with FCFS; return the ends and the summary."""

    def play(log=LOG, reports=None, *options):
        (tmp_path / "log.csv").write_text(log)
        (tmp_path / "pools.csv").write_text("pool,quota\na,2\n")
        words = ["--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv"]
        words += ["--policy", "fcfs", "--no-report", "--out", tmp_path / "out", *options]
        if reports is not None:
            (tmp_path / "reports.csv").write_text(reports)
            words += ["--progress", tmp_path / "reports.csv"]
        ended = CliRunner().invoke(replay, [str(word) for word in words], standalone_mode=False)
        if ended.exception is not None:
            raise ended.exception
        play.said = ended.output
        with (tmp_path / "out" / "fcfs" / "jobs.csv").open() as file:
            found = {row["job_id"]: float(row["end"]) for row in csv.DictReader(file)}
        return found, json.loads((tmp_path / "out" / "summary.json").read_text())

    return play


def test_jobs_that_report_other_speeds_end_earlier_or_later(ends):
    assert ends()[0] == {"one": 100.0, "two": 100.0, "three": 150.0}
    found, summary = ends(LOG, REPORTS)
    assert found == {"one": 75.0, "two": 200.0, "three": 250.0}
    assert summary["policies"]["fcfs"]["progress_reports"] == 3
    assert "under fcfs jobs reported progress 3 times" in ends.said


def test_a_log_says_the_same_in_a_column(ends):
    log = "".join(
        line + end + "\n"
        for line, end in zip(
            LOG.splitlines(), [",progress", ",0.25:1;0.5:2:1", ",0:0.5", ","], strict=True
        )
    )
    with_file = ends(LOG, REPORTS)
    assert ends(log) == with_file
    with pytest.raises(UserError, match="the log itself has a column progress"):
        ends(log, REPORTS)


def test_a_log_without_reports_has_no_count_of_them(ends):
    assert "progress_reports" not in ends()[1]["policies"]["fcfs"]


def test_the_column_is_kept_in_logs_that_are_written(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("job_id,pool,submit,width,duration,progress\na,p,0,1,9,0.5:2\nb,p,0,1,9,\n")
    trace = read_trace(path)
    assert progress_of(trace) == {"a": (ProgressPoint(0.5, 2.0),)}
    write_trace(tmp_path / "again.csv", trace)
    assert progress_of(read_trace(tmp_path / "again.csv")) == progress_of(trace)


def test_reports_of_jobs_that_are_not_replayed_are_counted(ends):
    summary = ends(LOG, REPORTS + "nobody,0.5,1,\nnobody,0.6,1,\n")[1]
    assert "2 reports of progress left out: no such job is replayed" in summary["trace"]["notes"]
    with pytest.raises(UserError, match="no report is of a job of the log"):
        ends(LOG, "job_id,done,speed\nnobody,0.5,1\n")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("one,0.4,1,", "0.4 follows 0.5; write the reports of a job in ascending order"),
        ("one,0.5,1,", "0.5 follows 0.5"),
        ("one,0.6,1,0", "column regime: regime 0 follows regime 1; number the regimes of a job"),
        ("two,1,1,", "write a number from 0 to below 1"),
        ("two,nan,1,", "write a number from 0 to below 1"),
        ("two,half,1,", "is not a report of progress"),
        ("two,0.5,,", "is not a report of progress"),
        ("two,0.5,0,", "is not allowed as a speed"),
        ("two,0.5,inf,", "is not allowed as a speed"),
        ("two,0.5,1,-1", "is not allowed as a regime"),
        ("two,0.5,1,1.5", "is not a report of progress"),
        ("two,0.5", "the row has 2 cells"),
    ],
)
def test_a_wrong_report_is_shown_with_its_row(ends, row, words):
    with pytest.raises(UserError) as error:
        ends(LOG, REPORTS + row + "\n")
    assert "reports.csv: row 5, column" in error.value.message
    assert words in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    "cell",
    [
        "0.5",
        "0.5:1;0.4:1",
        "0.5:1:2;0.6:1:1",
        "0.5:1:2;0.6:1;0.7:1:1",
        "1:1",
        "0.5:1:1:1",
        "nan:1",
        f"0.5:{MAX_SPEED * 2}",
        "0_1:1",
        ";",
        "0.5:1:1:3-2",
        "0.5:1:1:0-2",
        "0.5:1::x",
        "0.5:1::1-2-3",
    ],
)
def test_a_wrong_cell_of_the_column_is_refused(tmp_path, cell):
    path = tmp_path / "log.csv"
    path.write_text(f"job_id,pool,submit,width,duration,progress\na,p,0,1,9,{cell}\n")
    with pytest.raises(UserError, match="row 2, column progress"):
        read_trace(path)
    assert not read_trace_skipping(path)


def read_trace_skipping(path):
    try:
        return read_trace(path, skip_invalid=True).arrivals
    except UserError:
        return []


def test_an_empty_cell_says_nothing():
    assert parse_progress(" ") == ()
    assert parse_progress("0.25:1; 0.5:1.7:3") == (
        ProgressPoint(0.25, 1.0), ProgressPoint(0.5, 1.7, 3),
    )  # fmt: skip


def test_an_app_whose_trials_come_and_go_has_their_gpus(tmp_path):
    """Its own width is that of a trial; for a part of its work it has three trials."""
    for parts in (1, 2):
        log, reports = tmp_path / "log.csv", tmp_path / "reports.csv"
        log.write_text("job_id,pool,submit,width,duration,min_width\na,p,0,1,600,1\nb,p,0,4,50,1\n")
        reports.write_text("job_id,done,speed,gpus\na,0.1,1,1-3\na,0.5,1,1-1\n")
        (tmp_path / "pools.csv").write_text("pool,quota\np,4\n")
        out = tmp_path / str(parts)
        done = sia(
            "replay", "--trace", log, "--pools", tmp_path / "pools.csv", "--progress", reports,
            "--policy", "elastic-fifo", "--parts", parts, "--out", out,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with (out / "elastic-fifo" / "segments.csv").open(newline="") as file:
            rows = [
                (float(row["start"]), float(row["end"]), float(row["width"]))
                for row in csv.DictReader(file)
                if row["job_id"] == "a"
            ]
        # 60 GPU-seconds alone, 240 on three GPUs, 300 alone again
        assert rows == [(0.0, 60.0, 1.0), (60.0, 140.0, 3.0), (140.0, 440.0, 1.0)]


def test_trials_on_more_parts_of_gpus_than_a_pool_may_have_are_refused(tmp_path):
    (tmp_path / "log.csv").write_text(
        "job_id,pool,submit,width,duration,progress\na,a,0,4,100,0.5:1::1-2000\n"
    )
    trace = read_trace(tmp_path / "log.csv")
    assert progress_of(trace, 500)["a"][0].widths == (500, 1_000_000)
    with pytest.raises(UserError, match=r"--parts 1000: trials on 2,000 GPUs .*; use fewer"):
        progress_of(trace, 1000)
