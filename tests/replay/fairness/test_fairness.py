"""`sia fairness`: numbers worked out by hand, a naive model at random, and bad input."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.fairness.measures import RunSegment, fairness
from replay.logs.trace import PoolTable, Trace
from sia.core.playout import Arrival
from sia.model import Job, Pool
from tests.support.builders import job
from tests.support.shell import sia

POOLS = PoolTable([Pool("a", 2)])

LOG = """\
job_id,pool,submit,width,duration
x,a,0,1,100
y,a,0,2,100
z,a,100,1,50
late,a,400,1,10
"""
SEGMENTS = """\
job_id,start,end,width
y,120,220,2
x,0,60,1
x,60,120,1
z,220,270,1
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "pools.csv").write_text("pool,quota\na,2\n")
    (tmp_path / "segments.csv").write_text(SEGMENTS)
    return tmp_path


def run(folder, *more):
    return sia(
        "fairness", "--trace", folder / "log.csv", "--pools", folder / "pools.csv",
        "--segments", folder / "segments.csv", *more,
    )  # fmt: skip


def test_the_measures_of_four_jobs(files):
    found = json.loads(run(files, "--json").stdout)
    # four jobs on two GPUs: alone, each would have half a GPU
    assert found["jobs"]["x"]["ftf_jobs"] == pytest.approx(120 / (100 * 2))
    assert found["jobs"]["y"]["ftf_jobs"] == pytest.approx(220 / (100 * 2))
    # y sees x until 120, z from 100, itself throughout: 220 + 120 + 120 job-seconds
    assert found["jobs"]["y"]["ftf_life"] == pytest.approx(220 / (100 * 460 / 220 / 2))
    assert found["jobs"]["y"]["ftf_share"] == pytest.approx(220 / (100 * 680 / 220 / 2))
    # z sees y until 220 and x until 120, on average fewer than there are GPUs
    assert found["jobs"]["z"]["ftf_life"] == pytest.approx(170 / 50)
    assert found["worst_ftf_jobs"] == pytest.approx(170 / 100)
    assert found["unfair_ftf_jobs"] == pytest.approx(200 / 3)
    assert found["unfair_ftf_jobs_1.05"] == pytest.approx(200 / 3)
    assert found["unfair_ftf_life_1.05"] == 100
    assert found["makespan"] == 270
    assert found["avg_jct"] == pytest.approx((120 + 220 + 170) / 3)
    assert found["utilisation"] == pytest.approx((120 + 200 + 50) / 540)
    assert found["starts"] == 3  # x went on at 60
    assert found["never_ended"] == 1


def test_the_tables_name_the_job_that_was_treated_worst(files):
    shown = run(files).stdout
    assert "3 jobs ended on 2 GPUs" in shown
    assert "1 job never ended" in shown
    assert shown.splitlines()[-3].startswith("z ")


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("q,0,1,1", "row 2, column job_id: no job 'q' in the log"),
        ("x,0,nan,1", "column end: 'nan' is not finite"),
        ("x,5,1,1", "column end: 1 is before the start"),
        ("z,5,10,1", "column start: 5 is before the submission at 100 s"),
        ("x,0,10,0", "column width: '0' is not allowed"),
        ("x,0,10,3", "column width: 3 GPUs, but the pools have 2; give the pools of these"),
        ("x,0,10,1\nx,9,20,1", "job x runs twice at 9 s"),
    ],
)
def test_bad_segments_cost_one_line(files, rows, wrong):
    (files / "segments.csv").write_text(f"job_id,start,end,width\n{rows}\n")
    done = run(files, "--json")
    assert done.returncode == 2
    assert wrong in done.stderr
    assert len(done.stderr.splitlines()) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(1, 30), st.integers(0, 40)),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_presence_is_what_counting_second_by_second_gives(given_jobs):
    arrivals = [
        job(f"j{i}").gpus(width).at(submit).runs(seconds)
        for i, (submit, width, seconds, _) in enumerate(given_jobs)
    ]
    segments = {
        f"j{i}": [RunSegment(submit + wait, submit + wait + seconds, width)]
        for i, (submit, width, seconds, wait) in enumerate(given_jobs)
    }
    found = fairness(Trace(sorted(arrivals, key=lambda a: a.job.submit)), POOLS, segments)
    for i, (submit, _, seconds, wait) in enumerate(given_jobs):
        end = submit + wait + seconds
        count = weight = 0
        for at in range(submit, end):
            for other, width, lasts, waits in given_jobs:
                if other <= at < other + waits + lasts:
                    count, weight = count + 1, weight + width
        for name, total in (("ftf_life", count), ("ftf_share", weight)):
            share = max(1.0, total / (end - submit) / 2)
            assert found["jobs"][f"j{i}"][name] == pytest.approx((end - submit) / seconds / share)


DRAWN = {
    "2/3*3+1/3": (["BBBAAAA", "BBBAAAA", "CCCAAAA", "CCCBB"], 0.83, 5.0),
    "1/3": (["AAABAAA", "BBABAAA", "CBACAB", "CCCCBB"], 1.0, 5.67),
    "2/3": (["ABAABAA", "ABAABAA", "BCCBCAA", "BCCBC"], 1.1, 5.67),
    "1": (["AAAAAAA", "ABBABAA", "BBCBBA", "CCCCCB"], 1.1, 6.0),
}
"""Schedules by filter as drawn in Shockwave's Figs. 1 and 15, by GPU, with Table 1's worst value
and average completion time."""


def arrival(name, takes, width):
    return Arrival(Job(name, "a", 0.0, width), takes)


@pytest.mark.parametrize("filtered", DRAWN)
def test_the_drawn_schedules_of_table_1_are_scored_as_printed(filtered):
    """Its value is end · GPUs / (GPU-time · jobs), as for jobs on divisible GPUs."""
    gpus, worst, average = DRAWN[filtered]
    needs = {"A": (4.0, 3), "B": (4.0, 2), "C": (3.0, 2)}
    trace = Trace([arrival(name, takes, width) for name, (takes, width) in needs.items()])
    rounds = {name: [sum(t < len(row) and row[t] == name for row in gpus) for t in range(7)]
              for name in needs}  # fmt: skip
    segments = {
        name: [RunSegment(t, t + 1.0, width) for t, width in enumerate(widths) if width]
        for name, widths in rounds.items()
    }
    found = fairness(trace, PoolTable([Pool("a", 4)]), segments)
    assert (found["makespan"], round(found["avg_jct"], 2)) == (7.0, average)
    values = [
        measures["ftf_jobs"] * takes * 4 / (takes * width * 3)
        for measures, (takes, width) in zip(found["jobs"].values(), needs.values(), strict=True)
    ]
    assert max(values) == pytest.approx(worst, abs=0.02)
    assert [sum(widths) for widths in rounds.values()] == [12, 8, 6]
