"""Logs of Alibaba PAI, Google and the Parallel Workloads Archive, in rows as published."""

import csv
import gzip
import json
import random
from collections import Counter
from fractions import Fraction
from itertools import islice
from math import ceil

import pytest
from click.testing import CliRunner
from files import by_id, refusal, written
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import UserError
from replay.importers import FORMATS, alibaba, google, swf
from replay.limits import MAX_TIME
from replay.read import read_pools, read_trace
from replay.text import counted
from replay.trace import playable
from replay.trace_commands import trace as trace_command
from sia.limits import MAX_QUOTA
from sia.model import Job, Pool
from sia.playout import Arrival

DAY = 86400.0
AFTER = 2**63 - 1

# The Standard Workload Format

SWF_HEAD = """\
; Version: 2.2
; Computer: IBM SP2
; UnixStartTime: 843480031
; MaxNodes: 8
; MaxProcs: 16
;
"""
SWF_LOG = """\
    1      0     10    100    4     -1    -1    8   3600    -1  1   3   2   7  -1 -1 -1 -1
    2      5     -1     -1   -1     -1    -1    2    600    -1  5   3   2  -1  -1 -1 -1 -1
    3     60      0      0    2     -1    -1    2    600    -1  1   4   2  -1  -1 -1 -1 -1
    4     60      5     -1    2     -1    -1    2    600    -1  0   4   2  -1  -1 -1 -1 -1
    5     70      5     30   -1     -1    -1   -1    600    -1  1   4   2  -1  -1 -1 -1 -1
    6     80      5   30.5   -1     -1    -1    3    600    -1  1  -1  -1  -1  -1 -1 -1 -1
    7     -1      5     30    1     -1    -1    1    600    -1  1   4   2  -1  -1 -1 -1 -1
    8     40      0     12    0     -1    -1    5    600    -1  5   4   2  -1  -1 -1 -1 -1
    9     90      0     50    1     -1    -1    1    600    -1  1   5   2  -1  -1 -1 -1 -1
    9     -1      0     20    1     -1    -1    1    600    -1  2   5   2  -1  -1 -1 -1 -1
    9     -1     30     30    1     -1    -1    1    600    -1  3   5   2  -1  -1 -1 -1 -1
"""


def swf_of(folder, rows, head=SWF_HEAD):
    return swf.read(written(folder, head + rows, "log.swf"), None)


def swf_row(
    number=1, submit=0, run=60, allocated=1, requested=-1, status=1, queue=-1, partition=-1
):
    return (
        f"{number} {submit} -1 {run} {allocated} -1 -1 {requested} -1 -1 {status} "
        f"7 1 -1 {queue} {partition} -1 -1\n"
    )


def test_swf_jobs_keep_the_clock_of_the_log_and_come_in_order(tmp_path):
    trace, _ = swf_of(tmp_path, SWF_LOG)
    assert trace.arrivals == [
        Arrival(Job("1", "machine", 0.0, 4, "3", "7"), 100.0),
        Arrival(Job("8", "machine", 40.0, 5, "4"), 12.0),
        Arrival(Job("6", "machine", 80.0, 3), 30.5),
        Arrival(Job("9", "machine", 90.0, 1, "5"), 50.0),
    ]
    assert "second 0 is that of the log, Unix time 843480031 by its header" in trace.notes


def test_swf_states_groups_and_waits_are_kept_where_known(tmp_path):
    trace, _ = swf_of(tmp_path, SWF_LOG + swf_row(10, status=-1))
    assert trace.columns == ("state", "group", "wait")
    assert trace.extras == {
        "1": ("1", "2", "10.0"),
        "6": ("1", "", "5.0"),
        "8": ("5", "2", "0.0"),
        "9": ("1", "2", "0.0"),
        "10": ("", "1", ""),
    }


def test_swf_jobs_that_cannot_be_replayed_are_counted_by_reason(tmp_path):
    trace, _ = swf_of(tmp_path, SWF_LOG)
    assert trace.dropped == Counter(
        {
            "cancelled before it ran": 1,
            "ran for 0 seconds": 1,
            "without a run time": 1,
            "without a number of processors": 1,
            "without a submission time": 1,
            "part of a job that has a row of its own": 2,
        }
    )
    assert len(trace.arrivals) + trace.dropped.total() == SWF_LOG.count("\n")


def test_a_swf_job_too_short_for_the_clock_ran_for_0_seconds(tmp_path):
    trace, _ = swf_of(tmp_path, swf_row(1, run="0.0000001") + swf_row(2, run="0.000001"))
    assert by_id(trace).keys() == {"2"}
    assert trace.dropped == Counter({"ran for 0 seconds": 1})


def test_swf_jobs_as_wide_as_they_asked_for_are_said(tmp_path):
    """Jobs 6 and 8 got -1 and 0 processors, which tells nothing; 5 asked for -1 and is gone."""
    trace, _ = swf_of(tmp_path, SWF_LOG)
    assert "2 jobs as wide as requested: what was given is not known" in trace.notes
    trace, _ = swf_of(tmp_path, swf_row(allocated=4, requested=8))
    assert trace.arrivals[0].job.width == 4
    assert not any("requested" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("head", "size", "source"),
    [
        (SWF_HEAD, 16, "MaxProcs"),
        ("; MaxNodes: 8\n", 8, "MaxNodes"),
        ("; MaxProcs: -1\n;MaxNodes:8\n", 8, "MaxNodes"),
        ("; MaxProcs: 16\n; MaxProcs: 16\n", 16, "MaxProcs"),
    ],
)
def test_the_only_swf_pool_is_as_large_as_the_header_says(tmp_path, head, size, source):
    trace, table = swf_of(tmp_path, swf_row(), head)
    assert table.pools == [Pool("machine", size)]
    assert not table.changes
    assert f"pool machine has {size} processors, as {source} of the header says" in trace.notes


