"""The rule that recommends a policy, on outcomes for which the answer is plain."""

import pytest

from replay.run.run import Settings
from replay.verdict.kinds import in_order, kind_of
from replay.verdict.rule import LEAST_GAIN, NEARLY, Outcome, recommend
from sia.limits import MAX_SLOWED_PCT

EARLY, BOLD, KNOWING = "sia@peaks+survival", "sia@peaks:0.8+survival:0.8", "sia@perfect+perfect"


def outcome(policy, kind="today", *, sooner=60.0, slowed=0, worst=0.0, lost=0, lent=10.0, of=5000):
    return Outcome(policy, kind, of, sooner, 3600.0, slowed, worst, lost, lent, 3)


def verdict(*outcomes, can_share=True):
    said = recommend(outcomes, can_share=can_share)
    return said.answer, said.recommended


def test_the_policy_with_the_largest_gain_among_those_that_delay_few_jobs_is_recommended():
    bold = outcome(BOLD, sooner=600, slowed=2, worst=360)
    assert verdict(outcome(EARLY), bold, outcome("mmfs", sooner=9)) == ("share", BOLD)


def test_the_largest_gain_is_not_recommended_if_it_delays_too_many_jobs():
    most = int(5000 * MAX_SLOWED_PCT / 100)
    at_the_limit = outcome(EARLY, slowed=most, worst=10)
    assert verdict(at_the_limit, outcome("mmfs", sooner=900, slowed=most + 1)) == ("share", EARLY)


def test_a_policy_under_which_jobs_never_end_is_not_recommended():
    assert verdict(outcome(EARLY), outcome("mmfs", sooner=900, lost=1)) == ("share", EARLY)


def test_a_policy_that_knows_the_future_is_never_recommended():
    known = outcome(KNOWING, "future", sooner=9000)
    assert verdict(known, outcome(EARLY)) == ("share", EARLY)
    assert verdict(known) == ("only the future", None)


@pytest.mark.parametrize("kind", ["comparison", "alone"])
def test_neither_is_one_for_comparison_or_one_that_does_not_share(kind):
    assert verdict(outcome("other", kind, sooner=9000), outcome(EARLY)) == ("share", EARLY)


def test_of_policies_with_equal_gains_the_one_that_delays_fewer_jobs_is_recommended():
    two, one = outcome(BOLD, slowed=2, worst=1), outcome(EARLY, slowed=1, worst=99)
    assert verdict(two, one) == ("share", EARLY)
    assert verdict(one, outcome("mmfs", slowed=1, worst=98)) == ("share", "mmfs")
    assert verdict(one, outcome("mmfs", slowed=1, worst=99)) == ("share", EARLY)


def test_a_gain_that_is_almost_the_largest_counts_as_equal():
    most = outcome("kueue-best-effort", sooner=1000, slowed=4)
    nearly = outcome(EARLY, sooner=NEARLY * 1000)
    assert verdict(most, nearly) == ("share", EARLY)
    assert verdict(most, outcome(EARLY, sooner=NEARLY * 1000 - 1)) == ("share", most.policy)
    assert verdict(outcome("mmfs", sooner=1000), nearly) == ("share", "mmfs")


def test_no_policy_is_recommended_if_all_that_gain_delay_too_many():
    worse, better = outcome("mmfs", sooner=900, slowed=90), outcome(EARLY, sooner=60, slowed=30)
    said = recommend([worse, better], can_share=True)
    assert (said.answer, said.recommended, said.today) == ("too many delayed", None, better)


def test_without_gain_the_answer_is_not_to_share():
    assert verdict(outcome(EARLY, sooner=LEAST_GAIN / 2)) == ("no gain", None)
    assert verdict(outcome(EARLY, sooner=-60)) == ("no gain", None)
    assert verdict(outcome(EARLY, sooner=0, lent=0)) == ("nothing lent", None)


def test_an_impossible_verdict_names_its_reason():
    assert verdict(outcome(EARLY), can_share=False) == ("pools alone", None)
    assert verdict() == ("no policy shares", None)
    assert verdict(outcome("ssf", "alone")) == ("no policy shares", None)
    assert verdict(outcome(EARLY, of=0)) == ("nothing measured", None)


def test_the_upper_bound_is_the_same_policy_with_perfect_forecasts():
    sia, other = outcome("sia", "future", sooner=100), outcome("gssf", "future", sooner=900)
    recall = outcome("sia-recall", "future", sooner=80)
    assert recommend([other, sia, outcome(EARLY)], can_share=True).perfect == sia
    assert recommend([other, sia, outcome("mmfs")], can_share=True).perfect == sia
    own = outcome("sia-recall@peaks+survival")
    assert recommend([other, sia, recall, own], can_share=True).perfect == recall
    assert recommend([other, own], can_share=True).perfect == other
    assert recommend([own], can_share=True).perfect is None


KINDS = {
    "fcfs": "baseline",
    "ssf": "alone",
    "easy": "alone",
    "mmfs": "today",
    "sia": "future",
    "sia-vc": "future",
    "gssf": "future",
    EARLY: "today",
    "sia@none+history": "today",
    "sia@perfect+survival": "future",
    "sia@peaks+perfect": "future",
    "sia@random+survival": "comparison",
    "themis@perfect+history": "today",
    "not-installed": "comparison",
}


@pytest.mark.parametrize("label", KINDS)
def test_the_kind_of_a_policy_follows_from_its_needs(label):
    assert kind_of(Settings([]), label) == KINDS[label]


def test_the_forecasts_of_the_options_count_for_policies_without_their_own():
    settings = Settings([], forecast="peaks", durations="survival")
    assert [kind_of(settings, label) for label in ("sia", "gssf", "sia-vc")] == [
        "today", "today", "future",
    ]  # fmt: skip


def test_reports_list_what_to_decide_by_first_and_what_does_not_share_last():
    asked = ["ssf", "sia", "mmfs", "fcfs", EARLY, "sia@random+random"]
    assert in_order(Settings([]), asked) == [
        "fcfs", "mmfs", EARLY, "sia", "sia@random+random", "ssf",
    ]  # fmt: skip
