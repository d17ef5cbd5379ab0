"""What jobs of a log ask for beyond their width: read, checked, written again, moved in time."""

import pytest

from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_trace
from replay.logs.slice import slice_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_trace
from sia.core.playout import Arrival
from sia.limits import MAX_POINTS
from sia.model import Job, Pool
from tests.support.files import refusal, written

HEAD = "job_id,pool,submit,width,duration"

ASKING = [
    Job("elastic", "p", 0.0, 2, min_width=1, max_width=4, demand=((1, 100.0), (4, 40.0))),
    Job("due", "p", 0.0, 1, deadline=3600.5, value=20.0, estimate=900.0),
    Job("late", "p", 0.0, 1, deadline=-60.0, value=0.0),
    Job("soft", "p", 0.0, 1, deadline=600.0, soft=((1.0, 90.0), (1.25, 33.5), (2.0, 1.0))),
    Job("picky", "p", 0.0, 1, budget=4.0, prefers="v100", slowdown=1.5, mode="gns"),
    Job("asks", "p", 0.0, 1, estimate=9.0, strl="(max (nck gpu 1 0 9 5) (nck all 1 0 18 5))"),
    Job("cheap", "p", 0.0, 1, preemptible=0.0),
    Job("costly", "p", 0.0, 1, preemptible=30.5),
    Job("restarts", "p", 0.0, 1, preemptible="restart", min_run_time=600.0),
    Job("stays", "p", 0.0, 1, preemptible="never"),
    Job("plain", "p", 0.0, 1),
]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet"])
def test_wishes_are_written_and_read(tmp_path, name):
    log = Trace([Arrival(job, 60.0) for job in ASKING])
    write_trace(tmp_path / name, log)
    again = read_trace(tmp_path / name)
    assert again.arrivals == log.arrivals
    assert again.columns == (), "no column is taken for one that nobody knows"


def test_a_log_has_a_column_only_if_a_job_fills_it(tmp_path):
    log = Trace([Arrival(job, 60.0) for job in (ASKING[2], ASKING[6], ASKING[-1])])
    write_trace(tmp_path / "log.csv", log)
    header, late, cheap, plain = (tmp_path / "log.csv").read_text().splitlines()
    assert header == f"{HEAD},user,name,deadline,value,preemptible"
    assert late.endswith(",,,-60.0,0.0,")
    assert cheap.endswith(",,,,,0.0")
    assert plain.endswith(",,,,,")


