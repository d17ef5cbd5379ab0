"""What Slurm reads of ours is well formed, and its REST daemon starts as the unit has it."""

import http.client
import shlex
import socket
import subprocess
from contextlib import closing

import pytest
from deployed import DEPLOY, run, unit
from servers import needs

FOLDER = DEPLOY / "slurm"
UNIT = FOLDER / "sia-slurmrestd.service"


@pytest.mark.server
def test_the_lua_that_slurm_reads_is_well_formed():
    needs("luac")
    for path in FOLDER.glob("*.lua"):
        assert run("luac", "-p", path) == (0, "")


def test_the_example_asks_where_the_unit_listens():
    (line,) = unit(UNIT)["Service"]["ExecStart"]
    assert f'rest = "{line.split()[-1]}"' in (DEPLOY / "config" / "slurm.toml").read_text()


def test_its_socket_is_for_the_daemons_user_alone():
    said = unit(UNIT)["Service"]
    assert said["User"] == unit(DEPLOY / "systemd" / "sia.service")["Service"]["User"]
    assert said["RuntimeDirectoryMode"] == ["0700"]


@pytest.mark.server
def test_the_rest_daemon_serves_as_the_unit_starts_it(slurm):
    said = unit(UNIT)["Service"]
    env = dict(pair.split("=", 1) for pair in said["Environment"])
    there = {"${OPENAPI}": env["OPENAPI"], said["ExecStart"][0].split()[-1]: f"unix:{slurm.socket}"}
    words = [there.get(word, word) for word in shlex.split(said["ExecStart"][0])]
    slurm.stop("rest")
    slurm.socket.unlink(missing_ok=True)
    begun = subprocess.Popen(
        words, env={**slurm.env, **env}, user="nobody", group="nogroup", extra_groups=[],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        slurm.wait(slurm.socket.exists, "slurmrestd")
        line = http.client.HTTPConnection("slurm")
        line.sock = socket.socket(socket.AF_UNIX)
        with closing(line):
            line.sock.connect(str(slurm.socket))
            line.request("GET", "/slurm/v0.0.38/ping")
            assert b'"UP"' in line.getresponse().read()
    finally:
        begun.terminate()
        begun.wait(10)
        slurm.stop("rest.jwt")
        slurm.start_rest()