@pytest.mark.parametrize(
    "head",
    [
        "",
        "; MaxProcs: about 100\n",
        "; MaxProcs: 0\n",
        f"; MaxProcs: {MAX_QUOTA + 1}\n",
        "; MaxProcs: " + 5_000 * "9" + "\n",
        "; Note: MaxProcs: 16\n",
    ],
)
def test_without_a_size_in_the_header_the_swf_pool_is_not_known(tmp_path, head):
    trace, table = swf_of(tmp_path, swf_row(), head)
    assert table is None
    assert not any("processors, as" in note for note in trace.notes)


def test_swf_partitions_are_pools_else_queues_and_their_sizes_are_not_known(tmp_path):
    rows = swf_row(1, partition=2, queue=0) + swf_row(2, partition=1, queue=0)
    trace, table = swf_of(tmp_path, rows)
    assert [job.pool for job, _ in trace.arrivals] == ["partition-2", "partition-1"]
    assert table is None
    trace, table = swf_of(tmp_path, swf_row(1, queue=0) + swf_row(2, queue=0))
    assert [job.pool for job, _ in trace.arrivals] == ["queue-0", "queue-0"]
    assert table.pools == [Pool("queue-0", 16)]


def test_swf_jobs_that_tell_their_pool_in_different_ways_are_said(tmp_path):
    rows = swf_row(1, partition=2) + swf_row(2, queue=3) + swf_row(3) + swf_row(4)
    trace, table = swf_of(tmp_path, rows)
    assert [job.pool for job, _ in trace.arrivals] == [
        "partition-2",
        "queue-3",
        "machine",
        "machine",
    ]
    assert table is None
    says = "partition 1, queue 1, neither partition nor queue 2"
    assert f"jobs tell their pool in different ways: {says}" in trace.notes
    trace, _ = swf_of(tmp_path, swf_row(1, partition=2) + swf_row(2, partition=1))
    assert not any("different ways" in note for note in trace.notes)


def test_swf_comments_may_be_in_any_encoding_and_rows_zipped(tmp_path):
    text = "; Acknowledge: Håkan\n".encode("latin-1") + swf_row().encode()
    trace, _ = swf.read(written(tmp_path, gzip.compress(text)), None)
    assert len(trace.arrivals) == 1


def test_swf_fields_may_be_set_apart_by_tabs_and_empty_lines_stand_between(tmp_path):
    rows = swf_row().replace(" ", "\t") + "\n  \n  ; a comment\n" + swf_row(2).replace("\n", "\r\n")
    trace, _ = swf_of(tmp_path, rows)
    assert len(trace.arrivals) == 2


BAD_SWF = {
    "a field too few": ("1 0 -1 60 1 -1 -1 1", "job number", "the row has 8 cells"),
    "a field too many": (swf_row().strip() + " -1", "job number", "the row has 19 cells"),
    "no job number": (swf_row(-1), "job number", "give the job an id"),
    "a job number that is a word": (swf_row("one"), "job number", "whole number, or -1"),
    "a number that was there": (swf_row(99), "job number", "keep one"),
    "submitted at a word": (swf_row(submit="noon"), "submit time", "write seconds"),
    "submitted before the log": (swf_row(submit=-2), "submit time", "or -1"),
    "run time below unknown": (swf_row(run=-5), "run time", "or -1"),
    "run time without an end": (swf_row(run="inf"), "run time", "write seconds"),
    "run time too large": (swf_row(run="1e15"), "run time", f"stay below {MAX_TIME:g}"),
    "run time as Python writes it": (swf_row(run="1_0"), "run time", "write seconds"),
    "half a processor": (swf_row(allocated=0.5), "allocated processors", "whole number from 0"),
    "processors below unknown": (swf_row(allocated=-2), "allocated processors", "from 0"),
    "more processors than a pool has": (
        swf_row(allocated=-1, requested=MAX_QUOTA + 1),
        "requested processors",
        f"to {MAX_QUOTA}",
    ),
    "a status that is none": (swf_row(status=6), "status", "0 to 5"),
    "a queue that is a word": (swf_row(queue="batch"), "queue", "or -1"),
    "a partition below unknown": (swf_row(partition=-2), "partition", "or -1"),
    "a part of another job": (swf_row(98, status=2), "status", "a row with the whole job"),
    "a part of no job": (swf_row(-1, status=2), "status", "a row with the whole job"),
    "a second size": ("; MaxProcs: 17", "MaxProcs", "keep one"),
}


@pytest.mark.parametrize(("row", "field", "mend"), BAD_SWF.values(), ids=BAD_SWF)
def test_a_bad_swf_row_is_refused_with_its_place_and_mend(tmp_path, row, field, mend):
    log = written(tmp_path, SWF_HEAD + swf_row(99) + row + "\n")
    text = refusal(swf.read, log, None)
    assert f": row 8, column {field}: " in text
    assert mend in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no rows"),
        (SWF_HEAD, "it has no rows"),
        (swf_row(run=0), "1 ran for 0 seconds"),
        (swf_row(-1, status=2), "row 1, column status: it is a part of job"),
        (b"\x1f\x8b\x08", "cut off or damaged"),
        ("job_id,pool,submit,width,duration\n", "the row has 1 cells"),
        (swf_row().encode().replace(b"60", b"\xff60"), "run time"),
        ("1" * 2**20, "no job log"),
    ],
)
def test_a_file_that_is_no_swf_log_is_refused_in_one_line(tmp_path, text, says):
    log = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        swf.read(log, None)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{log}: ")
    assert "\n" not in str(caught.value)


