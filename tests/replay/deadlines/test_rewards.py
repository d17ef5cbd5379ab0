"""Rewards of completion times, and the deadline metrics of a replay under any policy."""

import csv
import json

import pytest

from replay.deadlines.rewards import (
    Promised,
    deadline_measures,
    deadline_rows,
    reward_of,
)
from replay.logs.trace import Trace
from sia.core.playout import Arrival
from sia.model import Job
from sia.state.steps import PAPER_STEPS
from tests.support.shell import sia


def job(name="a", deadline=200.0, soft=(), submit=100.0):
    return Job(name, "p", submit, 1, deadline=deadline, soft=soft)


@pytest.mark.parametrize(
    ("soft", "end", "reward"),
    [
        ((), 200.0, 100.0),
        ((), 200.0004, 100.0),
        ((), 200.001, 1.0),
        ((), None, 1.0),
        (PAPER_STEPS, 210.0, 80.0),
        (PAPER_STEPS, 210.0009, 80.0),
        (PAPER_STEPS, 210.002, 50.0),
        (PAPER_STEPS, 250.0, 20.0),
        (PAPER_STEPS, 250.1, 1.0),
        (((1.0, 90.0), (2.0, 30.0)), 150.0, 90.0),
        (((1.0, 90.0), (2.0, 30.0)), 300.0, 30.0),
    ],
)
def test_an_end_earns_the_reward_of_the_first_step_that_it_meets(soft, end, reward):
    assert reward_of(job(soft=soft), end) == reward


def test_a_deadline_that_is_past_at_submission_is_missed():
    late = job(deadline=50.0, soft=PAPER_STEPS)
    assert reward_of(late, 100.0) == 1.0


def test_measures_count_what_was_missed_by_kind_of_deadline():
    jobs = [job("met"), job("late"), job("soft", soft=PAPER_STEPS), job("free", deadline=None)]
    ends = [150.0, None, 220.0, 400.0]
    trace = Trace([Arrival(each, 10.0) for each in jobs])
    assert deadline_measures(trace, ends) == {
        "slo_jobs": 3,
        "best_effort_jobs": 1,
        "slo_missed_pct": pytest.approx(200 / 3),
        "wdmr": pytest.approx((0.0 + 1.0 + 50 / 99) / 3),
        "wdmr_strict": 0.5,
        "wdmr_soft": pytest.approx(50 / 99),
        "best_effort_avg_jct_s": 300.0,
        "best_effort_goodput_gpu_h": 0.0,
    }
    nothing = deadline_measures(trace, ends, warmup=500.0)
    assert (nothing["slo_jobs"], nothing["wdmr"]) == (0, None)


def test_every_job_has_a_row_with_what_it_was_promised():
    jobs = [job("kept"), job("refused"), job("lost"), job("free", deadline=None)]
    trace = Trace([Arrival(each, 10.0) for each in jobs])
    promises = {"kept": Promised("guaranteed", 180.0), "lost": Promised("lost", 190.0)}
    assert list(deadline_rows(trace, [150.0, None, 220.0, 400.0], promises)) == [
        ("kept", "guaranteed", 180.0, 150.0, 100.0),
        ("refused", "unguaranteed", None, None, 1.0),
        ("lost", "lost", 190.0, 220.0, 1.0),
        ("free", "best effort", None, 400.0, 1.0),
    ]


def test_a_replay_of_any_policy_says_what_became_of_the_deadlines(tmp_path):
    log, pools = tmp_path / "log.csv", tmp_path / "pools.csv"
    log.write_text(
        "job_id,pool,submit,width,duration,deadline,soft\n"
        "a,p,0,1,100,100,\nb,p,0,1,100,190,paper\nc,p,0,1,100,,paper\n"
    )
    pools.write_text("pool,quota\np,1\n")
    sia("replay", "--trace", log, "--pools", pools, "--policy", "fcfs", "--no-report",
        "--out", tmp_path / "out")  # fmt: skip
    with (tmp_path / "out" / "fcfs" / "deadlines.csv").open() as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ("a", "unguaranteed", "", "100.0", "100.0"),
        ("b", "unguaranteed", "", "200.0", "80.0"),
        ("c", "best effort", "", "300.0", "1.0"),
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["policies"]["fcfs"]
    assert summary["slo_missed_pct"] == 50.0
    assert summary["wdmr_soft"] == pytest.approx(20 / 99)
