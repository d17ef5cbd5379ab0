"""How good run-time estimates are: told in order, nothing of the future, numbers by hand."""

from random import Random

import pytest

from predictors.run_times.history import HistoryRunTimes
from predictors.run_times.jvupredict import JVuPredict
from predictors.run_times.survival import SurvivalRunTimes
from replay.forecast.run_times import (
    ERRORS,
    PREDICTORS,
    LastOfUser,
    OutlastingScores,
    ended_as,
    evaluate_pairs,
    evaluate_run_times,
    last_quarter,
    submissions,
)
from replay.forecast.run_times_figures import (
    draw_chosen,
    draw_errors,
    draw_outside,
    draw_reliability,
)
from replay.logs.importers import swf
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from replay.run.starts import starts_of
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.forecasts import RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job
from tests.support.budget import budget
from tests.support.builders import job as story

WINDOWS = (10.0, 100.0)


def random_log(seed, count=60):
    """Jobs of three users with whole times, so that much falls together; their starts."""
    rng = Random(seed)
    submits = sorted(rng.randint(0, 99) for _ in range(count))
    arrivals = [
        Arrival(Job(f"j{i}", "a", float(submit), 1, rng.choice("xyz")), float(rng.randint(1, 30)))
        for i, submit in enumerate(submits)
    ]
    starts = [a.job.submit + rng.choice([0, 0, rng.randint(0, 20)]) for a in arrivals]
    return Trace(arrivals), [start if rng.random() < 0.9 else None for start in starts]


class Diary(RunTimes):
    """Writes down what it is told, and predicts by it: how many jobs have ended, seconds long."""

    def __init__(self):
        self.ended, self.running = [], []

    def run_time(self, job):
        return len(self.ended) + 1.0

    def started(self, now, job):
        self.running.append(job.id)

    def finished(self, now, job, run_time):
        self.running.remove(job.id)
        self.ended.append((job.id, run_time))


@pytest.mark.parametrize("seed", range(30))
def test_a_job_is_predicted_from_all_that_ended_before_it_and_from_nothing_else(seed):
    trace, starts = random_log(seed)
    diary, asked = Diary(), []
    for now, _ in submissions(trace, [diary], starts):
        asked.append(now.id)
        begun = [
            (begin, begin + length, arrival.id, length)
            for (arrival, length), begin in zip(trace.arrivals, starts, strict=True)
            if begin is not None
        ]
        ended = {(name, length) for _, end, name, length in begun if end <= now.submit}
        running = {name for begin, end, name, _ in begun if begin < now.submit < end}
        assert set(diary.ended) == ended
        assert set(diary.running) == running
    assert asked == [arrival.job.id for arrival in trace.arrivals]
    assert len(diary.ended) == sum(start is not None for start in starts)
    assert not diary.running


def said_of(trace, predictor):
    """Return the prediction for each job, by id."""
    starts = starts_of(trace)
    return {job.id: predictor.run_time(job) for job, _ in submissions(trace, [predictor], starts)}


def looks_ahead(predictor_for, trace):
    """Whether anything said of a job depends on what is submitted or ends after it."""
    whole = said_of(trace, predictor_for(trace))
    for i in range(0, len(trace.arrivals), 7):
        now = trace.arrivals[i].job.submit
        known = [a for a in trace.arrivals if a.job.submit <= now]
        past = [a if a.job.submit + a.duration <= now else a._replace(duration=1e9) for a in known]
        cut = said_of(Trace(past), predictor_for(Trace(past)))
        if any(cut[a.job.id] != whole[a.job.id] for a in past):
            return True
    return False


class Leak(LastOfUser):
    """Has read the whole log's mean run time before the first job."""

    def __init__(self, trace):
        super().__init__()
        self._mean = sum(a.duration for a in trace.arrivals) / len(trace.arrivals)

    def run_time(self, job):
        known = super().run_time(job)
        return self._mean if known == UNKNOWN_RUN_TIME else known


MAKERS = {**PREDICTORS, "survival": lambda: SurvivalRunTimes(WINDOWS, 0.5)}


@pytest.mark.parametrize("name", MAKERS)
def test_no_predictor_looks_ahead(name):
    trace, _ = random_log(seed=1)
    assert not looks_ahead(lambda _: MAKERS[name](), trace)
    assert len(set(said_of(trace, MAKERS[name]()).values())) > 1  # it does learn


def test_a_planted_look_ahead_is_caught():
    trace, _ = random_log(seed=1)
    assert looks_ahead(Leak, trace)


class Says(RunTimes):
    """One answer a job, by id; quantiles are multiples of it."""

    def __init__(self, **answers):
        self._answers = answers

    def run_time(self, job):
        return self._answers.get(job.id, UNKNOWN_RUN_TIME)

    def quantiles(self, job, probabilities):
        return [2 * p * self.run_time(job) for p in probabilities]


