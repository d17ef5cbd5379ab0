"""Helios and Philly logs, in rows as their publishers write them."""

import gzip
import json
import os
from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.logs.importers import FORMATS, helios, importer, philly
from replay.logs.read import read_trace
from replay.logs.trace import playable
from replay.run.output import write_trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.limits import MAX_QUOTA
from sia.model import Job, Pool
from tests.support.files import by_id, refusal, written
from tests.support.paths import ROOT

TRACES = ROOT / os.environ.get("SIA_TRACES", "../shared/traces")
DAY = 86400.0

HELIOS_HEAD = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
)
HELIOS_LOG = """\
342,u7f1,vcA,8,40,1,COMPLETED,2020-04-02 13:00:05,2020-04-02 13:00:06,2020-04-02 14:00:06,3600,1
343,u7f1,vcA,0,24,1,COMPLETED,2020-04-02 09:30:00,2020-04-02 09:30:00,2020-04-02 09:31:00,60,0
344,u0c2,vcB,1,5,1,CANCELLED,2020-04-02 13:00:05,,2020-04-02 15:00:00,0,7195
345,u0c2,vcB,16,80,2,CANCELLED,2020-04-02 13:10:00,None,2020-04-02 13:20:00,0,600
346,u0c2,vcB,1,5,1,CANCELLED,2020-04-03 00:00:00,2020-04-03 00:01:00,2020-04-03 00:01:30,30,60
347,uaa9,vcB,4,20,1,NODE_FAIL,2020-04-02 13:00:05,2020-04-02 13:00:05,2020-04-04 13:00:05,172800,0
348,uaa9,vcA,2,10,1,TIMEOUT,2020-04-02 10:00:00,2020-04-02 10:00:00,2020-04-03 10:00:00,86400,0
349,uaa9,vcA,2,10,1,FAILED,2020-04-02 11:00:00,2020-04-02 11:00:01,2020-04-02 11:00:01,0,1
350,uaa9,vcC,1,6,1,FAILED,2020-04-02 11:00:00,2020-04-02 11:00:01,2020-04-02 11:00:04,3,1
"""
HELIOS_POOLS = """\
date,vcA,vcB,vcC,total
2020-04-01,128,0,16,144
2020-04-02,112,8,16,136
2020-04-03,112,8,0,120
2020-04-04,112,8,0,120
2020-04-05,64,8,24,96
"""

PHILLY_LOG = """\
[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1506638472019_14199",
  "attempts": [{"start_time": "2017-10-09 07:06:57", "end_time": "2017-10-09 07:16:57",
                "detail": [{"ip": "m68", "gpus": ["gpu0", "gpu1"]},
                           {"ip": "m70", "gpus": ["gpu2"]}]}],
  "submitted_time": "2017-10-09 07:06:55", "user": "a93f28"},
 {"status": "Failed", "vc": "ee9e8c", "jobid": "retried",
  "attempts": [{"start_time": "2017-10-08 12:00:00", "end_time": "2017-10-08 12:01:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]},
               {"start_time": "2017-10-08 18:00:00", "end_time": "2017-10-08 18:00:30",
                "detail": [{"ip": "m2", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3"]}]},
               {"start_time": "2017-10-09 00:00:00", "end_time": "2017-10-09 00:00:05",
                "detail": [{"ip": "m2", "gpus": ["gpu0"]}]}],
  "submitted_time": "2017-10-08 11:59:00", "user": "b1"},
 {"status": "Killed", "vc": "2869ce", "jobid": "never tried", "attempts": [],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Killed", "vc": "2869ce", "jobid": "null tries", "attempts": null,
  "submitted_time": "2017-10-09 01:00:00", "user": null},
 {"status": "Killed", "vc": "2869ce", "jobid": "start unknown",
  "attempts": [{"start_time": "None", "end_time": "None", "detail": []},
               {"start_time": null, "end_time": "2017-10-09 02:00:00", "detail": null}],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Killed", "vc": "2869ce", "jobid": "end unknown",
  "attempts": [{"start_time": "2017-10-09 01:00:00", "end_time": "None",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Pass", "vc": "2869ce", "jobid": "machines unknown",
  "attempts": [{"start_time": "2017-10-09 01:00:00", "end_time": "2017-10-09 02:00:00",
                "detail": null}],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Pass", "vc": "2869ce", "jobid": "gpus unknown",
  "attempts": [{"start_time": "2017-10-09 01:00:00", "end_time": "2017-10-09 02:00:00",
                "detail": [{"ip": "m1", "gpus": null}, {"ip": "m2", "gpus": []}]}],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Failed", "vc": "2869ce", "jobid": "in no time",
  "attempts": [{"start_time": "2017-10-09 01:00:00", "end_time": "2017-10-09 01:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}],
  "submitted_time": "2017-10-09 01:00:00", "user": "b1"},
 {"status": "Pass", "vc": "2869ce", "jobid": "not submitted",
  "attempts": [{"start_time": "2017-10-09 01:00:00", "end_time": "2017-10-09 02:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}],
  "submitted_time": "None", "user": "b1"},
 {"status": "Pass", "vc": "2869ce", "jobid": "by nobody",
  "attempts": [{"start_time": "2017-10-10 00:00:01", "end_time": "2017-10-10 00:00:03",
                "detail": [{"ip": "m1", "gpus": ["gpu7"]}]}],
  "submitted_time": "2017-10-10 00:00:00", "user": null}]
"""


