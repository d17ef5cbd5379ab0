"""The virtual clock of a pool: priorities and quotas that change, against the plainest model."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json

from sia import Job
from sia.limits import STRIDE
from sia.virtual.virtual_clock import VirtualClock

OVER = 1e9

lives = st.tuples(
    st.integers(0, 30),  # submitted
    st.integers(1, 4),  # GPUs
    st.integers(0, 15),  # how long it runs
    st.integers(-1, 2),  # priority
    st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(-1, 2))),  # another one, when
    st.integers(0, 40),  # how long it really waits
    st.one_of(st.none(), st.integers(0, 50)),  # after how long it is withdrawn, if it waits then
)


def told(jobs, quotas):
    """All that happens, in the order of the core: (time, rank, what, arguments)."""
    for i, (submit, width, run, priority, change, waits, gone) in enumerate(jobs):
        name = f"j{i}"
        yield submit, 2, "submitted", (Job(name, "a", submit, width, priority=priority),)
        withdrawn = gone is not None and gone <= waits
        if change is not None and change[0] < (gone if withdrawn else waits):
            yield submit + change[0], 3, "ranked", (name, change[1])
        if withdrawn:
            yield submit + gone, 4, "withdrawn", (name,)
        else:
            yield submit + waits, 5, "started", (name,)
            after = 6 if not run else 1  # what ends at once has started before
            yield submit + waits + run, after, "finished", (name,)
    for when, quota in quotas:
        yield when, 1.5, "requota", (quota,)


def clocked(jobs, quotas):
    """The verdicts of a clock that is looked at now and then, and dumped and restored."""
    clock, found = VirtualClock.of(8), []
    story = sorted(told(jobs, quotas), key=lambda each: each[:2])
    for i, (now, _, what, arguments) in enumerate(story):
        if i % 2:
            clock.advance(now)
            clock.check()
        if i % 5 == 0:
            dumped = json.encode(clock)
            clock = json.decode(dumped, type=VirtualClock)
            assert json.encode(clock) == dumped
        getattr(clock, what)(float(now), *arguments)
        found += clock.take()
    clock.advance(OVER)
    clock.check()
    return clock, found + clock.take()


def alone(jobs, quotas):
    """When each job starts, were nobody else there; at each time everything is looked at anew."""
    began, over = {}, {}
    times = {when for when, _ in quotas}
    for submit, _, _, _, change, _, gone in jobs:
        times |= {submit, submit + (change or (0,))[0], submit + (gone or 0)}
    while times:
        now = min(times)
        quota = next((q for when, q in sorted(quotas, reverse=True) if when <= now), 8)
        queue = []
        for i, (submit, _, _, priority, change, waits, gone) in enumerate(jobs):
            withdrawn = gone is not None and gone <= waits
            if submit > now or i in began or (withdrawn and submit + gone <= now):
                continue
            real = gone if withdrawn else waits
            changed = change is not None and change[0] < real and submit + change[0] <= now
            queue.append((-(change[1] if changed else priority), submit, i))
        used = sum(jobs[i][1] for i in began if over[i] > now)
        times.remove(now)
        for _, _, i in sorted(queue):
            submit, width, run, _, _, waits, gone = jobs[i]
            if used + width > quota:
                break
            used += width
            began[i] = now
            over[i] = submit + gone if gone is not None and gone <= waits else now + run
            times.add(over[i])  # what ends at once makes room at the same time
    return began


def apart(quotas):
    """One change at a time."""
    return sorted(dict(quotas).items())


@given(
    st.lists(lives, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(4, 8)), max_size=3),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_virtual_clock_gives_the_schedule_of_the_pool_alone(jobs, quotas):
    quotas = apart(quotas)
    clock, found = clocked(jobs, quotas)
    true = alone(jobs, quotas)
    said = {verdict.job_id: verdict for verdict in found}
    assert len(said) == len(found)
    for i, (submit, _, run, _, _, waits, gone) in enumerate(jobs):
        verdict = said.pop(f"j{i}", None)
        if gone is not None and gone <= waits:  # said only of those that would have run
            late = i in true and true[i] < submit + gone
            assert (verdict is not None) is late
            if late:
                assert (verdict.began, verdict.started) == (true[i], None)
                assert verdict.later == submit + gone - true[i]
        else:
            assert (verdict.began, verdict.started) == (true[i], submit + waits)
            assert verdict.ended == submit + waits + run
    assert not said
    assert not clock.twins
    assert clock.used == 0


def verdicts(clock):
    return [(verdict.job_id, verdict.began, verdict.later) for verdict in clock.take()]


def test_the_next_event_is_known_while_no_job_is_pending():
    clock = VirtualClock.of(4)
    clock.submitted(0.0, Job("long", "a", 0.0, 2))
    clock.advance(10.0)
    clock.started(10.0, "long")  # it runs ten seconds behind
    clock.submitted(20.0, Job("fits", "a", 20.0, 2))
    clock.submitted(21.0, Job("not", "a", 21.0, 1))
    clock.started(21.0, "fits")
    clock.finished(24.0, "fits")
    clock.advance(25.0)
    assert verdicts(clock) == [("fits", 20.0, 1.0)]
    clock.started(25.0, "not")
    clock.finished(26.0, "not")
    clock.advance(30.0)
    assert clock.quiet() == 33.0  # then it is known that "long" runs beyond 23 alone
    assert verdicts(clock) == []
    clock.advance(34.0)
    assert verdicts(clock) == [("not", 23.0, 2.0)]
    clock.finished(40.0, "long")
    assert verdicts(clock) == [("long", 0.0, 10.0)]


def test_a_job_that_would_never_have_run_alone_is_reported_as_such():
    clock = VirtualClock.of(4)
    clock.submitted(0.0, Job("full", "a", 0.0, 4))
    clock.started(0.0, "full")
    clock.submitted(1.0, Job("wide", "a", 1.0, 4))
    clock.requota(2.0, 2)
    clock.submitted(3.0, Job("behind", "a", 3.0, 1))
    clock.finished(4.0, "full")
    clock.started(4.0, "wide")  # on what others lend
    clock.started(5.0, "behind")
    clock.finished(6.0, "behind")
    clock.advance(9.0)
    assert verdicts(clock) == [("full", 0.0, 0.0)]  # alone the others would wait
    clock.finished(10.0, "wide")
    clock.advance(11.0)
    assert verdicts(clock) == [
        ("wide", None, -float("inf")), ("behind", 10.0, -5.0),
    ]  # fmt: skip
    clock.check()


def test_jobs_from_before_the_clock_get_no_verdict_but_hold_gpus():
    clock = VirtualClock.of(4)
    clock.adopt("before", 3, -5.0)
    clock.submitted(0.0, Job("waited", "a", 0.0, 1), judged=False)
    clock.submitted(1.0, Job("new", "a", 1.0, 2))
    clock.advance(1.0)
    for job in ("waited", "new"):
        clock.started(1.0, job)
    clock.finished(2.0, "waited")
    clock.finished(3.0, "new")
    clock.finished(8.0, "before")
    clock.advance(20.0)
    assert verdicts(clock) == [("new", 8.0, -7.0)]
    assert clock.quiet() == float("inf")


def test_places_in_a_queue_fit_into_json():
    clock = VirtualClock.of(1)
    clock.submitted(0.0, Job("j", "a", 0.0, 1, priority=1_000_000))
    again = json.decode(json.encode(clock), type=VirtualClock)
    again.advance(1.0)
    assert again.twins["j"].sequence == 1 - 1_000_000 * STRIDE
