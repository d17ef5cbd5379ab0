"""Deadlines that are drawn for a log: mix, slack, density, and the workloads of Table 1."""

import csv

import pytest

from replay.deadlines.workloads import WORKLOADS, Mix, chosen_jobs, with_deadlines
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from replay.run.output import write_trace
from sia.core.playout import Arrival
from sia.model import Job
from sia.state.steps import PAPER_STEPS
from tests.support.shell import sia

LOG = Trace([Arrival(Job(f"j{i}", "p", 60.0 * i, 1), 100.0 + i) for i in range(1000)])


def test_jobs_are_drawn_by_the_mix_and_deadlines_by_the_slack():
    drawn = with_deadlines(LOG, Mix(30, 60, 10), (1.2, 2.0), 100, 1).arrivals
    assert [a.job.id for a in drawn] == [a.job.id for a in LOG.arrivals]
    slo = [a for a in drawn if a.job.deadline is not None]
    assert 860 < len(slo) < 940
    assert 560 < sum(bool(a.job.soft) for a in slo) < 640
    assert all(1.2 <= (job.deadline - job.submit) / run <= 2.0 for job, run in slo)
    assert {a.job.soft for a in slo} == {(), PAPER_STEPS}


@pytest.mark.parametrize(("density", "count"), [(80, 800), (100, 1000), (140, 1400)])
def test_density_is_a_percentage_of_the_jobs(density, count):
    drawn = with_deadlines(LOG, Mix(30, 60, 10), (1.2, 2.0), density, 1).arrivals
    assert len(drawn) == len({a.job.id for a in drawn}) == count
    times = [a.job.submit for a in drawn]
    assert times == sorted(times)
    assert times[-1] <= LOG.arrivals[-1].job.submit


def test_the_seed_decides():
    def drawn(seed):
        return with_deadlines(LOG, Mix(70, 0, 30), (1.2, 2.0), 120, seed).arrivals

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_workloads_of_table_1_take_long_jobs_and_short_the_others():
    assert len(WORKLOADS) == 7
    assert all(sum(each.mix) == 100 for each in WORKLOADS.values())
    assert len(chosen_jobs(LOG, WORKLOADS["Short"]).arrivals) == 201
    assert len(chosen_jobs(LOG, WORKLOADS["H_MIX2"]).arrivals) == 799
    assert not chosen_jobs(LOG, WORKLOADS["P_MIX2"]).arrivals


def test_the_command_writes_a_log_that_can_be_replayed(tmp_path):
    write_trace(tmp_path / "log.csv", LOG)
    done = sia("trace", "deadlines", "--trace", tmp_path / "log.csv", "--mix", "30/60/10",
               "--slack", "1.2:2", "--density", "140", "--seed", "1",
               "--out", tmp_path / "due.csv")  # fmt: skip
    assert not done.returncode, done.stderr
    assert len(read_trace(tmp_path / "due.csv").arrivals) == 1400
    with (tmp_path / "due.csv").open() as file:
        assert {row["soft"] for row in csv.DictReader(file)} == {"", "1.1:80+1.2:50+1.5:20"}
    again = sia("trace", "deadlines", "--trace", tmp_path / "log.csv", "--density", "140",
                "--seed", "1", "--out", tmp_path / "folder")  # fmt: skip
    assert not again.returncode, again.stderr
    assert (tmp_path / "folder" / "trace.csv").read_bytes() == (tmp_path / "due.csv").read_bytes()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--mix", "30/60"), "write three percentages that add up to 100"),
        (("--mix", "30/60/20"), "write three percentages that add up to 100"),
        (("--slack", "2:1.2"), "write two multiples of the run time"),
        (("--density", "0"), "--density"),
        (("--density", "nan"), "nan: write a number, like 0.5"),
        (("--workload", "P_MIX2"), "no job is of workload P_MIX2"),
    ],
)
def test_bad_input_is_one_line(tmp_path, options, problem):
    write_trace(tmp_path / "log.csv", LOG)
    done = sia("trace", "deadlines", "--trace", tmp_path / "log.csv", *options,
               "--out", tmp_path / "due.csv")  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr
