"""What a label chooses, what is refused, and that a piece's forecasts know its past and no more."""

from random import Random

import numpy as np
import pytest
from click import BadParameter

from predictors.catalog import Choice, learns, parse
from predictors.learning.model import QUANTILES
from predictors.loads.learned import LearnedLoads
from replay.cli.options import Labels
from replay.experiment.design import PieceDesign, plan_pieces
from replay.experiment.run import RunContext, WholeLog, log_with_starts
from replay.forecast.train import train_on
from replay.logs.past import PastJobs, past_of, warm_up
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.output import write_pools, write_trace
from replay.run.predictors import loads_of, run_times_of
from replay.run.run import Settings, replay_one
from replay.synthetic.paper import PRESETS, synthesize
from sia import Options, Pool
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_SLOWED_PCT, TICK
from sia.wording import DAY
from tests.predictors.test_arrivals import Busy
from tests.support.budget import budget
from tests.support.builders import job
from tests.support.shell import sia

DEFAULT = Choice("", "perfect", "perfect")


def test_a_bare_name_uses_the_default_predictors():
    chosen = parse("sia", Choice("", "peaks", "survival", 0.9, 0.8, 0.5))
    assert chosen == ("sia", "peaks", "survival", 0.9, 0.8, 0.5)


def test_a_label_names_all_of_its_predictors():
    default = Choice("", "peaks", "survival", 0.9, 0.8, 0.5)
    assert parse("sia@none+history", default) == ("sia", "none", "history", None, None, None)
    asked = parse("sia@peaks:0.95+survival:0.9+guard", default)
    assert asked == ("sia", "peaks", "survival", 0.95, 0.9, MAX_SLOWED_PCT)
    assert parse("sia@peaks+history+guard:2.5", default).guard == 2.5
    assert parse("srtf@none+biased:-50", default).durations == "biased:-50"


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("nobody", "there is no policy 'nobody'"),
        ("sia@peaks", "write POLICY@FORECAST"),
        ("sia@peaks+", "write POLICY@FORECAST"),
        ("sia@peaks+history+guard+guard", "write POLICY@FORECAST"),
        ("sia@crystal-ball+history", "there is no forecast 'crystal-ball'"),
        ("sia@peaks+stars", "there is no way to foresee durations 'stars'"),
        (
            "sia@model+survival",
            "no forecast 'model'; for a model write learned and give --forecast",
        ),
        ("sia@model:0.9+survival", "no forecast 'model'; for a model write learned and give"),
        ("sia@peaks+stars:0.9", "there is no way to foresee durations 'stars'; there is biased, "),
        ("sia@perfect:0.9+history", "perfect takes no quantile; only joint, learned, peaks do"),
        (
            "sia@peaks+random:0.9",
            "random takes no quantile; only boosted, history, jvupredict, survival do",
        ),
        ("sia@survival:0.9+peaks:0.9", "there is no forecast 'survival'"),
        ("sia@peaks:high+history", "peaks:NUMBER must be between 0 and 1 (got 'high')"),
        ("sia@peaks:1+history", "must be between 0 and 1"),
        ("sia@peaks:nan+history", "must be between 0 and 1"),
        ("sia@peaks+survival:0+guard", "must be between 0 and 1"),
        ("sia@peaks+survival+watch", "the third part must be guard"),
        ("sia@peaks+survival+guard:100", "guard:NUMBER must be between 0 and 100"),
        ("sia@none+survival+guard", "no load forecast to guard"),
        ("ssf@peaks+survival+guard", "no load forecast to guard"),
        ("fcfs@peaks+survival", "fcfs uses no forecasts"),
        ("srtf@none+within", "write within:PERCENT, like within:20"),
        ("srtf@none+within:x", "write within:PERCENT"),
        ("srtf@none+within:100", "must be 0 to 99 (got 100)"),
        ("srtf@none+biased:-100", "must be -99 to 1000"),
        ("srtf@none+noisy:nan", "must be 0 to 1000"),
        ("srtf@none+stated:5", "stated takes no quantile"),
    ],
)
def test_a_wrong_label_is_refused_in_words(label, words):
    with pytest.raises(KeyError) as caught:
        parse(label, DEFAULT)
    assert words in caught.value.args[0]


@pytest.mark.parametrize("text", ["fcfs,,sia", "fcfs,", ","])
def test_an_empty_label_between_commas_is_named(text):
    with pytest.raises(BadParameter) as caught:
        Labels().convert(text, None, None)
    assert caught.value.message == f"{text!r} has an empty label; remove a comma, or name a policy"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("fcfs", False),
        ("sia", False),
        ("sia-vc", False),
        ("sia@none+perfect", False),
        ("sia@none+history", True),
        ("sia@peaks+perfect", True),
        ("ssf@peaks+random", False),
        ("ssf@perfect+survival", True),
    ],
)
def test_which_predictors_need_a_past(label, expected):
    assert learns(parse(label, DEFAULT)) is expected