FIVE = Trace(
    [
        story("a").at(0).runs(100),
        story("b").at(1).runs(100),
        story("c").at(2).runs(10),
        story("d").at(3).runs(1000),
        story("e").at(4).runs(5),
    ]
)


def test_scores_are_what_one_counts_by_hand():
    """b is said to run 50 s, just within twice, c 25, d 100.5; of e nothing is known."""
    says = Says(a=1.0, b=50.0, c=25.0, d=100.5)
    scores = evaluate_run_times(FIVE, {"says": says}, since=1.0, windows=WINDOWS)["says"]
    assert scores.row("log", "says") == {
        "trace": "log",
        "predictor": "says",
        "n": 4,
        "coverage": 0.75,
        "within_2x": 0.25,
        "within_10x": 0.75,
    }
    errors = dict(zip(ERRORS, scores.errors, strict=True))
    assert {edge: share for edge, share in errors.items() if share} == {
        -50: 0.25,  # b
        -90: 0.25,  # d, 89.95 % too short
        100: 0.25,  # c, 150 % too long
    }
    assert scores.confusion == ((0, 1, 1), (0, 1, 0), (0, 0, 1))
    assert scores.reliability[0.1] == 0.25  # e alone, of which nothing is known
    assert scores.reliability[0.2] == 0.5  # c: 2 · 0.2 · 25 = 10
    assert scores.reliability[0.99] == 0.5  # b: 99 s are not enough


class Doubles(Says):
    """A job that has run for some time runs as long again, with a chance of a half."""

    def running(self, job, elapsed):
        return 2 * elapsed

    def quantiles_after(self, job, probabilities, elapsed):
        return [elapsed / (1 - p) for p in probabilities]


def test_jobs_that_outlast_their_estimates_are_judged_by_what_is_said_then():
    """b runs twice, d nearly ten times as long as said; c ends before, of e nothing is known."""
    says = Doubles(a=1.0, b=50.0, c=25.0, d=100.5)
    scores = evaluate_run_times(FIVE, {"says": says}, since=1.0, windows=WINDOWS)["says"]
    assert scores.outlasting == (
        OutlastingScores(1.0, 2, 0.5, 0.5, 1.0),  # b is said to run 100 s, d 201 or 1005
        OutlastingScores(2.0, 1, 0.0, 0.0, 1.0),
    )
    none = evaluate_run_times(FIVE, {"says": Says(a=1.0)}, since=1.0, windows=WINDOWS)["says"]
    assert none.outlasting == ()


def test_a_predictor_without_quantiles_has_no_reliability():
    scores = evaluate_run_times(FIVE, {"h": HistoryRunTimes()}, since=0.0, windows=WINDOWS)
    assert scores["h"].reliability == {}


def test_pairs_are_judged_alone_and_counted_when_chosen():
    """One user, one pool, each job over before the next comes."""
    durations = (10.0, 12.0, 100.0, 11.0, 12.0)
    trace = Trace(
        [Arrival(Job(f"j{i}", "a", 500.0 * i, 1, "u"), d) for i, d in enumerate(durations)]
    )
    found = evaluate_pairs(trace, JVuPredict(choice="nrmse"), since=0.0)
    assert found.n == 5
    features = ["user, width", "user", "pool, width", "pool", "hour", "all"]
    assert found.unseen == pytest.approx(dict.fromkeys(features, 0.2))
    # Averages said: nothing, 10, 11, 40.7, 33.25; medians: nothing, 10, 11, 12, 11.5.
    assert found.outside_2x["user:average"] == pytest.approx(0.8)
    assert found.outside_2x["user:median"] == pytest.approx(0.4)
    assert found.outside_2x["all:median"] == pytest.approx(0.4)
    assert found.outside_10x["user:average"] == pytest.approx(0.2)
    # All were equally wrong until the fourth.
    assert found.chosen == pytest.approx({"user:average": 0.6, "user:median": 0.2})
    assert found.outside_2x["chosen"] == pytest.approx(0.6)
    user = next(row for row in found.table() if row["feature"] == "user")
    assert (user["outside_2x"], user["unseen"]) == pytest.approx((0.8, 0.2))


def waiting(*cells):
    arrivals = [story(f"j{i}").at(10 * i).runs(5) for i in range(len(cells))]
    extras = {a.job.id: ("FINISH", cell) for a, cell in zip(arrivals, cells, strict=True)}
    return Trace(arrivals, ("state", "wait"), extras)


def test_jobs_start_after_the_wait_that_the_log_tells():
    assert starts_of(waiting("2.5", "", "0")) == [2.5, 10.0, 20.0]
    assert starts_of(FIVE) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("cell", ["soon", "-1", "nan", "inf", "1e300", "9" * 500])
