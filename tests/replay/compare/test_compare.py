"""Paired comparisons: intervals that hold what they say, pairs by id, one line for misuse."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs

from replay.compare.compare import (
    FEW_PAIRS,
    HIGHER_IS_BETTER,
    SAME_DRAW,
    JobTimes,
    MeasuredRun,
    Resampling,
    compare_jobs,
    compare_runs,
    side_of,
)
from replay.compare.show import RUN_ROWS
from replay.logs.read import read_pools, read_trace
from replay.logs.slice import slice_trace
from replay.logs.trace import playable
from replay.run.output import write_schedule, write_trace
from replay.run.run import Settings, replay_all
from replay.run.summary import summarize
from replay.synthetic.paper import PRESETS, synthesize
from sia.console.errors import UserError
from sia.console.main import cli
from sia.core.playout import Arrival
from tests.support.shell import sia

pytestmark = pytest.mark.usefixtures("blank_pictures")

DAY = 86400.0
MEAN = [lambda means: means[..., 0]]


def outcome(folder: Path, **jcts: float | tuple[float, float]) -> Path:
    """A policy's folder; a job is its JCT, submitted at 0, or (submit, JCT)."""
    rows = []
    for job_id, jct in jcts.items():
        submit, length = jct if isinstance(jct, tuple) else (0.0, jct)
        rows.append([job_id, "a", submit, 1, submit, submit + length, "dedicated", ""])
    header = ["job_id", "pool", "submit", "width", "start", "end", "stream", "nodes"]
    return written(folder, "jobs.csv", header, rows)


def experiment(folder: Path, rows: list[dict]) -> Path:
    """An experiment's folder; a row is told by what differs from the first run of sia."""
    header = ["run", "policy", "measured", *SAME_DRAW, *HIGHER_IS_BETTER]
    usual = {"run": 0, "policy": "sia", "measured": 9, "seed": 7, "queues": 4, "size": 1.0}
    usual["total_gpus"] = 20
    told = [usual | dict.fromkeys(HIGHER_IS_BETTER, 1.0) | row for row in rows]
    return written(
        folder, "experiments.csv", header, [[row.get(key, "") for key in header] for row in told]
    )


def written(folder: Path, name: str, header: list[str], rows: list[list]) -> Path:
    folder.mkdir(parents=True)
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder


def compare(*arguments):
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)])


