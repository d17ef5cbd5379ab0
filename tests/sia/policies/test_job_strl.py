"""STRL that a job brings: what it may say, what a start is worth, and how `jvu` runs it."""

from random import Random

import pytest

from sia.events import NodeBack, NodeOut
from sia.limits import MAX_ASK_TEXT, MAX_ASKS
from sia.model import GpuNode, Job
from sia.policies.jvu.params import JvuParams
from sia.policies.jvu.worth import JobWorth
from sia.state.bounds import JobFieldError, check_fields
from sia.state.nodes import NodeTable
from sia.state.strl import StrlAsk, StrlError, asks_of, quickest, worth_of
from tests.sia.policies.test_jvu import RACKS, arrival, played

NCK = "(nck gpu 2 0 60 100)"


def test_an_expression_is_read_as_what_starts_on_which_set_are_worth():
    text = f"(job me (max {NCK} (scale 2 (nck (m1 m2) 2 30 90 5)) (barrier 3 (nck all 2 0 80 4))))"
    assert asks_of(text) == (
        StrlAsk("gpu", 2, 0.0, 60.0, 100.0),
        StrlAsk("(m1 m2)", 2, 30.0, 90.0, 10.0),
        StrlAsk("all", 2, 0.0, 80.0, 3.0),
    )
    assert quickest(text) == 60.0
    assert asks_of("(max (barrier 5 (nck all 1 0 9 4)) (nck gpu 1 0 9 4))")[0].among == "gpu"


def test_a_start_is_worth_what_the_last_nck_of_its_set_says():
    for seed in range(200):
        rnd = Random(seed)
        said = [(rnd.choice("ab"), rnd.randint(0, 5), rnd.randint(0, 9)) for _ in range(5)]
        parts = (f"(nck {among} 1 {start} 10 {value})" for among, start, value in said)
        asks = asks_of(f"(max {' '.join(parts)})")
        for among in "ab":
            for waited in range(7):
                known = 0
                for start in range(waited + 1):
                    here = [v for a, s, v in said if (a, s) == (among, start)]
                    known = max(here) if here else known
                assert worth_of(asks, among, waited) == known, (said, among, waited)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(nck gpu 2 0 60", "this parenthesis is not closed; write"),
        ("", "there are 0 expressions; write one, such as (max"),
        (NCK * 2, "there are 2 expressions; write one"),
        ("gpu", "'gpu' is no expression; write an operator in parentheses"),
        ("(lnck gpu 2 0 60 1)", "a job cannot ask for lnck, which takes any number of GPUs; write"),
        ("(killnck all 1 0 9 1)", "a job cannot ask for killnck, which is for the scheduler"),
        (f"(sum {NCK} {NCK})", "a job runs on GPUs of one set, which sum is not; write max"),
        ("(nck () 2 0 60 1)", "the set is empty; name at least one node"),
        ("(nck gpu 2 -1 60 1)", "START is '-1'; write a number of at least 0"),
        ("(nck gpu 2 0 60 nan)", "VALUE is 'nan'; write a number"),
        ("(nck gpu 0 0 60 1)", "K is '0'; write a whole number from 1"),
        (f"(max {NCK * (MAX_ASKS + 1)})", f"there are {MAX_ASKS + 1} times nck; give at most"),
        (f"(max {NCK * 1000})", f"the request has 20006 characters; write at most {MAX_ASK_TEXT}"),
        (f"{NCK}\n", "the request has line breaks or unprintable characters; write it in one"),
    ],
)
def test_a_wrong_expression_is_refused_with_place_and_mend(text, said):
    with pytest.raises(StrlError) as refused:
        asks_of(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"strl": "(nck gpu 3 0 60 1)"}, "strl: K is 3, but the job has 2 GPUs; write 2"),
        ({"strl": "(nck gpu 2 0 60 0)"}, "strl: no start is worth anything; give at least one"),
        ({"strl": "(nck gpu 2 0 0 1)"}, "strl: DUR is 0; write the seconds that the job runs"),
        ({"strl": "(nck gpu 2 0 9 2e6)"}, "strl: VALUE is 2e+06; write at most 1e+06"),
        ({"strl": f"{'(scale 1e12 ' * 30}{NCK}{')' * 30}"}, "strl: VALUE is inf; write at most"),
        ({"strl": f"{'(scale 1e12 ' * 30}(nck gpu 2 0 9 0){')' * 30}"}, "strl: VALUE is nan;"),
        ({"strl": f"(max {NCK} (nck gpu 2 9 70 1))"}, "strl: DUR of gpu is 60 and 70; write the"),
        ({"strl": f"(max {NCK} (nck all 2 0 1e6 1))"}, "strl: DUR is 60 and 1e+06; write at most"),
        ({"strl": NCK, "prefers": "gpu"}, "strl says what prefers says; leave out either strl or"),
        ({"prefers": "(m1x"}, "prefers begins with a parenthesis; write an attribute of nodes, or"),
        ({"strl": NCK, "value": 5.0}, "strl says what value says; leave out either strl or value"),
    ],
)
def test_an_expression_that_does_not_fit_the_job_is_refused(wishes, said):
    with pytest.raises(JobFieldError) as refused:
        check_fields(Job("j", "a", 0.0, 2, **wishes))
    assert said in str(refused.value)


