"""`sia top` on a pseudo-terminal, in front of a real daemon."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.daemon.cli.test_commands import CONFIG, Served, free_port, run

pytestmark = pytest.mark.usefixtures("leaves_nothing")

LENDS_ALL = CONFIG.replace("[backend]", 'forecast = "none"\n[backend]').replace("= 1000", "= 1")
"""Without forecasts all that is idle is lent, to jobs with a time limit."""

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

COLOUR = re.compile(r"\x1b\[[0-9;]*3[1-7]")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two jobs of speech run, one on borrowed GPUs; two of vision are pending behind a wide one."""
    daemon = Served(tmp_path_factory.mktemp("served"), LENDS_ALL)
    for job_id, pool, gpus in (
        ("own", "speech", 4), ("guest", "speech", 2), ("wide", "vision", 6), ("next", "vision", 8),
        ("last", "vision", 8),
    ):  # fmt: skip
        about = ("--pool", pool, "--gpus", gpus, "--duration", "2h", "--time-limit", "4h")
        said = daemon("submit", *about, "--id", job_id)
        assert said.returncode == 0, said.stderr
    for job_id in ("own", "guest", "wide"):
        daemon.until_running(job_id)
    yield daemon
    assert daemon.end() == 0


class OnTerminal:
    """`sia top` with a pseudo-terminal of a size."""

    def __init__(self, served, columns=110, lines=40, **env):
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.raw = ""
        hidden = ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "CI")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sia", "top", "--config", str(served.config)],
            stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env={**kept, "TERM": "xterm-256color", **env},
        )  # fmt: skip

    def resize(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        """Press keys; only what is shown from now on counts."""
        self.raw = ""
        os.write(self.master, keys.encode())

    def until(self, text):
        """Read until a text is shown."""
        while text not in self.shown():
            assert select.select([self.master], [], [], 60)[0], (text, self.shown())
            self.raw += os.read(self.master, 65536).decode(errors="replace")

    def shown(self):
        return CODES.sub("", self.raw).replace("\r", "")

    def end(self, *, interrupted=False):
        """Leave it; return its exit code."""
        if interrupted:
            self.process.send_signal(signal.SIGINT)
        else:
            os.write(self.master, b"q")
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is as it was"
        os.close(self.master)
        os.close(self.slave)
        return self.process.returncode


def test_pools_queue_and_loans_are_shown_and_keys_act_on_the_selected_row(served):
    top = OnTerminal(served)
    top.until("q quit")
    shown = top.shown()
    assert "12 of 12 GPUs in use, 2 lent   2 jobs pending" in shown
    assert re.search(r"speech +4 +4 +2 +0 +0 +0 +0", shown)
    assert re.search(r"vision +8 +6 +0 +2 +0 +2 +16", shown)
    assert re.search(r"guest +2 +vision +speech", shown)
    top.press("w")
    top.until("why: select a row of the queue first")
    top.press("jw")
    top.until("next")
    top.until("more GPUs")
    top.press("je")
    top.until("last in vision: pending")
    top.press("h")
    top.until("last is held; release it with: sia release last")
    assert served.said("job", "last")["phase"] == "held"
    top.until("1 job pending")
    top.press("\tjd")
    top.until("n1 takes no new jobs")
    top.until("operator: by sia top")
    (node,) = served.said("nodes")["nodes"]
    assert node["out"] == {"operator": "by sia top"}
    top.press("d")
    top.until("n1 takes jobs again")
    assert served.said("nodes")["nodes"][0]["out"] == {}
    top.press("h")
    top.until("hold: select a row of the queue first")
    assert top.end() == 0
    assert served("release", "last").returncode == 0


def test_a_frame_follows_the_size_of_the_terminal(served):
    top = OnTerminal(served, columns=120)
    top.until("q quit")
    top.raw = ""
    top.resize(50, 24)
    top.until("select")
    top.raw = ""
    top.until("select")
    assert max(map(len, top.shown().splitlines())) <= 50
    assert top.end(interrupted=True) == 130


@pytest.mark.parametrize("colours", [True, False])
def test_no_color_is_respected(served, colours):
    top = OnTerminal(served, **({} if colours else {"NO_COLOR": "1"}))
    top.until("q quit")
    assert bool(COLOUR.search(top.raw)) == colours
    assert top.end() == 0


def test_without_a_terminal_one_plain_frame_is_printed(served):
    for options in ((), ("--once",)):
        done = served("top", *options)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert "GPUs in use" in done.stdout
        assert re.search(r"next +vision .* 8 ", done.stdout)
        assert re.search(r"guest +2 +vision +speech", done.stdout)


def test_json_contains_the_data_of_a_frame(served):
    said = served.said("top")
    assert said["waiting"] == 2
    assert [each["job"]["id"] for each in said["queue"]] == ["next", "last"]
    assert [(loan["job"], loan["donor"]) for loan in said["loans"]] == [("guest", "vision")]
    assert [pool["name"] for pool in said["pools"]] == ["speech", "vision"]
    assert json.dumps(said["nodes"][0]["name"]) == '"n1"'


def test_a_daemon_that_is_away_is_named_in_one_line(tmp_path):
    config = tmp_path / "sia.toml"
    config.write_text(CONFIG.format(port=free_port()))
    (tmp_path / "state").mkdir()
    token = tmp_path / "state" / "token"
    token.write_text("x" * 40)
    token.chmod(0o600)
    done = run("top", "--once", "--config", config)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "connection refused; start sia serve, or set SIA_URL" in done.stderr


def test_sia_top_continues_when_the_daemon_is_back(tmp_path):
    served = Served(tmp_path)
    top = OnTerminal(served)
    top.until("q quit")
    served.process.send_signal(signal.SIGKILL)
    served.process.communicate(timeout=60)
    top.raw = ""
    top.until("start sia serve")
    served.begin()
    top.raw = ""
    top.until("q quit")
    assert top.end() == 0
    assert served.end() == 0
