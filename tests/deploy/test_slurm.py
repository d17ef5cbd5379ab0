"""What Slurm reads of ours is well formed, and its REST daemon starts as the unit has it."""

import http.client
import shlex
import socket
import subprocess
from contextlib import closing

import pytest

from tests.support.daemons.deployed import DEPLOY, run, unit
from tests.support.servers.servers import needs

FOLDER = DEPLOY / "slurm"
UNIT = FOLDER / "sia-slurmrestd.service"


@pytest.mark.server
def test_the_lua_that_slurm_reads_is_well_formed():
    needs("luac")
    for path in FOLDER.glob("*.lua"):
        assert run("luac", "-p", path) == (0, "")


GPUS = 'tres_per_node = "gres:gpu:8"'

MODIFIED = [  # what is changed, of what, by whom: what is said, with which priority
    (GPUS, 'partition = "vision", priority = 9', 1000, "0 0"),
    (GPUS, 'partition = "cpu", priority = 9', 1000, "0 nil"),
    ('partition = "vision"', f'partition = "cpu", priority = 9, {GPUS}', 1000, "0 0"),
    ('partition = "cpu,vision"', f'partition = "cpu", priority = 9, {GPUS}', 1000, "0 0"),
    ('partition = "vision"', 'partition = "cpu", priority = 9', 1000, "0 nil"),
    (f'partition = "vision", {GPUS}', 'partition = "cpu", priority = 9', 1000, "0 0"),
    (f'partition = "vision", priority = 7, {GPUS}', 'partition = "cpu", priority = 9', 1000, "0 0"),
    ('partition = "vision", priority = 7', f'partition = "cpu", priority = 0, {GPUS}', 1000, "0 0"),
    ("time_limit = 5", f'partition = "vision", priority = 9, {GPUS}', 1000, "0 nil"),
    (GPUS, 'partition = "vision", priority = 9', 0, "0 nil"),
    ("priority = 7", f'partition = "vision", priority = 0, {GPUS}', 1000, "-1 7"),
    ("priority = 7", f'partition = "vision", priority = 0, {GPUS}', 0, "0 7"),
    ('partition = "cpu"', f'partition = "vision", priority = 0, {GPUS}', 1000, "-1 nil"),
    ("shared = 0", 'partition = "vision", priority = 9', 1000, "-1 nil"),
    ("shared = 0", 'partition = "vision", priority = 9', 0, "0 nil"),
    ("shared = 0", f'partition = "vision", priority = 9, {GPUS}', 1000, "0 nil"),
    ("shared = 65534", 'partition = "vision", priority = 9', 1000, "0 nil"),
    ("shared = 2", 'partition = "vision", priority = 9', 1000, "0 nil"),
    ("shared = 3", 'partition = "vision", priority = 9', 1000, "0 nil"),
    ('partition = "vision", shared = 0', 'partition = "cpu", priority = 9', 1000, "-1 nil"),
    ("shared = 0", 'partition = "cpu", priority = 9', 1000, "0 nil"),
]


@pytest.mark.server
@pytest.mark.parametrize(("change", "job", "user", "said"), MODIFIED)
def test_a_change_of_a_job_cannot_bypass_the_hold_at_submission(change, job, user, said):
    needs("lua")
    script = f"""
        slurm = {{ SUCCESS = 0, ERROR = -1, NO_VAL = 4294967294, log_user = function() end }}
        dofile("{FOLDER / "job_submit.lua"}")
        local partitions = {{ vision = {{ flag_default = 0 }}, cpu = {{ flag_default = 1 }} }}
        local change = {{ {change} }}
        local said = slurm_job_modify(change, {{ job_id = 7, {job} }}, partitions, {user})
        print(said, change.priority)
    """
    code, heard = run("lua", "-e", script)
    assert (code, heard.split()) == (0, said.split())


def test_the_example_asks_where_the_unit_listens():
    (line,) = unit(UNIT)["Service"]["ExecStart"]
    assert f'rest = "{line.split()[-1]}"' in (DEPLOY / "config" / "slurm.toml").read_text()


def test_only_the_user_of_the_daemon_may_use_its_socket():
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
