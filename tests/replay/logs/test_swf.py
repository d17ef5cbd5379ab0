"""Logs of the Parallel Workloads Archive, in rows as published."""

import gzip
from collections import Counter

import pytest

from replay.logs.importers import swf
from replay.logs.trace import playable
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_QUOTA, MAX_TIME
from sia.model import Job, Pool
from tests.support.files import by_id, refusal, written
from tests.support.logs import SWF_HEAD, SWF_LOG


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
        Arrival(Job("1", "machine", 0.0, 4, "3", "7", estimate=3600.0), 100.0),
        Arrival(Job("8", "machine", 40.0, 5, "4", estimate=600.0), 12.0),
        Arrival(Job("6", "machine", 80.0, 3, estimate=600.0), 30.5),
        Arrival(Job("9", "machine", 90.0, 1, "5", estimate=600.0), 50.0),
    ]
    assert (
        "second 0 is second 0 of the log, Unix time 843480031 according to its header"
        in trace.notes
    )


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
    assert "2 jobs with the requested width: the allocated processors are unknown" in trace.notes
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
    assert f"pool machine has {size} processors ({source} of the header)" in trace.notes


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
    assert f"jobs name their pool in different fields: {says}" in trace.notes
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
    "no job number": (swf_row(-1), "job number", "give the job an ID"),
    "a job number that is a word": (swf_row("one"), "job number", "whole number, or -1"),
    "a number that was there": (swf_row(99), "job number", "remove one"),
    "submitted at a word": (swf_row(submit="noon"), "submit time", "write seconds"),
    "submitted before the log": (swf_row(submit=-2), "submit time", "or -1"),
    "run time below unknown": (swf_row(run=-5), "run time", "or -1"),
    "run time without an end": (swf_row(run="inf"), "run time", "write seconds"),
    "run time too large": (swf_row(run="1e15"), "run time", f"write a number below {MAX_TIME:g}"),
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
    "a part of another job": (swf_row(98, status=2), "status", "a row of the whole job"),
    "a part of no job": (swf_row(-1, status=2), "status", "a row of the whole job"),
    "a second size": ("; MaxProcs: 17", "MaxProcs", "remove one"),
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
        ("", "(no rows)"),
        (SWF_HEAD, "(no rows)"),
        (swf_row(run=0), "1 ran for 0 seconds"),
        (swf_row(-1, status=2), "row 1, column status: a part of job"),
        (b"\x1f\x8b\x08", "truncated or damaged"),
        ("job_id,pool,submit,width,duration\n", "the row has 1 cells"),
        (swf_row().encode().replace(b"60", b"\xff60"), "run time"),
        ("1" * 2**20, "exceeds 1048576 characters"),
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
