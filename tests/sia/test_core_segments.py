"""Jobs that are stopped, go on and change their width."""

import pytest

from predictors.perfect import PerfectRunTimes
from sia import Core, Job, Stream
from sia.contract.policy import Policy
from sia.contract.proposals import Preempt, Resize, Start
from sia.core.playout import play
from sia.core.snapshot import decode, dump, encode, restore
from sia.decisions import PreemptJob, ResizeJob, StartJob
from sia.events import JobCancelled, JobFinished, JobSubmitted, NodeBack, NodeOut
from sia.model import RESTART, GpuNode
from sia.policies.preemptive.las import Las, LasParams
from sia.policies.preemptive.srtf import Srtf
from tests.sia.policies.test_priorities import started, submitted
from tests.support.builders import SMALL, job, pools
from tests.support.cores import OnCue, on_cue, photograph, refusals, start_dedicated


def say(core, now, *cues):
    """Have these proposed at that time; the decisions."""
    core.policy.cues += cues
    decisions = core.step(now, [])
    core.check()
    return decisions


def test_a_stopped_job_keeps_its_place_in_the_queue_and_its_work():
    core = on_cue(job("one").gpus(2).runs(50), job("two").gpus(2).runs(50), a=2)
    one, two = core.state.jobs["one"], core.state.jobs["two"]
    say(core, 0.0, Start(two, Stream.DEDICATED, "first"))
    decisions = say(core, 20.0, Preempt(two, "stop"), Start(one, Stream.DEDICATED, "now"))
    assert decisions == [PreemptJob("two", "stop"), StartJob("one", Stream.DEDICATED, "now")]
    assert (two.stream, two.done, core.state.pools["a"].head) == (None, 20.0, two)
    say(core, 30.0, Preempt(one, "stop"))
    assert core.state.pools["a"].head is one  # it came first
    assert [waiting.job.id for waiting in core.state.pools["a"].waiting()] == ["one", "two"]
    say(core, 30.0, Start(two, Stream.DEDICATED, "again"))
    assert (two.attempt, two.work(40.0), two.end(50.0)) == (2, 30.0, 60.0)


def test_a_job_that_stops_gives_back_what_it_borrowed():
    core = on_cue(job("j").gpus(4).runs(9), a=2, b=3)
    say(core, 0.0, Start(core.state.jobs["j"], Stream.SPARE, "go"))
    assert core.state.groups[0].idle == 1
    say(core, 1.0, Preempt(core.state.jobs["j"], "stop"))
    assert core.state.groups[0].idle == 5
    assert not core.state.pools["b"].lent_to


def test_a_job_is_withdrawn_after_it_was_stopped():
    core = on_cue(job("j").runs(9), a=2)
    say(core, 0.0, Start(core.state.jobs["j"], Stream.DEDICATED, "go"))
    say(core, 1.0, Preempt(core.state.jobs["j"], "stop"))
    core.step(2.0, [JobCancelled(2.0, "j")])
    core.check()
    assert not core.state.jobs
    assert not core.state.pools["a"].waiting()