def numbers(*arguments) -> dict:
    result = compare(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def normal(random: np.random.Generator, pairs: int, mean: float = 0.0) -> np.ndarray:
    return random.normal(mean, 3.0, pairs)


def test_for_normal_pairs_the_interval_is_that_of_the_t_distribution():
    values = normal(np.random.default_rng(1), 200, mean=0.5)
    [got] = Resampling(20_000, 3).estimate([values], MEAN)
    reach = 1.972 * values.std(ddof=1) / np.sqrt(200)  # t of 199 degrees of freedom, 97.5 %
    assert got.value == pytest.approx(values.mean())
    assert got.low == pytest.approx(values.mean() - reach, abs=0.05 * reach)
    assert got.high == pytest.approx(values.mean() + reach, abs=0.05 * reach)


@pytest.mark.parametrize(
    ("pairs", "least", "most"), [(60, 0.92, 0.97), (FEW_PAIRS // 2, 0.86, 0.93)]
)
def test_an_interval_holds_the_truth_as_often_as_it_says(pairs: int, least: float, most: float):
    random = np.random.default_rng(2)
    held = 0
    for trial in range(1000):
        [got] = Resampling(500, trial).estimate([normal(random, pairs, mean=2.0)], MEAN)
        held += got.low <= 2.0 <= got.high
    assert least < held / 1000 < most


def test_pairs_are_drawn_as_pairs():
    random = np.random.default_rng(4)
    lengths = random.lognormal(5, 2, 300)  # jobs differ by orders, the two outcomes by a hundredth
    of_a, of_b = lengths * random.uniform(0.98, 0.99, 300), lengths
    [together] = Resampling(2000).estimate(
        [of_a, of_b], [lambda means: means[..., 0] / means[..., 1]]
    )
    assert 0.98 < together.low < together.high < 0.99
    [alone] = Resampling(2000).estimate([of_a], MEAN)
    assert alone.high / alone.low > 1.2


def test_a_long_resampling_in_pieces_is_that_in_one(monkeypatch):
    values = [normal(np.random.default_rng(5), 50)]
    whole = Resampling(1000).estimate(values, MEAN)
    monkeypatch.setattr("replay.compare.compare.DRAWN_AT_ONCE", 120)
    assert Resampling(1000).estimate(values, MEAN) == whole


def test_jobs_are_measured_as_by_hand():
    a = {"x": JobTimes(0, 10), "y": JobTimes(5, 40), "z": JobTimes(9, 30), "mine": JobTimes(0, 1)}
    b = {"z": JobTimes(9, 30.0005), "y": JobTimes(5, 10), "x": JobTimes(0, 20)}
    found = compare_jobs(a, b, 0.0, Resampling(200))
    assert (found["pairs"], found["only_a"], found["only_b"]) == (3, 1, 0)
    values = {key: measure["value"] for key, measure in found["measures"].items()}
    assert values == pytest.approx({
        "avg_jct_a_s": 80 / 3,
        "avg_jct_b_s": 60.0005 / 3,
        "difference_s": 19.9995 / 3,
        "end_difference_s": 19.9995 / 3,
        "ratio_of_averages": 80 / 60.0005,
        "geomean_ratio": (10 / 20 * 40 / 10 * 30 / 30.0005) ** (1 / 3),
        "sooner_pct": 100 / 3,
        "later_pct": 100 / 3,
        "equal_pct": 100 / 3,
    })  # fmt: skip
    for measure in found["measures"].values():
        assert measure["low"] <= measure["value"] <= measure["high"]


def test_a_against_b_is_b_against_a_turned_round():
    rng = Random(6)
    a = {str(i): JobTimes(i, rng.uniform(1, 100)) for i in range(50)}
    b = {str(i): JobTimes(i, rng.uniform(1, 100)) for i in range(50)}
    there, back = (
        compare_jobs(*sides, 0.0, Resampling(500))["measures"] for sides in ((a, b), (b, a))
    )
    assert there["difference_s"]["low"] == pytest.approx(-back["difference_s"]["high"])
    assert there["geomean_ratio"]["low"] == pytest.approx(1 / back["geomean_ratio"]["high"])
    assert there["sooner_pct"] == back["later_pct"]


def test_jobs_pair_by_id_whatever_the_order(tmp_path: Path):
    rng = Random(7)
    jcts = {f"j{i}": rng.uniform(1, 100) for i in range(40)}
    a = outcome(tmp_path / "a", **jcts)
    b = outcome(tmp_path / "b", **{job_id: 2 * jct for job_id, jct in jcts.items()})
    turned = dict(reversed(jcts.items()))
    c = outcome(tmp_path / "c", **{job_id: 2 * jct for job_id, jct in turned.items()})
    d = outcome(tmp_path / "d", **turned)
    found = [numbers(*pair)["measures"] for pair in ((a, b), (a, c), (d, b))]
    assert found[0] == found[1] == found[2]
    assert found[0]["geomean_ratio"] == pytest.approx({"value": 0.5, "low": 0.5, "high": 0.5})
    assert "A is better" in compare(a, b).output


def test_the_warmup_is_that_of_the_log_of_a(tmp_path: Path):
    a = outcome(tmp_path / "a", x=(5, 10), y=(20, 10), z=(30, 10))
    b = outcome(tmp_path / "b", x=(50, 10), y=(0, 30), z=(30, 30))
    found = numbers(a, b, "--warmup", "10s")
    assert (found["pairs"], found["before_warmup"]) == (2, 1)
    assert found["measures"]["avg_jct_b_s"]["value"] == 30


def test_an_open_and_a_closed_loop_pair_their_jobs(tmp_path: Path):
    trace, table = synthesize(PRESETS["base"], 3)
    trace = replace(trace, arrivals=[
        Arrival(structs.replace(job, user=f"user {i % 9}"), duration)
        for i, (job, duration) in enumerate(trace.arrivals)
    ])  # fmt: skip
    for name, closed in (("open", False), ("closed", True)):
        settings = Settings(["mmfs"], closed_loop=closed)
        [result] = replay_all(trace, table, settings)
        (tmp_path / name).mkdir()
        write_schedule(tmp_path / name / "mmfs", result.trace, result.schedule)
    found = numbers(tmp_path / "open" / "mmfs", tmp_path / "closed" / "mmfs")
    assert found["pairs"] == len(trace.arrivals)
    assert found["measures"]["difference_s"]["value"] != 0
    # What comes earlier for it is not in the JCTs, and in the ends.
    assert found["measures"]["end_difference_s"]["value"] > 600


def test_a_real_logs_averages_are_those_of_its_replay(tmp_path: Path, traces: Path):
    pools = ["11cb48", "2869ce"]
    log, table = read_trace(traces / "philly.csv.gz"), read_pools(traces / "philly_pools.csv")
    loads = dict.fromkeys(pools, 0.9)
    week = {"begin": 80 * DAY, "end": 87 * DAY}
    piece, small = slice_trace(log, table, pools=pools, loads=loads, **week)
    settings = Settings(["mmfs", "sia"], warmup=DAY)
    results = replay_all(playable(piece, small), small, settings)
    summary = summarize(small, settings, results)["policies"]
    for result in results:
        write_schedule(tmp_path / result.schedule.policy, result.trace, result.schedule)
    found = numbers(tmp_path / "mmfs", tmp_path / "sia", "--warmup", "1d", "--resamples", "200")
    assert found["pairs"] == summary["sia"]["measured"] > 100
    for side, policy in (("a", "mmfs"), ("b", "sia")):
        average = found["measures"][f"avg_jct_{side}_s"]["value"]
        assert average == pytest.approx(summary[policy]["avg_jct_s"])


def test_equal_outcomes_are_called_equal(tmp_path: Path):
    a = outcome(tmp_path / "a", x=10, y=20)
    assert "average JCT: A and B are equal in every pair" in compare(a, a).output
    assert numbers(a, a)["measures"]["equal_pct"] == {"value": 100, "low": 100, "high": 100}


def test_an_inconclusive_comparison_says_so(tmp_path: Path):
    a = outcome(tmp_path / "a", x=10, y=20, z=30)
    b = outcome(tmp_path / "b", x=30, y=20, z=10)
    text = compare(a, b).output
    assert "includes 0): inconclusive" in text
    assert "includes 1): inconclusive" in text
    assert "only 3 pairs of jobs: the intervals are too narrow" in text


def test_a_single_pair_has_no_interval(tmp_path: Path):
    a, b = outcome(tmp_path / "a", x=10, y=1), outcome(tmp_path / "b", x=30)
    result = compare(a, b)
    assert result.exit_code == 0
    assert "a single pair of jobs gives no interval" in result.output
    assert "1 job only in A omitted" in result.output
    assert numbers(a, b)["measures"]["difference_s"] == {"value": -20, "low": None, "high": None}


def test_every_measure_of_runs_has_a_row():
    assert list(RUN_ROWS) == list(HIGHER_IS_BETTER)


def drawn(**measures: float | None) -> MeasuredRun:
    return MeasuredRun(
        dict.fromkeys(SAME_DRAW, "1"), dict.fromkeys(HIGHER_IS_BETTER, 1.0) | measures
    )


def test_runs_are_measured_as_by_hand():
    a = {0: drawn(slowed_pct=1.0), 1: drawn(slowed_pct=5.0), 3: drawn(slowed_pct=None)}
    b = {3: drawn(), 1: drawn(slowed_pct=2.0), 0: drawn(slowed_pct=3.0), 8: drawn()}
    found = compare_runs(a, b, Resampling(500))
    assert (found["pairs"], found["only_a"], found["only_b"]) == (3, 0, 1)
    slowed = found["measures"]["slowed_pct"]
    assert (slowed["pairs"], slowed["a"], slowed["b"]) == (2, 3.0, 2.5)
    assert slowed["difference"] == {"value": 0.5, "low": -2.0, "high": 3.0}
    assert (slowed["above"], slowed["below"]) == (1, 1)


def test_policies_of_an_experiment_are_compared(tmp_path: Path):
    rng = Random(8)
    rows = []
    for run in range(30):
        mean = rng.uniform(2, 20)
        rows.append({"run": run, "speedup_mean": mean, "slowed_pct": 0, "slowdown_total_min": 0})
        rows.append({"run": run, "policy": "mmfs", "speedup_mean": mean + rng.gauss(1, 0.5),
                     "slowed_pct": 5, "speedup_p5": ""})  # fmt: skip
    exp = experiment(tmp_path / "exp", rows)
    text = compare(f"{exp}:sia", f"{exp}:mmfs").output
    assert "sia against mmfs: means over 30 runs" in text
    [said] = [line for line in text.splitlines() if line.startswith("mean speed-up:")]
    assert said.endswith("excludes 0): B is better")
    assert "% of jobs slowed: A − B is −5.00 (95 % interval −5.00 to −5.00, excludes 0): A" in text
    found = numbers(f"{exp}:sia", f"{exp}:mmfs")["comparisons"]["sia against mmfs"]
    assert found["measures"]["speedup_p5"] == {"pairs": 0}
    assert found["measures"]["speedup_mean"]["below"] > 25


def test_the_results_of_an_experiment_are_read(tmp_path: Path):
    trace, _ = synthesize(PRESETS["base"], 4)
    write_trace(tmp_path / "trace.csv", trace)
    asked = ["--queues", "2,3", "--weeks", "0.2", "--runs", "2", "--warmup", "3h", "--jobs", "1"]
    out = tmp_path / "exp"
    paths = ["--trace", str(tmp_path / "trace.csv"), "--out", str(out)]
    made = CliRunner().invoke(cli, ["experiment", *paths, *asked, "--policy", "fcfs,mmfs,sia"])
    assert made.exit_code == 0, made.output
    found = numbers(f"{out}:sia", f"{out}:mmfs")["comparisons"]["sia against mmfs"]
    assert found["pairs"] == 4
    assert found["measures"]["slowed_pct"]["a"] == 0
    same = numbers(out, out)["comparisons"]
    assert list(same) == ["fcfs", "mmfs", "sia"]
    assert all(c["measures"]["speedup_mean"]["difference"]["high"] == 0 for c in same.values())


def test_two_experiments_compare_every_policy_that_both_have(tmp_path: Path):
    one = experiment(tmp_path / "one", [{"policy": p} for p in ("fcfs", "sia", "mmfs")])
    two = experiment(tmp_path / "two", [{"policy": p} for p in ("mmfs", "gssf", "fcfs")])
    found = numbers(one, two)
    assert list(found["comparisons"]) == ["fcfs", "mmfs"]
    assert found["pairs_of"] == "runs"


CAREFUL = "sia@peaks:0.95+survival:0.9"


@pytest.mark.parametrize("folder", ["exp", "at 10:30", "sia@peaks:0.95+survival"])
def test_policies_and_folders_may_have_colons_in_their_names(tmp_path: Path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    for name in ("at 10", "sia@peaks"):
        Path(name).mkdir()  # other folders that a name could begin with
    experiment(Path(folder), [{"policy": CAREFUL, "speedup_mean": 3.0}, {"policy": "mmfs"}])
    sides = {f"{folder}:{CAREFUL}": (CAREFUL, 3.0), f"{folder}:mmfs": ("mmfs", 1.0)}
    for a, b in (list(sides), list(sides)[::-1]):
        [(title, found)] = numbers(a, b)["comparisons"].items()
        assert title == f"{sides[a][0]} against {sides[b][0]}"
        assert found["measures"]["speedup_mean"]["a"] == sides[a][1]
    assert list(numbers(folder, folder)["comparisons"]) == [CAREFUL, "mmfs"]


def test_an_experiment_goes_before_another_folder_with_more_of_the_name(tmp_path: Path):
    experiment(tmp_path / "exp", [{"policy": CAREFUL}])
    (tmp_path / "exp:sia@peaks").mkdir()
    assert side_of(f"{tmp_path}/exp:{CAREFUL}") == (tmp_path / "exp", "experiments.csv", CAREFUL)


def test_a_careful_policy_of_a_replay_is_a_folder(tmp_path: Path):
    careful = outcome(tmp_path / CAREFUL, x=10, y=20)
    assert numbers(careful, outcome(tmp_path / "mmfs", x=20, y=40))["pairs"] == 2


def test_a_run_without_a_measured_job_counts_for_nothing(tmp_path: Path):
    rows = [{"run": i, "policy": p, "measured": i} for i in range(3) for p in ("sia", "mmfs")]
    exp = experiment(tmp_path / "exp", rows)
    found = numbers(f"{exp}:sia", f"{exp}:mmfs")["comparisons"]["sia against mmfs"]
    assert found["pairs"] == 3
    assert {measure["pairs"] for measure in found["measures"].values()} == {2}


def test_runs_of_one_log_at_several_sizes_are_no_independent_draws(tmp_path: Path):
    exp = experiment(tmp_path / "exp", [{"run": i, "size": 0.9 + i / 10} for i in range(3)])
    assert "not independent draws" in compare(f"{exp}:sia", f"{exp}:sia").output


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path):
    rng = Random(9)
    a = outcome(tmp_path / "a", **{f"j{i}": rng.uniform(1, 99) for i in range(30)})
    b = outcome(tmp_path / "b", **{f"j{i}": rng.uniform(1, 99) for i in range(30)})

    def bytes_of(*more: str, hash_seed: str | None = None) -> bytes:
        done = sia("compare", a, b, "--json", *more, hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        return done.stdout.encode()

    # The hash seed of this process is random.
    assert bytes_of() == bytes_of(hash_seed="2") != bytes_of("--seed", "1")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch) -> Path:
    """Good and bad folders, named as the lines of misuse name them."""
    monkeypatch.chdir(tmp_path)
    outcome(Path("out/a"), x=10, y=20)
    outcome(Path("out/other"), u=10)
    outcome(Path("out/instant"), x=(7, 0), y=(7, 0))
    bad = {
        "early": "x,5,4\n",
        "twice": "x,0,4\nx,0,5\n",
        "word": "x,soon,4\n",
        "short": "x,0\n",
        "empty": "",
    }
    for name, row in bad.items():
        Path("out", name).mkdir()
        Path("out", name, "jobs.csv").write_text("job_id,submit,end\n" + row)
    written(Path("out/headless"), "jobs.csv", ["job_id", "start"], [])
    experiment(Path("exp"), [{}, {"policy": "mmfs"}])
    experiment(Path("wider"), [{"queues": 8}])
    experiment(Path("later"), [{"run": 5}])
    experiment(Path("double"), [{}, {}])
    Path("begun").mkdir()
    Path("begun", "settings.json").write_text('{"command": "sia experiment"}')
    return tmp_path


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("out/a", "nowhere", "nowhere: no such folder"),
        (
            "none:sia@peaks:0.9+history",
            "exp",
            "none:sia@peaks:0.9+history: no such folder",
        ),
        ("out/a", "out", "out: contains no jobs.csv or experiments.csv"),
        ("out/a:sia", "out/a", "out/a: contains no experiments.csv"),
        ("begun:sia", "begun:mmfs", "begun: the experiment is not finished; repeat its command"),
        ("out/a", "exp:sia", "give two of the same kind"),
        ("out/a", "out/other", "no job to compare: 0 of 2 and 1 job IDs are in both"),
        ("out/a", "out/instant", "no job to compare: 2 of 2 and 2 job IDs"),
        ("out/a", "out/empty", "no job to compare"),
        ("out/a", "out/early", "row 2, column end: the job ends before it was submitted"),
        ("out/a", "out/twice", "row 3, column job_id: duplicate 'x'"),
        ("out/a", "out/word", "row 2, column submit: 'soon' is not a number"),
        ("out/a", "out/short", "row 2, column 1: the row has 2 cells, but the header has 3"),
        ("out/a", "out/headless", "column submit, end is missing"),
        ("exp:sia", "exp:gssf", "exp: there is no policy 'gssf'; write exp:POLICY with one of sia"),
        ("exp:sia", "exp", "exp: a policy is missing"),
        ("exp:sia", "wider:sia", "run 0: queues is '4' in A and '8' in B"),
        ("exp:sia", "later:sia", "no run to compare"),
        ("double:sia", "exp:sia", "row 3, column run: duplicate run of a policy"),
    ],
)
def test_misuse_is_one_line(folders: Path, a: str, b: str, said: str):
    result = compare(a, b)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_experiments_without_a_common_policy_and_a_warmup_of_runs_are_refused(folders: Path):
    experiment(Path("lone"), [{"policy": "las"}])
    assert "no policy in common" in compare("exp", "lone").stderr
    assert "--warmup" in compare("exp:sia", "exp:mmfs", "--warmup", "2d").stderr


def test_no_job_is_left_after_the_warmup():
    with pytest.raises(
        UserError,
        match="--warmup 10s: no job is left to compare, because the last was submitted at 0 s",
    ):
        compare_jobs({"x": JobTimes(0, 1)}, {"x": JobTimes(0, 1)}, 10.0, Resampling())