def test_the_log_of_kth_is_read_whole(tmp_path, traces):
    log = traces / "kth_sp2.swf.gz"
    trace, table = swf.read(log, None)
    assert len(trace.arrivals) == 28_467
    assert trace.dropped == Counter({"ran for 0 seconds": 8, "without a number of processors": 1})
    assert len(trace.arrivals) + trace.dropped.total() == 28_476
    assert table.pools == [Pool("machine", 100)]
    assert len(playable(trace, table).arrivals) == 28_467
    with gzip.open(log, "rt") as file:
        rows = {row[0]: row for row in map(str.split, file) if row[0] != ";" and row[0][0] != ";"}
    for job, duration in trace.arrivals:
        row = rows[job.id]
        assert (job.submit, duration) == (float(row[1]), float(row[3]))
        assert (job.width, job.user, job.name) == (int(row[4]), row[11], "")
        assert trace.extras[job.id] == (row[10], row[12], repr(float(row[2])))


# Google's events

G_SUBMIT, G_SCHEDULE, G_EVICT, G_FAIL, G_FINISH, G_KILL, G_LOST, G_PENDING, G_RUNNING = range(9)


def event(time, kind, job="6251639646", user="u81", sched_class="1", name="n3591"):
    """A row of job_events, `time` in seconds."""
    stamp = AFTER if time == AFTER else round(time * 1e6)
    return f"{stamp},,{job},{kind},{user},{sched_class},jn-{job},{name}\n"


def life(*events, job="6251639646"):
    return "".join(event(time, kind, job) for kind, time in events)


def google_of(folder, rows, name="part-00000-of-00001.csv"):
    trace, table = google.read(written(folder, rows, name), None)
    assert table is None, "Google's trace does not tell how large the cluster is"
    return trace


SURE = life((G_SUBMIT, 700), (G_SCHEDULE, 700.25), (G_FINISH, 710.25), job="sure")


def test_a_google_job_runs_from_its_schedule_to_its_end(tmp_path):
    rows = """\
604046000,,6251639646,0,hb/5+=,1,jobhash=,logical=
605307000,,6251639646,1,hb/5+=,1,jobhash=,logical=
674990001,,6251639646,4,hb/5+=,1,jobhash=,logical=
"""
    trace = google_of(tmp_path, rows)
    assert trace.arrivals == [
        Arrival(Job("6251639646", "google", 604.046, 1, "hb/5+=", "logical="), 69.683001)
    ]
    assert trace.columns == ("state", "sched_class", "wait")
    assert trace.extras == {"6251639646": ("FINISH", "1", "1.261")}
    assert trace.notes == [
        "second 600 is 2011-05-01 19:00:00, local time of the cluster",
        "the width of every job is 1: the trace does not tell it",
    ]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (G_EVICT, "EVICT"),
        (G_FAIL, "FAIL"),
        (G_FINISH, "FINISH"),
        (G_KILL, "KILL"),
        (G_LOST, "LOST"),
    ],
)
def test_each_way_to_end_is_an_end(tmp_path, kind, state):
    rows = life((G_SUBMIT, 700), (G_SCHEDULE, 705), (kind, 715))
    trace = google_of(tmp_path, rows)
    assert [duration for _, duration in trace.arrivals] == [10.0]
    assert trace.extras["6251639646"][0] == state


def test_what_is_between_an_eviction_and_the_next_schedule_counts_and_is_said(tmp_path):
    rows = life(
        (G_SUBMIT, 700), (G_SCHEDULE, 705), (G_EVICT, 715), (G_SUBMIT, 715), (G_SCHEDULE, 745),
        (G_FAIL, 755), (G_SUBMIT, 755), (G_SCHEDULE, 760), (G_KILL, 765),
    )  # fmt: skip
    trace = google_of(tmp_path, rows + SURE)
    assert by_id(trace)["6251639646"] == Arrival(
        Job("6251639646", "google", 700.0, 1, "u81", "n3591"), 60.0
    )
    assert trace.extras["6251639646"] == ("KILL", "1", "5.0")
    assert trace.notes[-1].startswith("1 job scheduled again")
    assert not any("again" in note for note in google_of(tmp_path, SURE).notes)


def test_updates_are_neither_submission_nor_end(tmp_path):
    rows = life((G_PENDING, 690), (G_SUBMIT, 700), (G_PENDING, 701), (G_SCHEDULE, 705),
                (G_RUNNING, 706), (G_KILL, 715), (G_RUNNING, 800))  # fmt: skip
    job, duration = google_of(tmp_path, rows).arrivals[0]
    assert (job.submit, duration) == (700.0, 10.0)


def test_a_row_that_leaves_the_user_out_takes_nothing_away(tmp_path):
    rows = event(700, G_SUBMIT) + event(701, G_SCHEDULE, user="", sched_class="", name="")
    trace = google_of(tmp_path, rows + event(702, G_FINISH, user="", sched_class="", name=""))
    assert (trace.arrivals[0].job.user, trace.arrivals[0].job.name) == ("u81", "n3591")
    assert trace.extras["6251639646"] == ("FINISH", "1", "1.0")


GOOGLE_DROPS = {
    "from before the trace": [
        ((G_SUBMIT, 0), (G_SCHEDULE, 0), (G_FINISH, 650)),
        ((G_SUBMIT, 0), (G_SCHEDULE, 650), (G_FINISH, 660)),
        ((G_SUBMIT, 0), (G_SCHEDULE, 0)),
        ((G_SUBMIT, 0),),
    ],
    "going on after the trace": [
        ((G_SUBMIT, 700), (G_SCHEDULE, 701), (G_KILL, AFTER)),
        ((G_SUBMIT, 700), (G_SCHEDULE, AFTER), (G_KILL, AFTER)),
        ((G_SUBMIT, AFTER),),
    ],
    "without a submission": [((G_SCHEDULE, 700), (G_FINISH, 710)), ((G_PENDING, 700),)],
    "never scheduled": [((G_SUBMIT, 700),), ((G_SUBMIT, 700), (G_KILL, 710))],
    "without an end": [
        ((G_SUBMIT, 700), (G_SCHEDULE, 701)),
        ((G_SUBMIT, 700), (G_SCHEDULE, 701), (G_EVICT, 710), (G_SUBMIT, 710)),
        ((G_SUBMIT, 700), (G_SCHEDULE, 701), (G_EVICT, 710), (G_SUBMIT, 711), (G_SCHEDULE, 720)),
    ],
    "ran for 0 seconds": [((G_SUBMIT, 700), (G_SCHEDULE, 701), (G_FAIL, 701))],
}


