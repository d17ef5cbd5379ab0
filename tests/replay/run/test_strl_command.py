"""`sia strl solve`."""

import json

import pytest
from click.testing import CliRunner

from replay.cli.strl import strl
from tests.sia.policies.test_strl import PAPER


@pytest.fixture
def run(tmp_path):
    def run(text, *options):
        path = tmp_path / "jobs.strl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return CliRunner().invoke(strl, ["solve", str(path), *options])

    return run


def test_the_answer_names_objective_leaves_and_units(run):
    answer = json.loads(run(PAPER, "--json").stdout)
    assert answer["objective"] == 189
    assert answer["optimal"]
    assert [(each["job"], each["operator"], each["units"]) for each in answer["chosen"]] == [
        ("job1", "killnck", {"m2": 1, "m3": 1}),
        ("job2", "nck", {"m3": 1, "m4": 1}),
        ("job3", "nck", {"m1": 1, "m2": 1}),
    ]


def test_without_json_it_is_a_line_for_each_leaf(run):
    assert run(PAPER).stdout.splitlines() == [
        "objective: 189",
        "job1: kill 2 units at 10: m2, m3",
        "job2: 2 units from 10 to 30: m3, m4",
        "job3: 2 units from 10 to 30: m1, m2",
    ]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("(nodes m1", (), "line 1, column 1: this parenthesis is not closed; write"),
        (b"(nodes m\xff)", (), "the text is not UTF-8; save it as UTF-8"),
    ],
)
def test_misuse_is_one_line_with_the_mend(run, text, options, said):
    result = run(text, *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