def helios_of(folder, rows, pools=None):
    log = written(folder, HELIOS_HEAD + rows, "cluster_log.csv")
    if pools is None:
        return helios.read(log, None)
    return helios.read(log, written(folder, pools, "cluster_gpu_number.csv"))


def philly_of(folder, jobs):
    text = jobs if isinstance(jobs, str) else json.dumps(jobs)
    trace, table = philly.read(written(folder, text, "cluster_job_log"), None)
    assert table is None, "Philly's log does not tell how large the pools are"
    return trace


# The jobs of Helios


def test_helios_jobs_count_from_midnight_of_the_first_submission_in_order(tmp_path):
    trace, table = helios_of(tmp_path, HELIOS_LOG)
    at = 13 * 3600.0 + 5
    assert trace.arrivals == [
        Arrival(Job("348", "vcA", 10 * 3600.0, 2, "uaa9"), 86400.0),
        Arrival(Job("350", "vcC", 11 * 3600.0, 1, "uaa9"), 3.0),
        Arrival(Job("342", "vcA", at, 8, "u7f1"), 3600.0),
        Arrival(Job("347", "vcB", at, 4, "uaa9"), 172800.0),
        Arrival(Job("346", "vcB", DAY, 1, "u0c2"), 30.0),
    ]
    assert table is None, "without cluster_gpu_number.csv the pools are not known"


def test_helios_states_are_kept(tmp_path):
    trace, _ = helios_of(tmp_path, HELIOS_LOG)
    assert trace.columns == ("state",)
    assert {job_id: state for job_id, (state,) in trace.extras.items()} == {
        "342": "COMPLETED",
        "346": "CANCELLED",
        "347": "NODE_FAIL",
        "348": "TIMEOUT",
        "350": "FAILED",
    }


def test_helios_rows_that_never_used_a_gpu_are_counted_by_reason(tmp_path):
    trace, _ = helios_of(tmp_path, HELIOS_LOG)
    assert trace.dropped == Counter({"CPU job": 1, "never started": 2, "ran for 0 seconds": 1})
    assert len(trace.arrivals) + trace.dropped.total() == HELIOS_LOG.count("\n")


def test_the_day_of_second_0_is_said(tmp_path):
    trace, _ = helios_of(tmp_path, HELIOS_LOG)
    assert len(trace.notes) == 1
    assert "2020-04-02 00:00:00" in trace.notes[0]


def test_a_cpu_job_may_look_like_anything_else(tmp_path):
    trace, _ = helios_of(tmp_path, "1,u,vcA,0,1,1,COMPLETED,,,,,\n" + HELIOS_LOG)
    assert trace.dropped["CPU job"] == 2


def test_a_first_submission_before_the_first_gpu_job_moves_nothing(tmp_path):
    """The CPU job and the job that never started come a day before the first job that ran."""
    rows = """\
1,u,vcA,0,1,1,COMPLETED,2020-04-01 10:00:00,2020-04-01 10:00:00,2020-04-01 10:01:00,60,0
2,u,vcA,1,1,1,CANCELLED,2020-04-01 10:00:00,None,2020-04-01 10:01:00,0,60
3,u,vcA,1,1,1,COMPLETED,2020-04-02 00:00:07,2020-04-02 00:00:07,2020-04-02 00:01:07,60,0
"""
    trace, _ = helios_of(tmp_path, rows)
    assert trace.arrivals[0].job.submit == 7.0


