"""Logs of Alibaba PAI, in rows as published."""

import gzip
import random
from collections import Counter
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.logs.importers import alibaba
from sia.core.playout import Arrival
from sia.limits import MAX_QUOTA
from sia.model import Job
from tests.support.files import by_id, refusal, written
from tests.support.logs import GROUP_HEAD, JOB_HEAD, PAI_GROUPS, PAI_JOBS, PAI_TASKS, TASK_HEAD

DAY = 86400.0
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


def test_the_conversion_of_pai_jobs_is_reported(tmp_path):
    assert alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS, PAI_GROUPS).notes == [
        "second 0 is midnight in Shanghai; the date was not published",
        "a job is submitted at its start_time and runs from the launch of its first task",
        "2 jobs used fractions of GPUs; each task is rounded up to whole GPUs",
        "1 job of the task table not found in the job table",
        "1 job without a name: the group table lists no group or several groups",
        "job names are the groups of pai_group_tag_table.csv",
    ]


def test_pai_jobs_without_a_table_of_groups_have_no_names(tmp_path):
    trace = alibaba_of(tmp_path, PAI_JOBS, PAI_TASKS)
    assert {job.name for job, _ in trace.arrivals} == {""}
    says = "jobs have no names: pai_group_tag_table.csv is not in the task table's folder"
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
    assert trace.notes[-1] == "job names are the groups of pai_group_tag_table.csv.gz"


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
    assert any("fractions of GPUs" in note for note in trace.notes) is shares


def test_each_task_is_rounded_up_on_its_own(tmp_path):
    """Two tasks of half a GPU are two GPUs, as they may be on two machines."""
    trace = alibaba_of(tmp_path, pai_job("a"), 2 * pai_task("a", percent=50.0))
    assert trace.arrivals[0].job.width == 2
    assert "1 job used fractions of GPUs; each task is rounded up to whole GPUs" in trace.notes


def test_jobs_that_are_dropped_are_not_said_to_use_parts(tmp_path):
    tasks = pai_task("a", percent=50.0) + pai_task("b")
    trace = alibaba_of(tmp_path, pai_job("a", end="") + pai_job("b"), tasks)
    assert not any("fractions of GPUs" in note for note in trace.notes)


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
    "ended too late": ("b,i,u,Failed,1500000,1e15", "end_time", "write a number below"),
    "a job that was there": ("a,i,u,Failed,1500000,1500060", "job_name", "remove one"),
    "a cell too few": ("b,i,u,Failed,1500000", "job_name", "one cell for each column"),
    "a row of tasks": (pai_task("b").strip(), "job_name", "the row has 10 cells"),
    "no name": (",i,u,Failed,1500000,1500060", "job_name", "give the job an ID"),
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
    "a cell too few": (
        "a,worker,1.0,Terminated,1,2,600.0,29.3,100",
        "job_name",
        "one cell for each column",
    ),
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
        ("", "the file is empty; give a file with rows"),
        (JOB_HEAD, "(no rows)"),
        ("job_name,user\n", "column inst_id, status, start_time, end_time is missing"),
        (JOB_HEAD.replace("inst_id", "user"), "column inst_id is missing"),
        (pai_job("b"), "no GPU job that ran (1 not in the task table)"),
        (b"\x1f\x8b\x08", "truncated or damaged"),
    ],
)
def test_a_file_that_is_no_pai_log_is_refused_in_one_line(tmp_path, jobs, says):
    log = written(tmp_path, jobs)
    tasks = written(tmp_path, pai_task("a"), "tasks.csv")
    assert says in refusal(alibaba.read, log, tasks)
