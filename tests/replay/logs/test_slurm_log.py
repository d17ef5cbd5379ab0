"""The output of sacct as a job log."""

import pytest

from replay.logs.importers import importer, read_log, slurm
from tests.support.files import by_id, refusal, written

HEAD = "JobID|User|Account|Partition|JobName|State|Submit|Start|End|AllocTRES|Timelimit"
TRAIN = (
    "101|ann|nlp|gpu|train|COMPLETED|2026-03-01T09:30:00|2026-03-01T09:40:00|2026-03-01T11:40:00|"
    "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G|1-00:00:00"
)


def log_of(folder, *rows, head=HEAD):
    return written(folder, "\n".join([head, *rows, ""]), "sacct.txt")


def read(folder, *rows, **more):
    trace, table = slurm.read(log_of(folder, *rows, **more), None)
    assert table is None
    return trace


def test_a_job_has_the_gpus_the_partition_and_the_wait_that_slurm_recorded(tmp_path):
    trace = read(tmp_path, TRAIN, "")
    (arrival,) = trace.arrivals
    job = arrival.job
    assert (job.id, job.pool, job.user, job.name, job.width) == ("101", "gpu", "ann", "train", 4)
    assert (job.submit, arrival.duration, job.estimate) == (9.5 * 3600, 7200.0, 86400.0)
    assert dict(zip(trace.columns, trace.extras["101"], strict=True)) == {
        "state": "COMPLETED", "account": "nlp", "wait": "600.0",
    }  # fmt: skip
    assert trace.origin == 1772323200.0  # 2026-03-01 00:00:00
    assert importer("slurm") is slurm.read


def test_rows_that_are_no_gpu_jobs_which_ran_are_counted(tmp_path):
    trace = read(
        tmp_path,
        TRAIN,
        "101.batch|||gpu|batch|COMPLETED|2026-03-01T09:40:00|2026-03-01T09:40:00|2026-03-01T11:40:00|cpu=8|",
        "102|bob|cv|gpu|a|CANCELLED by 9|2026-03-01T09:31:00|None|2026-03-01T10:00:00||UNLIMITED",
        "103|bob|cv|gpu|b|COMPLETED|2026-03-01T09:31:00|2026-03-01T09:32:00|2026-03-01T09:33:00|cpu=2|",
        "104|bob|cv|gpu|c|RUNNING|2026-03-01T09:31:00|2026-03-01T09:32:00|Unknown|gres/gpu=1|",
        "105|bob|cv|gpu|d|PENDING|Unknown|Unknown|Unknown|gres/gpu=1|",
        "106|bob|cv|gpu|e|FAILED|2026-03-01T09:31:00|2026-03-01T09:32:00|2026-03-01T09:32:00|gres/gpu=1|",
    )  # fmt: skip
    assert list(by_id(trace)) == ["101"]
    assert trace.dropped == {
        "step of a job": 1, "never started": 1, "CPU job": 1, "without an end": 1,
        "without a submission time": 1, "ran for 0 seconds": 1,
    }  # fmt: skip


def test_the_last_run_of_a_requeued_job_counts(tmp_path):
    first = TRAIN.replace("COMPLETED", "NODE_FAIL").replace("T11:40:00", "T09:50:00")
    trace = read(tmp_path, first, TRAIN)
    assert by_id(trace)["101"].duration == 7200.0
    assert trace.dropped == {"earlier run of a requeued job": 1}


@pytest.mark.parametrize(
    ("column", "text", "gpus"),
    [
        ("AllocTRES", "cpu=4,gres/gpu:a100=2,gres/gpu:v100=1", 3),
        ("ReqTRES", "cpu=4,gres/gpu=8", 8),
        ("AllocGRES", "gpu:2,craynetwork:1", 4),
        ("ReqGRES", "gpu:tesla:1", 2),
    ],
)
def test_gpus_are_in_different_columns_of_different_releases(tmp_path, column, text, gpus):
    head = f"JobID|Submit|Start|End|NNodes|{column}"
    row = f"7|1772323200|1772323260|1772323320|2|{text}"
    (arrival,) = read(tmp_path, row, head=head).arrivals
    assert arrival.job.width == gpus
    assert (arrival.job.pool, arrival.job.submit, arrival.duration) == ("machine", 0.0, 60.0)


def test_bad_logs_are_refused_with_the_place_and_the_fix(tmp_path):
    said = refusal(slurm.read, log_of(tmp_path, TRAIN, head="JobID|Submit"), None)
    assert "column Start, End is missing; write the log with sacct --parsable2" in said
    said = refusal(slurm.read, log_of(tmp_path, "1|2"), None)
    assert "row 2, column JobID: the row has 2 cells" in said
    said = refusal(slurm.read, log_of(tmp_path, TRAIN.replace("T09:40", " soon")), None)
    assert "row 2, column Start: '2026-03-01 soon:00' is not a time" in said
    pools = written(tmp_path, "", "pools.csv")
    assert "single file" in refusal(slurm.read, log_of(tmp_path, TRAIN), pools, of=pools)
    assert "no GPU job that ran" in refusal(slurm.read, log_of(tmp_path), None)


def test_a_bar_in_the_name_of_a_job_belongs_to_the_name(tmp_path):
    named = TRAIN.replace("|train|", "|a|b|train|")
    assert by_id(read(tmp_path, named))["101"].job.name == "a|b|train"
    said = refusal(slurm.read, log_of(tmp_path, named + "|", head=HEAD + "|Comment"), None)
    assert "row 2, column JobID: the row has 14 cells" in said


def test_outputs_that_were_joined_have_several_headers(tmp_path):
    trace = read(tmp_path, TRAIN, HEAD, TRAIN.replace("101|", "102|"))
    assert list(by_id(trace)) == ["101", "102"]
    assert not trace.dropped


def test_invalid_rows_are_skipped_and_counted_on_request(tmp_path):
    rows = (TRAIN, "7|2", TRAIN.replace("101|", "102|").replace("T09:40", " soon"))
    log = log_of(tmp_path, *rows)
    assert "or skip such rows with --skip-invalid" in refusal(slurm.read, log, None)
    trace, _ = read_log(log, None, "slurm", skip_invalid=True)
    assert list(by_id(trace)) == ["101"]
    assert trace.dropped == {"invalid: Start is not a time": 1, "invalid: wrong number of cells": 1}
    said = refusal(read_log, log, None, "swf", skip_invalid=True, of="--skip-invalid")
    assert "only those of canonical and slurm" in said


def test_a_job_wider_than_a_log_allows_is_counted(tmp_path):
    for gpus in ("1048577", "9" * 5000):
        wide = TRAIN.replace("101|", "102|").replace("gres/gpu=4", f"gres/gpu={gpus}")
        trace = read(tmp_path, TRAIN, wide)
        assert list(by_id(trace)) == ["101"]
        assert trace.dropped == {"wider than 1048576 GPUs": 1}
