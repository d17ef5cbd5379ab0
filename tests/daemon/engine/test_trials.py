"""Trials in a daemon: a job runs on the profiler's GPUs, and what it reports gives its run time."""

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import Configured, Ended, Reported, Started, Stopped, Tick
from daemon.model.job import JobPhase
from daemon.model.outputs import PreemptEffect, Refused, StartEffect
from tests.support.daemons.daemons import setup, submit

POLICY = "chronus:profile=300:capacity=16"


class Story:
    """An engine of nodes with 8 GPUs that is restored from its snapshot after every step."""

    def __init__(self, nodes=8, policy=POLICY, stops_per_hour=0, **more):
        made = setup((8,) * nodes, a=8 * nodes)
        options = replace(made.options, owners=True, stops_per_hour=stops_per_hour)
        self.engine = Engine.new(replace(made, policy=policy, options=options, **more))

    def step(self, now, *inputs):
        self.last = self.engine.step(float(now), [*inputs] or [Tick()])
        self.engine.check()
        self.engine = Engine.restore(self.engine.dump())
        return self.last.answers[0]

    @property
    def starts(self):
        found = (each for each in self.last.effects if isinstance(each, StartEffect))
        return {each.job: each.width or each.spec.gpus for each in found}

    @property
    def promises(self):
        return {n.job: n.data for n in self.last.notices if n.kind in ("promised", "rejected")}

    def run_time(self, name):
        return self.engine.core.state.jobs[self.engine.book.jobs[name].core].run_time


def test_what_a_job_reports_in_its_trial_is_its_estimate():
    """It has 1,000 iterations of 3 s, and begins anew after its trial."""
    story = Story()
    story.step(0, submit("j", gpus=4, run_time=0.0, iterations=1000, deadline=8000.0))
    assert (story.starts, story.promises) == ({"j": 4}, {})
    story.step(10, Started("j", 1))
    story.step(70, Reported("j", 1, iterations=20))
    story.step(130, Reported("j", 1, iterations=40))
    story.step(300)
    assert [type(effect) for effect in story.last.effects] == [PreemptEffect]
    assert story.promises["j"]["planned"] == 4200.0
    story.step(301, Stopped("j", 1))
    record = story.engine.book.jobs["j"]
    assert (record.done, record.trial, record.expected) == (0.0, None, 3000.0)
    story.step(1200)
    assert story.starts == {"j": 4}


def test_a_wide_job_is_tried_on_one_node_and_then_on_two():
    """An iteration takes 5 s on a node and 6 s on two, so 5 + 2 · 1 s on its four."""
    story = Story()
    wide = submit("wide", gpus=32, run_time=0.0, iterations=1000, deadline=20_000.0)
    story.step(0, wide, submit("slim", gpus=8, run_time=1000.0, deadline=9000.0))
    assert story.starts == {"wide": 8, "slim": 8}
    story.step(0, Started("wide", 1), Started("slim", 1))
    story.step(100, Reported("wide", 1, iterations=20))
    assert story.run_time("wide") == 5000.0
    story.step(300)
    assert story.promises.keys() == {"slim"}
    assert story.starts == {}
    story.step(305, Stopped("wide", 1), Stopped("slim", 1))
    assert story.starts == {"wide": 16}
    story.step(310, Started("wide", 2))
    story.step(320, Reported("wide", 2, iterations=1))
    assert story.run_time("wide") == 5000.0  # what it had done when it began is not known
    story.step(380, Reported("wide", 2, iterations=11))
    assert story.run_time("wide") == pytest.approx(7000.0)
    story.step(600)
    assert story.promises["wide"]["planned"] == pytest.approx(8200.0)
    story.step(601, Stopped("wide", 2))
    story.step(1200)
    assert story.starts == {"wide": 32, "slim": 8}


def test_a_job_that_ends_in_its_trial_is_done():
    story = Story()
    story.step(0, submit("j", gpus=4, run_time=0.0, deadline=400.0))
    story.step(1, Started("j", 1))
    story.step(200, Ended("j", 1, 0))
    assert story.engine.book.job("j").phase.value == "finished"
    assert (story.promises, story.engine.book.jobs) == ({}, {})


def test_without_a_report_the_stated_estimate_counts_and_without_one_nothing_is_promised():
    story = Story()
    stated = submit("stated", gpus=4, run_time=1000.0, deadline=4000.0)
    story.step(0, stated, submit("silent", gpus=4, run_time=0.0, deadline=4000.0))
    story.step(0, Started("stated", 1), Started("silent", 1))
    story.step(300)
    assert story.promises["stated"]["planned"] == 2200.0
    assert story.promises["silent"]["why"] == "its run time is not known; give an estimate"


def test_iterations_have_to_be_those_of_the_job():
    story = Story()
    story.step(0, submit("j", iterations=10), submit("none"))
    story.step(0, Started("j", 1), Started("none", 1))
    for report, status, words in [
        (Reported("none", 1, iterations=1), 409, "has not said how many iterations it has"),
        (Reported("j", 1, iterations=11), 422, "iterations must be 0 to 10 (got 11)"),
        (Reported("j", 1, iterations=-1), 422, "iterations must be 0 to 10 (got -1)"),
        (Reported("j", 1, 0.5, iterations=5), 422, "either done, iterations or trials"),
        (Reported("j", 1), 422, "either done, iterations or trials"),
    ]:
        answer = story.step(1, report)
        assert isinstance(answer, Refused)
        assert (answer.status, words in answer.detail) == (status, True)
    story.step(2, Reported("j", 1, iterations=5))
    answer = story.step(4, Reported("j", 1, iterations=4))
    assert answer.detail == "job j has reported 0.5 done, and now 0.4"