def test_a_job_that_started_and_has_no_duration_did_start(tmp_path):
    row = "1,u,vcA,1,1,1,RUNNING,2020-04-02 00:00:00,2020-04-02 00:00:01,None,None,1\n"
    trace, _ = helios_of(tmp_path, row + HELIOS_LOG)
    assert trace.dropped.total() == 5
    assert trace.dropped["never started"] == 2


def test_helios_columns_may_stand_in_another_order_and_zipped(tmp_path):
    text = "state,duration,vc,job_id,user,gpu_num,submit_time,start_time\n"
    text += "TIMEOUT,5.5,vcA,1,u,2,2020-04-02 00:00:03,2020-04-02 00:00:04\n"
    trace, _ = helios.read(written(tmp_path, gzip.compress(text.encode())), None)
    assert trace.arrivals == [Arrival(Job("1", "vcA", 3.0, 2, "u"), 5.5)]


GOOD_ROW = "1,u,vcA,1,5,1,COMPLETED,2020-04-02 10:00:00,2020-04-02 10:00:00,2020-04-02 10:00:09,9,0"
BAD_HELIOS = {
    "no such date": ("submit_time", "2020-04-31 10:00:00", "YYYY-MM-DD"),
    "a date of another kind": ("submit_time", "04/02/2020 10:00", "YYYY-MM-DD"),
    "no submission": ("submit_time", "", "YYYY-MM-DD"),
    "submission None": ("submit_time", "None", "YYYY-MM-DD"),
    "start is a word": ("start_time", "soon", "YYYY-MM-DD"),
    "gpus are a word": ("gpu_num", "two", "whole number from 0"),
    "gpus are unknown": ("gpu_num", "", "whole number from 0"),
    "half a gpu": ("gpu_num", "0.5", "whole number from 0"),
    "fewer gpus than none": ("gpu_num", "-1", "whole number from 0"),
    "more gpus than there are": ("gpu_num", str(MAX_QUOTA + 1), f"to {MAX_QUOTA}"),
    "duration is a word": ("duration", "long", "seconds"),
    "duration is endless": ("duration", "inf", "seconds"),
    "duration is negative": ("duration", "-5", "seconds"),
    "no id": ("job_id", "", "give the job an ID"),
    "an id that was there": ("job_id", "0", "remove one of the rows"),
}


@pytest.mark.parametrize(("column", "cell", "mend"), BAD_HELIOS.values(), ids=BAD_HELIOS)
def test_a_bad_helios_row_is_refused_with_its_place_and_mend(tmp_path, column, cell, mend):
    names = HELIOS_HEAD.strip().split(",")
    cells = dict(zip(names, GOOD_ROW.split(","), strict=True)) | {column: cell}
    rows = "0" + GOOD_ROW[1:] + "\n" + ",".join(cells.values()) + "\n"
    log = written(tmp_path, HELIOS_HEAD + rows)
    text = refusal(helios.read, log, None)
    assert f": row 3, column {column}: " in text
    assert mend in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (HELIOS_HEAD.replace(",gpu_num", ""), "column gpu_num is missing"),
        (HELIOS_HEAD.replace("queue", "vc"), "duplicate column vc"),
        (HELIOS_HEAD + GOOD_ROW + ",7\n", "row 2, column job_id: the row has 13 cells"),
        (HELIOS_HEAD + "1,u,vcA\n", "row 2, column job_id: the row has 3 cells"),
        ("[]", "missing"),
        (b"\x1f\x8b\x08", "truncated or damaged"),
    ],
)
def test_a_file_that_is_no_helios_log_is_refused_in_one_line(tmp_path, text, says):
    log = written(tmp_path, text)
    assert says in refusal(helios.read, log, None)


def test_a_helios_log_without_a_job_that_ran_says_what_it_holds(tmp_path):
    row = GOOD_ROW.replace("vcA,1,", "vcA,0,")
    with pytest.raises(UserError, match=r"^[^\n]*no GPU job that ran[^\n]*\(1 CPU job\)[^\n]*$"):
        helios_of(tmp_path, row + "\n")


