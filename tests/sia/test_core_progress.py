"""Jobs that report their progress in virtual time: what the core hears, and when they end."""

from random import Random

import pytest

from predictors.perfect import PerfectRunTimes
from sia import Core, Job, Options
from sia.core.playout import Arrival, ProgressPoint, play
from sia.decisions import PreemptJob, ResizeJob
from sia.events import JobFinished, JobProgressed, JobSubmitted
from sia.forecasts import RunTimes
from sia.policies import load, make
from tests.support.budget import budget
from tests.support.builders import SMALL, job, pools


class Log(RunTimes):
    """Knows all run times, and writes down what is reported."""

    def __init__(self, arrivals):
        self.known = PerfectRunTimes({a.job.id: a.duration for a in arrivals})
        self.said = []

    def run_time(self, job):
        return self.known.run_time(job)

    def progressed(self, now, job, done, speed):
        self.said.append((now, job.id, done, speed))


def played(policy, owned, arrivals, reports, options=SMALL):
    """Play it out; return the ends, the reports, and the stops and resizes."""
    core, log = Core(owned, load(policy)(), options), Log(arrivals)
    ends, told, moves = {}, [], 0
    for instant in play(core, arrivals, run_times=log, reports=reports):
        core.check()
        ends |= {e.job_id: instant.now for e in instant.events if type(e) is JobFinished}
        told += [e for e in instant.events if type(e) is JobProgressed]
        moves += sum(type(d) in (PreemptJob, ResizeJob) for d in instant.decisions)
    assert [(e.time, e.job_id, e.done, e.speed) for e in told] == log.said
    return ends, told, moves


def points(*pairs):
    return tuple(ProgressPoint(*pair) for pair in pairs)


def test_a_job_that_speeds_up_ends_sooner_and_says_so():
    reports = {"j": points((0.25, 1.0), (0.5, 2.0, 1))}
    ends, told, _ = played("fcfs", pools(a=1), [job("j").runs(100)], reports)
    assert told == [
        JobProgressed(25.0, "j", 25.0, 1.0, 100.0, None),
        JobProgressed(50.0, "j", 50.0, 2.0, 100.0, 1),
    ]
    assert ends == {"j": 75.0}


def test_a_job_that_lost_work_is_in_its_regimes_with_less_done_than_before():
    core = Core(pools(a=1), load("fcfs")())
    core.step(0.0, [JobSubmitted(0.0, job("j").runs(100).job, 100.0)])
    for now, done, regime in ((40.0, 40.0, 1), (60.0, 10.0, 1), (70.0, 20.0, 2)):
        core.step(now, [JobProgressed(now, "j", done, 1.0, 100.0, regime)])
    assert core.state.jobs["j"].begun == (10.0, 20.0)


def test_a_job_that_slows_down_keeps_others_waiting():
    jobs = [job("j").runs(100), job("next").runs(10)]
    ends, _, _ = played("fcfs", pools(a=1), jobs, {"j": points((0.0, 0.5))})
    assert ends == {"j": 200.0, "next": 210.0}


def test_reports_at_speed_one_change_nothing():
    jobs = [job(f"j{i}").at(i).gpus(1 + i % 3).runs(20 + i) for i in range(20)]
    reports = {f"j{i}": points((0.5, 1.0), (0.75, 1.0)) for i in range(0, 20, 2)}
    for policy in ("fcfs", "sia", "srtf", "las"):
        with_reports, told, _ = played(policy, pools(a=3, b=2), jobs, reports)
        assert len(told) >= 20
        assert with_reports == pytest.approx(played(policy, pools(a=3, b=2), jobs, {})[0])


def test_a_stopped_job_goes_on_at_the_speed_that_it_had_and_pays_for_its_resume():
    jobs = [job("long").runs(100), job("short").at(60).runs(10)]
    options = Options(windows=SMALL.windows, tick=SMALL.tick, resume_cost=5.0)
    reports = {"long": points((0.5, 0.5), (0.9, 1.0))}
    ends, told, _ = played("srtf", pools(a=1), jobs, reports, options)
    # It has done 55 of 100 s when it is stopped at 60, and 90 of them 5 + 70 s after it goes on.
    assert [(e.time, e.done, e.speed) for e in told] == [
        (50.0, 50.0, 0.5), (75.0, 55.0, 0.5), (145.0, 90.0, 1.0),
    ]  # fmt: skip
    assert ends == {"short": 70.0, "long": 155.0}