class Heard(RunTimes, Loads):
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def run_time(self, job):
        self.told.append(("asked", job.submit, job.id))
        return 7.0

    def submitted(self, now, job):
        self.told.append(("submitted", now, job.id))

    def started(self, now, job, run_time=None):
        self.told.append(("started", now, job.id, run_time))

    def finished(self, now, job, run_time=None):
        self.told.append(("finished", now, job.id, run_time))

    def withdrawn(self, now, job):
        self.told.append(("withdrawn", now, job.id))


def a_past():
    """Before second 1000: one ended, one running, one waiting, others of no account."""
    arrivals = [
        job("old").at(999 - 28 * DAY).runs(5),
        job("ended").at(900).runs(50),
        job("wide").at(910).gpus(9).runs(5),
        job("elsewhere").pool("b").at(920).runs(5),
        job("at once").at(930).runs(0),
        job("runs").at(940).runs(500),
        job("never").at(945).runs(5),
        job("waits").at(950).runs(5),
        job("later").at(1000).runs(5),
    ]
    starts = {"old": 999 - 28 * DAY, "ended": 905.0, "wide": 910.0, "elsewhere": 920.0}
    starts |= {"at once": 930.0, "runs": 940.0, "waits": 1001.0, "later": 1000.0}
    return past_of(arrivals, starts, PoolTable([Pool("a", 8)]), 1000.0)


def test_the_past_of_a_piece_is_the_jobs_before_it_that_its_pools_could_run():
    past = a_past()
    assert past.begin == -28 * DAY
    assert [(a.job.id, a.job.submit, start) for a, start in past.jobs] == [
        ("ended", -100, -95),
        ("at once", -70, -70),
        ("runs", -60, -60),
        ("waits", -50, 1),
    ]


def test_before_the_log_began_nothing_was_seen():
    past = past_of(
        [job("first").at(900).runs(5)], {"first": 900.0}, PoolTable([Pool("a", 1)]), 1000.0
    )
    assert past.begin == -100.0


def test_forecasts_hear_of_the_past_in_its_order_and_then_all_who_are_there_are_gone():
    run_times, loads = Heard(), Heard()
    warm_up(a_past(), run_times, loads)
    assert run_times.told == [
        ("asked", -100, "ended"),
        ("started", -95, "ended", None),
        ("asked", -70, "at once"),
        ("started", -70, "at once", None),
        ("finished", -70, "at once", 0),
        ("asked", -60, "runs"),
        ("started", -60, "runs", None),
        ("asked", -50, "waits"),
        ("finished", -45, "ended", 50),
        ("withdrawn", 0, "runs"),
        ("withdrawn", 0, "waits"),
    ]
    assert loads.told == [
        ("submitted", -100, "ended"),
        ("started", -95, "ended", 7),
        ("submitted", -70, "at once"),
        ("started", -70, "at once", 7),
        ("finished", -70, "at once", None),
        ("submitted", -60, "runs"),
        ("started", -60, "runs", 7),
        ("submitted", -50, "waits"),
        ("finished", -45, "ended", None),
        ("withdrawn", 0, "runs"),
        ("withdrawn", 0, "waits"),
    ]


class Ticks(Heard):
    """Writes down ticks as well."""

    def unasked(self, now):
        self.told.append(now)


def test_loads_hear_of_each_tick_of_the_past_after_all_that_happened_at_it():
    loads = Ticks()
    stories = [job("a").at(-700).runs(100), job("b").at(-350).runs(50)]
    warm_up(PastJobs(-1000.0, [(one, one.job.submit) for one in stories]), None, loads)
    assert loads.told == [
        -900,
        ("submitted", -700, "a"),
        ("started", -700, "a", 0),
        ("finished", -600, "a", None),
        -600,
        ("submitted", -350, "b"),
        ("started", -350, "b", 0),
        ("finished", -300, "b", None),
        -300,
    ]


class Modest(Busy):
    """Has learned that in any window at most so many GPUs arrive."""

    def quantiles(self, features, window):
        return np.tile(4 * np.arange(len(QUANTILES)), (len(features), 1))


