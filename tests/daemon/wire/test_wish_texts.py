"""What a job asks for as text: options of `sia submit`, comments in Slurm, annotations."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from daemon.doors.views.notes import _notes
from daemon.model.job import JobSpec
from daemon.wire.jobs import JobRequest
from daemon.wire.wishes import parse_wish, wishes_of
from sia.model import Regime
from sia.state.checkpoint import CheckpointCommand, CheckpointSignal, parse_checkpoint
from tests.support.shell import sia

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("name", "text", "means"),
    [
        ("min_width", "2", 2),
        ("demand", "1:3600; 2:1900.5", ((1, 3600.0), (2, 1900.5))),
        ("regimes", "32:9:36.5;64:21:20:7", (("32", 9, 36.5, None), ("64", 21, 20.0, 7.0))),
        ("iterations", "20000", 20_000),
        ("deadline", "in 2h", NOW + 7200),
        ("deadline", "1900000000.5", 1900000000.5),
        ("deadline", "2026-05-01T18:00Z", datetime(2026, 5, 1, 18, tzinfo=UTC).timestamp()),
        ("deadline", "2026-05-01T18:00", datetime(2026, 5, 1, 18).astimezone().timestamp()),
        ("soft", "1.1:80+1.5:20", ((1.1, 80.0), (1.5, 20.0))),
        ("soft", "paper", ((1.1, 80.0), (1.2, 50.0), (1.5, 20.0))),
        ("value", "1.5", 1.5),
        ("budget", "4", 4.0),
        ("estimate", "1h30m", 5400.0),
        ("slowdown", "2", 2.0),
        ("min_run_time", "10m", 600.0),
        ("preemptible", "0", 0.0),
        ("preemptible", "30s", 30.0),
        ("preemptible", "restart", "restart"),
        ("preemptible", "never", "never"),
        ("prefers", " v100 ", "v100"),
        ("strl", " (nck all 2 0 60 1) ", "(nck all 2 0 60 1)"),
        ("mode", "gns", "gns"),
        ("mode", " ", ""),
    ],
)
def test_texts_are_read_as_people_mean_them(name, text, means):
    assert parse_wish(name, text, NOW) == means


def test_strl_in_a_comment_says_how_long_the_job_runs():
    text = "(max (nck gpu 2 0 60 1) (nck all 2 0 90 1))"
    assert wishes_of({"strl": text}, NOW, 2) == {"strl": text, "run_time": 60.0}
    assert wishes_of({"estimate": "2m", "strl": text}, NOW, 2)["run_time"] == 120.0


def test_demand_in_a_comment_says_how_long_the_job_runs_as_it_does_over_http():
    strl, regimes = "(nck all 2 0 60 1)", "32:9:36.5"
    for given, run_time in [
        ({}, 1900.0),
        ({"estimate": "2m"}, 120.0),
        ({"strl": strl}, 60.0),
        ({"regimes": regimes}, None),
    ]:
        wishes = wishes_of({"demand": "1:3600;2:1900", **given}, NOW, 2)
        assert wishes.get("run_time") == run_time
        if "estimate" not in given:
            wishes.pop("run_time", None)
        assert JobRequest(id="j", pool="a", gpus=2, **wishes).expected == run_time
    assert "run_time" not in wishes_of({"demand": "1:0"}, NOW, 1), "the engine refuses it"


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "1" + "0" * 12 + "1", "0" * 20 + "9" * 90])
def test_iterations_out_of_bounds_are_refused_wherever_a_job_comes_from(text):
    with pytest.raises(ValueError, match="write one from 1 to 1000000000000"):
        wishes_of({"iterations": text}, NOW, 1)
    assert wishes_of({"iterations": "1000000000000"}, NOW, 1) == {"iterations": 10**12}


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("--min-width", "two", "'two' is not a number of GPUs; write a whole number like 4"),
        ("--demand", "1:x", "'1:x' is not a list of GPUs:seconds; write one like 1:3600;2:1900"),
        ("--deadline", "tomorrow", "'tomorrow' is not a time; write one like 2026-05-01T18:00"),
        ("--deadline", "nan", "'nan' is not a time; write one like"),
        ("--deadline", "in 2", "'2' has no unit; write 2s, 2m or 2h"),
        ("--strl", "(nck all", "line 1, column 1: this parenthesis is not closed; write )"),
        ("--value", "nan", "'nan' is not a number; write one like 1.5"),
        ("--budget", "much", "'much' is not a number; write one like 1.5"),
        ("--budget", "0", "'0' is out of range; write a number from 0.001 to 1000"),
        ("--estimate", "0", "'0' is not above 0; write a time like 3h"),
        ("--min-run-time", "0", "'0' is not above 0; write a time like 3h"),
        ("--preemptible", "30", "'30' has no unit; write 30s, 30m or 30h"),
        ("--preemptible", "always", "'always' is not a cost of stops"),
        ("--soft", "1.2:50+1.1:40", "does not ascend: step 1.1 comes after 1.2; write multiples"),
        ("--soft", "1.1:80+1.2:90", "does not fall: a reward of 90 comes after 80; each later"),
        ("--soft", "1.1:0.5", "has the reward 0.5; write rewards of 1 to 100"),
        ("--mode", "gsn", "'gsn' is not a known mode; use one of accordion, gns, static"),
    ],
)
def test_an_invalid_text_is_refused_before_the_daemon_is_asked(option, text, problem):
    ran = sia("submit", "--pool", "p", option, text)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert f"{option}" in ran.stderr
    assert problem in ran.stderr


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("", None),
        ("USR1", CheckpointSignal("SIGUSR1")),
        ("SIGTERM", CheckpointSignal("SIGTERM")),
        ("B:USR1", CheckpointSignal("SIGUSR1", main=True)),
        ("./save.sh", CheckpointCommand(("./save.sh",))),
        ("python save.py 'my model'", CheckpointCommand(("python", "save.py", "my model"))),
    ],
)
def test_a_checkpoint_is_a_signal_or_a_command(text, means):
    assert parse_checkpoint(text) == means


@pytest.mark.parametrize(
    "text", ["SIGKILL", "KILL", "STOP", "SIGWHAT", "B:", "B:USR9", "save 'now"]
)
def test_a_signal_that_no_job_can_handle_is_no_checkpoint(text):
    with pytest.raises(ValueError, match="; "):
        parse_checkpoint(text)


def test_a_batch_size_that_shrinks_under_gns_is_noted_not_refused():
    regimes = (Regime("64", 1.0, 20.0), Regime("32", 1.0, 30.0))
    spec = JobSpec("a", "a", 1, mode="gns", regimes=regimes)
    (note,) = _notes(spec, "shockwave", frozenset({"mode", "regimes"}), 0.0, None)
    assert note.startswith("batch size 32 follows 64, but gns never shrinks: the speed after")
    grows = replace(spec, regimes=regimes[::-1])
    assert [*_notes(grows, "shockwave", frozenset({"mode", "regimes"}), 0.0, None)] == []
