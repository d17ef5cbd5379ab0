"""The command line as a whole: help, mistyped names, and JSON for scripts."""

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from sia.console.catalogue import CATALOGUE
from sia.console.groups import sentence
from sia.console.main import cli
from sia.contract.plugins import plugins
from sia.wording import did_you_mean
from tests.support.shell import sia

WITHOUT_JSON = {
    "sia asyncapi": "prints JSON always",
    "sia completion": "prints a shell script",
    "sia demo": "is watched by a person; its daemon answers in JSON",
    "sia journal accept-loss": "asks before it discards, and prints one line",
    "sia log": "copies the output of a job byte for byte",
}
"""Commands that have no --json, each with the reason."""


def commands(
    command: click.Command = cli, path: str = "sia"
) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, f"{path} {name}")


def test_the_catalogue_has_each_command_once_with_its_own_sentence():
    listed = [item for group in CATALOGUE.values() for item in group.items()]
    real = {name: sentence(point.load()) for name, point in plugins("sia.commands").items()}
    assert len(listed) == len(real)
    assert dict(listed) == real


def test_help_shows_whole_sentences_in_groups_and_imports_no_command():
    told = [sys.executable, "-X", "importtime", "-m", "sia", "--help"]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    words = " ".join(done.stdout.split())
    for title, rows in CATALOGUE.items():
        assert f"\n{title}:\n" in done.stdout
        assert all(f"{name} {text}" in words for name, text in rows.items())
    assert not re.search(r"\| +(replay|oracle|daemon|predictors)\b", done.stderr)


def test_each_command_and_option_explains_itself():
    for path, command in commands():
        assert sentence(command).endswith("."), path
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.opts[0]}"


def test_each_command_answers_in_json_unless_there_is_a_reason():
    without = {
        path
        for path, command in commands()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without == set(WITHOUT_JSON)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stauts"], "sia: No such command 'stauts'. Did you mean 'status'? (see sia --help)\n"),
        (["trace", "sinth"], "No such command 'sinth'. Did you mean 'synth'? (see sia trace"),
        (["xyzzy"], "sia: No such command 'xyzzy'. (see sia --help)\n"),
    ],
)
def test_a_mistyped_command_names_the_did_you_mean(words, says):
    done = sia(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_text_in_place_of_a_bounded_number_is_called_not_a_number():
    given = ("--t1", "1", "--gpus", "8", "--iterations", "20")
    done = sia("chronus", "estimate", *given, "--t2", "fast")
    assert "'--t2': 'fast' is not a valid number. (see" in done.stderr
    done = sia("chronus", "solve", "--trace", "log.csv", "--gpus", "eight")
    assert "'--gpus': 'eight' is not a valid whole number. (see" in done.stderr


def test_an_unknown_name_without_a_near_one_has_no_suggestion():
    assert did_you_mean("visoin", ["speech", "vision"]) == " Did you mean 'vision'?"
    assert did_you_mean("visoin", []) == ""
