"""`sia report`: what it sends, where to, and misuse in one line."""

import pytest
from click.testing import CliRunner

from daemon.cli import report as module
from daemon.cli.report import report

JOB = {
    "SIA_JOB_ID": "j/1", "SIA_ATTEMPT": "2", "SIA_REPORT_URL": "http://127.0.0.1:1/,http://127.0.0.1:2",
    "SIA_REPORT_TOKEN": "sia-job_2_0123456789abcdef_j",
}  # fmt: skip


class Daemon:
    """Takes the place of the client, and remembers what it was asked."""

    asked = None

    def __init__(self, where):
        Daemon.where = where

    def ask(self, *asked):
        Daemon.asked = asked
        return {"done": 0.4, "at": 0.0, "speed": 1.0, "end": None}

    def close(self):
        pass


@pytest.fixture
def sia(monkeypatch, tmp_path):
    """Run the command with an environment; return the exit code and the last line."""
    monkeypatch.setattr(module, "Client", Daemon)
    monkeypatch.chdir(tmp_path)

    def run(*words, env=JOB):
        clear = dict.fromkeys((*JOB, "SIA_URL", "SIA_TOKEN", "SIA_TOKEN_FILE"))
        Daemon.asked = None
        ended = CliRunner().invoke(report, [*map(str, words)], env={**clear, **env})
        return ended.exit_code, ended.output.splitlines()[-1]

    return run


def test_sia_report_needs_only_the_share_that_is_done(sia):
    assert sia("--done", 0.4) == (0, "j/1: 40.0% done")
    body = {"done": 0.4, "attempt": 2, "speed": None, "regime": None}
    assert Daemon.asked == ("POST", "/v1/jobs/j%2F1/progress", body)
    assert Daemon.where.urls == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert Daemon.where.token == JOB["SIA_REPORT_TOKEN"]


def test_an_app_reports_the_trials_that_are_left(sia):
    assert sia("--trials", "1:3600;2:90.5") == (0, "j/1: 40.0% done")
    trials = ((1, 3600.0), (2, 90.5))
    body = {"attempt": 2, "speed": None, "regime": None, "trials": trials}
    assert Daemon.asked == ("POST", "/v1/jobs/j%2F1/progress", body)


def test_a_job_reports_how_many_of_its_iterations_are_done(sia):
    assert sia("--iterations", 400)[0] == 0
    assert Daemon.asked[2] == {"attempt": 2, "speed": None, "regime": None, "iterations": 400}


def test_options_override_the_environment(sia, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-a-submitter")
    token.chmod(0o600)
    words = ["--job", "k", "--attempt", 1, "--url", "http://127.0.0.1:3", "--token-file", token]
    assert sia("--done", 1, "--speed", 1.7, "--regime", 3, *words)[0] == 0
    body = {"done": 1.0, "attempt": 1, "speed": 1.7, "regime": 3}
    assert Daemon.asked == ("POST", "/v1/jobs/k/progress", body)
    assert (Daemon.where.urls, Daemon.where.token) == (
        ("http://127.0.0.1:3",), "a-token-of-a-submitter",
    )  # fmt: skip


def test_outside_of_a_job_sia_report_uses_the_daemon_of_other_commands(sia):
    env = {"SIA_URL": "http://127.0.0.1:4", "SIA_TOKEN": "a-token-of-an-operator"}
    assert sia("--done", 0.4, "--job", "j", "--attempt", 1, env=env)[0] == 0
    assert Daemon.where.urls == ("http://127.0.0.1:4",)
    assert Daemon.where.token == "a-token-of-an-operator"


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ([], JOB, "give either --done, --iterations or --trials"),
        (["--done", 0.4, "--trials", "1:60"], JOB, "give either --done, --iterations or --trials"),
        (["--trials", "1:60;x"], JOB, "is not a list of GPUs:seconds; write one like"),
        (["--done", "nan"], JOB, "write a number, like 0.5"),
        (["--done", 1.5], JOB, "is not in the range 0<=x<=1"),
        (["--done", 0.4, "--speed", "nan"], JOB, "write a number, like 0.001"),
        (["--done", 0.4, "--speed", 0], JOB, "is not in the range"),
        (["--done", 0.4, "--regime", -1], JOB, "is not in the range"),
        (["--done", 0.4, "--regime", "x"], JOB, "'x' is not a valid whole number"),
        (["--done", 0.4], {**JOB, "SIA_JOB_ID": ""}, "--job is missing, and SIA_JOB_ID is not set"),
        (["--done", 0.4], {**JOB, "SIA_ATTEMPT": ""}, "SIA_ATTEMPT is not set"),
        (["--done", 0.4], {**JOB, "SIA_ATTEMPT": "two"}, "'two' is not a number from 1"),
        (["--done", 0.4], {**JOB, "SIA_REPORT_URL": "there"}, "SIA_REPORT_URL: 'there' is not an"),
        (["--done", 0.4], {**JOB, "SIA_REPORT_TOKEN": "x"}, "SIA_REPORT_TOKEN: contains no token"),
    ],
)
def test_misuse_is_reported_in_one_line(sia, words, env, said):
    code, line = sia(*words, env=env)
    assert code == 2
    assert said in line
    assert Daemon.asked is None