def test_a_job_has_one_iteration_or_more_and_a_bounded_number():
    story = Story()
    for number in (0, 10**12 + 1):
        answer = story.step(0, submit("j", iterations=number))
        assert (answer.status, answer.detail) == (422, "iterations must be 1 to 1000000000000")


def test_a_report_in_a_trial_without_a_regime_keeps_the_last_one():
    story = Story()
    story.step(0, submit("j", gpus=4, run_time=1000.0, iterations=1000))
    story.step(10, Started("j", 1))
    story.step(70, Reported("j", 1, iterations=20, regime=2))
    story.step(130, Reported("j", 1, iterations=40))
    assert story.engine.book.jobs["j"].progress.regime == 2
    assert story.step(190, Reported("j", 1, iterations=60, regime=1)).title == "regime goes back"


@pytest.mark.parametrize("policy", ["sia", "fcfs", "chronus:profile=0"])
def test_another_policy_stops_trials_that_are_too_narrow_and_lets_the_others_run(policy):
    """`wide` is tried on 8 of its 16 GPUs, and starts on all of them once it has stopped."""
    story = Story()
    usual = {"run_time": 900.0, "iterations": 1000}
    story.step(0, submit("wide", gpus=16, **usual, user="u"), submit("slim", gpus=8, **usual))
    story.step(0, Started("wide", 1), Started("slim", 1))
    story.step(90, Reported("slim", 1, iterations=60))
    story.step(100, Configured(replace(story.engine.book.setup, policy=policy)))
    records = story.engine.book.jobs
    assert [effect.job for effect in story.last.effects] == ["wide"]
    assert (records["wide"].phase, records["wide"].killed) == (JobPhase.STOPPING, True)
    slim = story.engine.core.state.jobs[records["slim"].core]
    assert (records["slim"].trial, slim.trial, slim.width, slim.end(slim.run_time)) == (
        None, False, 8, 1500.0,
    )  # fmt: skip
    assert records["slim"].reason.startswith("its trial goes on as an ordinary run")
    story.step(110, Stopped("wide", 1))
    story.step(300)
    assert records["wide"].spec.gpus == 16
    record = story.engine.book.jobs["wide"]
    wide = story.engine.core.state.jobs[record.core]
    assert (wide.width, record.gpus, record.attempt, record.done, wide.trial) == (
        16,
        16,
        2,
        0,
        False,
    )


def test_ends_of_trials_do_not_count_as_stops():
    """With one stop an hour both trials end, and each job may still be stopped once."""
    story = Story(stops_per_hour=1, stops_per_job=1)
    usual = {"run_time": 9000.0, "iterations": 1000, "preemptible": 30.0}
    story.step(0, *(submit(name, gpus=8, **usual) for name in ("a", "b")))
    story.step(0, Started("a", 1), Started("b", 1))
    story.step(300)
    assert sorted(effect.job for effect in story.last.effects) == ["a", "b"]
    story.step(310, Stopped("a", 1), Stopped("b", 1))
    jobs = story.engine.core.state.jobs
    assert [job.job.preemptible for job in jobs.values()] == [30.0, 30.0]
    assert [(r.stops, r.trials) for r in story.engine.book.jobs.values()] == [(1, 1), (1, 1)]
    assert len(story.engine.core.committer.stops) == 0


def test_a_waiting_job_can_say_for_which_trial_lease_or_cycle_it_waits():
    story = Story(nodes=3)
    usual = {"run_time": 1000.0, "deadline": 9000.0}
    jobs = [submit("tried", gpus=16, **usual), submit("next", gpus=8, run_time=5000.0)]
    wide = submit("wide", gpus=24, run_time=100.0, preemptible="never")
    story.step(0, *jobs, submit("mine", gpus=16, **usual, user="u"), wide)
    story.step(0, submit("more", gpus=16, **usual, user="u"))

    def awaited(name):
        core = story.engine.core
        return core.policy.awaits(core.state.jobs[story.engine.book.jobs[name].core])

    trial = "its trial on 8 GPUs of 16, with 16 GPUs of trials ahead of it"
    assert awaited("mine") == (trial, None)
    assert awaited("more") == ("its user to be let in for further trials", 300.0)
    assert awaited("wide")[0].startswith("GPUs of the profiler, which leaves 8")
    story.step(0, Started("tried", 1), Started("next", 1))
    story.step(300)
    story.step(300, Stopped("next", 1), Stopped("tried", 1))
    assert awaited("next") == ("the next cycle of best effort, in which the shortest jobs go first",
                               600.0)  # fmt: skip


def test_an_adopted_job_is_tried_only_on_all_of_its_gpus():
    """Slurm and Kubernetes start a job that was submitted to them as its owner asked."""
    story = Story()
    usual = {"run_time": 1000.0, "deadline": 9000.0, "origin": "5@100"}
    story.step(0, submit("slim", gpus=8, nodes=1, **usual))
    assert story.starts == {"slim": 8}
    story.step(0, submit("wide", gpus=16, nodes=2, **usual))
    assert story.promises["wide"]["planned"] == 2200.0
    story.step(300)
    assert story.promises["slim"]["planned"] == 2200.0