# The pools of Helios


def test_helios_quotas_are_those_of_the_first_day_and_change_at_midnights(tmp_path):
    _, table = helios_of(tmp_path, HELIOS_LOG, HELIOS_POOLS)
    assert table.pools == [Pool("vcA", 112), Pool("vcB", 8), Pool("vcC", 16)]
    assert table.changes == [
        PoolChanged(DAY, "vcC", 0),
        PoolChanged(3 * DAY, "vcA", 64),
        PoolChanged(3 * DAY, "vcC", 24),
    ]


def test_days_before_the_first_submission_are_passed_over(tmp_path):
    late = GOOD_ROW.replace("2020-04-02", "2020-04-04")
    _, table = helios_of(tmp_path, late + "\n", HELIOS_POOLS)
    assert table.pools == [Pool("vcA", 112), Pool("vcB", 8), Pool("vcC", 0)]
    assert table.changes == [PoolChanged(DAY, "vcA", 64), PoolChanged(DAY, "vcC", 24)]


def test_a_size_holds_after_the_last_day_and_over_days_that_lack(tmp_path):
    pools = "date,vcA,total\n2020-03-30,4,4\n2020-04-07,8,8\n"
    _, table = helios_of(tmp_path, GOOD_ROW + "\n", pools)
    assert table.pools == [Pool("vcA", 4)]
    assert table.changes == [PoolChanged(5 * DAY, "vcA", 8)]
    _, table = helios_of(tmp_path, GOOD_ROW + "\n", "date,vcA,total\n2020-03-30,4,4\n")
    assert (table.pools, table.changes) == ([Pool("vcA", 4)], [])


def test_pools_that_are_only_known_later_have_nothing_until_then(tmp_path):
    pools = "date,vcA,vcB,total\n2020-04-04,4,0,4\n2020-04-05,4,2,6\n"
    _, table = helios_of(tmp_path, GOOD_ROW + "\n", pools)
    assert table.pools == [Pool("vcA", 0), Pool("vcB", 0)]
    assert table.changes == [PoolChanged(2 * DAY, "vcA", 4), PoolChanged(3 * DAY, "vcB", 2)]


def test_a_job_of_a_virtual_cluster_that_is_gone_cannot_be_played(tmp_path):
    trace, table = helios_of(
        tmp_path,
        "351,u,vcC,1,1,1,FAILED,2020-04-03 01:00:00,2020-04-03 01:00:00,2020-04-03 01:00:05,5,0\n"
        "352,u,vcD,1,1,1,FAILED,2020-04-03 01:00:00,2020-04-03 01:00:00,2020-04-03 01:00:05,5,0\n"
        + HELIOS_LOG,
        HELIOS_POOLS.replace("64,8,24", "64,8,0"),
    )
    played = playable(trace, table)
    assert by_id(trace).keys() - by_id(played).keys() == {"351", "352"}
    assert played.dropped - trace.dropped == Counter(
        {
            "wider than its pool will ever be again": 1,
            "of a pool that the pools file lacks": 1,
        }
    )


BAD_SIZES = {
    "days go back": ("2020-04-01,128,0,16,144", "date", "sort the rows by date"),
    "a day stands twice": ("2020-04-05,64,8,24,96", "date", "sort the rows by date"),
    "no date": ("never,64,8,24,96", "date", "YYYY-MM-DD"),
    "size is negative": ("2020-04-06,64,-8,24,96", "vcB", "whole number from 0"),
    "size is a fraction": ("2020-04-06,64,8,1.5,96", "vcC", "whole number from 0"),
    "size is unknown": ("2020-04-06,,8,24,96", "vcA", "whole number from 0"),
    "row is short": ("2020-04-06,64,8", "date", "one cell for each column"),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_SIZES.values(), ids=BAD_SIZES)
def test_a_bad_row_of_sizes_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    log = written(tmp_path, HELIOS_HEAD + GOOD_ROW + "\n")
    sizes = written(tmp_path, HELIOS_POOLS + row + "\n", "sizes.csv")
    text = refusal(helios.read, log, sizes, of=sizes)
    assert f": row 7, column {column}: " in text
    assert mend in text


