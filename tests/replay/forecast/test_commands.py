"""`sia forecast`: what is written, what it says, and what is refused in one line."""

import json
import re
import sys
from collections import deque
from html.parser import HTMLParser
from math import ceil
from random import Random
from statistics import median

import pytest

from replay.cli.forecast import forecast
from replay.forecast.model_folder import read_model
from replay.forecast.report import confusion_grid
from replay.forecast.run_times import RunTimeScores
from replay.logs.trace import Trace
from replay.run.output import write_trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job
from tests.support.budget import budget
from tests.support.builders import job
from tests.support.pictures import drawn_pictures
from tests.support.shell import digests, sia

pytestmark = [
    pytest.mark.usefixtures("few_trees", "blank_pictures"),
    pytest.mark.xdist_group("forecast"),  # in one process, which trains one model
]

HOUR, DAY = 3600.0, 86400.0
DAYS = 8
WINDOWS = "5m,1h"
TICK = 300.0

KEYS = ["trace", "window_s", "feature_set", "precision", "recall", "f", "positives", "n"]
SETS = ["persistence", "periodic", "recent arrivals", "recent completions", "future completions"]


def office(seed=1, days=DAYS, *, opens=8):
    """Jobs of two pools, some each hour of ten a day; each of four users has a run time."""
    rng = Random(seed)
    arrivals = []
    for pool, gap in (("a", 900), ("b", 3000)):
        for day in range(days):
            now = day * DAY + opens * HOUR
            while (now := now + rng.expovariate(1 / gap)) < day * DAY + (opens + 10) * HOUR:
                user = rng.randrange(4)
                name = f"{pool}{len(arrivals)}"
                one = Job(name, pool, round(now, 1), rng.choice([1, 1, 4]), user=f"u{user}")
                arrivals.append(Arrival(one, round(60 * 8**user * rng.uniform(0.7, 1.5), 1)))
    return sorted(arrivals, key=lambda arrival: arrival.job.submit)


def write(folder, arrivals, name="log.csv", pools="pool,quota\na,16\nb,8\n"):
    write_trace(folder / name, Trace(arrivals))
    (folder / "pools.csv").write_text(pools)
    return folder / name


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write(tmp_path_factory.mktemp("log"), office())