def test_a_job_that_changes_its_width_works_as_its_demand_says():
    elastic = Job("j", "a", 0.0, 2, max_width=4, demand=((1, 100.0), (2, 60.0), (4, 40.0)))
    core = Core(pools(a=4), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    j = core.state.jobs["j"]
    say(core, 0.0, Start(j, Stream.DEDICATED, "narrow", 1))
    assert (j.width, j.speed, j.end(60.0)) == (1, 0.6, 100.0)
    decisions = say(core, 50.0, Resize(j, 4, Stream.DEDICATED, "wide"))
    assert decisions == [ResizeJob("j", 4, Stream.DEDICATED, "wide")]
    assert (j.done, j.speed, j.end(60.0)) == (30.0, 1.5, 70.0)


def test_a_widened_job_borrows_the_gpus_that_its_pool_lacks():
    elastic = Job("j", "a", 0.0, 2, max_width=4)
    core = Core(pools(a=2, b=2), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    j = core.state.jobs["j"]
    say(core, 0.0, Start(j, Stream.DEDICATED, "go"))
    loans = (("a", 2), ("b", 2))
    decisions = say(core, 1.0, Resize(j, 4, Stream.SPARE, "more"))
    assert decisions == [ResizeJob("j", 4, Stream.SPARE, "more", loans)]
    decisions = say(core, 2.0, Resize(j, 3, Stream.SPARE, "less"))
    assert decisions == [ResizeJob("j", 3, Stream.SPARE, "less", (("a", 2), ("b", 1)))]


@pytest.mark.parametrize(
    ("cue", "why"),
    [
        (lambda j: Preempt(j["waits"], "x"), "it does not run"),
        (lambda j: Resize(j["waits"], 1, Stream.DEDICATED, "x"), "it does not run"),
        (lambda j: Resize(j["runs"], 3, Stream.DEDICATED, "x"), "cannot run on 3 GPUs"),
        (lambda j: Resize(j["runs"], 0, Stream.DEDICATED, "x"), "cannot run on 0 GPUs"),
        (lambda j: Start(j["waits"], Stream.DEDICATED, "x", 2), "cannot run on 2 GPUs"),
        (
            lambda j: Start(j["waits"], Stream.DEDICATED, "x", -1),
            "cannot run on -1 GPUs",
        ),
        (lambda j: Resize(j["elastic"], 7, Stream.SPARE, "x"), "cannot run on 7 GPUs"),
        (
            lambda j: Resize(j["elastic"], 5, Stream.SPARE, "x"),
            "needs 5 GPUs, 4 would be idle",
        ),
        (
            lambda j: Resize(j["elastic"], 3, Stream.DEDICATED, "x"),
            "a would exceed its quota",
        ),
    ],
)
def test_a_segment_that_does_not_fit_is_refused_and_changes_nothing(cue, why):
    core = on_cue(job("runs").gpus(2).runs(9), job("waits").runs(9), a=4, b=2)
    elastic = Job("elastic", "a", 0.0, 2, min_width=1, max_width=6)
    core.step(0.0, [JobSubmitted(0.0, elastic, 60.0)])
    for name in ("runs", "elastic"):
        start_dedicated(core, name)
    before = photograph(core)
    core.policy.cues.append(cue(core.state.jobs))
    assert [refused.why for refused in refusals(core.step(0.0, []))] == [why]
    assert photograph(core) == before
    core.check()


@pytest.mark.parametrize(
    "job",
    [
        Job("j", "a", 0.0, 2, min_width=3),
        Job("j", "a", 0.0, 2, max_width=1),
        Job("j", "a", 0.0, 2, demand=((2, 10.0), (1, 20.0))),
        Job("j", "a", 0.0, 2, demand=((1, 0.0),)),
        Job("j", "a", 0.0, 2, demand=((0, 5.0),)),
    ],
)
def test_impossible_widths_and_demands_are_an_error(job):
    core = Core(pools(a=4), OnCue(), SMALL)
    with pytest.raises(ValueError, match="job j"):
        core.step(0.0, [JobSubmitted(0.0, job, 1.0)])
    core.check()


def test_a_running_job_can_be_stopped_in_a_playout():
    core = Core(pools(a=1), Srtf(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, job("long").runs(100).job, 100.0)])
    short = job("short").at(10).runs(5)
    ends = {
        event.job_id: now
        for now, events, _ in play(
            core, [short], run_times=PerfectRunTimes({"short": 5.0}), running=[(100.0, "long")]
        )
        for event in events
        if isinstance(event, JobFinished)
    }
    assert ends == {"short": 15.0, "long": 105.0}


class Fickle(Policy):
    """Starts each job narrow, widens it, stops it and starts it again, in one pass."""

    def propose(self, now, changes):
        for waiting in [w for w in self.state.jobs.values() if w.stream is None]:
            yield Start(waiting, Stream.DEDICATED, "narrow", 1)
            yield Resize(waiting, 2, Stream.DEDICATED, "wide")
            yield Preempt(waiting, "no")
            yield Start(waiting, Stream.DEDICATED, "yes")


def test_a_job_that_is_moved_several_times_in_one_pass_ends_once():
    core = Core(pools(a=2), Fickle(), SMALL)
    ended = [
        (event.job_id, now)
        for now, events, _ in play(core, [job("j").gpus(2).runs(10)])
        for event in events
        if isinstance(event, JobFinished)
    ]
    assert ended == [("j", 10.0)]


# Starts that are taken back

LAS = LasParams((3600.0,), promote=2.0)
"""Two GPUs attain the threshold in 1,800 s."""


def on_nodes(count, *events):
    """LAS on nodes of 2 GPUs after these events at 0."""
    core = Core(
        pools(a=2 * count), Las(LAS), SMALL, nodes=[GpuNode(f"m{i}", 2) for i in range(count)]
    )
    core.step(0.0, [*events])
    return core


def again(core):
    """The core from its snapshot."""
    found = restore(decode(encode(dump(core))), Las(LAS))
    found.check()
    assert encode(dump(found)) == encode(dump(core))
    return found


def queue(core, job_id):
    return core.policy.waiting_rank(core.state.jobs[job_id])[0]


def test_a_timer_of_a_start_that_was_taken_back_does_not_count():
    core = on_nodes(2, submitted(0.0, job("x").gpus(2).runs(9000)))
    ((node, _),) = core.state.nodes.of("x")
    decisions = core.step(1000.0, [NodeOut(1000.0, node, "bad", ("x",))])
    assert isinstance(decisions[0], PreemptJob)
    assert started(decisions) == ["x"]
    state = core.state.jobs["x"]
    assert (state.attempt, state.runs, state.start) == (2, 1, 1000.0)
    core = again(core)
    core.step(1800.0, [submitted(1800.0, job("y").at(1800).gpus(2).runs(9000))])
    assert queue(core, "x") == 0  # 800 s of work
    core.step(2800.0, [submitted(2800.0, job("z").at(2800).gpus(2).runs(9000))])
    assert queue(core, "x") == 1


def test_a_start_that_was_taken_back_is_no_run_of_a_job_that_loses_its_work():
    """It ran from 0 to 2,000, and waits for 4,000 s from when its second start is taken back."""
    core = on_nodes(
        1, JobSubmitted(0.0, Job("x", "a", 0.0, 2, preemptible=RESTART), run_time=9000.0)
    )
    assert core.state.jobs["x"].runs == 1
    decisions = core.step(2000.0, [submitted(2000.0, job("new").at(2000).gpus(2).runs(100))])
    assert started(decisions) == ["new"]
    assert started(core.step(2100.0, [JobFinished(2100.0, "new")])) == ["x"]
    core.step(2200.0, [NodeOut(2200.0, "m0", "bad", ("x",))])
    state = core.state.jobs["x"]
    assert (state.stream, state.attempt, state.runs) == (None, 2, 1)
    core = again(core)
    core.step(6199.0, [])
    assert queue(core, "x") == 1
    core.step(6200.0, [])
    assert queue(core, "x") == 0
    assert started(core.step(6300.0, [NodeBack(6300.0, "m0")])) == ["x"]
    assert core.state.jobs["x"].runs == 2


def test_a_job_that_never_ran_is_in_the_first_queue_again_when_its_start_is_taken_back():
    core = on_nodes(
        1, JobSubmitted(0.0, Job("x", "a", 0.0, 2, preemptible=RESTART), run_time=9000.0)
    )
    core.step(1900.0, [submitted(1900.0, job("y").at(1900).gpus(4).runs(10))])
    assert queue(core, "x") == 1
    core.step(2000.0, [NodeOut(2000.0, "m0", "bad", ("x",))])
    assert core.state.jobs["x"].runs == 0
    core = again(core)
    core.step(2001.0, [])
    assert queue(core, "x") == 0


def test_a_node_goes_out_with_all_that_waits_for_it_or_not_at_all():
    core = on_nodes(1, submitted(0.0, job("x").gpus(2).runs(9000)))
    before = encode(dump(core))
    for wrong in (("x", "nobody"), ("nobody",)):
        with pytest.raises(ValueError, match="job nobody waits for node m0 but was not started"):
            core.step(0.0, [NodeOut(0.0, "m0", "bad", wrong)])
        assert encode(dump(core)) == before
        assert not core.state.nodes.out
    with pytest.raises(ValueError, match="cancelled but is not pending"):
        core.step(0.0, [NodeOut(0.0, "m0", "bad", ("x", "x")), JobCancelled(0.0, "nobody")])
    assert core.state.jobs["x"].stream is None
    assert not any(isinstance(each, PreemptJob) for each in core.step(1.0, []))
    core.check()
