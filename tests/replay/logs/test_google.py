"""Google's trace of 2011, in rows as published and as events joined to jobs."""

import csv
import gzip
from collections import Counter
from fractions import Fraction
from itertools import islice
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.logs.importers import google
from sia.core.playout import Arrival
from sia.model import Job
from tests.support.budget import SOAK, budget
from tests.support.files import by_id, refusal, written
from tests.support.logs import (
    AFTER,
    G_EVICT,
    G_FAIL,
    G_FINISH,
    G_KILL,
    G_LOST,
    G_PENDING,
    G_RUNNING,
    G_SCHEDULE,
    G_SUBMIT,
    JOINED,
    JOINED_HEAD,
    SURE,
    event,
    first_jobs,
    life,
)


def google_of(folder, rows, name="part-00000-of-00001.csv"):
    trace, table = google.read(written(folder, rows, name), None)
    assert table is None, "Google's trace does not tell how large the cluster is"
    return trace


def test_a_google_job_runs_from_its_schedule_to_its_end(tmp_path):
    rows = """\
604046000,,6251639646,0,hb/5+=,1,jobhash=,logical=
605307000,,6251639646,1,hb/5+=,1,jobhash=,logical=
674990001,,6251639646,4,hb/5+=,1,jobhash=,logical=
"""
    trace = google_of(tmp_path, rows)
    assert trace.arrivals == [
        Arrival(
            Job("6251639646", "google", 604.046, 1, "hb/5+=", "logical=", sched_class="1"),
            69.683001,
        )
    ]
    assert trace.columns == ("state", "wait")
    assert trace.extras == {"6251639646": ("FINISH", "1.261")}
    assert trace.notes == [
        "second 600 is 2011-05-01 19:00:00, local time of the cluster",
        "every job has width 1: the trace does not contain widths",
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


def test_time_between_an_eviction_and_the_next_schedule_counts_and_is_reported(tmp_path):
    rows = life(
        (G_SUBMIT, 700), (G_SCHEDULE, 705), (G_EVICT, 715), (G_SUBMIT, 715), (G_SCHEDULE, 745),
        (G_FAIL, 755), (G_SUBMIT, 755), (G_SCHEDULE, 760), (G_KILL, 765),
    )  # fmt: skip
    trace = google_of(tmp_path, rows + SURE)
    assert by_id(trace)["6251639646"] == Arrival(
        Job("6251639646", "google", 700.0, 1, "u81", "n3591", sched_class="1"), 60.0
    )
    assert trace.extras["6251639646"] == ("KILL", "5.0")
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
    assert trace.extras["6251639646"] == ("FINISH", "1.0")


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


def test_events_at_one_time_are_ordered_by_the_parts_of_the_log(tmp_path):
    one = life((G_SUBMIT, 700), (G_SCHEDULE, 705), (G_EVICT, 715))
    written(tmp_path, one + SURE, "part-00009-of-00011.csv")
    written(tmp_path, life((G_SUBMIT, 715)), "part-00010-of-00011.csv")
    trace, _ = google.read(tmp_path, None)
    assert trace.dropped == Counter({"without an end": 1})


def test_missing_parts_are_reported(tmp_path):
    written(tmp_path, SURE, "part-00003-of-00500.csv")
    trace, _ = google.read(tmp_path, None)
    assert "1 of 500 parts found: the events of the others are missing" in trace.notes


def test_a_part_that_is_there_twice_is_refused(tmp_path):
    written(tmp_path, SURE, "part-00000-of-00001.csv")
    twin = written(tmp_path, gzip.compress(SURE.encode()), "part-00000-of-00001.csv.gz")
    assert "is the same part" in refusal(google.read, tmp_path, None, of=twin)


def test_a_folder_without_parts_is_refused(tmp_path):
    written(tmp_path, SURE, "job_events.csv")
    assert "no part-*-of-*" in refusal(google.read, tmp_path, None)


def test_joined_google_jobs_are_told_by_their_header(tmp_path):
    trace = google_of(tmp_path, JOINED_HEAD + JOINED, "jobs.csv")
    assert trace.arrivals == [
        Arrival(Job("6486638013", "google", 601.5, 1, "u181", "n7585", sched_class="1"), 2.25),
        Arrival(Job("6251639646", "google", 604.046, 1, "u81", "n3591", sched_class="1"), 69.683),
    ]
    assert trace.extras == {
        "6251639646": ("FINISH", "1.261"),
        "6486638013": ("FAIL", "1.0"),
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
    assert trace.arrivals == [
        Arrival(Job("1", "google", 604.0, 1, "u81", "n1", sched_class="2"), 69.5)
    ]
    assert trace.extras == {"1": ("KILL", "1.0")}


BAD_GOOGLE = {
    "no time": (",,1,0,u,1,j,n", "time", "write microseconds"),
    "a time that is a word": ("soon,,1,0,u,1,j,n", "time", "write microseconds"),
    "a time before all times": ("-1,,1,0,u,1,j,n", "time", "since the start of the trace"),
    "a time beyond all times": ("9223372036854000000,,1,0,u,1,j,n", "time", "write a number below"),
    "an event of no type": ("700000000,,1,9,u,1,j,n", "event type", "from 0 to 8"),
    "an event that is a word": ("700000000,,1,SUBMIT,u,1,j,n", "event type", "from 0 to 8"),
    "no job": ("700000000,,,0,u,1,j,n", "job ID", "give the job an ID"),
    "cells of another table": (
        "0,,3418309,0,4155527081,0,yN=,3,9,0.12,,",
        "time",
        "one cell for each column",
    ),
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
    "scheduled before all times": (
        "1,1,-1,2,KILL,u,1,n",
        "schedule_s",
        "since the start of the trace",
    ),
    "ended too late": ("1,1,1,1e15,KILL,u,1,n", "end_s", "write a number below"),
    "ended at no number": ("1,1,1,nan,KILL,u,1,n", "end_s", "write seconds"),
    "no id": (",1,1,2,KILL,u,1,n", "job_id", "give the job an ID"),
    "an id that was there": ("6251639646,1,1,2,KILL,u,1,n", "job_id", "remove one"),
    "a cell too few": ("1,1,1,2,KILL,u,1", "job_id", "one cell for each column"),
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
        ("", "the file is empty; give a file with rows"),
        (event(700, G_SUBMIT), "(1 never scheduled)"),
        (JOINED_HEAD, "(no rows)"),
        (JOINED_HEAD.replace(",end_s", ""), "column end_s is missing"),
        ("time,user\n", "column missing info, job ID"),
        ("1,2,3\n", "row 1, column time: the row has 3 cells"),
        (gzip.compress(SURE.encode(), mtime=0)[:-9], "truncated or damaged"),
        (SURE.encode().replace(b"u81", b"\xff"), "UTF-8"),
    ],
)
def test_a_file_that_is_no_google_log_is_refused_in_one_line(tmp_path, text, says):
    log = written(tmp_path, text)
    assert says in refusal(google.read, log, None)


def test_a_joined_log_among_the_parts_is_refused(tmp_path):
    part = written(tmp_path, JOINED_HEAD + JOINED, "part-00000-of-00001.csv")
    assert "is missing" in refusal(google.read, tmp_path, None, of=part)


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


@pytest.mark.skipif(not SOAK, reason="all of it is read in make soak")
def test_no_job_of_the_google_log_is_lost(traces):
    trace, _ = google.read(traces / "google2011_jobs.csv.gz", None)
    assert len(trace.arrivals) == 665_535
    assert trace.dropped == Counter(
        {"from before the trace": 3_986, "ran for 0 seconds": 895, "without an end": 1_658}
    )
    assert len(trace.arrivals) + trace.dropped.total() == 672_074
    states = Counter(state for state, _, _ in trace.extras.values())
    assert states == Counter(FINISH=385_503, KILL=269_938, FAIL=10_058, EVICT=20, LOST=16)


def test_the_jobs_of_google_are_read_as_they_stand_there(traces, tmp_path):
    count = budget(ci=30_000, soak=672_074)
    log = first_jobs(traces / "google2011_jobs.csv.gz", count, tmp_path / "jobs.csv")
    trace, table = google.read(log, None)
    assert table is None
    assert len(trace.arrivals) + trace.dropped.total() == count
    assert set(trace.dropped) >= {"from before the trace"}
    kept = by_id(trace)
    with log.open(newline="") as file:
        for row in islice(csv.DictReader(file), 0, None, 100):
            if row["job_id"] in kept:
                job, duration = kept[row["job_id"]]
                ran = Fraction(row["end_s"]) - Fraction(row["schedule_s"])
                assert (job.submit, duration) == (float(row["submit_s"]), float(ran))
                assert (job.pool, job.width) == ("google", 1)
                assert (job.user, job.name) == (row["user"], row["logical_job_name"])
                waited = float(Fraction(row["schedule_s"]) - Fraction(row["submit_s"]))
                assert job.sched_class == row["sched_class"]
                told = (row["end_event"], repr(waited))
                assert trace.extras[job.id] == told
