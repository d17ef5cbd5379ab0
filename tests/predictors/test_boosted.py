"""Run times by trees and tables: what is known and learned, against models that count anew."""

import sys
from math import floor, inf, isnan, log, nan
from random import Random

import numpy as np
import pytest

from predictors.catalog import Choice, parse
from predictors.run_times.boosted import trees as trees_module
from predictors.run_times.boosted.known import LATEST, NUMBERS, KnownJobs
from predictors.run_times.boosted.predictor import (
    ENOUGH,
    KEPT,
    MOST_CHANCE,
    BoostedRunTimes,
    _Scores,
)
from predictors.run_times.boosted.trees import Trees
from predictors.run_times.survival import BATCH, SurvivalRunTimes
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Job

pytest.importorskip("xgboost")

WINDOWS = (300.0, 3600.0, 43200.0)


def kinds_of(job, batch):
    """What other jobs must have in common with a job, by kind; None if it says too little."""
    size = next(n for n in range(99) if job.width <= 2**n)
    own = ("own", job.user, job.pool, job.width, job.estimate)
    return [
        (),
        ("pool", job.pool),
        ("width", job.pool, size),
        ("user", job.user) if job.user else None,
        own if job.user else None,
        ("name", job.user, job.name) if job.name else None,
        ("batch", job.pool, size, job.user, batch),
    ]