@pytest.mark.parametrize(("reason", "lives"), GOOGLE_DROPS.items(), ids=GOOGLE_DROPS)
def test_a_google_job_that_cannot_be_replayed_is_counted_by_reason(tmp_path, reason, lives):
    rows = "".join(life(*events, job=f"job-{i}") for i, events in enumerate(lives))
    trace = google_of(tmp_path, rows + SURE)
    assert by_id(trace).keys() == {"sure"}
    assert trace.dropped == Counter({reason: len(lives)})


def test_parts_in_a_folder_are_one_table(tmp_path):
    one = life((G_SUBMIT, 700), (G_SCHEDULE, 705))
    written(tmp_path, one + SURE, "part-00000-of-00002.csv")
    end = life((G_FINISH, 800))
    written(tmp_path, gzip.compress(end.encode()), "part-00001-of-00002.csv.gz")
    written(tmp_path, "not of the table", "README")
    trace, _ = google.read(tmp_path, None)
    assert {job.id: duration for job, duration in trace.arrivals} == {
        "6251639646": 95.0,
        "sure": 10.0,
    }
    assert not any("parts" in note for note in trace.notes)


def test_of_two_events_at_one_time_that_of_the_later_part_is_the_later(tmp_path):
    one = life((G_SUBMIT, 700), (G_SCHEDULE, 705), (G_EVICT, 715))
    written(tmp_path, one + SURE, "part-00009-of-00011.csv")
    written(tmp_path, life((G_SUBMIT, 715)), "part-00010-of-00011.csv")
    trace, _ = google.read(tmp_path, None)
    assert trace.dropped == Counter({"without an end": 1})


def test_parts_that_are_missing_are_said(tmp_path):
    written(tmp_path, SURE, "part-00003-of-00500.csv")
    trace, _ = google.read(tmp_path, None)
    assert "1 of 500 parts are there: events of the others are missing" in trace.notes


def test_a_part_that_is_there_twice_is_refused(tmp_path):
    written(tmp_path, SURE, "part-00000-of-00001.csv")
    twin = written(tmp_path, gzip.compress(SURE.encode()), "part-00000-of-00001.csv.gz")
    assert "is the same part" in refusal(google.read, tmp_path, None, of=twin)


def test_a_folder_without_parts_is_refused(tmp_path):
    written(tmp_path, SURE, "job_events.csv")
    assert "no part-*-of-*" in refusal(google.read, tmp_path, None)


JOINED_HEAD = "job_id,submit_s,schedule_s,end_s,end_event,user,sched_class,logical_job_name\n"
JOINED = """\
3418309,0.0,0.0,,,u0,3,n0
3418319,0.0,0.0,2506000.5,FINISH,u0,3,n0
6251639646,604.046,605.307,674.99,FINISH,u81,1,n3591
6251707374,1228.778,4830.633,4830.633,KILL,u255,2,n3520
6486631417,2506136.378,2506137.639,,,u522,1,n11553
6486631637,2506136.378,,,,u522,1,n11553
6486641236,602.5,9223372036854.775807,,,u105,0,n3602
6486638013,601.5,602.5,604.75,FAIL,u181,1,n7585
"""


def test_joined_google_jobs_are_told_by_their_header(tmp_path):
    trace = google_of(tmp_path, JOINED_HEAD + JOINED, "jobs.csv")
    assert trace.arrivals == [
        Arrival(Job("6486638013", "google", 601.5, 1, "u181", "n7585"), 2.25),
        Arrival(Job("6251639646", "google", 604.046, 1, "u81", "n3591"), 69.683),
    ]
    assert trace.extras == {
        "6251639646": ("FINISH", "1", "1.261"),
        "6486638013": ("FAIL", "1", "1.0"),
    }
    assert trace.dropped == Counter(
        {
            "from before the trace": 2,
            "ran for 0 seconds": 1,
            "without an end": 1,
            "never scheduled": 1,
            "going on after the trace": 1,
        }
    )


def test_joined_google_columns_may_stand_in_another_order(tmp_path):
    text = "end_s,job_id,submit_s,user,schedule_s,end_event,logical_job_name,sched_class\n"
    trace = google_of(tmp_path, text + "674.5,1,604,u81,605,KILL,n1,2\n")
    assert trace.arrivals == [Arrival(Job("1", "google", 604.0, 1, "u81", "n1"), 69.5)]
    assert trace.extras == {"1": ("KILL", "2", "1.0")}


BAD_GOOGLE = {
    "no time": (",,1,0,u,1,j,n", "time", "write microseconds"),
    "a time that is a word": ("soon,,1,0,u,1,j,n", "time", "write microseconds"),
    "a time before all times": ("-1,,1,0,u,1,j,n", "time", "since the trace began"),
    "a time beyond all times": ("9223372036854000000,,1,0,u,1,j,n", "time", "stay below"),
    "an event of no type": ("700000000,,1,9,u,1,j,n", "event type", "from 0 to 8"),
    "an event that is a word": ("700000000,,1,SUBMIT,u,1,j,n", "event type", "from 0 to 8"),
    "no job": ("700000000,,,0,u,1,j,n", "job ID", "give the job an id"),
    "cells of another table": ("0,,3418309,0,4155527081,0,yN=,3,9,0.12,,", "time", "fill it up"),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_GOOGLE.values(), ids=BAD_GOOGLE)
def test_a_bad_google_event_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    written(tmp_path, SURE, "part-00000-of-00002.csv")
    part = written(tmp_path, SURE + row + "\n", "part-00001-of-00002.csv")
    text = refusal(google.read, tmp_path, None, of=part)
    assert f": row 4, column {column}: " in text
    assert mend in text


