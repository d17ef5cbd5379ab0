"""When jobs are told to end: PCS's Fig. 1, exact predictions of one queue, and the files."""

import csv
import json
from random import Random

import pytest

from replay.logs.trace import PoolTable, Trace, playable
from replay.run.fluid import fluid_ends
from replay.run.output import write_schedule
from replay.run.predictions import error_pct, unfairness_pct
from replay.run.run import Settings, replay_all
from replay.run.summary import summarize
from sia import Job, Options, Pool
from sia.core.playout import Arrival
from tests.sia.policies.test_wfq import story
from tests.support.shell import sia

pytestmark = pytest.mark.usefixtures("blank_pictures")

FIG_1 = [("J1", 0, 10), ("J2", 0, 8), ("J3", 1, 1), ("J4", 10, 8)]
"""Jobs on one GPU that give the numbers of Fig. 1: submission and seconds."""

ONE_GPU = PoolTable([Pool("a", 1)])


def rows(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def log(jobs):
    return Trace([Arrival(Job(i, "a", float(at), 1), float(seconds)) for i, at, seconds in jobs])


def measures(trace, table, labels, **settings):
    chosen = Settings(labels, **settings)
    return summarize(table, chosen, replay_all(trace, table, chosen))["policies"]


@pytest.mark.parametrize(
    ("label", "jct", "error", "unfair"),
    [
        ("elastic-srsf", 11.25, 46, 10),
        ("themis-lease:lease=1", 13.5, 24, 0),
        ("elastic-fifo", 15.75, 0, 500),
        ("wfq:weights=1:zeta=0", 15.75, 0, 500),
    ],
)
def test_the_example_of_figure_1_gives_the_numbers_of_the_paper(label, jct, error, unfair):
    found = measures(log(FIG_1), ONE_GPU, [label])[label]
    assert found["mean_jct_s"] == jct
    assert round(found["avg_pred_err_pct"]) == error
    assert round(found["max_unfairness_pct"]) == unfair


@pytest.mark.parametrize("label", ["wfq:weights=1:zeta=0", "elastic-fifo"])
def test_one_queue_predicts_every_job_exactly(label):
    """To the last bit, with gangs, demands, resume costs and jobs submitted together."""
    for seed in range(25):
        rng = Random(seed)
        table = PoolTable([Pool("a", rng.choice([5, 8, 13]))])
        trace = playable(Trace(story(rng, 25)), table, narrow=True)
        cost = rng.choice([0.0, 3.0])
        settings = Settings([label], options=Options(resume_cost=cost))
        schedule = replay_all(trace, table, settings)[0].schedule
        assert None not in schedule.ends
        assert schedule.predictions == schedule.ends, f"seed {seed}"


def test_jobs_of_one_instant_are_told_one_after_the_other():
    """Under shortest first the second job will pass the first one, which was not told of it."""
    trace = log([("long", 0, 10), ("short", 0, 2)])
    schedule = replay_all(trace, ONE_GPU, Settings(["elastic-srsf"]))[0].schedule
    assert schedule.predictions == [10.0, 2.0]
    assert schedule.ends == [12.0, 2.0]


def test_predictions_believe_the_estimates_and_the_jobs_run_their_own_time():
    trace = log([("j", 0, 10)])
    labels = ["elastic-fifo", "fcfs", "fair-share"]
    settings = Settings(labels, durations="biased:-50", predict=True)
    for result in replay_all(trace, ONE_GPU, settings):
        assert (result.schedule.predictions, result.schedule.ends) == ([5.0], [10.0])


def test_leases_and_resume_costs_go_on_in_a_prediction():
    trace = log([("J1", 0, 10), ("J2", 0, 8)])
    settings = Settings(["themis-lease:lease=1"], options=Options(resume_cost=0.5))
    schedule = replay_all(trace, ONE_GPU, settings)[0].schedule
    assert schedule.predictions[1] == schedule.ends[1] > 16.0


def test_fluid_fair_share_divides_a_gpu():
    trace = log(FIG_1)
    assert fluid_ends(trace, ONE_GPU) == pytest.approx([24.5, 20.5, 4.0, 27.0])
    schedule = replay_all(trace, ONE_GPU, Settings(["fair-share"]))[0].schedule
    assert schedule.ends == pytest.approx([24.5, 20.5, 4.0, 27.0])
    assert schedule.predictions == pytest.approx([10.0, 16.0, 4.0, 27.0])
    used = sum(s.width * (s.end - s.start) for s in schedule.segments)
    assert used == pytest.approx(27.0)
    found = measures(trace, ONE_GPU, ["fair-share"])["fair-share"]
    assert found["max_unfairness_pct"] == 0.0


def test_a_fluid_pool_gives_what_a_job_cannot_use_to_the_others():
    jobs = [Job("narrow", "a", 0.0, 1), Job("wide", "a", 0.0, 8), Job("late", "a", 1.0, 8)]
    trace = Trace([Arrival(jobs[0], 100.0), Arrival(jobs[1], 10.0), Arrival(jobs[2], 1.0)])
    ends = fluid_ends(trace, PoolTable([Pool("a", 7)]))
    # wide has 6 of its 8 GPUs until 1, then 3; late needs 8 GPU-seconds on 3 GPUs
    assert ends[2] == pytest.approx(1 + 8 / 3)
    assert ends[1] == pytest.approx(1 + 8 / 3 + (80 - 6 - 8) / 6)
    assert ends[0] == 100.0


def test_errors_are_relative_to_what_was_told():
    assert error_pct(10.0, 20.0, 25.0) == 50.0
    assert error_pct(10.0, 20.0, 15.0) == 50.0
    assert error_pct(10.0, 10.0, 10.0) == 0.0
    assert error_pct(10.0, 10.0, 11.0) is None
    assert unfairness_pct(10.0, 20.0, 35.0) == 150.0
    assert unfairness_pct(10.0, 20.0, 15.0) == 0.0


def test_a_job_wider_than_its_pool_runs_under_elastic_policies_only(tmp_path):
    """Rigid policies drop it as before; measures compare the jobs that both keep."""
    wide = Arrival(Job("wide", "a", 0.0, 16), 10.0)
    rigid = Arrival(Job("rigid", "a", 0.0, 16, min_width=16), 10.0)
    own = Arrival(Job("own", "a", 0.0, 4), 10.0)
    table = PoolTable([Pool("a", 8)])
    assert [a.job.id for a in playable(Trace([wide, rigid, own]), table).arrivals] == ["own"]
    trace = playable(Trace([wide, rigid, own]), table, narrow=True)
    assert [a.job.id for a in trace.arrivals] == ["wide", "own"]
    chosen = Settings(["fcfs", "wfq", "sia"])
    results = replay_all(trace, table, chosen)
    found = summarize(table, chosen, results)["policies"]
    for label in ("fcfs", "sia"):
        kept = found[label]
        assert (kept["jobs"], kept["skipped"], kept["never_ended"]) == (1, 2, 0)
        assert kept["too_wide"] == 1
    assert (found["wfq"]["jobs"], found["wfq"]["skipped"], found["wfq"]["measured"]) == (2, 1, 1)
    write_schedule(tmp_path / "wfq", trace, results[1].schedule)
    assert [row["job_id"] for row in rows(tmp_path / "wfq" / "jobs.csv")] == ["wide", "own"]


def write_fig_1(folder):
    text = "job_id,pool,submit,width,duration\n"
    text += "".join(f"{i},a,{at},1,{seconds}\n" for i, at, seconds in FIG_1)
    (folder / "jobs.csv").write_text(text)
    (folder / "pools.csv").write_text("pool,quota\na,1\n")
    return ["--trace", folder / "jobs.csv", "--pools", folder / "pools.csv", "--no-report"]


def test_the_command_writes_predictions(tmp_path):
    files = write_fig_1(tmp_path)
    out = tmp_path / "out"
    done = sia("replay", *files, "--policy", "fcfs,elastic-srsf", "--out", out)
    assert done.returncode == 0, done.stderr
    assert not (out / "fcfs" / "predictions.csv").exists()
    assert rows(out / "elastic-srsf" / "predictions.csv")[0] == {
        "job_id": "J1", "submit": "0.0", "pred_end": "10.0", "end": "27.0",
    }  # fmt: skip
    done = sia("replay", *files, "--policy", "fcfs", "--predict", "--out", out)
    assert done.returncode == 0, done.stderr
    told = [(row["pred_end"], row["end"]) for row in rows(out / "fcfs" / "predictions.csv")]
    assert told == [(end, end) for end in ("10.0", "18.0", "19.0", "27.0")]
    summary = json.loads((out / "summary.json").read_bytes())
    assert summary["policies"]["fcfs"]["avg_pred_err_pct"] == 0.0


def test_more_queues_than_gpus_are_refused(tmp_path):
    files = write_fig_1(tmp_path)
    done = sia("replay", *files, "--policy", "wfq:T=0.01", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "has 3 queues, but the largest pool has 1 GPU; raise T" in done.stderr
    assert done.stderr.count("\n") == 1


def test_parts_of_gpus_give_each_queue_its_fraction(tmp_path):
    """Two queues of equal weight on one GPU: each has half of it while both have jobs."""
    files = write_fig_1(tmp_path)
    out = tmp_path / "out"
    label = "wfq:sizes=9:weights=1+1:zeta=0"
    done = sia("replay", *files, "--policy", label, "--parts", 4, "--out", out)
    assert done.returncode == 0, done.stderr
    segments = [
        (row["job_id"], float(row["start"]), float(row["end"]), float(row["width"]))
        for row in rows(out / label / "segments.csv")
    ]
    assert ("J1", 0.0, 20.0, 0.5) in segments
    assert ("J2", 0.0, 16.0, 0.5) in segments
    assert {row["width"] for row in rows(out / label / "jobs.csv")} == {"1"}
    summary = json.loads((out / "summary.json").read_bytes())
    assert summary["policies"][label]["peak_gpus"] == 1


def test_a_history_makes_the_queues(tmp_path):
    files = write_fig_1(tmp_path)
    history = tmp_path / "history.csv"
    text = "job_id,pool,submit,width,duration\n"
    history.write_text(text + "".join(f"h{i},b,0,1,{10 ** (i % 2)}\n" for i in range(12)))
    command = ["replay", *files, "--history", history, "--out", tmp_path / "out"]
    done = sia(*command, "--policy", "wfq:T=0.2")
    assert "has 2 queues, but the largest pool has 1 GPU" in done.stderr
    assert sia(*command, "--policy", "wfq:T=5").returncode == 0
    history.write_text(text + "".join(f"h{i},b,0,1,7\n" for i in range(12)))
    done = sia(*command, "--policy", "wfq:T=5")
    assert (done.returncode, "all jobs have the same size" in done.stderr) == (2, True)
    history.write_text(text + "h,b,0,1,7\n")
    done = sia(*command, "--policy", "wfq:T=5")
    assert (done.returncode, "a history of 1 job is too short" in done.stderr) == (2, True)