@pytest.mark.parametrize("width", [1, 20])
def test_a_past_of_misses_raises_the_first_answer_of_a_learned_load(width):
    """One GPU a tick is always foreseen; twenty are more than it says at first."""
    past = PastJobs(-200 * TICK, [
        (job(f"j{i}").at(-i * TICK - 9).gpus(width).runs(5), -i * TICK - 9)
                              for i in range(199, -1, -1)])  # fmt: skip
    taught, asked, fresh = (
        LearnedLoads("a", Modest.manifest.windows, past.begin, Modest(), load_quantile=0.8)
        for _ in range(3)
    )
    warm_up(past, None, taught)
    for i, (one, _) in enumerate(past.jobs, -200):
        asked.changes(i * TICK)
        asked.submitted(one.job.submit, one.job)
    asked.changes(0.0)
    first = taught.changes(0.0)
    assert [load.gpus for load in first] == asked._last[0].tolist()
    usual = fresh.changes(0.0)
    for now, before in zip(first, usual, strict=True):
        assert (now.gpus > before.gpus) == (width == 20)


pytestmark = [
    pytest.mark.usefixtures("few_trees", "blank_pictures"),
    pytest.mark.xdist_group("foresight"),
]

LABELS = [
    f"sia@{forecast}+{durations}"
    for forecast, durations in [
        ("sliding-max", "history"),
        ("peaks", "survival"),
        ("peaks:0.8", "jvupredict:0.9"),
        ("peaks", "survival+guard"),
        ("random", "random"),
    ]
]


WITH_TREES = ["sia@learned+survival", "sia@learned:0.8+history", "sia@peaks:0.8+boosted:0.9"]


DAYS, TAUGHT = budget(ci=(5.0, 2.5 * DAY), soak=(12.0, 5 * DAY))
"""Of the log, and the second until which models learn."""

WINDOWS = budget(ci=(300.0, 3600.0), soak=(300.0, 3600.0, 43200.0))


def a_log():
    return synthesize(PRESETS["base"], 5, days=DAYS)


def pieces_of(trace, table, since=None, *, runs=3, days=2):
    return plan_pieces(trace, table, PieceDesign([4], runs, days * DAY, (0.6, 1.1), 1, since))


def outcome(label, whole, piece, model=None):
    runnable = playable(piece.cut(whole.trace), piece.table)
    settings = Settings([label], options=Options(windows=WINDOWS), model=model)
    past = piece.past(*whole)
    schedule = replay_one(runnable, piece.table, label, settings, None, past=past)
    return [*zip((a.job.id for a in runnable.arrivals), schedule.starts, strict=True)]


@pytest.fixture(scope="module")
def model(few_trees):
    pytest.importorskip("xgboost")
    trace, table = a_log()
    return train_on(trace, table, until=TAUGHT, windows=WINDOWS)


@pytest.mark.parametrize("label", [*LABELS, *WITH_TREES])
def test_events_after_a_piece_do_not_change_it(label, model):
    """The future is planted with other jobs: a forecast that sees it would decide otherwise.

    So would one that sees how long a job of the past ran that has not ended when the piece begins.
    """
    trace, table = a_log()
    starts = {a.job.id: a.job.submit for a in trace.arrivals}
    rng = Random(0)
    runs, days = budget(ci=(1, 1), soak=(3, 2))
    for piece in pieces_of(trace, table, TAUGHT, runs=runs, days=days):
        hidden = {a.job.id for a in trace.arrivals if a.job.submit >= piece.begin + piece.length}
        before = (a for a in trace.arrivals if a.job.submit < piece.begin)
        hidden |= {a.job.id for a in before if a.job.submit + a.duration > piece.begin}
        assert hidden
        planted = [
            a._replace(duration=rng.uniform(piece.begin + piece.length, 1e7))
            if a.job.id in hidden
            else a
            for a in trace.arrivals
            if a.job.submit < piece.begin + piece.length or rng.random() < 0.5
        ]
        truth = outcome(label, WholeLog(trace, starts), piece, model)
        assert outcome(label, WholeLog(Trace(planted), starts), piece, model) == truth


def test_predictors_learn_from_jobs_before_a_piece():
    trace, table = a_log()
    starts = {a.job.id: a.job.submit for a in trace.arrivals}
    piece = pieces_of(trace, table, TAUGHT)[0]
    label = "sia@peaks:0.8+survival:0.5"
    assert outcome(label, WholeLog(trace, starts), piece) != outcome(
        label, WholeLog(trace, {}), piece
    )


def test_a_log_ran_first_come_first_served_in_its_pools_or_at_once():
    trace, table = a_log()
    settings = Settings(["sia@peaks+survival"])
    work = RunContext(None, None, "", settings)
    at_once = log_with_starts(trace, work)
    assert at_once.starts == {a.job.id: a.job.submit for a in trace.arrivals}
    queued = log_with_starts(trace, work._replace(table=table))
    fcfs = replay_one(trace, table, "fcfs", settings, None)
    assert [queued.starts[a.job.id] for a in trace.arrivals] == fcfs.starts
    assert (
        log_with_starts(trace, RunContext(None, None, "", Settings(["sia", "mmfs"]))).starts == {}
    )


