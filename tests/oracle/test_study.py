"""The oracle beside its rivals: what a study leaves, how it goes on, what it says."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from oracle.study.report import findings
from oracle.study.study import POLICIES, Case, StudySettings, cases_of, past, workload
from oracle.study.table import captured, captured_words
from replay.synthetic.paper import PRESETS
from sia.wording import DAY, HOUR
from tests.support.shell import digests, sia

pytestmark = pytest.mark.xdist_group("study")  # in one process, which makes one reference

TWO = "--preset", "fewer-queues", "--preset", "lower-load"
SHORT = "--window", "12h", "--time-limit", "30s"
EACH = (*POLICIES, "oracle")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A study of two small workloads, twice each, all solved to the optimum; nobody changes it."""
    out = tmp_path_factory.mktemp("study") / "out"
    ran = sia("oracle", "study", *TWO, *SHORT, "--repetitions", 2, "--out", out)
    assert ran.returncode == 0, ran.stderr
    return out, ran


def rows_in(out):
    with (out / "study.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def copied(reference, tmp_path):
    shutil.copytree(reference[0], tmp_path / "out")
    return tmp_path / "out"


def made_up(waits, bound=0.0, slowed=()):
    """What stands in a run.json, of waiting by policy; `slowed` are policies that slow a job."""
    policies = {
        name: {
            "wait_min": wait,
            "slowed": int(name in slowed),
            "slowdown_max_min": 60.0 * (name in slowed),
            "slowdown_total_min": 90.0 * (name in slowed),
        }
        for name, wait in {**dict.fromkeys(EACH, waits["fcfs"]), **waits}.items()
    }
    gap = 100 * (1 - bound / waits["oracle"])
    status = "optimal" if bound == waits["oracle"] else "time"
    return {"policies": policies, "bound_wait_min": bound, "gap_pct": gap, "status": status}


def test_a_study_leaves_a_row_a_workload_and_policy(reference):
    out, _ = reference
    rows = rows_in(out)
    assert [(r["preset"], r["seed"], r["policy"]) for r in rows] == [
        (preset, seed, policy) for preset in TWO[1::2] for seed in "12" for policy in EACH
    ]
    assert {r["status"] for r in rows} == {"optimal"}
    for row in rows:
        waited, bound = float(row["wait_min"]), float(row["bound_wait_min"])
        if row["policy"] == "oracle":
            assert float(row["slowdown_max_min"]) == 0.0
            assert waited == pytest.approx(bound)
        if float(row["slowdown_max_min"]) == 0.0:
            assert waited >= bound, row
    assert any(float(r["slowdown_max_min"]) > 0 for r in rows), "nobody slows anybody: too easy"


def test_the_checker_accepts_each_schedule_and_measures_the_same(reference, checker):
    out, _ = reference
    by_run = {(r["preset"], r["seed"]): r for r in rows_in(out) if r["policy"] == "oracle"}
    folders = sorted((out / "runs").iterdir())
    assert len(folders) == 4
    for folder in folders:
        told = json.loads((folder / "run.json").read_text())
        wrong, measures = checker(folder / "trace.csv", folder / "pools.csv", folder, "oracle")
        assert wrong == []
        row = by_run[told["preset"], str(told["seed"])]
        assert measures["speedup_mean"] == pytest.approx(float(row["speedup_mean"]))


def test_report_and_figures_need_nothing_else(reference):
    out, _ = reference
    page = (out / "report.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert "The oracle slowed no job." in page
    assert "fewer-queues" in page
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["fig24.png", "fig24.svg"]
    ET.parse(out / "figures" / "fig24.svg")
    assert "bar: range of the repetitions" in page
    for option, value in (
        ("policies", ", ".join(POLICIES)),
        ("presets", "fewer-queues, lower-load"),
        ("repetitions", "2"),
        ("slot", "5m"),
    ):
        assert f"<dt>{option}</dt><dd>{value}</dd>" in page


def test_a_terminal_of_80_letters_shows_its_tables(reference):
    """What is a median and what is not is said below."""
    _, ran = reference
    assert "proofs of the oracle" in ran.stdout
    assert "a ratio of\nsums" in ran.stdout
    results = ran.stdout.partition("results:")[0]
    assert max(map(len, results.splitlines())) <= 80
    assert "  sia@peaks+survival" in results


def test_a_proven_schedule_has_no_gap(reference):
    assert {row["gap_pct"] for row in rows_in(reference[0])} == {"0.0"}


def test_proven_results_do_not_depend_on_the_hash_seed(reference, tmp_path):
    """Of several best schedules another may be found; what they wait is the same."""
    out = tmp_path / "again"
    only = "--preset", "lower-load", *SHORT, "--repetitions", 1
    ran = sia("oracle", "study", *only, "--out", out, hash_seed="7")
    assert ran.returncode == 0, ran.stderr
    assert (out / "settings.json").read_bytes() == (reference[0] / "settings.json").read_bytes()
    same = [r for r in rows_in(reference[0]) if (r["preset"], r["seed"]) == ("lower-load", "1")]
    for row, before in zip(rows_in(out), same, strict=True):
        if row["policy"] != "oracle":
            assert row == before
        assert (row["wait_min"], row["bound_wait_min"]) == (
            before["wait_min"],
            before["bound_wait_min"],
        )


def test_finished_runs_are_not_repeated(reference, tmp_path):
    out = copied(reference, tmp_path)
    before = digests(out)
    ran = sia("oracle", "study", *TWO, *SHORT, "--repetitions", 2, "--json", "--out", out)
    assert [row["policy"] for row in json.loads(ran.stdout)] == 4 * [*EACH]
    assert "4 of 4 workloads were done before" in ran.stderr
    assert "up to" not in ran.stderr
    assert digests(out) == before
    gone = min((out / "runs").iterdir())
    shutil.rmtree(gone)
    ran = sia("oracle", "study", *TWO, *SHORT, "--repetitions", 2, "--out", out)
    assert "3 of 4 workloads were done before" in ran.stderr
    assert ran.stderr.count("up to") == 1
    assert (gone / "run.json").exists()


def test_more_repetitions_and_presets_later_are_the_same_study(reference, tmp_path):
    out = copied(reference, tmp_path)
    (out / "figures" / "fig15b.svg").write_text("of forty instances")
    ran = sia("oracle", "study", "--preset", "lower-load", *SHORT, "--repetitions", 1, "--out", out)
    assert "1 of 1 workloads were done before" in ran.stderr
    assert f"note: {out / 'runs'} keeps 3 more workloads of this study" in ran.stdout
    assert len(list((out / "runs").iterdir())) == 4
    assert len(rows_in(out)) == len(EACH)
    assert not (out / "figures" / "fig15b.svg").exists()
    numbers = {case: case.run for case in cases_of([*PRESETS], 40)}
    assert sorted(numbers.values()) == list(range(9 * 40))
    assert all(numbers[case] == case.run for case in cases_of(["more-wide", "base"], 3))


def test_an_interrupted_study_says_how_to_go_on_and_keeps_no_half_of_a_workload(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sia", "oracle", "study", "--preset", "base", "--window", "1d"]
    process = subprocess.Popen(
        [*command, "--time-limit", "5m", "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert "base, seed 1 (1 of 3)" in process.stderr.readline()
        assert "best" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "0 of 3 workloads are done, repeat the command to continue" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in out.rglob("*")) == ["runs", "settings.json"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--slot", "10m"), "with slot 5m, not 10m"),
        (("--window", "5h"), "with window 12h, not 5h"),
        (("--time-limit", "20s"), "with time-limit 30s, not 20s"),
    ],
)
def test_the_folder_of_another_study_is_refused(more, words, reference):
    before = digests(reference[0])
    ran = sia("oracle", "study", *TWO, *SHORT, *more, "--out", reference[0])
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert f"contains a study {words}" in ran.stderr
    assert digests(reference[0]) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--preset", "strange"), "'strange' is not one of"),
        (("--slot", "0"), "whole number of seconds"),
        (("--slot", "1.5s"), "whole number of seconds"),
        (("--window", "0"), "--window"),
        (("--window", "1s"), "--window 1s: no job was submitted in that time"),
        (("--repetitions", "0"), "--repetitions"),
        (("--time-limit", "5"), "has no unit"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(more, words, tmp_path):
    out = tmp_path / "out"
    ran = sia("oracle", "study", *more, "--out", out)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert words in ran.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("summary.json", "contains results of sia replay"),
        ("study.csv", "study.csv: not a result of sia oracle study"),
        ("report.html", "report.html: not a result of sia oracle study"),
        ("notes.txt", "notes.txt: not a result of sia oracle study"),
        ("experiments.csv", "contains results of sia experiment"),
    ],
)
def test_a_folder_of_other_results_is_refused(name, words, tmp_path):
    (tmp_path / name).write_text("mine")
    ran = sia("oracle", "study", *TWO, *SHORT, "--out", tmp_path)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert words in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_forecasts_learn_from_the_same_queues_and_from_no_job_of_the_window():
    case, asked = Case(0, "base", 1), StudySettings(300.0, 6 * HOUR, 1.0)
    known, (log, table) = past(case, asked), workload(case, asked)
    inside = {arrival.job.id for arrival in log.arrivals}
    jobs = [arrival.job for arrival, _ in known.jobs]
    assert not inside & {job.id for job in jobs}
    assert {job.pool for job in jobs} == {pool.name for pool in table.pools}
    assert -28 * DAY <= min(job.submit for job in jobs) < -27 * DAY
    assert max(job.submit for job in jobs) < 0
    assert all(start >= arrival.job.submit for arrival, start in known.jobs)


def test_the_captured_gain_lies_between_the_best_schedule_and_the_bound():
    runs = [
        made_up({"fcfs": 100.0, "sia": 50.0, "oracle": 20.0}, bound=0.0),
        made_up({"fcfs": 10.0, "sia": 10.0, "oracle": 10.0}, bound=10.0),
    ]
    assert captured(runs, "sia") == (50.0, 62.5)
    assert captured(runs, "fcfs") == (0.0, 0.0)
    assert captured(runs[1:], "sia") is None
    assert captured_words(runs, "sia") == "50.0–62.5 %"
    assert captured_words(runs, "fcfs") == "0.0 %"


def test_policies_that_wait_less_than_the_oracle_are_listed_with_their_slowdowns():
    runs = [
        made_up({"fcfs": 9.0, "gssf": 1.0, "oracle": 2.0}, bound=2.0, slowed=["gssf"]),
        made_up({"fcfs": 9.0, "gssf": 3.0, "oracle": 2.0}, bound=1.0),
    ]
    words = findings(runs)
    assert words[0].startswith("The oracle slowed no job. Its schedule is proven optimal")
    assert "1 of 2 workloads" in words[0]
    [less] = [line for line in words if "less waiting than the oracle" in line]
    assert less.startswith(
        "gssf has less waiting than the oracle in 1 workload, where it slows a job"
    )
    assert "90 min" in less
    [either] = [x for x in findings([harmless_but_better()]) if "less waiting" in x]
    assert either.startswith(
        "sia has less waiting than the oracle in 1 workload, where it slows no job"
    )


def harmless_but_better():
    """As it may be where the oracle had no time."""
    return made_up({"fcfs": 9.0, "sia": 1.0, "oracle": 2.0}, bound=1.0)