class Recount:
    """All jobs so far, gone through for each number."""

    def __init__(self):
        self.jobs = []  # [job, kinds, start, end, run time], in order of submission

    def submit(self, job):
        own = kinds_of(job, 0)[-1][:-1]
        before = [each for each in self.jobs if each[1][-1][:-1] == own]
        batch = before[-1][1][-1][-1] if before else 0
        if before and job.submit > before[-1][0].submit + BATCH:
            batch += 1
        kinds = kinds_of(job, batch)
        row = self.row(job, kinds, job.submit)
        self.jobs.append([job, kinds, None, None, None])
        return row

    def row(self, job, kinds, now):
        count = sum(kinds[-1] in each[1] for each in self.jobs)
        stated = log(max(1, job.estimate)) if job.estimate else nan
        row = [log(job.width), job.priority, stated, now // 3600 % 24, now // 86400 % 7, count]
        for kind in kinds:
            row += [nan] * 11 if kind is None else self.numbers(kind, now)
        return row

    def numbers(self, kind, now):
        mine = [each for each in self.jobs if kind in each[1]]
        ended = sorted((each for each in mine if each[4] is not None), key=lambda each: each[3])
        took = [log(max(1, each[4])) for each in ended][-LATEST:]
        few = sorted(took[-5:])
        rising = sorted(took)
        row = [nan] * 5 + [0]
        if took:
            n = len(took)
            tenths = rising[n // 10], rising[n // 2], rising[9 * n // 10]
            row = [took[-1], few[len(few) // 2], *tenths, n]
        starts = [each[2] for each in mine if each[2] is not None and each[3] is None]
        row += [0, nan, nan]
        if starts:
            row[-3:] = [len(starts), log(now - min(starts) + 1), log(now - max(starts) + 1)]
        row.append(log(now - mine[-1][0].submit + 1) if mine else nan)
        row.append(log(now - ended[-1][3] + 1) if ended else nan)
        return row


@pytest.mark.parametrize("seed", range(3))
def test_what_is_known_is_what_a_recount_finds(seed):
    random, known, recount = Random(seed), KnownJobs(), Recount()
    now, pending, running = -20_000.0, [], []
    for number in range(250):
        now += random.choice((1, 50, 400, 4000))
        kind = random.random()
        if kind < 0.5 or not (pending or running):
            user, name = random.choice(("", "ann", "bob")), random.choice(("", "train"))
            estimate = random.choice((None, 60.0, 7200.0))
            pool, width = random.choice("ab"), random.choice((1, 2, 3, 8))
            job = Job(f"j{number}", pool, now, width, user, name, estimate=estimate)
            of = known.submitted(job)
            assert known.row(of, now) == pytest.approx(recount.submit(job), nan_ok=True)
            known.counted(of)
            pending.append(of)
        elif pending and kind < 0.8:
            of = pending.pop(random.randrange(len(pending)))
            known.started(now, of)
            next(each for each in recount.jobs if each[0] is of.job)[2] = now
            running.append(of)
        elif running:
            of = running.pop(random.randrange(len(running)))
            mine = next(each for each in recount.jobs if each[0] is of.job)
            known.ended(now, of, now - mine[2])
            mine[3:] = now, now - mine[2]
    for of in pending:
        mine = next(each for each in recount.jobs if each[0] is of.job)
        row = known.row(of, now)
        assert len(row) == NUMBERS
        assert row == pytest.approx(recount.row(of.job, mine[1], now), nan_ok=True)


def test_a_job_is_an_example_of_each_window_that_it_reached_once_that_is_over(monkeypatch):
    random, trees = Random(0), Trees(WINDOWS, 1)
    monkeypatch.setattr(trees_module, "MOST_JOBS", 700)  # older ones are forgotten
    monkeypatch.setattr(trees_module, "MOST_EXAMPLES", 900)
    jobs, now = [], 0.0
    for number in range(1200):
        now += 120.0
        jobs.append([now, inf, inf])
        assert trees.add(now, [number]) == number
        some = random.randrange(max(0, number - 600), number + 1)
        start, lasted, seen = jobs[some]
        if lasted == seen == inf and number - some < 700:
            gone = random.random() < 0.1
            jobs[some][1:] = (inf, now - start) if gone else (now - start, inf)
            trees.ended(some, jobs[some][1], seen=jobs[some][2])
    wanted = []
    for number in range(1199, 499, -1):
        start, lasted, seen = jobs[number]
        mine = [
            (window, number, lasted > end)
            for window, end in enumerate(WINDOWS)
            if start + end <= now and end <= seen and (not window or lasted > WINDOWS[window - 1])
        ]
        if len(wanted) + len(mine) > 900:
            break
        wanted += mine
    rows, windows, labels = trees._examples(now)
    numbers = trees._rows[rows, 0].astype(int)
    found = list(zip(windows.tolist(), numbers.tolist(), labels.tolist(), strict=True))
    assert sorted(found) == sorted(wanted)
    assert len({window for window, *_ in found}) == 3


def test_no_more_than_the_permitted_share_outlasts_its_window():
    """Split conformal prediction: the guarantee holds for any scores whose order is random."""
    random, over = Random(1), 0
    for _ in range(400):
        scores = [random.choice((random.random(), inf)) for _ in range(61)]
        kept = _Scores()
        for score in scores[:-1]:
            kept.add(score)
        critical = kept.critical(0.1)
        assert critical == min(sorted(scores[:-1])[floor(0.1 * 61) - 1], MOST_CHANCE)
        over += scores[-1] < critical
    assert over / 400 <= 0.1 + 3 * (0.1 * 0.9 / 400) ** 0.5
    assert _Scores().critical(0.5) == 0.0, "nothing is permitted without evidence"


def test_only_the_latest_scores_count():
    kept = _Scores()
    for score in [0.001] * 900 + [0.2] * KEPT:
        kept.add(score)
    assert len(kept) == KEPT
    assert kept.critical(0.05) == 0.2


def night(predictor, jobs, random, gap=200.0, guesses=None):
    """Run so many jobs one after the other: with "short" in their name 100 s, else a day or so.

    Returns the estimates and the run times. Before each submission it asks for a guess of the job,
    and of one of another user, and adds the first one to `guesses`.
    """
    told, queue, now = [], [], 0.0
    for number in range(jobs):
        now += gap
        while queue and min(queue)[0] <= now:
            end, other, ran = min(queue)
            queue.remove((end, other, ran))
            predictor.finished(end, lookup[other], ran)
        predictor.changes(now)
        width = random.choice((1, 2))
        run_time = 100.0 + random.random() if width == 1 else 86400.0 * (0.7 + random.random())
        job = Job(f"j{number}", "a", now, width, estimate=random.random() * 1000 + 1)
        lookup[job.id] = job
        if guesses is not None:
            guesses.append(predictor.guess(now, job))
            predictor.guess(now, Job("if", "a", now, 2, "nobody", "new"))
        told.append((predictor.run_time(job), run_time))
        predictor.started(now, job)
        queue.append((now + run_time, job.id, run_time))
    return told


lookup = {}


@pytest.fixture
def soon(monkeypatch):
    """Trees that are trained after 60 jobs, in few rounds."""
    monkeypatch.setattr(trees_module, "FIRST", 60)
    monkeypatch.setattr(trees_module, "ROUNDS", 10)
    monkeypatch.setitem(trees_module.TREES, "min_child_weight", 1)
    monkeypatch.setattr("predictors.run_times.boosted.predictor.ENOUGH", 20)


@pytest.mark.usefixtures("soon")
def test_it_learns_which_jobs_are_short():
    told = night(BoostedRunTimes(WINDOWS, 0.9), 700, Random(2))[500:]
    over = sum(ran > estimate for estimate, ran in told)
    short = [estimate for estimate, ran in told if ran < 300]
    assert over <= 0.1 * len(told)
    assert short.count(300.0) > 0.8 * len(short)


@pytest.mark.usefixtures("soon")
def test_the_same_events_have_the_same_answers():
    assert night(BoostedRunTimes(WINDOWS), 300, Random(3)) == night(
        BoostedRunTimes(WINDOWS), 300, Random(3)
    )


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("made", [BoostedRunTimes, SurvivalRunTimes])
def test_a_guess_is_what_a_submission_would_be_told_and_teaches_nothing(made):
    guesses = []
    told = night(made(WINDOWS, 0.9), 300, Random(7), guesses=guesses)
    assert told == night(made(WINDOWS, 0.9), 300, Random(7))
    differ = sum(guess != estimate for guess, (estimate, _) in zip(guesses, told, strict=True))
    assert differ <= 0.02 * len(told), "but where the submission itself ends a training"


@pytest.mark.usefixtures("soon")
def test_jobs_that_are_submitted_together_are_told_what_they_would_be_one_after_the_other():
    one, many = BoostedRunTimes(WINDOWS, 0.9), BoostedRunTimes(WINDOWS, 0.9)
    assert night(one, 300, Random(8)) == night(many, 300, Random(8))
    jobs = [Job(f"b{i}", "ab"[i % 2], 60_100.0, 1 + i % 3, estimate=60.0 + i) for i in range(40)]
    assert [one.run_time(job) for job in jobs] == many.run_times(jobs)
    assert one.changes(61_000.0) == many.changes(61_000.0)


@pytest.mark.usefixtures("soon")
def test_a_training_begins_beside_the_caller():
    predictor, work = BoostedRunTimes(WINDOWS, 0.9), []
    predictor.work_aside(work.append)
    night(predictor, 200, Random(9))
    (order,) = work
    assert not predictor._trees.ready, "nobody has put the examples in order"
    order()
    night(predictor, 20, Random(10))
    assert predictor._trees.ready


@pytest.mark.usefixtures("soon")
def test_a_training_that_fails_aside_is_reported_by_the_next_call(monkeypatch):
    predictor, work = BoostedRunTimes(WINDOWS, 0.9), []
    predictor.work_aside(work.append)
    night(predictor, 200, Random(9))
    monkeypatch.setitem(sys.modules, "xgboost", None)
    work[0]()
    with pytest.raises(ImportError, match="xgboost"):
        night(predictor, 20, Random(10))


def test_without_trees_it_estimates_as_survival_does():
    ours, theirs = BoostedRunTimes(WINDOWS, 0.9), SurvivalRunTimes(WINDOWS)
    assert night(ours, 120, Random(4)) == night(theirs, 120, Random(4))


@pytest.mark.usefixtures("soon")
def test_what_pending_jobs_are_estimated_at_changes_with_their_batch():
    predictor = BoostedRunTimes(WINDOWS, 0.9)
    night(predictor, 400, Random(5))
    now = 400 * 200.0 + 100.0
    waiting = [Job(f"w{i}", "a", now, 1 + i % 2) for i in range(4)]
    before = {job.id: predictor.run_time(job) for job in waiting}
    assert before["w0"] == 300.0
    changed = {}
    for tick in range(1, 5):
        for estimate in predictor.changes(now + tick * TICK):
            assert before[estimate.job_id] != estimate.run_time
            assert estimate.run_time in {*WINDOWS, UNKNOWN_RUN_TIME}
            changed[estimate.job_id] = before[estimate.job_id] = estimate.run_time
    assert changed.keys() <= before.keys()
    predictor.withdrawn(now + 2000, waiting[0])
    for job in waiting[1:]:
        predictor.started(now + 2000, job)
    assert not predictor.changes(now + 9 * TICK)


@pytest.mark.usefixtures("soon")
def test_chances_fall_by_window_and_rise_with_age():
    predictor = BoostedRunTimes(WINDOWS, 0.9)
    night(predictor, 300, Random(6))
    job = Job("new", "a", 300 * 200.0 + 1, 2)
    assert predictor.chances(job) == []
    predictor.run_time(job)
    young, old = predictor.chances(job), predictor.chances(job, age=4000.0)
    assert sorted(young, reverse=True) == young
    assert old[:2] == [1.0, 1.0]
    assert old[2] == pytest.approx(young[2] / young[1])


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1.0])
def test_a_quantile_is_a_share(quantile):
    with pytest.raises(ValueError, match="between 0 and 1"):
        BoostedRunTimes(WINDOWS, quantile)


def test_numbers_are_never_infinite():
    """Trees know missing numbers, not infinite ones."""
    known = KnownJobs()
    job = Job("a", "p", 0.0, 1, "u", "n", estimate=1e-9)
    row = known.row(known.submitted(job), 0.0)
    assert all(isnan(number) or abs(number) < inf for number in row)
    assert np.isfinite(row[:2]).all()
    assert ENOUGH < KEPT


def test_without_xgboost_a_label_is_refused_with_the_mend(monkeypatch):
    monkeypatch.setattr("predictors.run_times.boosted.predictor.find_spec", lambda _: None)
    default = Choice("", "peaks", "survival")
    with pytest.raises(KeyError, match=r"xgboost, which is not installed; pipx install"):
        parse("sia@peaks+boosted", default)
    assert parse("fcfs", default._replace(durations="boosted")).policy == "fcfs", "it needs none"
    assert parse("sia@peaks+survival", default).durations == "survival"
