"""What is foreseen of a job that changes its batch size, worked out by hand, and `sia regimes`."""

import json
from math import fsum
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sia.model import Regime
from sia.policies.shockwave.foresight import (
    RULES,
    ForeseenJob,
    Reached,
    draws,
    foreseen,
    predict,
    reached_by,
)
from tests.support.shell import sia


def reached(*seen, partial=0.0):
    return Reached(tuple(map(float, seen)), partial)


@pytest.mark.parametrize(
    ("seen", "epochs"),
    [
        ((0,), [25, 25, 25, 25]),
        ((10,), [25, 25, 25, 25]),
        ((40,), [40, 20, 20, 20]),  # it lasts as long as it already has; the others share the rest
        ((10, 0), [10, 30, 30, 30]),
        ((10, 50), [10, 50, 20, 20]),
        ((10, 20, 30, 5), [10, 20, 30, 40]),  # the last gets all that is left
        ((10, 20, 30, 5, 5), [10, 20, 30, 5, 35]),  # one more than K
    ],
)
def test_the_restatement_update_is_as_worked_out_by_hand_for_a_hundred_epochs(seen, epochs):
    assert predict("restate", 100, 4, reached(*seen)) == epochs


def test_the_bayesian_update_adds_observations_to_a_uniform_prior():
    assert predict("bayes", 100, 4, reached(20)) == pytest.approx(
        [37.5, 62.5 / 3, 62.5 / 3, 62.5 / 3]
    )


def test_the_bayesian_update_does_not_know_that_finished_regimes_are_over():
    assert predict("bayes", 100, 2, reached(60, 10)) == pytest.approx([11000 / 170, 6000 / 170])


def test_a_reactive_forecast_knows_only_the_present_speed():
    assert predict("last", 100, 4, reached(20, 10)) == [20, 80, 0, 0]


def test_a_job_is_between_two_epochs_of_its_real_regimes():
    regimes = [Regime("8", 3, 20.0), Regime("16", 2, 15.0)]
    assert reached_by(regimes, 0.0) == reached(0)
    assert reached_by(regimes, 45.0) == reached(2, partial=5.0)
    assert reached_by(regimes, 60.0) == reached(3, 0)
    assert reached_by(regimes, 80.0) == reached(3, 1, partial=5.0)
    assert reached_by(regimes, 90.0) == reached(3, 2)


def test_the_remaining_regimes_begin_within_the_present_epoch():
    regimes = [Regime("8", 3, 20.0), Regime("16", 2, 15.0)]
    ahead = foreseen("perfect", "accordion", regimes, 45.0).ahead()
    assert ahead == [(pytest.approx(0.75), 20.0), (2.0, 15.0)]


def test_the_last_smaller_epoch_of_gns_is_not_predicted():
    regimes = [Regime("10", 11, 60.0), Regime("20", 10, 40.0), Regime("10", 1, 60.0)]
    assert foreseen("restate", "gns", regimes, 0.0).epochs == [11, 11]
    late = foreseen("restate", "gns", regimes, 11 * 60 + 10 * 40 + 30)
    assert late.epochs == [11, 10, 1]
    assert late.remaining == pytest.approx(30)


@given(
    st.sampled_from(RULES[:3]),
    st.integers(1, 6),
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.integers(0, 30),
)
def test_a_prediction_has_all_epochs_and_no_fewer_than_were_seen(rule, regimes, seen, more):
    epochs = predict(rule, sum(seen) + more + 1, regimes, reached(*seen))
    assert fsum(epochs) == pytest.approx(sum(seen) + more + 1)
    assert len(epochs) == max(regimes, len(seen))
    if rule != "bayes":
        assert all(a >= b for a, b in zip(epochs, seen, strict=False))


def test_drawn_trajectories_keep_what_was_seen_and_are_on_average_what_is_foreseen():
    job = ForeseenJob([10, 30, 30, 30], [40, 30, 20, 10], 550, reached(10, 5))
    found = draws(job, 100, 400, "a")
    assert found == draws(job, 100, 400, "a") != draws(job, 100, 400, "b")
    for path in found:
        assert fsum(epochs for epochs, _ in path) == pytest.approx(85)
        assert [seconds for _, seconds in path] == [30, 20, 10]
    means = [fsum(path[k][0] for path in found) / 400 for k in range(3)]
    assert means == pytest.approx([25, 30, 30], abs=1)
    late = job._replace(reached=reached(10, 80))
    assert all(fsum(e for e, _ in path) < 10.001 for path in draws(late, 100, 9, "a"))


# The command


def ask(tmp_path, jobs, *more):
    path = tmp_path / "jobs.json"
    path.write_text(jobs if isinstance(jobs, str) else json.dumps(jobs))
    return sia("regimes", "predict", path, *more)


JOB = {
    "id": "a", "mode": "gns", "epochs": 100, "regimes": 4, "configs": ["32", "64", "128", "256"],
    "seconds": [40, 30, 20, 10], "seen": [10, 5], "partial": 6,
}  # fmt: skip


