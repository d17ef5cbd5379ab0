"""Logs of Gavel and Shockwave: regimes, speeds, older columns, and what is wrong with a row."""

import os

import pytest

from replay.logs.importers.gavel import read
from replay.logs.importers.gavel_models import JobModel, batch_runs
from replay.logs.read import read_trace
from replay.logs.regimes import parse_regimes, regimes_text
from sia.model import Regime
from tests.support.files import refusal, written
from tests.support.paths import ROOT
from tests.support.shell import sia

TRACES = ROOT / os.environ.get("SIA_TRACES", "../shared/traces")

SPEEDS = """\
model,config,width,steps_per_second
LM,10,1,100
LM,20,1,80
LM,40,1,50
ResNet-18,32,1,40
ResNet-18,256,2,12
"""
ROW = "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t55"


def table(tmp_path, text=SPEEDS):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    return path


def one(tmp_path, row=ROW):
    return read(written(tmp_path, row + "\n"), table(tmp_path))[0]


def test_a_job_runs_whole_epochs_at_the_speed_of_each_batch_size(tmp_path):
    ((job, duration),) = one(tmp_path).arrivals
    assert (job.id, job.pool, job.submit, job.width) == ("0", "all", 55.0, 1)
    assert (job.mode, job.model, job.budget) == ("gns", "LM", None)
    # 134,583 steps at 5,968 an epoch are 23 epochs; the artifact ends with one at the first size
    assert [regime[:2] for regime in job.regimes] == [("10", 11), ("20", 10), ("40", 1), ("10", 1)]
    assert job.regimes[0].seconds == pytest.approx(59_675 / 10 / 100)
    assert duration == pytest.approx(59_675 * (12 / 1000 + 10 / 1600 + 1 / 2000))


def test_gavels_json_says_the_same_as_a_table(tmp_path):
    (tmp_path / "speeds.json").write_text(
        '{"k80": {}, "v100": {"(\'LM (batch size 10)\', 1)": {"null": 100, "(\'A3C\', 1)": [1, 2]},'
        '"(\'LM (batch size 20)\', 1)": {"null": 80}, "(\'A3C\', 1)": {"null": 3},'
        '"(\'LM (batch size 40)\', 1)": {"null": 50.0}, "(\'LM (batch size 80)\', 8)": {"null": 0}}'
        "}"
    )
    log = written(tmp_path, ROW + "\n")
    assert read(log, tmp_path / "speeds.json")[0].arrivals == one(tmp_path).arrivals


@pytest.mark.parametrize(("gone", "mode"), [((10,), "gns"), ((7, 10), "static")])
def test_older_logs_lack_the_duration_or_the_mode_too(tmp_path, gone, mode):
    cells = [cell for at, cell in enumerate(ROW.split("\t")) if at not in gone]
    ((job, _),) = one(tmp_path, "\t".join(cells)).arrivals
    assert (job.mode, job.submit) == (mode, 55.0)


def test_an_unknown_speed_is_that_of_the_nearest_and_a_note_says_so(tmp_path):
    row = ROW.replace("LM (batch size 10)", "ResNet-18 (batch size 64)").replace("gns", "static")
    trace = one(tmp_path, row)
    assert trace.arrivals[0].job.regimes[0].seconds == pytest.approx(50_000 / 32 / 40)
    assert "ResNet-18 64 on 1 GPUs is unknown, so that of 32 on 1 counts" in trace.notes[0]


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("LM (", "ML (", "column type: unknown model 'ML'; use a known one. The models are"),
        ("LM (batch size 10)", "LM", "column type: 'LM' is no type"),
        (
            "gns",
            "gnss",
            "column mode: 'gnss' is not a known mode; use one of accordion, gns, static",
        ),
        ("134583", "0", "column steps: '0' is too small"),
        ("134583", "nan", "column steps: 'nan' is not finite"),
        ("\t1\tgns", "\t0\tgns", "column width: '0' is not allowed"),
        ("gns\t1", "gns\t0", "column weight: 0 is not allowed"),
        ("\t", ",", "1 columns separated by tabs"),
    ],
)
def test_a_wrong_row_is_named_with_the_mend(tmp_path, before, after, wrong):
    log = written(tmp_path, ROW + "\n" + ROW.replace(before, after) + "\n")
    message = refusal(read, log, table(tmp_path))
    assert "row 2" in message
    assert wrong in message