@pytest.mark.parametrize(
    "text", ["", "date,vcA,total\n", "date,total\n2020-04-01,0\n", "day,vcA\n2020-04-01,1\n"]
)
def test_a_file_without_sizes_is_refused_in_one_line(tmp_path, text):
    sizes = written(tmp_path, text, "sizes.csv")
    with pytest.raises(UserError) as caught:
        helios.read(written(tmp_path, HELIOS_HEAD + GOOD_ROW + "\n"), sizes)
    assert str(caught.value).startswith(f"{sizes}: ")
    assert "\n" not in str(caught.value)


# Any log of Helios

MOMENTS = st.datetimes(datetime(2020, 4, 1), datetime(2020, 9, 28)).map(  # noqa: DTZ001  local
    lambda moment: moment.replace(microsecond=0)
)
HELIOS_JOBS = st.tuples(
    st.sampled_from([0, 0, 1, 2, 8, 200]),
    MOMENTS,
    st.one_of(st.none(), st.sampled_from(["", "None"]), st.integers(0, 10**6)),
    st.integers(0, 10**7),
)
"""GPUs, submission, how long it waited (or how the log says that it never started), run time."""


def helios_row(job_id, gpus, submit, wait, duration):
    start = end = wait or ""
    if isinstance(wait, int):
        begun = submit + timedelta(seconds=wait)
        start, end = str(begun), str(begun + timedelta(seconds=duration))
    return (
        f"{job_id},u{job_id % 3},vc{job_id % 2},{gpus},{6 * gpus},1,FAILED,"
        f"{submit},{start},{end},{duration},{wait or 0}\n"
    )


@settings(deadline=None)
@given(st.lists(HELIOS_JOBS, max_size=12))
def test_every_helios_row_is_kept_with_its_times_or_counted(folder, jobs):
    jobs = [*jobs, (1, datetime(2020, 6, 1, 12), 5, 60)]  # noqa: DTZ001  local time
    rows = "".join(helios_row(i, *job) for i, job in enumerate(jobs))
    trace, _ = helios_of(folder, rows)
    ran = {
        str(i): (gpus, submit, float(duration))
        for i, (gpus, submit, wait, duration) in enumerate(jobs)
        if gpus and isinstance(wait, int) and duration
    }
    first = min(submit for _, submit, _ in ran.values())
    midnight = first.replace(hour=0, minute=0, second=0)
    assert {
        job.id: (job.width, midnight + timedelta(seconds=job.submit), duration)
        for job, duration in trace.arrivals
    } == ran
    assert len(trace.arrivals) + trace.dropped.total() == len(jobs)
    assert trace.dropped["CPU job"] == sum(not gpus for gpus, *_ in jobs)
    submits = [job.submit for job, _ in trace.arrivals]
    assert submits == sorted(submits)


def test_the_sizes_of_earth_are_on_every_day_those_of_its_publisher(tmp_path):
    sizes = TRACES / "helios_earth_minutes" / "Earth_gpu_number.csv.gz"
    if not sizes.exists():
        pytest.skip(f"real traces are not here: no {sizes}; set SIA_TRACES to their folder")
    log = written(
        tmp_path,
        HELIOS_HEAD
        + "1,u,vc6YE,128,1,16,FAILED,2020-05-03 10:00:00,2020-05-03 10:00:00,,60,0\n"
        + "2,u,vc6YE,208,1,26,FAILED,2020-05-04 10:00:00,2020-05-04 10:00:00,,60,0\n"
        + "3,u,vc6YE,224,1,28,FAILED,2020-05-04 10:00:00,2020-05-04 10:00:00,,60,0\n"
        + "4,u,vcXrB,8,1,1,FAILED,2020-05-05 10:00:00,2020-05-05 10:00:00,,60,0\n",
    )
    trace, table = helios.read(log, sizes)
    assert [job.submit for job, _ in trace.arrivals] == [
        36000.0,
        *2 * [DAY + 36000.0],
        2 * DAY + 36000.0,
    ]
    assert [job.id for job, _ in playable(trace, table).arrivals] == ["1", "2"]
    with gzip.open(sizes, "rt") as file:
        header, *rows = [line.strip().split(",") for line in file]
    assert [pool.name for pool in table.pools] == header[1:-1]
    steps = table.quotas()
    days = 0
    for date, *cells in rows:
        second = (datetime.fromisoformat(date) - datetime(2020, 5, 3)).total_seconds()  # noqa: DTZ001
        if second >= 0:
            days += 1
            for name, cell in zip(header[1:-1], cells[:-1], strict=True):
                assert [q for begin, q in steps[name] if begin <= second][-1] == int(cell)
    assert days == 149
    assert {change.time % DAY for change in table.changes} == {0.0}


