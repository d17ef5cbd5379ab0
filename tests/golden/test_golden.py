"""Golden outputs: fixed commands still write the outputs whose sums are stored."""

from importlib.metadata import entry_points

import pytest

from golden.cases import (
    CASES,
    ELASTIC,
    IN_CELLS,
    IN_POOLS,
    IN_ROUNDS,
    ON_NODES,
    WITH_DEADLINES,
    sums_of,
)
from golden.stored import differences, stored_sums

REWRITE = "if the change is intended: python -m tests.golden --write"


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_as_stored(case, traces, tmp_path):
    changed = differences(case, stored_sums().get(case, {}), sums_of(case, tmp_path))
    assert not changed, "\n".join([*changed, REWRITE])


def test_every_policy_is_in_a_case():
    policies = {point.name for point in entry_points(group="sia.policies")}
    assert policies == {*IN_POOLS, *IN_CELLS, *ELASTIC, *IN_ROUNDS, *ON_NODES, *WITH_DEADLINES}


def test_every_stored_sum_is_of_a_case():
    assert list(stored_sums()) == list(CASES)


def test_a_difference_names_the_case_and_the_file():
    stored = {"same": "1", "other": "1", "gone": "1"}
    found = {"same": "1", "other": "2", "new": "1"}
    assert differences("preset", stored, found) == [
        "preset: gone is missing now",
        "preset: new has no stored sum",
        "preset: other differs from the stored output",
    ]