BAD_JOINED = {
    "submitted at a word": ("1,noon,1,2,KILL,u,1,n", "submit_s", "write seconds"),
    "scheduled before all times": ("1,1,-1,2,KILL,u,1,n", "schedule_s", "since the trace began"),
    "ended too late": ("1,1,1,1e15,KILL,u,1,n", "end_s", "stay below"),
    "ended at no number": ("1,1,1,nan,KILL,u,1,n", "end_s", "write seconds"),
    "no id": (",1,1,2,KILL,u,1,n", "job_id", "give the job an id"),
    "an id that was there": ("6251639646,1,1,2,KILL,u,1,n", "job_id", "keep one"),
    "a cell too few": ("1,1,1,2,KILL,u,1", "job_id", "fill it up"),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_JOINED.values(), ids=BAD_JOINED)
def test_a_bad_joined_row_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    log = written(tmp_path, JOINED_HEAD + JOINED + row + "\n")
    text = refusal(google.read, log, None)
    assert f": row 10, column {column}: " in text
    assert mend in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty; it must have rows"),
        (event(700, G_SUBMIT), "(1 never scheduled)"),
        (JOINED_HEAD, "it has no rows"),
        (JOINED_HEAD.replace(",end_s", ""), "column end_s is missing"),
        ("time,user\n", "column missing info, job ID"),
        ("1,2,3\n", "row 1, column time: the row has 3 cells"),
        (gzip.compress(SURE.encode(), mtime=0)[:-9], "cut off or damaged"),
        (SURE.encode().replace(b"u81", b"\xff"), "UTF-8"),
    ],
)
def test_a_file_that_is_no_google_log_is_refused_in_one_line(tmp_path, text, says):
    log = written(tmp_path, text)
    assert says in refusal(google.read, log, None)


def test_a_joined_log_among_the_parts_is_refused(tmp_path):
    part = written(tmp_path, JOINED_HEAD + JOINED, "part-00000-of-00001.csv")
    assert "is missing" in refusal(google.read, tmp_path, None, of=part)


@pytest.mark.parametrize(("form", "word"), [("google", "Google's trace"), ("swf", "an SWF log")])
def test_a_log_that_is_one_file_takes_no_second_one(tmp_path, form, word):
    second = written(tmp_path, "pool,quota\n", "pools.csv")
    text = refusal(FORMATS[form], tmp_path / "log", second, of=second)
    assert word in text
    assert "leave this file out" in text


LIVES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(G_SUBMIT, G_RUNNING)), min_size=1, max_size=8
    ),
    max_size=5,
)
"""Jobs as their events: seconds (0 is before the trace) and type."""


def as_told(events):
    """(submit, duration) of a job if it ran, from its events in order."""
    told = [(time, kind) for time, kind in events if kind < G_PENDING]
    submits = [time for time, kind in told if kind == G_SUBMIT]
    starts = [time for time, kind in told if kind == G_SCHEDULE]
    if not submits or not starts or not submits[0] or not starts[0] or told[-1][1] < G_EVICT:
        return None
    return (submits[0], told[-1][0] - starts[0]) if told[-1][0] > starts[0] else None


@settings(deadline=None)
@given(LIVES, st.integers(1, 4))
def test_every_google_job_is_kept_with_its_times_or_counted_in_any_parts(folder, lives, parts):
    lives = [sorted(events, key=lambda e: e[0]) for events in lives]
    rows = [(t, event(t, kind, f"{i}")) for i, told in enumerate(lives) for t, kind in told]
    rows.sort(key=lambda row: row[0])
    rows += [(700, row + "\n") for row in SURE.splitlines()]
    for old in folder.iterdir():
        old.unlink()
    size = ceil(len(rows) / parts)
    for i, begin in enumerate(range(0, len(rows), size)):
        text = "".join(row for _, row in rows[begin : begin + size])
        written(folder, text, f"part-{i:05}-of-{parts:05}.csv")
    trace, _ = google.read(folder, None)
    ran = {f"{i}": as_told(events) for i, events in enumerate(lives)}
    assert {job.id: (job.submit, length) for job, length in trace.arrivals if job.id != "sure"} == {
        job_id: told for job_id, told in ran.items() if told is not None
    }
    assert len(trace.arrivals) + trace.dropped.total() == len(lives) + 1


def test_the_jobs_of_google_are_read_whole(traces):
    log = traces / "google2011_jobs.csv.gz"
    trace, table = google.read(log, None)
    assert table is None
    assert len(trace.arrivals) == 665_535
    assert trace.dropped == Counter(
        {"from before the trace": 3_986, "ran for 0 seconds": 895, "without an end": 1_658}
    )
    assert len(trace.arrivals) + trace.dropped.total() == 672_074
    states = Counter(state for state, _, _ in trace.extras.values())
    assert states == Counter(FINISH=385_503, KILL=269_938, FAIL=10_058, EVICT=20, LOST=16)
    kept = by_id(trace)
    with gzip.open(log, "rt", newline="") as file:
        for row in islice(csv.DictReader(file), 0, None, 100):
            if row["job_id"] in kept:
                job, duration = kept[row["job_id"]]
                ran = Fraction(row["end_s"]) - Fraction(row["schedule_s"])
                assert (job.submit, duration) == (float(row["submit_s"]), float(ran))
                assert (job.pool, job.width) == ("google", 1)
                assert (job.user, job.name) == (row["user"], row["logical_job_name"])
                waited = float(Fraction(row["schedule_s"]) - Fraction(row["submit_s"]))
                told = (row["end_event"], row["sched_class"], repr(waited))
                assert trace.extras[job.id] == told


# Alibaba PAI

