"""Apps: a job of several trials, which come and go while it runs, is one elastic job."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Reported, Resized, Started, Stopped, Submit, Tick
from daemon.model.outputs import Accepted, PreemptEffect, Refused, ResizeEffect, StartEffect
from sia.limits import MAX_TRIALS
from tests.support.daemons.daemons import job, setup

POLICIES = ("wfq:weights=1:zeta=0", "elastic-srsf", "themis-lease:lease=10", "afs", "fair-share")


class Story:
    """A pool of eight GPUs; what is to start or stop does so at once."""

    def __init__(self, policy=POLICIES[0]):
        self.engine = Engine.new(replace(setup([8], a=8), policy=policy, resizes=True))
        self.now, self.answer = 0.0, None

    def step(self, now, *inputs):
        self.now, todo = now, [*inputs]
        self.answer = None
        while todo or self.answer is None:
            step = self.engine.step(now, todo or [Tick()])
            self.engine.check()
            self.answer = self.answer or step.answers[0]
            todo = []
            for effect in step.effects:
                if isinstance(effect, StartEffect):
                    todo.append(Started(effect.job, effect.attempt))
                elif isinstance(effect, PreemptEffect):
                    todo.append(Stopped(effect.job, effect.attempt))
                elif isinstance(effect, ResizeEffect):
                    [(node, gpus)] = effect.nodes
                    kept = ((node, gpus[: effect.width]),)
                    todo.append(Resized(effect.job, effect.attempt, effect.width, kept))
        return self.answer

    def submit(self, job_id, run_time, gpus=1, **more):
        elastic = {"min_width": 1, "max_width": gpus, **more}
        return self.step(self.now, Submit(job(job_id, gpus=gpus, **elastic), run_time))

    def trials(self, now, job_id, *trials, **more):
        attempt = self.engine.book.jobs[job_id].attempt
        return self.step(now, Reported(job_id, attempt, None, trials=trials, **more))

    def core(self, job_id):
        return self.engine.core.state.jobs[self.engine.book.jobs[job_id].core]

    @property
    def widths(self):
        return {name: record.gpus for name, record in self.engine.book.jobs.items()
                if record.taken}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_that_is_added_or_stopped_changes_the_widths_and_the_work(policy):
    story = Story(policy)
    story.submit("app", 100.0)
    assert story.widths == {"app": 1}
    assert story.trials(10.0, "app", (1, 90.0), (1, 100.0), (2, 50.0)) == Accepted()
    assert story.widths == {"app": 4}
    core = story.core("app")
    assert (core.job.min_width, core.job.max_width) == (1, 4)
    assert core.run_time == pytest.approx(10.0 + 290.0)  # GPU-seconds, as its own width is 1
    assert story.trials(20.0, "app", (1, 40.0)) == Accepted()
    assert story.widths == {"app": 1}
    core = story.core("app")
    assert core.run_time == pytest.approx(10.0 + 4 * 10.0 + 40.0)
    assert core.end(core.run_time) == pytest.approx(60.0)


def test_trials_that_need_more_gpus_than_are_left_take_them_by_the_policy():
    story = Story()
    story.submit("app", 100.0)
    story.submit("later", 100.0, gpus=8)
    assert story.widths == {"app": 1, "later": 7}
    story.trials(10.0, "app", *[(1, 60.0)] * 6)
    assert story.widths == {"app": 6, "later": 2}


def test_an_app_that_was_stopped_and_a_daemon_that_restarts_know_the_trials():
    story = Story("elastic-srsf")
    story.submit("app", 100.0)
    story.trials(1.0, "app", (2, 500.0), (2, 500.0))
    again = Engine.restore(story.engine.dump())
    short = Submit(job("short", gpus=8, min_width=8), 5.0)
    for engine in (story.engine, again):
        engine.step(2.0, [short])
    assert again.dump() == story.engine.dump()
    story.step(3.0, Stopped("app", story.engine.book.jobs["app"].attempt))
    assert story.widths["short"] == 8
    story.step(8.0, Ended("short", 1))
    assert story.widths["app"] == 4  # both trials go on
    assert story.engine.book.jobs["app"].spec.max_width == 1, "what was submitted stays"


def test_ten_apps_at_random_stay_sound():
    for seed in range(3):
        rng, story = Random(seed), Story(POLICIES[seed])
        for i in range(10):
            story.submit(f"app{i}", 50.0, gpus=rng.choice([1, 1, 2]))
        for now in range(2, 60, 2):
            runs = [name for name in story.widths if name != "0"]
            if runs:
                trials = [(rng.randint(1, 3), rng.uniform(0, 60)) for _ in range(rng.randint(1, 5))]
                story.trials(float(now), rng.choice(runs), *trials)


@pytest.mark.parametrize(
    ("trials", "more", "said"),
    [
        ([(0, 5.0)], {}, "a trial needs 1 to"),
        ([(1, -5.0)], {}, "a trial needs 1 to"),
        ([(1, float("nan"))], {}, "a trial needs 1 to"),
        ([(1, 5.0)] * (MAX_TRIALS + 1), {}, "more than 1000 trials"),
        ([], {}, "either done, iterations or trials"),
        ([(1, 5.0)], {"speed": 0.0}, "speed must be"),
    ],
)
def test_trials_that_cannot_be_are_refused(trials, more, said):
    story = Story()
    story.submit("app", 100.0)
    answer = story.trials(1.0, "app", *trials, **more)
    assert isinstance(answer, Refused)
    assert said in answer.detail
    assert answer.mend
    assert story.core("app").job.max_width == 1


def test_only_elastic_jobs_under_elastic_policies_have_trials():
    story = Story("fcfs")
    story.submit("app", 100.0)
    assert "fcfs does not use the trials" in story.trials(1.0, "app", (1, 5.0)).detail
    story = Story()
    story.submit("app", 100.0, preemptible="never")
    assert "cannot change its width" in story.trials(1.0, "app", (1, 5.0)).detail
    story = Story()
    story.submit("app", 100.0)
    both = Reported("app", 1, 0.5, trials=((1, 5.0),))
    assert "either done, iterations or trials" in story.step(1.0, both).detail
    story.submit("wide", 100.0, gpus=8, min_width=8)
    assert story.widths == {"app": 1}
    story = Story()
    story.submit("script", 100.0, gpus=4, min_width=4, origin="17")
    assert "submitted to the cluster itself" in story.trials(1.0, "script", (1, 5.0)).detail


def test_work_is_counted_from_the_start_of_a_job_that_was_resized_while_it_waited_for_gpus():
    story = Story("elastic-srsf")
    story.submit("long", 100.0, gpus=8, min_width=8)
    engine = story.engine
    engine.step(1.0, [Submit(job("next", gpus=8, min_width=1, max_width=8), 50.0)])
    shorter = Submit(job("short", gpus=4, min_width=4, max_width=4), 5.0)
    step = engine.step(6.0, [shorter, Stopped("long", 1)])
    engine.step(
        6.0, [Started(e.job, e.attempt) for e in step.effects if isinstance(e, StartEffect)]
    )
    engine.check()
    assert (story.core("next").width, story.core("next").done) == (4, 0.0)