def test_places_are_the_sets_on_which_a_start_is_worth_something_the_fastest_first():
    text = "(max (nck all 2 0 40 9) (nck (m1 m4) 2 0 10 0) {} (nck gpu 2 0 20 0))"
    more = "(nck gpu 2 60 20 9) (nck (m3 m4) 2 0 20 9) (nck (m1 m4) 2 50 10 0)"
    asked = text.format(more)
    table = NodeTable(RACKS)
    job = Job("j", "a", 0.0, 2, strl=asked)
    assert [(slow, among) for _, slow, among in table.places(job)] == [
        (1.0, "gpu"),
        (1.0, "(m3 m4)"),
        (2.0, "all"),
    ]
    assert quickest(asked) == 20.0
    assert table.slowdown(job, ["m1", "m4"]) == 2.0
    assert table.closest(job, 2) == (("m1", 1), ("m2", 1))
    check_fields(job)


def test_gpus_that_are_close_together_are_never_where_a_job_cannot_run():
    table = NodeTable(RACKS)
    wide = sum(node.gpus for node in RACKS if "gpu" in node.attributes) + 1
    assert table.closest(Job("j", "a", 0.0, wide), wide)
    assert table.closest(Job("j", "a", 0.0, wide, prefers="gpu", slowdown=1.5), wide)
    assert not table.closest(Job("j", "a", 0.0, wide, prefers="gpu"), wide)
    assert not table.closest(Job("j", "a", 0.0, wide, strl=f"(nck gpu {wide} 0 9 1)"), wide)


def test_lists_of_nodes_are_not_kept():
    table = NodeTable([GpuNode(f"n{i}", 1) for i in range(100)])
    kept = len(table._preferred)
    for i in range(99):
        text = f"(nck (n{i} n{i + 1}) 1 0 9 1)"
        assert len(table.places(Job("j", "a", 0.0, 1, strl=text))) == 1
    assert len(table._preferred) == kept


@pytest.mark.parametrize("label", ["prio", "jvu:greedy"])
def test_a_job_runs_on_the_fastest_set_that_has_room_wherever_it_stands_in_the_text(label):
    text = "(max (nck all 2 0 40 9) (nck (m3 m4) 2 0 20 9))"
    assert played(label, [arrival("j", 0, 2, 20, strl=text)], nodes=RACKS)["j"][0][1] == 20


def test_places_are_the_sets_in_their_order_with_the_factor_on_the_run_time():
    table = NodeTable(RACKS)
    job = Job("j", "a", 0.0, 2, strl="(max (nck same:rack 2 0 20 9) (nck (m1 m3) 2 0 30 9))")
    assert [(sorted(nodes), slow) for nodes, slow, _ in table.places(job)] == [
        (["m1", "m2"], 1.0),
        (["m3", "m4"], 1.0),
        (["m1", "m3"], 1.5),
    ]
    assert table.room(job) == 2
    assert table.slowdown(job, ["m1", "m3"]) == 1.5
    assert table.slowdown(job, ["m1"]) == 1.0
    assert table.slowdown(job, ["m1", "m4"]) is None
    unknown = Job("j", "a", 0.0, 2, strl="(max (nck fast 2 0 20 9) (nck (m1 m9) 2 0 30 9))")
    assert table.room(unknown) == 0


@pytest.mark.parametrize("label", ["jvu", "jvu:greedy"])
def test_a_job_waits_for_the_set_that_is_worth_more_and_runs_longer_elsewhere(label):
    busy = arrival("busy", 0, 2, 20, prefers="gpu", preemptible="never")
    text = "(max (nck gpu 2 0 20 {gpu}) (nck all 2 0 40 50))"
    waits = arrival("asks", 0, 2, 20, strl=text.format(gpu=100))
    goes = arrival("asks", 0, 2, 20, strl=text.format(gpu=40))
    assert played(label, [busy, waits], nodes=RACKS)["asks"] == [(20, 40, False)]
    assert played(label, [busy, goes], nodes=RACKS)["asks"] == [(0, 40, False)]


@pytest.mark.parametrize("label", ["jvu", "jvu:greedy", "prio"])
def test_a_job_starts_on_the_nodes_that_it_names_only(label):
    jobs = [
        arrival("named", 0, 1, 20, strl="(nck (m3) 1 0 20 5)"),
        arrival("again", 0, 1, 20, strl="(nck (m3) 1 0 20 5)"),
    ]
    assert played(label, jobs, nodes=RACKS) == {
        "named": [(0, 20, False)],
        "again": [(20, 40, False)],
    }