# Philly


def test_philly_jobs_count_from_midnight_of_the_first_submission_in_order(tmp_path):
    trace = philly_of(tmp_path, PHILLY_LOG)
    assert trace.arrivals == [
        Arrival(Job("retried", "ee9e8c", 11 * 3600 + 59 * 60.0, 4, "b1"), 60.0 + 30 + 5),
        Arrival(
            Job(
                "application_1506638472019_14199",
                "ee9e8c",
                DAY + 7 * 3600 + 6 * 60 + 55,
                3,
                "a93f28",
            ),
            600.0,
        ),
        Arrival(Job("by nobody", "2869ce", 2 * DAY, 1), 2.0),
    ]
    assert trace.extras["retried"] == ("Failed",)
    assert trace.columns == ("state",)


def test_philly_jobs_that_cannot_be_replayed_are_counted_by_reason(tmp_path):
    trace = philly_of(tmp_path, PHILLY_LOG)
    assert trace.dropped == Counter(
        {
            "never started": 3,
            "no attempt with an end and GPUs": 3,
            "ran for 0 seconds": 1,
            "without a submission time": 1,
        }
    )
    assert len(trace.arrivals) + trace.dropped.total() == len(json.loads(PHILLY_LOG))


def test_philly_retries_are_reported(tmp_path):
    notes = philly_of(tmp_path, PHILLY_LOG).notes
    assert "2017-10-08 00:00:00" in notes[0]
    assert notes[1].startswith("1 job retried")


def philly_job(job_id, *attempts, submitted="2017-10-09 00:00:00"):
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": job_id,
        "attempts": list(attempts),
        "submitted_time": submitted,
        "user": "b1",
    }