JOB_HEAD = "job_name,inst_id,user,status,start_time,end_time\n"
TASK_HEAD = (
    "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
)
GROUP_HEAD = "inst_id,user,gpu_type_spec,group,workload\n"
PAI_JOBS = """\
4b3f04b66a525d2df903eb16,8cb3bec2,58540f191766,Terminated,1550879.0,1551416.0
workers,1a,d2d3b77d342e,Failed,1500000.0,1590000.0
fraction,1b,d2d3b77d342e,Terminated,1500010.0,1500020.0
cpu,1c,d2d3b77d342e,Terminated,1400000.0,1400020.0
cpu of zero,1d,d2d3b77d342e,Terminated,1400000.0,1400020.0
running,1e,d2d3b77d342e,Running,1500000.0,
waiting,1f,d2d3b77d342e,Waiting,1500000.0,
without a start,20,d2d3b77d342e,Terminated,,1500020.0
start at 0,21,d2d3b77d342e,Terminated,0.0,1500020.0
in no time,22,d2d3b77d342e,Failed,1500000.0,1500005.0
backwards,23,d2d3b77d342e,Failed,1500000.0,1500003.0
no tasks,24,d2d3b77d342e,Terminated,1500000.0,1500020.0
two types,25,d2d3b77d342e,Terminated,1500000.0,1500020.0
no type,26,d2d3b77d342e,Terminated,1500000.0,1500020.0
no instances,27,d2d3b77d342e,Terminated,1500000.0,1500020.0
"""
PAI_TASKS = """\
4b3f04b66a525d2df903eb16,tensorflow,1.0,Terminated,1550880.0,1551416.0,600.0,29.296875,100.0,T4
workers,ps,2.0,Terminated,1500001.0,1590000.0,600.0,29.296875,,
workers,worker,3.0,Failed,1500100.0,1590000.0,600.0,29.296875,50.0,V100
workers,evaluator,1.0,Failed,1500200.0,1580000.0,600.0,29.296875,800.0,V100
workers,chief,1.0,Failed,,,600.0,29.296875,25.0,V100
fraction,worker,1.0,Terminated,1500012.5,1500020.0,600.0,29.296875,25.0,MISC
cpu,ps,4.0,Terminated,1400000.0,1400020.0,600.0,29.296875,,
cpu of zero,ps,4.0,Terminated,1400000.0,1400020.0,600.0,29.296875,0.0,
running,worker,1.0,Running,1500005.0,,600.0,29.296875,100.0,T4
waiting,worker,1.0,Waiting,,,600.0,29.296875,100.0,T4
without a start,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
start at 0,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
in no time,worker,1.0,Failed,1500005.0,1500005.0,600.0,29.296875,100.0,T4
backwards,worker,1.0,Failed,1500005.0,1500003.0,600.0,29.296875,100.0,T4
two types,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
two types,evaluator,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,P100
no type,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,
no instances,worker,,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
of no job,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
"""
PAI_GROUPS = """\
1a,d2d3b77d342e,V100,fbeb14d671c6,nmt
8cb3bec2,58540f191766,,0c1a2b,
"""
MIDNIGHT = 17 * DAY - 8 * 3600
"""That before 1500000, in Shanghai."""


def alibaba_of(folder, jobs, tasks, groups=None):
    if groups is not None:
        written(folder, groups, "pai_group_tag_table.csv")
    log = written(folder, jobs, "pai_job_table.csv")
    trace, table = alibaba.read(log, written(folder, tasks, "pai_task_table.csv"))
    assert table is None, "the tables do not tell how many GPUs there are"
    return trace


def test_pai_jobs_count_from_a_midnight_in_shanghai_in_order(tmp_path):
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS, PAI_GROUPS)
    assert trace.arrivals == [
        Arrival(
            Job("workers", "V100", 1500000 - MIDNIGHT, 2 + 8 + 1, "d2d3b77d342e", "fbeb14d671c6"),
            1590000.0 - 1500001,
        ),
        Arrival(Job("fraction", "MISC", 1500010 - MIDNIGHT, 1, "d2d3b77d342e"), 7.5),
        Arrival(
            Job("4b3f04b66a525d2df903eb16", "T4", 1550879 - MIDNIGHT, 1, "58540f191766", "0c1a2b"),
            536.0,
        ),
    ]
    assert 0 <= trace.arrivals[0].job.submit < DAY
    assert trace.columns == ("state",)
    assert [state for (state,) in trace.extras.values()] == ["Terminated", "Failed", "Terminated"]


def test_pai_jobs_that_cannot_be_replayed_are_counted_by_reason(tmp_path):
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS)
    assert trace.dropped == Counter(
        {
            "CPU job": 2,
            "without an end": 1,
            "never started": 1,
            "without a submission time": 2,
            "ran for 0 seconds": 1,
            "ended before it started": 1,
            "not in the task table": 1,
            "on GPUs of several types": 1,
            "without a GPU type": 1,
            "without a number of instances": 1,
        }
    )
    assert len(trace.arrivals) + trace.dropped.total() == PAI_JOBS.count("\n")


def test_what_was_made_of_pai_jobs_is_said(tmp_path):
    assert alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS, PAI_GROUPS).notes == [
        "second 0 is a midnight in Shanghai; the publisher does not tell the date",
        "a job is submitted at its start_time and runs from the launch of its first task",
        "2 jobs on parts of GPUs; each task is rounded up to whole ones",
        "1 job of the task table, not in the log",
        "1 job without a name, as no group or several are given",
        "names are the groups of pai_group_tag_table.csv",
    ]


def test_pai_jobs_without_a_table_of_groups_have_no_names(tmp_path):
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS)
    assert {job.name for job, _ in trace.arrivals} == {""}
    says = "jobs have no names: pai_group_tag_table.csv is not beside the task table"
    assert trace.notes[-1] == says