def test_pieces_begin_where_they_are_told_to():
    trace, table = a_log()
    assert min(piece.begin for piece in pieces_of(trace, table)) < TAUGHT
    assert all(piece.begin >= TAUGHT for piece in pieces_of(trace, table, TAUGHT))


@pytest.mark.parametrize("label", [*LABELS, "sia@none+perfect", "sia@perfect+random"])
def test_every_pair_of_predictors_can_be_made(label):
    trace, table = a_log()
    choice, settings = parse(label, DEFAULT), Settings([label])
    assert run_times_of(choice, trace, settings.context).run_time(trace.arrivals[0].job) >= 0
    loads = loads_of(choice, trace, table, settings.context, PastJobs(-DAY, []))
    assert (loads is None) == (choice.forecast == "none")


@pytest.fixture(scope="module")
def files(tmp_path_factory, few_trees):
    """Days of four pools with one job that is too wide, and a model of the first of them."""
    pytest.importorskip("xgboost")
    folder = tmp_path_factory.mktemp("taught")
    trace, table = synthesize(PRESETS["base"], 5, days=2.5)
    wide = job("wide").pool(table.pools[0].name).gpus(999).at(trace.arrivals[0].job.submit).runs(5)
    write_trace(folder / "trace.csv", Trace([wide, *trace.arrivals]))
    write_pools(folder / "pools.csv", table)
    ours = ("--trace", folder / "trace.csv", "--pools", folder / "pools.csv")
    done = sia("forecast", "train", *ours, "--until", "36h", "--windows", "5m,1h",
               "--out", folder / "model")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, ours


def experiment(files, out, *arguments):
    folder, ours = files
    model = ("--forecast", folder / "model", "--windows", "5m,1h")
    known = ("--policy", "sia", *model, "--jobs", 1, "--out", out)
    return sia("experiment", *ours, *known, *arguments)


def test_a_model_is_not_measured_on_its_training_span(files, tmp_path):
    pieces = ("--weeks", 0.1, "--runs", 1, "--warmup", 0)
    for arguments in (pieces, (*pieces, "--from", "1d")):
        done = experiment(files, tmp_path / "early", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the model was trained on this log until second" in done.stderr
    mend = done.stderr.strip().rpartition("with ")[2].split()
    assert mend[0] == "--from"
    assert experiment(files, tmp_path / "later", *pieces, *mend).returncode == 0
    done = experiment(files, tmp_path / "sizes", "--size", 1)
    assert done.returncode == 2
    mend = done.stderr.strip().rpartition("with ")[2].split()
    assert mend[0] == "--warmup"
    assert experiment(files, tmp_path / "sizes", "--size", 1, *mend).returncode == 0


def test_a_replay_reports_the_training_span_of_a_model(files, tmp_path):
    folder, ours = files
    model = ("--forecast", folder / "model", "--windows", "5m,1h")
    known = ("--policy", "sia", *model, "--no-report", "--out", tmp_path)
    done = sia("replay", *ours, *known)
    assert done.returncode == 0, done.stderr
    note = next(line for line in done.stdout.splitlines() if "the model was trained" in line)
    done = sia("replay", *ours, *known, *note.rpartition("with ")[2].split())
    assert "the model was trained" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--forecast", "learned"), "give the folder of the model instead"),
        (("--forecast", "nowhere"), "neither the folder of a model nor one of"),
        (("--policy", "sia@learned+survival"), "needs a model; give its folder with --forecast"),
        (
            ("--load-quantile", 0.9),
            "--load-quantile does not work with perfect, only with joint, learned, peaks; leave",
        ),
        (
            ("--forecast", "peaks", "--run-time-quantile", 0.9),
            "not work with perfect, only with boosted, history, jvupredict, survival; leave it out",
        ),
        (("--forecast", "none", "--max-slowed-pct", 1), "has no effect with --forecast none"),
        (("--windows", "5m,31d"), "the last must be at most 30d"),
        (("--load-quantile", "nan"), "write a number, like 0.5"),
        (
            ("--forecast", ".", "--load-quantile", 0.9999),
            "0.9999: too high for learned, because models are trained for no higher quantile",
        ),
        (
            ("--forecast", "peaks", "--load-quantile", 0.995),
            "--load-quantile: 0.995: too high for peaks, because 2w hold few",
        ),
        (("--policy", "sia@peaks:0.995+survival"), "2w hold few windows of 12h; use at most"),
        (("--policy", "sia@peaks:0.9999+survival", "--windows", "5m"), "use at most 0.999"),
        (("--max-slowed-pct", 0), "range"),
    ],
)
def test_options_without_effect_or_sense_are_refused_in_one_line(files, tmp_path, arguments, words):
    _, ours = files
    done = sia("replay", *ours, *arguments, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