def attempt(start="2017-10-09 01:00:00", end="2017-10-09 02:00:00", gpus=1):
    detail = [{"ip": f"m{i}", "gpus": ["gpu0"]} for i in range(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def test_a_philly_job_is_as_wide_as_its_widest_attempt_that_ended(tmp_path):
    job = philly_job("a", attempt(gpus=2), attempt(end=None, gpus=8), attempt(gpus=0))
    assert philly_of(tmp_path, [job]).arrivals == [
        Arrival(Job("a", "ee9e8c", 0.0, 2, "b1"), 3600.0)
    ]


BAD_PHILLY = {
    "not JSON": ('[{"vc": "a", ', "not a Philly job log"),
    "nothing": ("", "not a Philly job log"),
    "zipped": (gzip.compress(b"[]"), "not a Philly job log"),
    "not UTF-8": (b'[{"vc": "\xff", "jobid": "a"}]', "not a Philly job log"),
    "one job and no list": (json.dumps(philly_job("a", attempt())), "not a Philly job log"),
    "no virtual cluster": ('[{"jobid": "a"}]', "`vc`"),
    "an id of another type": ('[{"vc": "a", "jobid": 7}]', "$[0].jobid"),
    "attempts of another type": (json.dumps([philly_job("a", 7)]), "$[0].attempts[0]"),
    "GPUs of another type": (
        '[{"vc": "a", "jobid": "b", "attempts": [{"detail": [{"gpus": 8}]}]}]',
        "$[0].attempts[0].detail[0].gpus",
    ),
    "one id twice": (
        json.dumps([philly_job("a", attempt()), philly_job("b"), philly_job("a", attempt())]),
        "job 3: duplicate jobid 'a'; remove one",
    ),
    "no id": (json.dumps([philly_job("b", attempt()), philly_job("", attempt())]), "job 2"),
    "submitted at no time": (
        json.dumps([philly_job("b"), philly_job("a", submitted="2017-13-09 00:00:00")]),
        "job 2, 'a': submitted_time",
    ),
    "started at no time": (
        json.dumps([philly_job("a", attempt(start="soon"))]),
        "job 1, 'a': start_time",
    ),
    "ended at no time": (
        json.dumps([philly_job("a", attempt(), attempt(end="2017-10-09 25:00:00"))]),
        "job 1, 'a': end_time",
    ),
    "too wide": (
        json.dumps([philly_job("a", attempt(gpus=0))]).replace(
            '"detail": []', '"detail": [{"gpus": [' + '"",' * MAX_QUOTA + '""]}]'
        ),
        f"job 1, 'a': {MAX_QUOTA + 1} GPUs",
    ),
    "a maze of brackets": (
        '[{"vc": "a", "jobid": "b", "x": ' + "[" * 100_000 + "]" * 100_000 + "}]",
        "not a Philly job log",
    ),
}


@pytest.mark.parametrize(("content", "says"), BAD_PHILLY.values(), ids=BAD_PHILLY)
def test_a_bad_philly_log_is_refused_with_its_place_and_mend(tmp_path, content, says):
    log = written(tmp_path, content)
    assert says in refusal(philly.read, log, None)


@pytest.mark.parametrize("text", ["[]", '[{"vc": "a", "jobid": "b"}]'])
def test_a_philly_log_without_a_job_that_ran_is_refused_in_one_line(tmp_path, text):
    with pytest.raises(UserError, match=r"^[^\n]*no job that ran[^\n]*$"):
        philly_of(tmp_path, text)


def test_a_philly_log_takes_no_pools_file(tmp_path):
    log = written(tmp_path, PHILLY_LOG)
    pools = written(tmp_path, "pool,quota\n", "pools.csv")
    assert "omit this argument" in refusal(philly.read, log, pools, of=pools)


def test_a_philly_log_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(philly, "MAX_JSON", 1000)
    log = written(tmp_path, PHILLY_LOG)
    assert "larger than 1000 bytes" in refusal(philly.read, log, None)


TIMES = st.one_of(
    st.sampled_from([None, "", "None"]),
    st.integers(0, 10**6).map(lambda s: str(datetime(2017, 10, 1) + timedelta(seconds=s))),  # noqa: DTZ001
)
ATTEMPTS = st.lists(st.builds(attempt, TIMES, TIMES, st.integers(0, 3)), max_size=3)


def length(one):
    """Seconds that an attempt ran, None where that or its GPUs are not known."""
    if one["start_time"] in {None, "", "None"} or one["end_time"] in {None, "", "None"}:
        return None
    span = datetime.fromisoformat(one["end_time"]) - datetime.fromisoformat(one["start_time"])
    return max(0.0, span.total_seconds()) if one["detail"] else None


@settings(deadline=None)
@given(st.lists(st.tuples(TIMES, ATTEMPTS), max_size=6))
def test_every_philly_job_is_kept_with_its_run_time_or_counted(folder, entries):
    jobs = [philly_job(f"{i}", *tries, submitted=at) for i, (at, tries) in enumerate(entries)]
    jobs.append(philly_job("sure", attempt()))
    ran = {}
    for job in jobs:
        lengths = [length(one) for one in job["attempts"]]
        if sum(filter(None, lengths)) and job["submitted_time"] not in {None, "", "None"}:
            width = max(
                len(one["detail"])
                for one, seconds in zip(job["attempts"], lengths, strict=True)
                if seconds is not None
            )
            ran[job["jobid"]] = (width, sum(filter(None, lengths)))
    trace = philly_of(folder, jobs)
    assert {job.id: (job.width, seconds) for job, seconds in trace.arrivals} == ran
    assert len(trace.arrivals) + trace.dropped.total() == len(jobs)


# Every format


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("name", "says"), [("none", "no such file"), (".", "cannot be read")])
def test_a_log_that_cannot_be_opened_is_refused_in_one_line(tmp_path, form, name, says):
    log = tmp_path / name
    assert says in refusal(importer(form), log, None)


@pytest.mark.parametrize(
    ("form", "text"), [("helios", HELIOS_HEAD + HELIOS_LOG), ("philly", PHILLY_LOG)]
)
def test_an_imported_log_is_canonical(tmp_path, form, text):
    trace, _ = importer(form)(written(tmp_path, text), None)
    write_trace(tmp_path / "trace.csv", trace)
    again = read_trace(tmp_path / "trace.csv")
    assert (again.arrivals, again.columns, again.extras) == (
        trace.arrivals,
        trace.columns,
        trace.extras,
    )