def test_progress_reports_change_the_order_of_a_policy():
    jobs = [job("a").runs(100), job("b").at(10).runs(85)]
    assert played("srtf", pools(a=1), jobs, {})[0] == {"a": 185.0, "b": 95.0}
    fast = {"a": points((0.05, 2.0))}  # at 10 it has 42.5 s left, not 90
    assert played("srtf", pools(a=1), jobs, fast)[0] == {"a": 52.5, "b": 137.5}


@pytest.mark.parametrize("policy", ["fcfs", "sia", "las", "emmfs", "sia-recall"])
@pytest.mark.parametrize("seed", range(4))
def test_all_work_is_done_whatever_happens(policy, seed):
    """Speed times time is the work of each job, through stops, resizes and changes of speed."""
    rng = Random(seed)
    owned = pools(a=4, b=3)
    jobs = [
        job(f"j{i}").pool(rng.choice("ab")).gpus(rng.randint(1, 3)).at(rng.randrange(100))
        .runs(rng.uniform(1, 80))
        for i in range(40)
    ]  # fmt: skip
    jobs.sort(key=lambda each: each.job.submit)
    reports = {
        f"j{i}": points(
            *((rng.uniform(k, k + 0.9) / 4, rng.choice([0.25, 1, 3])) for k in range(4))
        )
        for i in range(0, 40, 2)
    }
    core = Core(owned, load(policy)(), Options(resume_cost=1.0))
    work, since = dict.fromkeys((a.job.id for a in jobs), 0.0), {}
    durations = {a.job.id: a.duration for a in jobs}
    told = 0
    for instant in play(core, jobs, run_times=PerfectRunTimes(durations), reports=reports):
        core.check()
        for event in instant.events:
            if type(event) is JobProgressed:
                told += 1
                assert 0 <= event.done <= durations[event.job_id]
            elif type(event) is JobFinished:
                state = since.pop(event.job_id)
                done = (
                    state.done + max(0.0, instant.now - state.since - state.overhead) * state.speed
                )
                work[event.job_id] = done
        since |= {job_id: Frozen(state) for job_id, state in core.state.jobs.items()}
    assert told >= 60
    assert work == pytest.approx(durations)


class Frozen:
    """A job as it was after a step."""

    def __init__(self, state):
        for name in ("done", "since", "overhead", "speed"):
            setattr(self, name, getattr(state, name))


def test_policies_stay_sound_while_trials_come_and_go():
    for seed in range(budget(ci=6, soak=200)):
        rng, arrivals, reports, now = Random(seed), [], {}, 0.0
        for i in range(10):
            now += rng.choice([0.0, rng.uniform(0, 20)])
            width = rng.randint(1, 2)
            own = Job(f"j{i}", "a", now, width, min_width=1, max_width=width + rng.randint(0, 4))
            arrivals.append(Arrival(own, rng.uniform(5, 60)))
            shares = sorted({round(rng.random() * 0.99, 3) for _ in range(3)})
            reports[own.id] = tuple(
                ProgressPoint(share, 1.0, None, (rng.randint(1, 2), rng.randint(2, 6)))
                for share in shares
            )
        for label in ("wfq:sizes=40:weights=2+1:zeta=0.5", "afs", "themis-lease:lease=10",
                      "elastic-srsf"):  # fmt: skip
            core, ended = Core(pools(a=6), make(label), Options(resume_cost=1.0)), 0
            log = PerfectRunTimes({each.job.id: each.duration for each in arrivals})
            for instant in play(core, arrivals, run_times=log, reports=reports):
                core.check()
                ended += sum(type(event) is JobFinished for event in instant.events)
            assert ended == 10, (label, seed)