@pytest.mark.parametrize(
    ("column", "cell", "problem", "fix"),
    [
        ("min_width", "3", "min_width 3 is above the job's width of 2 GPUs", "min_width, width"),
        ("max_width", "1", "max_width 1 is below the job's width of 2 GPUs", "widths must ascend"),
        ("demand", "1:50;2:60", "demand rises: 60 seconds on 2 GPUs, 50 on 1", "leave out"),
        ("demand", "2:50;2:40", "demand does not ascend: width 2 comes after 2", "by GPUs"),
        ("demand", "1:nan", "'nan' is not finite", "write seconds"),
        ("demand", ";".join(f"{i}:9" for i in range(1, MAX_POINTS + 2)), "257 points", "256"),
        ("deadline", "tomorrow", "'tomorrow' is not a number", "write seconds"),
        ("deadline", "inf", "'inf' is not finite", "write seconds"),
        ("soft", "1.2:80+1.1:50", "soft does not ascend: step 1.1 comes after 1.2", "ascending"),
        ("soft", "0.9:80", "soft does not ascend: step 0.9 comes after 1", "from 1 up"),
        ("soft", "1.1:80+1.2:80", "soft does not fall: a reward of 80 comes after 80", "earn less"),
        ("soft", "1.1:100", "soft does not fall: a reward of 100 comes after 100", "earn less"),
        ("soft", "1.1:0.5", "soft has the reward 0.5", "1 to 100"),
        ("soft", "1:101", "soft has the reward 101", "1 to 100"),
        ("soft", "1.1", "'1.1' is not a step", "MULTIPLE:REWARD"),
        ("soft", "1.1:nan", "'1.1:nan' is not a step", "MULTIPLE:REWARD"),
        ("value", "-1", "'-1' is negative", "write 0 or more"),
        ("value", "2e6", "value must be 0 to 1e+06 (got 2e+06)", "change value"),
        ("estimate", "0", "'0' is too small", "above 0"),
        ("slowdown", "0.5", "slowdown must be 1 to 1000 (got 0.5)", "change slowdown"),
        ("budget", "0", "budget must be 0.001 to 1000 (got 0)", "change budget"),
        ("budget", "-1", "'-1' is negative", "write a number from 0.001 to 1000"),
        ("min_run_time", "0", "'0' is too small", "above 0"),
        ("slowdown", "nan", "'nan' is not finite", "write a number"),
        ("preemptible", "-1", "'-1' is negative", "restart, never, or leave it empty"),
        ("preemptible", "5m", "'5m' is not a number", "write seconds of at least 0, restart"),
        ("preemptible", "1e6", "must be 0 to 86400 seconds (got 1e+06)", "restart or never"),
        ("strl", "(nck gpu 2 0 60", "strl: line 1, column 1: this parenthesis is not", "write )"),
        ("strl", "(nck gpu 1 0 60 5)", "strl: K is 1, but the job has 2 GPUs", "write 2"),
        ("checkpoint", "SIGKILL", "'SIGKILL' is not a signal that a job can handle", "USR1"),
        ("checkpoint", "save 'now", "has no closing quotation", "close the quotation"),
    ],
)
def test_a_cell_that_cannot_be_is_named_with_row_column_and_fix(
    tmp_path, column, cell, problem, fix
):
    log = written(tmp_path, f"{HEAD},{column}\nb,p,0,1,1,\na,p,0,2,60,{cell}\n")
    message = refusal(read_trace, log)
    assert f"row 3, column {column}: " in message
    assert problem in message
    assert fix in message.partition(problem)[2]
    assert sum(read_trace(log, skip_invalid=True).dropped.values()) == 1


def test_the_run_time_in_strl_is_an_estimate_unless_there_is_another(tmp_path):
    rows = "a,p,0,2,60,,(nck all 2 0 50 1)\nb,p,0,2,60,70,(nck all 2 0 50 1)\n"
    log = read_trace(written(tmp_path, f"{HEAD},estimate,strl\n{rows}"))
    assert [job.estimate for job, _ in log.arrivals] == [50.0, 70.0]


def test_the_checkpoint_method_stays_in_the_log(tmp_path):
    log = read_trace(written(tmp_path, f"{HEAD},checkpoint\na,p,0,2,60,python save.py --all\n"))
    write_trace(tmp_path / "again.csv", log)
    assert read_trace(tmp_path / "again.csv").extras == {"a": ("python save.py --all",)}


def test_a_slice_keeps_the_time_that_each_job_has_until_its_deadline():
    log = Trace([Arrival(Job("a", "p", 500.0, 1, deadline=800.0), 60.0)])
    part, _ = slice_trace(log, PoolTable([Pool("p", 4)]), begin=400.0, end=600.0, pools=["p"])
    assert [(a.job.submit, a.job.deadline) for a in part.arrivals] == [(100.0, 400.0)]


def test_drawn_jobs_restart_or_are_never_stopped_and_the_seed_draws_the_same_ones():
    log = Trace([Arrival(Job(f"j{i}", "p", 0.0, 1, preemptible=9.0), 60.0) for i in range(200)])

    def drawn(cost, seed=1):
        found = mark(log, PreemptibleShare(30.0, cost), seed).arrivals
        assert {a.job.preemptible for a in found} == {cost, None}
        return [a.job.id for a in found if a.job.preemptible == cost]

    assert 40 < len(drawn("restart")) < 80
    assert drawn("restart") == drawn("never") == drawn(300.0)
    assert drawn("restart") != drawn("restart", seed=2)