def test_a_pai_job_of_two_groups_has_no_name(tmp_path):
    groups = "1a,u,,first,\n8cb3bec2,u,,same,\n1a,u,,second,\n8cb3bec2,u,,same,\n1a,u,,first,\n"
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS, groups)
    names = {job.id: job.name for job, _ in trace.arrivals}
    assert names == {"workers": "", "fraction": "", "4b3f04b66a525d2df903eb16": "same"}


def test_the_groups_may_be_zipped(tmp_path):
    written(tmp_path, gzip.compress(PAI_GROUPS.encode()), "pai_group_tag_table.csv.gz")
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS)
    assert by_id(trace)["workers"].job.name == "fbeb14d671c6"
    assert trace.notes[-1] == "names are the groups of pai_group_tag_table.csv.gz"


def test_pai_tables_may_have_headers(tmp_path):
    plain = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS, PAI_GROUPS)
    headed = alibaba_of(
        tmp_path, JOB_HEAD + PAI_JOBS, TASK_HEAD + PAI_TASKS, GROUP_HEAD + PAI_GROUPS
    )
    assert (headed.arrivals, headed.dropped) == (plain.arrivals, plain.dropped)


def test_pai_columns_may_stand_in_another_order_with_a_header(tmp_path):
    jobs = "end_time,user,job_name,start_time,status,inst_id\n1500536,u,a,1499990,Failed,i\n"
    tasks = (
        "gpu_type,plan_gpu,job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem\n"
        "T4,100,a,worker,4,Failed,1500000,1500536,600,29\n"
    )
    trace = alibaba_of(tmp_path, jobs, tasks)
    assert trace.arrivals == [Arrival(Job("a", "T4", 1499990 - MIDNIGHT, 4, "u"), 536.0)]


def pai_task(job, instances=1.0, percent=100.0, gpu_type="T4", launch=1500000.0):
    end = "" if launch == "" else 1500060.0
    return f"{job},worker,{instances},Terminated,{launch},{end},600.0,29.3,{percent},{gpu_type}\n"


def pai_job(job, start=1500000.0, end=1500060.0):
    return f"{job},inst-{job},user,Terminated,{start},{end}\n"


@pytest.mark.parametrize(
    ("instances", "percent", "width", "shares"),
    [
        (1.0, 100.0, 1, False),
        (1, 25, 1, True),
        (4.0, 25.0, 1, False),
        (5.0, 25.0, 2, True),
        (2.0, 50.0, 1, False),
        (3.0, 50.0, 2, True),
        (10.0, 10.0, 1, False),
        (2.0, 800.0, 16, False),
        (3.0, 33.333333, 1, True),
        (1.0, 0.001, 1, True),
    ],
)
def test_parts_of_gpus_are_rounded_up_for_a_task(tmp_path, instances, percent, width, shares):
    trace = alibaba_of(tmp_path, pai_job("a"), pai_task("a", instances, percent))
    assert trace.arrivals[0].job.width == width
    assert any("parts of GPUs" in note for note in trace.notes) is shares


def test_each_task_is_rounded_up_on_its_own(tmp_path):
    """Two tasks of half a GPU are two GPUs, as they may be on two machines."""
    trace = alibaba_of(tmp_path, pai_job("a"), 2 * pai_task("a", percent=50.0))
    assert trace.arrivals[0].job.width == 2
    assert "1 job on parts of GPUs; each task is rounded up to whole ones" in trace.notes


def test_jobs_that_are_dropped_are_not_said_to_use_parts(tmp_path):
    tasks = pai_task("a", percent=50.0) + pai_task("b")
    trace = alibaba_of(tmp_path, pai_job("a", end="") + pai_job("b"), tasks)
    assert not any("parts of GPUs" in note for note in trace.notes)


TASKS = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0, 5, 10, 25, 50, 60, 100, 200, 800])),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(st.lists(TASKS, max_size=6))
def test_every_pai_job_is_as_wide_as_its_tasks_or_counted(folder, jobs):
    jobs = [*jobs, [(1, 100)]]
    log = "".join(pai_job(str(i)) for i in range(len(jobs)))
    tasks = [pai_task(str(i), *task) for i, job in enumerate(jobs) for task in job]
    random.Random(len(tasks)).shuffle(tasks)
    trace = alibaba_of(folder, log, "".join(tasks))
    widths = {
        str(i): sum(ceil(Fraction(count * percent, 100)) for count, percent in job)
        for i, job in enumerate(jobs)
    }
    assert {job.id: job.width for job, _ in trace.arrivals} == {
        job_id: width for job_id, width in widths.items() if width
    }
    assert trace.dropped.total() == trace.dropped["CPU job"] == list(widths.values()).count(0)


BAD_PAI_JOBS = {
    "submitted at a word": ("b,i,u,Failed,soon,1500060", "start_time", "write seconds"),
    "submitted below zero": ("b,i,u,Failed,-5,1500060", "start_time", "leave it empty"),
    "ended at no number": ("b,i,u,Failed,1500000,nan", "end_time", "write seconds"),
    "ended too late": ("b,i,u,Failed,1500000,1e15", "end_time", "stay below"),
    "a job that was there": ("a,i,u,Failed,1500000,1500060", "job_name", "keep one"),
    "a cell too few": ("b,i,u,Failed,1500000", "job_name", "fill it up"),
    "a row of tasks": (pai_task("b").strip(), "job_name", "the row has 10 cells"),
    "no name": (",i,u,Failed,1500000,1500060", "job_name", "give the job an id"),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_PAI_JOBS.values(), ids=BAD_PAI_JOBS)
def test_a_bad_pai_job_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    log = written(tmp_path, pai_job("a") + row + "\n")
    tasks = written(tmp_path, pai_task("a") + pai_task("b") + pai_task(""), "tasks.csv")
    text = refusal(alibaba.read, log, tasks)
    assert f": row 2, column {column}: " in text
    assert mend in text


