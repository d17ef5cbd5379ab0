"""Labels of policies and the options in them."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from sia.contract.labels import folder_of, name_of, params_of
from sia.policies import load, make, names


class Options(Struct, frozen=True, rename={"weight": "lambda"}):
    mode: str = "p"
    cycle: Annotated[float, Meta(gt=0)] = 5.0
    rounds: int = 20
    fill: bool = False
    sizes: tuple[float, ...] = ()
    slo: float | None = None
    weight: float = 1.0
    preset: Literal["", "fair", "busy"] = ""


ALL = "mode, cycle, rounds, fill, sizes, slo, lambda, preset"


def options(label, **defaults):
    return params_of(label, Options, defaults)


def test_a_label_without_options_has_the_defaults():
    assert options("jvu") == Options()


def test_options_are_set_by_key():
    assert options("jvu:cycle=2:rounds=3:lambda=0.5") == Options(cycle=2.0, rounds=3, weight=0.5)


def test_a_bare_word_sets_a_flag_or_the_first_option():
    assert options("chronus:fill") == Options(fill=True)
    assert options("jvu:puo:fill:cycle=1") == Options(mode="puo", fill=True, cycle=1.0)


def test_a_plus_joins_a_list():
    assert options("wfq:sizes=3600+28800") == Options(sizes=(3600.0, 28800.0))
    assert options("wfq:sizes=60") == Options(sizes=(60.0,))


def test_an_optional_option_takes_a_number():
    assert options("yarn-cs:slo=70") == Options(slo=70.0)


def test_a_flag_may_be_spelled_out():
    assert options("chronus:fill=no", fill=True) == Options(fill=False)


def test_a_label_replaces_defaults():
    assert options("jvu:cycle=2", cycle=9.0, rounds=4) == Options(cycle=2.0, rounds=4)


@pytest.mark.parametrize(("label", "why"), [
    ("jvu:cycel=2", f"jvu has no option 'cycel'; it has {ALL}. Did you mean 'cycle'?"),
    ("jvu:cycle=soon", "cycle must be a number (got 'soon')"),
    ("jvu:cycle=2m", "cycle must be a number (got '2m'); times in labels are seconds: write 120"),
    ("jvu:rounds=1.5", "rounds must be a whole number (got '1.5')"),
    ("jvu:rounds=3m", "rounds must be a whole number (got '3m')"),
    ("jvu:sizes=1+x", "sizes must be a number (got 'x')"),
    ("jvu:cycle=nan", "cycle must be above 0 (got nan); change it"),
    ("jvu:cycle=0", "cycle must be above 0 (got 0); change it"),
    ("jvu:cycle=inf", "cycle must be finite (got inf); change it"),
    ("jvu:lambda=nan", "lambda must be finite (got nan); change it"),
    ("jvu:sizes=60+1e400", "sizes must be finite (got inf); change it"),
    ("jvu:cycle=1:cycle=2", "option cycle is given twice; leave one out"),
    ("jvu:cycle", "option cycle needs a value; write cycle=VALUE"),
    ("jvu:fill=maybe", "fill must be yes or no (got 'maybe')"),
    ("jvu:preset=far", "preset must be one of fair, busy (got 'far')"),
    ("jvu:preset=", "preset is empty; write preset=VALUE or leave it out"),
    ("jvu:", "mode is empty; write mode=VALUE or leave it out"),
])  # fmt: skip
def test_a_wrong_option_is_named_with_the_fix(label, why):
    with pytest.raises(ValueError, match=r"^jvu:") as error:
        options(label)
    assert str(error.value) == f"{label}: {why}"


def test_a_misspelt_flag_is_told_from_the_first_option():
    class Lease(Struct, frozen=True):
        lease: float = 1200.0
        fill: bool = False

    with pytest.raises(ValueError, match=r"lease must be a number .*Did you mean 'fill'"):
        params_of("chronus:fil", Lease)


def test_a_number_out_of_bounds_in_a_list_is_named_with_the_fix():
    with pytest.raises(ValueError, match=r"thresholds must be at least 60 \(got 5\); change it"):
        make("las:thresholds=3600+5")


def test_a_policy_without_options_takes_none():
    with pytest.raises(ValueError, match="fcfs:x: fcfs has no options; leave out :x"):
        make("fcfs:x")


def test_predictors_are_not_part_of_the_options():
    label = "sia-recall:recall=0.5@peaks:0.9+survival"
    assert name_of(label) == "sia-recall"
    assert make(label).params.recall == 0.5


def test_the_folder_of_results_is_named_as_the_label():
    assert folder_of("filter:f=2/3*3+1/3") == "filter:f=2_3*3+1_3"


@pytest.mark.parametrize("name", names())
def test_every_policy_can_be_made_by_its_name(name):
    assert make(name).params == load(name).Params()