def test_a_wait_that_is_none_is_refused_in_one_line(cell):
    with pytest.raises(UserError) as caught:
        starts_of(waiting("1", cell))
    text = str(caught.value)
    assert text.startswith("job j1, column wait: ")
    assert "\n" not in text
    assert len(text) < 150


def test_a_state_in_which_no_job_ended_is_refused():
    trace = waiting("1", "2")
    assert ended_as(trace, "FINISH") == [True, True]
    for log, state in ((trace, "KILL"), (FIVE, "FINISH")):
        with pytest.raises(UserError, match="no job of the log ended as"):
            ended_as(log, state)


def test_a_job_that_will_be_killed_counts_as_running_until_then():
    """Every second job ends after 10 s; the others run on, so that half outlast any window."""
    judged = [True, False] * 50
    arrivals = [
        story(f"j{i}").at(600 * i).runs(10 if ends else 40_000) for i, ends in enumerate(judged)
    ]
    asked = {"since": 40_000.0, "windows": WINDOWS}
    names = {"survival": lambda: SurvivalRunTimes(WINDOWS), "jvupredict": JVuPredict}
    found = {
        name: evaluate_run_times(Trace(arrivals), {name: make()}, judged=judged, **asked)[name]
        for name, make in names.items()
    }
    assert {of.n for of in found.values()} == {16}
    assert found["survival"].confusion == ((0, 0, 16), (0, 0, 0), (0, 0, 0))
    assert found["jvupredict"].within_2x == 1  # run times are learned from those that finish alone
    assert evaluate_pairs(Trace(arrivals), JVuPredict(), since=40_000.0, judged=judged).n == 16
    finished = Trace(arrivals[::2])
    blind = evaluate_run_times(finished, {"s": names["survival"]()}, **asked)["s"]
    assert blind.confusion == ((16, 0, 0), (0, 0, 0), (0, 0, 0))


def test_a_span_without_jobs_is_refused():
    for evaluate in (
        lambda: evaluate_run_times(FIVE, {"h": HistoryRunTimes()}, since=9.0, windows=WINDOWS),
        lambda: evaluate_pairs(FIVE, JVuPredict(), since=9.0),
    ):
        with pytest.raises(UserError, match="no job was submitted at second 9 or later"):
            evaluate()


def test_the_last_quarter_is_of_the_time():
    assert last_quarter(FIVE) == 3.0


def test_pictures_are_the_same_bytes_again_whatever_the_names():
    trace, _ = random_log(seed=2)
    names = {f"${name}_{{x}}": make() for name, make in PREDICTORS.items()}
    scores = evaluate_run_times(trace, names, since=0.0, windows=WINDOWS)
    pairs = evaluate_pairs(trace, JVuPredict(choice="nrmse"), since=0.0)
    for draw in (
        lambda: draw_errors(scores),
        lambda: draw_reliability(scores),
        lambda: draw_outside(pairs),
        lambda: draw_chosen(pairs),
    ):
        first, again = draw(), draw()
        assert first == again
        assert b"<svg " in first.svg
        assert not first.png, "no file has it"
        assert first.inline.startswith("<svg ")
    assert ">chosen<" in draw_outside(pairs).inline


def test_pictures_of_nothing_known_are_drawn():
    scores = evaluate_run_times(FIVE, {"h": HistoryRunTimes()}, since=4.0, windows=WINDOWS)
    lone = Trace([story("a").runs(1)])
    pairs = evaluate_pairs(lone, JVuPredict(), since=0.0)
    assert pairs.chosen == {}
    for drawn in (draw_errors(scores), draw_reliability(scores)):
        assert drawn.svg
    assert draw_outside(pairs).svg
    assert draw_chosen(pairs).svg


LOGS = {
    "helios_venus_users": lambda folder: read_trace(folder / "helios_venus_users.csv.gz"),
    "kth": lambda folder: swf.read(folder / "kth_sp2.swf.gz", None)[0],
}


@pytest.mark.parametrize("log", LOGS)
def test_on_real_logs_the_floor_is_beaten_and_the_90th_percentile_is_one(traces, log):
    """In `make soak` on whole logs, otherwise on their newest jobs."""
    whole = LOGS[log](traces)
    newest = whole.arrivals[-budget(ci=10_000, soak=10**6) :]
    extras = {one.job.id: whole.extras[one.job.id] for one in newest if whole.extras}
    trace = Trace(newest, whole.columns, extras)
    names = {name: PREDICTORS[name]() for name in ("jvupredict", "last-of-user")}
    scores = evaluate_run_times(trace, names, since=last_quarter(trace), windows=WINDOWS)
    assert scores["jvupredict"].within_2x > scores["last-of-user"].within_2x
    assert 0.88 <= scores["jvupredict"].reliability[0.9] <= 0.92