@pytest.fixture(scope="module")
def model(log, few_trees):
    """Of the first five days."""
    out = log.parent / "model"
    done = sia("forecast", "train", "--trace", log, "--pools", log.parent / "pools.csv",
               "--windows", WINDOWS, "--until", "5d", "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def evaluated(log, few_trees):
    out = log.parent / "evaluated"
    with drawn_pictures():
        done = sia("forecast", "evaluate", "--trace", log, "--windows", WINDOWS, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def rows_of(folder, name="arrivals.json"):
    return json.loads((folder / name).read_text())


# Training


def test_a_model_is_written_that_can_be_read(model):
    found = read_model(model).manifest
    assert found.windows == (300.0, 3600.0)
    assert found.until == 5 * DAY
    assert {path.name for path in model.iterdir()} == {
        "manifest.json", "arrivals-5m.ubj", "arrivals-1h.ubj", "load-5m.ubj", "load-1h.ubj",
    }  # fmt: skip


def test_without_until_it_learns_from_three_quarters_of_the_log(log, tmp_path):
    done = sia("forecast", "train", "--trace", log, "--windows", "1h", "--json",
               "--out", tmp_path / "model")  # fmt: skip
    assert done.returncode == 0, done.stderr
    submits = [arrival.job.submit for arrival in office()]
    found = json.loads(done.stdout)
    assert found["until_s"] == pytest.approx(submits[0] + 0.75 * (submits[-1] - submits[0]))
    [scores] = found["windows"]
    assert scores["window_s"] == 3600
    assert 0.6 < scores["f"] <= 1
    assert scores["n"] > scores["positives"] > 0


def test_events_after_until_do_not_reach_the_model(tmp_path):
    """The same model, byte for byte, from a log that ends there and from one that goes on."""
    until = 3 * DAY + 12 * HOUR
    at_the_end = Arrival(Job("last", "a", until, 1, user="u0"), 60.0)
    before = [arrival for arrival in office() if arrival.job.submit < until]
    rng = Random(5)
    later = [job(f"x{i}").at(until + 1 + i * rng.random()).gpus(3).runs(9) for i in range(500)]
    made = []
    for name, arrivals in (
        ("cut", [*before, at_the_end]),
        ("whole", [*before, at_the_end, *later]),
    ):
        log = write(tmp_path, sorted(arrivals, key=lambda a: a.job.submit), f"{name}.csv")
        done = sia("forecast", "train", "--trace", log, "--pools", tmp_path / "pools.csv",
                   "--windows", "1h", "--until", f"{until}s", "--out", tmp_path / name)  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append(digests(tmp_path / name))
    assert made[0] == made[1]


def test_a_model_no_better_than_the_old_is_not_written(tmp_path):
    """Of a log whose newest week the old one lacks, the new one learns the same."""
    arrivals = office(days=12)
    log = write(tmp_path, arrivals)
    week_before = arrivals[-1].job.submit - 7 * DAY
    old = tmp_path / "old"
    train = ("forecast", "train", "--trace", log, "--windows", "1h")
    done = sia(*train, "--until", f"{week_before}s", "--out", old)
    assert done.returncode == 0, done.stderr
    done = sia(*train, "--compare", old, "--out", tmp_path / "new", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["promoted"] is False
    assert found["new"] == found["old"]
    assert not (tmp_path / "new").exists()


def test_a_model_of_other_days_gives_way_in_its_own_place(model, tmp_path):
    """The office opens in the evening from now on."""
    shifted = [
        Arrival(Job("n" + a.job.id, a.job.pool, a.job.submit + DAYS * DAY, a.job.width), a.duration)
        for a in office(seed=2, days=10, opens=14)
    ]
    log = write(tmp_path, [*office(), *shifted])
    old = tmp_path / "model"
    old.mkdir()
    for path in model.iterdir():
        (old / path.name).write_bytes(path.read_bytes())
    done = sia("forecast", "train", "--trace", log, "--compare", old, "--out", old)
    assert done.returncode == 0, done.stderr
    assert "the new model is better: F 0." in done.stdout
    assert read_model(old).manifest.until > 10 * DAY
    assert digests(old) != digests(model)
    judge = ("forecast", "evaluate", "--trace", log, "--model", old, "--only", "arrivals")
    early = sia(*judge, "--since", "10d", "--out", tmp_path / "out")
    assert early.returncode == 2, "what it learned from is recognised"
    since = re.search(r"use --since (\d+s) or later", early.stderr)[1]
    assert sia(*judge, "--since", since, "--out", tmp_path / "out").returncode == 0


def test_a_log_is_known_whatever_its_pools_can_run(tmp_path):
    """The widest job is left out by the pools, and so is what it would change."""
    arrivals = [Arrival(Job("wide", "b", 0.0, 12), 60.0), *office()]
    log, model = write(tmp_path, arrivals), tmp_path / "model"
    pools = ("--pools", tmp_path / "pools.csv")
    done = sia("forecast", "train", "--trace", log, *pools, "--windows", "1h", "--until", "5d",
               "--from", "1d", "--out", model)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 job wider than its pool" in done.stdout
    assert read_model(model).manifest.since == DAY
    for given in (pools, ()):
        done = sia("forecast", "evaluate", "--trace", log, *given, "--model", model,
                   "--since", "4d", "--only", "arrivals", "--out", tmp_path / "out")  # fmt: skip
        assert done.returncode == 2
        assert "was trained on this log up to second 432000" in done.stderr


def test_arrivals_are_expected_if_no_job_arrives(tmp_path):
    burst = [job(f"j{i}").at(i * 60).runs(30) for i in range(300)]
    log = write(tmp_path, [*burst, job("last").at(10 * DAY).runs(30)])
    done = sia("forecast", "train", "--trace", log, "--windows", "5m", "--until", "9d",
               "--out", tmp_path / "model")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "note: nothing arrived within 5m in the days held out, so that arrivals will" in (
        done.stdout
    )
    assert read_model(tmp_path / "model").manifest.learned[0].threshold == 0


# Evaluation


def naive_persistence(arrivals, window, since):
    """Hits, said, positives and n of 'as in the last window', counted tick by tick."""
    end = arrivals[-1].job.submit
    hits = said = positives = n = 0
    for pool in ("a", "b"):
        submits = [a.job.submit for a in arrivals if a.job.pool == pool]
        tick = ceil(since / TICK)
        while tick * TICK + window <= end:
            now = tick * TICK
            came = any(now < submit <= now + window for submit in submits)
            before = any(now - window < submit <= now for submit in submits)
            n, said, positives = n + 1, said + before, positives + came
            hits += came and before
            tick += 1
    return hits, said, positives, n


def test_arrivals_are_counted_over_pools_and_ticks_of_the_last_quarter(evaluated):
    arrivals = office()
    first, last = arrivals[0].job.submit, arrivals[-1].job.submit
    found = rows_of(evaluated[0])
    assert [list(row) for row in found] == [KEYS] * len(found)
    assert [row["feature_set"] for row in found] == [*SETS, "more"] * 2
    for window in (300.0, 3600.0):
        row = next(r for r in found if r["window_s"] == window)
        hits, said, positives, n = naive_persistence(arrivals, window, last - (last - first) / 4)
        assert (row["trace"], row["positives"], row["n"]) == ("log", positives, n)
        assert row["precision"] == pytest.approx(hits / said, abs=1e-4)
        assert row["recall"] == pytest.approx(hits / positives, abs=1e-4)
        own = [r for r in found if r["window_s"] == window and r["feature_set"] == "more"]
        assert own[0]["f"] > row["f"]


def naive_last_of_user(arrivals, since):
    """The share within a factor of two of the median of a user's last five, ends first."""
    ended = sorted(arrivals, key=lambda a: a.job.submit + a.duration)
    inside = n = 0
    for one in arrivals:
        submit, last = one.job.submit, deque(maxlen=5)
        last.extend(
            a.duration
            for a in ended
            if a.job.user == one.job.user and a.job.submit + a.duration <= submit
        )
        if submit >= since:
            n += 1
            inside += bool(last) and one.duration / 2 <= median(last) <= 2 * one.duration
    return n, inside / n


def test_run_times_are_judged_by_jobs_that_had_ended(evaluated):
    arrivals = office()
    first, last = arrivals[0].job.submit, arrivals[-1].job.submit
    n, inside = naive_last_of_user(arrivals, last - (last - first) / 4)
    found = {row["predictor"]: row for row in rows_of(evaluated[0], "run_times.json")}
    assert list(found["jvupredict"]) == [
        "trace", "predictor", "n", "coverage", "within_2x", "within_10x",
    ]  # fmt: skip
    assert found["last-of-user"]["n"] == n
    assert found["last-of-user"]["within_2x"] == pytest.approx(inside, abs=1e-6)
    assert found["jvupredict"]["within_2x"] > 0.8


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.titles, self.links, self.images = [], [], []
        self._heading = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._heading = tag == "h2"
        self.images += [tag] if tag in ("svg", "image", "img") else []
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        if self._heading:
            self.titles.append(data)
        self._heading = False


def test_the_page_has_it_all_and_needs_nothing_else(evaluated):
    out, said = evaluated
    page = Page((out / "report.html").read_text())
    assert [title.split()[0] for title in page.titles] == [
        "Will", "Recall,", "How", "How", "How", "JamaisVu's", "How", "Do", "How", "How",
        "Which",
    ]  # fmt: skip
    assert page.images == ["svg"] * 6
    assert all(link.startswith("#") for link in page.links)
    assert sorted(path.name for path in (out / "figures").iterdir()) == [
        "arrivals-recall.svg", "arrivals-reliability.svg", "run-times-chosen.svg",
        "run-times-errors.svg", "run-times-outside.svg", "run-times-reliability.svg",
    ]  # fmt: skip
    assert "no job has a name" in said
    assert "jobs are assumed to start when submitted" in said


def test_bins_foretold_too_short_are_below_the_diagonal():
    scores = RunTimeScores(
        n=10, coverage=1.0, within_2x=0.5, within_10x=0.9, errors=(), reliability={},
        confusion=((2, 1), (3, 4)),
    )  # fmt: skip
    [(heading, rows)] = confusion_grid({"p": scores}, [300.0]).parts
    assert heading == "p: 30.0 % predicted too short"
    assert rows == [["to 5m", "3", "66.7", "33.3"], ["over 5m", "7", "42.9", "57.1"]]


def test_a_log_is_no_part_of_the_page_s_code(tmp_path):
    log = write(tmp_path, office(days=6), name="<script>&.csv")
    done = sia("forecast", "evaluate", "--trace", log, "--only", "run-times",
               "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>" not in page
    assert "on &lt;script&gt;&amp;</h1>" in page


def test_same_log_same_bytes_and_what_is_no_longer_asked_for_goes(model, tmp_path):
    log, outs = write(tmp_path, office(seed=3, days=4)), (tmp_path / "out", tmp_path / "again")
    command = ("forecast", "evaluate", "--trace", log, "--model", model)
    with drawn_pictures():
        assert sia(*command, "--out", outs[0]).returncode == 0
    assert sia(*command, "--out", outs[1], hash_seed="7").returncode == 0
    assert digests(outs[0]) == digests(outs[1])
    out = outs[0]
    assert sia(*command, "--out", out, "--only", "arrivals").returncode == 0
    assert sorted(digests(out)) == [
        "arrivals.json", "figures/arrivals-recall.svg", "figures/arrivals-reliability.svg",
        "report.html",
    ]  # fmt: skip


def test_a_given_model_is_judged_without_learning(model, tmp_path):
    other = write(tmp_path, office(seed=3))
    done = sia("forecast", "evaluate", "--trace", other, "--model", model, "--since", "6d",
               "--only", "arrivals", "--json", "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "learning" not in done.stderr
    found = json.loads(done.stdout)
    table = found["arrivals"]["table"]
    assert [row["feature_set"] for row in table] == ["persistence", "more"] * 2
    assert table == rows_of(tmp_path / "out")
    assert found["ageing"] == []
    assert table[1]["f"] > table[0]["f"]
    assert {row["window_s"] for row in found["arrivals"]["reliability"]} == {300.0, 3600.0}


def test_a_model_ages_on_the_log_it_is_of(tmp_path):
    early, log = tmp_path / "early", write(tmp_path, office(days=12))
    asked = ("--trace", log, "--windows", "1h")
    assert sia("forecast", "train", *asked, "--until", "3d", "--out", early).returncode == 0
    done = sia("forecast", "evaluate", *asked, "--model", early, "--only", "arrivals", "--json",
               "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["week"] for row in json.loads(done.stdout)["ageing"]] == [1]
    assert (tmp_path / "out" / "figures" / "arrivals-ageing.svg").exists()


def test_state_picks_whose_run_times_count(tmp_path):
    arrivals = office(days=6)
    extras = {a.job.id: ("FINISH" if i % 3 else "KILL",) for i, a in enumerate(arrivals)}
    write_trace(tmp_path / "log.csv", Trace(arrivals, ("state",), extras))
    done = sia("forecast", "evaluate", "--trace", tmp_path / "log.csv", "--only", "run-times",
               "--since", "0", "--state", "FINISH", "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    finished = sum(state == ("FINISH",) for state in extras.values())
    assert {row["n"] for row in rows_of(tmp_path / "out", "run_times.json")} == {finished}


def test_jobs_without_users_names_and_widths_say_so(tmp_path):
    rng = Random(4)
    arrivals = [job(f"j{i}").at(900 * i).runs(rng.randint(60, 600)) for i in range(500)]
    log = write(tmp_path, arrivals)
    done = sia("forecast", "evaluate", "--trace", log, "--windows", "1h", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for words in ("no job has a user", "every job is one GPU wide", "there is one pool"):
        assert f"note: {words}" in done.stdout
    found = {row["predictor"] for row in rows_of(tmp_path / "out", "run_times.json")}
    assert "jvupredict" in found
    assert "last-of-user" not in found


def test_helios_with_two_pools(traces, tmp_path):
    done = sia("forecast", "evaluate", "--trace", traces / "helios_venus_2vc.csv.gz",
               "--pools", traces / "helios_venus_2vc_pools.csv",
               "--windows", budget(ci="1h", soak="5m,1h,12h"), "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    windows = {row["window_s"] for row in rows_of(tmp_path)}
    assert windows == budget(ci={3600.0}, soak={300.0, 3600.0, 43200.0})
    found = {row["predictor"]: row for row in rows_of(tmp_path, "run_times.json")}
    assert found["jvupredict"]["n"] == 421
    assert found["jvupredict"]["within_2x"] > found["last-of-user"]["within_2x"]


# What is refused

EVALUATE, TRAIN = "evaluate --trace log.csv", "train --trace log.csv"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            f"{TRAIN} --out notes",
            "notes: holds 'diary.txt', which does not belong to a model",
        ),
        (f"{TRAIN} --out log.csv", "log.csv: is not a folder; give --out the name of a folder"),
        (f"{TRAIN} --until 1h --out new", "log.csv: has no jobs to learn from; "),
        (f"{TRAIN} --until 9h --windows 1h --out new", "is too short to train a window of"),
        (f"{TRAIN} --windows 1m --out new", "the first must be at least 5m"),
        (f"{TRAIN} --windows 1h,31d --out new", "the last must be at most 30d"),
        (f"{EVALUATE} --windows 1h,99999d --out new", "the last must be at most 30d"),
        (
            f"{TRAIN} --compare model --windows 2h --out new",
            "has the windows 5m, 1h, not 2h",
        ),
        (f"{TRAIN} --compare none --out new", "none/manifest.json: is missing; give --compare a f"),
        (f"{EVALUATE} --model none --out new", "none/manifest.json: is missing; give --model a f"),
        (f"{TRAIN} --compare torn --out new", "manifest.json: is not the manifest of a model"),
        (
            f"{TRAIN} --compare bent --out new",
            "1h.ubj: is not the file that the manifest names",
        ),
        ("train --trace start.csv --compare model --out new", "start.csv: ends 0 s after the old"),
        (f"{TRAIN} --pools others.csv --out new", "log.csv: no job can run in the pools of "),
        (
            f"{EVALUATE} --since 99d --out new",
            "log.csv: no job was submitted at second 8553600 or",
        ),
        (f"{EVALUATE} --since 1h --out new", "log.csv: is too short to train a window of"),
        (
            f"{EVALUATE} --windows 1d --since 7d --only arrivals --out new",
            "no window ends between",
        ),
        (
            f"{EVALUATE} --model model --since 4d --pools pools.csv --out new",
            "--model: was trained on this log",
        ),
        (
            f"{EVALUATE} --only run-times --state DONE --out new",
            "no job of the log ended as 'DONE'",
        ),
        (f"{EVALUATE} --out evaluated/report.html", "give --out a folder of its own"),
    ],
)
def test_misuse_is_refused_in_one_line(log, model, evaluated, words, says):
    folder = log.parent
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "diary.txt").write_text("dear diary")
    for name, file in (("torn", "manifest.json"), ("bent", "arrivals-1h.ubj")):
        (folder / name).mkdir(exist_ok=True)
        for path in model.iterdir():
            content = path.read_bytes()
            (folder / name / path.name).write_bytes(content[:-9] if path.name == file else content)
    (folder / "others.csv").write_text("pool,quota\nz,8\n")
    write(folder, [a for a in office() if a.job.submit <= 5 * DAY], "start.csv")
    command, *rest = words.split()
    before = digests(folder)
    paths = [folder / word if (folder / word.partition("/")[0]).exists() or word in ("new", "none")
             else word for word in rest]  # fmt: skip
    done = sia("forecast", command, *paths)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert digests(folder) == before
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--windows 7m", "--windows: 7m is not a multiple of 5m"),
        ("--from 99d", "--from 99d: leaves nothing to train on; jobs were submitted from second "),
        ("--from 3d --until 2d", "training ends at second 172,800; give an earlier"),
        ("--from 6d --compare model", "training ends at second 432,000"),
    ],
)
def test_errors_that_can_be_known_early_are_reported_before_training(log, model, words, says):
    options = [model if word == "model" else word for word in words.split()]
    done = sia("forecast", "train", "--trace", log, *options, "--out", log.parent / "new")
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_xgboost_the_extra_is_named(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for command in ("train", "evaluate"):
        asked = [command, "--trace", str(log), "--out", str(tmp_path / "out")]
        with pytest.raises(UserError, match=r"pipx install --force 'sia-scheduler\[learn\]'"):
            forecast.main(asked, standalone_mode=False)
    forecast.main([*asked, "--only", "run-times"], standalone_mode=False)
    assert (tmp_path / "out" / "run_times.json").exists()