def test_without_speeds_nothing_can_be_converted(tmp_path):
    assert "throughput table as the second file" in refusal(read, written(tmp_path, ROW), None)
    empty = table(tmp_path, '{"k80": {}}')
    assert "no rows of v100, only of k80" in refusal(read, written(tmp_path, ROW), empty, of=empty)


def test_accordion_takes_the_large_size_outside_of_critical_phases():
    job = JobModel("ResNet-18", 64, 1)
    assert batch_runs("accordion", job, 236) == [(64, 71), (256, 79), (64, 10), (256, 76)]
    assert batch_runs("accordion", JobModel("Transformer", 64, 1), 38) == [(64, 38)]


@pytest.mark.skipif(not TRACES.is_dir(), reason="SIA_TRACES names no folder with real logs")
def test_the_published_log_converts_to_the_regimes_that_its_artifact_ran(tmp_path):
    sia(
        "trace", "convert", TRACES / "shockwave_120.trace", TRACES / "gavel_throughputs.json.gz",
        "--format", "gavel", "--out", tmp_path,
    )  # fmt: skip
    ours = read_trace(tmp_path / "trace.csv").arrivals
    theirs = read_trace(TRACES / "shockwave_120.csv.gz").arrivals
    for (job, duration), (other, expected) in zip(ours, theirs, strict=True):
        assert (job.id, job.submit, job.width) == (other.id, other.submit, other.width)
        assert (job.mode, job.model) == (other.mode, other.model)
        assert [r[:2] for r in job.regimes] == [r[:2] for r in other.regimes]
        assert duration == pytest.approx(expected, abs=0.01)


# Column regimes


def test_regimes_are_written_as_they_are_read():
    cell = "10:11:62.874732:94.9109;20:10:43.843826"
    assert parse_regimes(cell + ";") == (
        Regime("10", 11, 62.874732, 94.9109), Regime("20", 10, 43.843826),
    )  # fmt: skip
    assert regimes_text(parse_regimes(cell)) == cell


@pytest.mark.parametrize(
    ("cell", "mode", "wrong"),
    [
        ("8:2:30;16:1:20.02", "", "the regimes take 80.02 s, but the job 80 s"),
        ("8:0:30", "", "epochs of regime 8 are 0; write numbers above 0"),
        ("8:2:-30", "", "seconds of regime 8 are -30"),
        ("8:2:40:0", "", "steps of regime 8 are 0"),
        ("8:nan:40", "", "epochs of regime 8 are nan"),
        ("8:2", "", "'8:2' is not a regime; write CONFIG:EPOCHS:SECONDS"),
        ("8:2:40", "acordion", "'acordion' is not a known mode; use one of accordion, gns, static"),
    ],
)
def test_wrong_regimes_are_named_with_the_mend(tmp_path, cell, mode, wrong):
    head = "job_id,pool,submit,width,duration,mode,regimes"
    message = refusal(read_trace, written(tmp_path, f"{head}\na,p,0,1,80,{mode},{cell}\n"))
    assert "row 2, column" in message
    assert wrong in message


def test_regimes_may_miss_the_duration_by_rounding(tmp_path):
    head = "job_id,pool,submit,width,duration,mode,regimes"
    row = "a,p,0,1,80,gns,8:1:20;16:2:30.0049"
    assert read_trace(written(tmp_path, f"{head}\n{row}\n")).notes == []
    assert read_trace(written(tmp_path, f"{head}\na,p,0,1,80,,8:1:80.01\n")).notes == []
    shrinks = row.replace("8:1:20;16:2:30.0049", "16:2:30;8:1:20")
    (note,) = read_trace(written(tmp_path, f"{head}\n{shrinks}\n")).notes
    assert note.startswith("1 job of mode gns with a batch size that shrinks (a), which is not")
    assert note.endswith("; write configurations in ascending order, or another mode")