def test_total_and_remaining_time_follow_from_the_regimes(tmp_path):
    (found,) = json.loads(ask(tmp_path, [JOB], "--json").stdout)
    assert found == {
        "id": "a", "epochs": [10, 30, 30, 30], "total": 400 + 900 + 600 + 300,
        "remaining": 2200 - 400 - 150 - 6,
    }  # fmt: skip


def test_accordion_alternates_and_gns_ends_at_its_limit(tmp_path):
    accordion = JOB | {"mode": "accordion", "configs": [32, 256], "seconds": {"32": 40, "256": 10},
                       "regimes": 3, "seen": [20, 10, 1, 0]}  # fmt: skip
    gns = JOB | {"regimes": 9}
    found = json.loads(ask(tmp_path, [accordion, gns], "--json").stdout)
    assert found[0]["epochs"] == [20, 10, 1, 69]
    assert found[0]["total"] == 20 * 40 + 10 * 10 + 40 + 69 * 10
    assert len(found[1]["epochs"]) == 4


def drawn_job(random, number):
    """A job with doubling batch sizes, and what it has seen: at times more regimes than K."""
    count = random.randint(1, 5)
    seconds = [float(random.randint(5, 60)) for _ in range(count)]
    seen = [random.randint(0, 9) for _ in range(random.randint(1, count + random.randint(0, 1)))]
    return {
        "id": number, "mode": "gns", "regimes": count, "seconds": seconds, "seen": seen,
        "configs": [str(16 * 2**i) for i in range(count)], "epochs": sum(seen) + 20,
        "partial": random.choice([0, random.randint(1, 4)]),
    }  # fmt: skip


def as_in_the_paper(rule, job):
    """Epochs by regime as the rules' own words have them."""
    seen, whole = job["seen"], job["epochs"]
    count = max(job["regimes"], len(seen))
    if rule == "bayes":
        parts = [whole / count + (seen[i] if i < len(seen) else 0) for i in range(count)]
        return [part * whole / sum(parts) for part in parts]
    left, later = whole - sum(seen[:-1]), count - len(seen)
    now = max(left / (later + 1), seen[-1]) if rule == "restate" and later else left
    return [*seen[:-1], now, *[(left - now) / later] * later] if later else [*seen[:-1], now]


@pytest.mark.parametrize("rule", ["restate", "bayes", "last"])
def test_predictions_are_what_a_plain_reading_of_the_rules_gives(tmp_path, rule):
    random = Random(rule)
    jobs = [drawn_job(random, number) for number in range(100)]
    found = json.loads(ask(tmp_path, jobs, "--json", "--rule", rule).stdout)
    for job, said in zip(jobs, found, strict=True):
        epochs = as_in_the_paper(rule, job)
        seconds = [*job["seconds"], job["seconds"][-1]]  # one more than K has the last size
        total = sum(map(float.__mul__, map(float, epochs), seconds))
        run = sum(map(float.__mul__, map(float, job["seen"]), seconds)) + job["partial"]
        assert said["epochs"] == pytest.approx(epochs)
        assert said["total"] == pytest.approx(total)
        assert said["remaining"] == pytest.approx(max(0.0, total - run))


def test_the_true_regimes_are_given_one_by_one(tmp_path):
    job = JOB | {"epochs": [10, 20, 30, 40]}
    (found,) = json.loads(ask(tmp_path, [job], "--json", "--rule", "perfect").stdout)
    assert found["total"] == 400 + 600 + 600 + 400
    assert "a" in ask(tmp_path, [job]).stdout


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"regimes": 0}, "job a: regimes is 0; write the number of regimes, 1 to 1000"),
        ({"regimes": 10**9}, "job a: regimes is 1000000000; write the number"),
        ({"epochs": 1e300}, "job a: epochs are 1e+300; write at most 1e+15"),
        ({"mode": "gsn"}, "job a: 'gsn' is not a known mode; use one of"),
        ({"epochs": 0}, "job a: epochs must be above 0 (got 0)"),
        ({"seen": [60, 41]}, "job a: it has run past its end: 101 of 100 epochs are done"),
        ({"seen": [-1]}, "job a: seen must be whole numbers of at least 0"),
        ({"seen": [1.5]}, "job a: seen must be whole numbers"),
        ({"partial": -1}, "job a: partial is -1"),
        ({"seconds": [1, 2, 3]}, "job a: 3 seconds for 4 configs"),
        ({"seconds": [1, 2, 3, 0]}, "job a: seconds must be above 0"),
        ({"seconds": {"32": 1}}, "job a: seconds lacks configuration 64"),
        ({"configs": ["64", "32", "128", "256"]}, "job a: batch size 32 follows 64, but gns never"),
        ({"epochs": "many"}, "Expected `float | array`"),
        ({"extra": 1}, "unknown field `extra`"),
    ],
)
def test_wrong_facts_cost_one_line(tmp_path, wrong, line):
    done = ask(tmp_path, [JOB | wrong], "--json")
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nan_and_perfect_without_the_truth_are_refused(tmp_path):
    assert "correct the file" in ask(tmp_path, '[{"id": NaN}]').stderr
    assert "rule perfect needs" in ask(tmp_path, [JOB], "--rule", "perfect").stderr
    assert "no such file" in sia("regimes", "predict", tmp_path / "none.json").stderr