BAD_PAI_TASKS = {
    "percent is a word": (pai_task("a", percent="half"), "plan_gpu", "write percent of a GPU"),
    "percent is endless": (pai_task("a", percent="inf"), "plan_gpu", "write percent of a GPU"),
    "percent is negative": (pai_task("a", percent=-50), "plan_gpu", "0 or more"),
    "half an instance": (pai_task("a", 0.5), "inst_num", "whole number from 0"),
    "instances are a word": (pai_task("a", "two"), "inst_num", "whole number from 0"),
    "instances without number": (pai_task("a", MAX_QUOTA + 1), "inst_num", f"to {MAX_QUOTA}"),
    "more GPUs than a pool has": (pai_task("a", MAX_QUOTA), "plan_gpu", "remove the job"),
    "launched at a word": (pai_task("a", launch="soon"), "start_time", "write seconds"),
    "a cell too few": ("a,worker,1.0,Terminated,1,2,600.0,29.3,100", "job_name", "fill it up"),
}


@pytest.mark.parametrize(("row", "column", "mend"), BAD_PAI_TASKS.values(), ids=BAD_PAI_TASKS)
def test_a_bad_pai_task_is_refused_with_its_place_and_mend(tmp_path, row, column, mend):
    tasks = written(tmp_path, pai_task("a") + row.strip() + "\n", "tasks.csv")
    text = refusal(alibaba.read, written(tmp_path, pai_job("a")), tasks, of=tasks)
    assert f": row 2, column {column}: " in text
    assert mend in text


def test_a_bad_table_of_groups_is_refused(tmp_path):
    log, tasks = written(tmp_path, pai_job("a")), written(tmp_path, pai_task("a"), "tasks.csv")
    groups = written(tmp_path, "inst-a,u,,group\n", "pai_group_tag_table.csv")
    text = refusal(alibaba.read, log, tasks, of=groups)
    assert ": row 1, column inst_id: the row has 4 cells" in text


def test_a_pai_log_needs_its_task_table(tmp_path):
    log = written(tmp_path, pai_job("a"))
    assert "give it as the second file" in refusal(alibaba.read, log, None)
    tasks = tmp_path / "none"
    assert "no such file" in refusal(alibaba.read, log, tasks, of=tasks)


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ("", "the file is empty; it must have rows"),
        (JOB_HEAD, "it has no rows"),
        ("job_name,user\n", "column inst_id, status, start_time, end_time is missing"),
        (JOB_HEAD.replace("inst_id", "user"), "column inst_id is missing"),
        (pai_job("b"), "no GPU job that ran is in it (1 not in the task table)"),
        (b"\x1f\x8b\x08", "cut off or damaged"),
    ],
)
def test_a_file_that_is_no_pai_log_is_refused_in_one_line(tmp_path, jobs, says):
    log = written(tmp_path, jobs)
    tasks = written(tmp_path, pai_task("a"), "tasks.csv")
    assert says in refusal(alibaba.read, log, tasks)


# From the command line to a canonical log


def sia_trace(*arguments):
    return CliRunner().invoke(trace_command, [str(argument) for argument in arguments])


def files_of(form, folder):
    """A log of each format, and its second file if it has one."""
    if form == "alibaba":
        written(folder, PAI_GROUPS, "pai_group_tag_table.csv")
        return [written(folder, PAI_JOBS), written(folder, PAI_TASKS, "tasks.csv")]
    return [written(folder, {"swf": SWF_HEAD + SWF_LOG, "google": JOINED_HEAD + JOINED}[form])]


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_what_convert_writes_is_what_the_importer_read(tmp_path, form):
    files = files_of(form, tmp_path)
    trace, table = FORMATS[form](files[0], files[1] if len(files) > 1 else None)
    done = sia_trace("convert", *files, "--format", form, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    again = read_trace(tmp_path / "out" / "trace.csv")
    assert (again.arrivals, again.columns, again.extras) == (
        trace.arrivals,
        trace.columns,
        trace.extras,
    )
    for reason, count in trace.dropped.items():
        assert f"dropped: {counted(count, 'job')} {reason}\n" in done.output
    for note in trace.notes:
        assert f"note: {note}\n" in done.output
    assert ("pool sizes are not known" in done.output) is (table is None)
    assert (tmp_path / "out" / "pools.csv").exists() is (table is not None)


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_info_describes_what_convert_wrote(tmp_path, form):
    sia_trace("convert", *files_of(form, tmp_path), "--format", form, "--out", tmp_path / "out")
    facts = json.loads(sia_trace("info", "--trace", tmp_path / "out/trace.csv", "--json").output)
    jobs = {name: pool["jobs"] for name, pool in facts["pools"].items()}
    assert (
        jobs
        == {
            "alibaba": {"MISC": 1, "T4": 1, "V100": 1},
            "google": {"google": 2},
            "swf": {"machine": 4},
        }[form]
    )


def test_the_pool_of_an_swf_log_is_written(tmp_path):
    log = written(tmp_path, SWF_HEAD + SWF_LOG)
    sia_trace("convert", log, "--format", "swf", "--out", tmp_path / "out")
    assert read_pools(tmp_path / "out" / "pools.csv").pools == [Pool("machine", 16)]


def test_a_folder_of_parts_is_converted(tmp_path):
    parts = tmp_path / "job_events"
    parts.mkdir()
    written(parts, SURE, "part-00000-of-00001.csv")
    done = sia_trace("convert", parts, "--format", "google", "--out", tmp_path / "out")
    assert done.output.startswith("1 job: ")
    assert by_id(read_trace(tmp_path / "out" / "trace.csv")).keys() == {"sure"}


@pytest.mark.parametrize("form", ["alibaba", "google", "swf"])
def test_a_bad_log_ends_the_command_with_2_and_leaves_nothing(tmp_path, form):
    files = files_of(form, tmp_path)
    files[0].write_text("1,2\n")
    done = sia_trace("convert", *files, "--format", form, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"Error: {files[0]}: row 1, column" in done.output
    assert not (tmp_path / "out").exists()