def test_a_job_does_not_start_before_its_first_start_nor_after_it_is_worth_nothing():
    later = arrival("later", 0, 4, 10, strl="(nck all 4 32 10 5)")
    assert played("jvu", [later])["later"] == [(35, 45, False)]
    # From 10 s on it is worth nothing: it waits until it is overdue, and runs then.
    gone = arrival("gone", 0, 4, 10, strl="(max (nck all 4 0 10 5) (nck all 4 10 10 0))")
    first = arrival("first", 0, 4, 20, 20, preemptible="never")
    assert played("jvu:patience=60", [first, gone])["gone"][0][0] == 65


@pytest.mark.parametrize("gpus", [1, 2])
def test_nobody_waits_for_an_overdue_job_whose_nodes_are_out_or_too_few(gpus):
    facts = [NodeOut(1.0, "m1", "bad"), NodeBack(401.0, "m1")]
    others = [arrival(f"j{i}", 40 * i, 1, 20) for i in range(12)]
    named = arrival("named", 5, gpus, 20, strl=f"(nck (m1) {gpus} 0 20 5)")
    jobs = sorted([*others, named], key=lambda each: each.job.submit)
    runs = played("jvu:greedy:patience=60", jobs, nodes=RACKS, facts=facts)
    assert [runs[f"j{i}"][0][0] for i in range(12)] == [40 * i for i in range(12)]
    assert runs["named"] == ([(405, 425, False)] if gpus == 1 else [])


def test_an_overdue_job_does_not_start_on_a_set_before_its_start_there():
    text = "(max (nck {} 2 0 20 100) (nck (m3 m4) 2 {} 40 1))"
    never = arrival("asks", 0, 2, 20, strl=text.format("(m9)", 5000))
    assert played("jvu:patience=60", [never], nodes=RACKS)["asks"] == [(5000, 5040, False)]
    busy = arrival("busy", 0, 2, 90, strl="(nck gpu 2 0 90 900)", preemptible="never")
    waits = arrival("asks", 5, 2, 20, strl=text.format("gpu", 5000))
    runs = played("jvu:patience=10", [busy, waits], nodes=RACKS)
    assert runs["asks"] == [(90, 110, False)]


def test_what_a_running_job_asked_for_is_what_its_kill_costs():
    cheap = arrival("old", 0, 4, 100, strl="(nck all 4 0 100 5)")
    dear = arrival("old", 0, 4, 100, strl="(nck all 4 0 100 2000)")
    urgent = arrival("urgent", 10, 4, 10, 30)
    assert played("jvu", [cheap, urgent])["urgent"] == [(10, 20, False)]
    assert played("jvu", [dear, urgent])["old"] == [(0, 100, False)]


@pytest.mark.parametrize("label", ["jvu", "jvu:puol", "jvu:pu"])
def test_a_deadline_beside_it_bounds_until_when_a_start_is_worth_that(label):
    text = "(nck all 4 0 20 1000)"
    jobs = [arrival("b", 0, 4, 20, 100, strl=text), arrival("a", 0, 4, 20, 20, strl=text)]
    assert played(label, jobs) == {"a": [(0, 20, False)], "b": [(20, 40, False)]}


def test_after_its_deadline_a_job_is_worth_as_much_as_others_then_but_no_more_than_it_says():
    said = Job("j", "a", 0.0, 1, deadline=100.0, strl="(max (nck a 1 0 9 500) (nck b 1 0 9 0.2))")
    usual = Job("j", "a", 0.0, 1, deadline=100.0, value=500.0)
    for letters in ("puo", "pu"):
        worth = JobWorth(JvuParams(letters))
        for now in (0.0, 120.0):
            for begin in (80.0, 90.0, 91.0, 120.0, 150.0, 191.0, 300.0):
                of_a, of_b = (
                    worth.choice(said, begin, begin + 10.0, now, among) for among in ("a", "b")
                )
                assert of_a == worth.end(usual, begin + 10.0, now)
                assert of_b <= min(0.2, of_a)


def test_a_snapshot_keeps_what_jobs_ask_for():
    jobs = [
        arrival(f"j{i}", 3 * i, 2, 30, strl="(max (nck gpu 2 0 30 9) (nck all 2 60 45 4))")
        for i in range(5)
    ]
    assert played("jvu", jobs, nodes=RACKS, restarts=Random(1)) == played("jvu", jobs, nodes=RACKS)


def test_without_nodes_all_gpus_are_each_set():
    jobs = [arrival("j", 0, 4, 20, strl="(max (nck gpu 4 30 20 9) (nck (m1) 4 60 40 4))")]
    assert played("jvu", jobs)["j"] == [(30, 50, False)]
    assert NodeTable([GpuNode("m1", 4)]).room(jobs[0].job) == 4
