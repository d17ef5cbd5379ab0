"""Whatever kills the daemon: no job that was taken is lost, none is started twice."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.journal.journal import Journal
from daemon.model.inputs import Answered
from sia import policies as installed
from tests.support import knapsack
from tests.support.budget import budget
from tests.support.daemons.crash import (
    CLUSTER,
    FAILING,
    PLANNING,
    STOPPING,
    Diary,
    Fickle,
    assert_nothing_was_lost,
    fork_a_life,
    kill,
)
from tests.support.paths import ROOT
from tests.support.plugins import package

LIVES = budget(ci=12, soak=200)
"""How often the daemon is killed at random moments."""

SYNCS = budget(ci=range(1, 51, 10), soak=range(1, 51))
"""The fsyncs of a thread at which the daemon dies, one at a time."""


PLANNED_SYNCS = budget(ci=[5, 18, 31], soak=range(1, 51))
"""Those at which it dies while a solver plans."""


@pytest.fixture
def memory():
    """A folder in memory, where there is one: only the process dies, not the machine."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=home) as name:
        yield Path(name)


def killed_again_and_again(memory, cluster, stops=0):
    rng = Random(1)
    for life in range(LIVES):
        before = done_in(memory)
        pid = fork_a_life(memory, life, cluster)
        if life % 4:  # the others may be killed before they serve
            wait_for_more(memory, before, stops)
        time.sleep(rng.random() * 0.1)
        assert kill(pid), "it ended by itself"
    return assert_nothing_was_lost(memory, cluster)


@pytest.mark.long
def test_a_daemon_killed_at_any_moment_loses_and_repeats_no_job(memory):
    taken, started, _ = killed_again_and_again(memory, CLUSTER)
    assert taken > 5 * LIVES
    assert started > 3 * LIVES


@pytest.mark.long
def test_a_daemon_killed_while_jobs_stop_loses_and_repeats_no_job(memory):
    """Whatever was told to stop, by which step and by how much: no work is done twice or lost."""
    taken, started, stops = killed_again_and_again(memory, STOPPING, stops=2)
    assert taken > 5 * LIVES
    assert started > stops > LIVES


@pytest.mark.long
def test_a_daemon_killed_while_its_policy_fails_loses_and_repeats_no_job(memory, monkeypatch):
    """Every restart repeats the failures of the steps before it, and decides the same."""
    real = installed.load_plugin
    monkeypatch.setattr(
        installed,
        "load_plugin",
        lambda group, name: Fickle if name == "fickle" else real(group, name),
    )
    cluster = replace(FAILING, grace=0.01)
    taken, started, _ = killed_again_and_again(memory, cluster)
    assert min(taken, started) > LIVES
    journal = Journal(memory / "db")
    told = [each["why"] for step in journal.records(0) for each in json.decode(step.decisions)
            if each["type"] == "ProposalRefused" and not each["job_id"]]  # fmt: skip
    journal.close()
    assert len(told) > LIVES
    lost = "KeyError: lost by <tests.support.daemons.crash.Fickle object>"
    assert set(told) == {f"the policy failed in propose: {lost}"}


def done_in(folder):
    """How many jobs were accepted, and how many attempts started and stopped so far."""
    taken = sum(word == "taken" for word, _ in Diary(folder / "acks").lines())
    words = [line[0] for line in Diary(folder / "world").lines()]
    return taken, words.count("start"), words.count("stop")


def wait_for_more(folder, before, stops):
    """Wait until a daemon has accepted, started and stopped jobs, however slow the machine is."""
    deadline = time.monotonic() + 120
    while True:
        more = (now - then for now, then in zip(done_in(folder), before, strict=True))
        taken, started, stopped = more
        if taken >= 8 and started >= 5 and stopped >= stops:
            return
        assert time.monotonic() < deadline, "it does not serve"
        time.sleep(0.005)


def strace():
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed")
    return found


def die_at_sync(folder, life, number, cluster="plain", *paths):
    """Whether a daemon died of SIGKILL at one of its fsyncs."""
    code = "import sys; from pathlib import Path; from tests.support.daemons import crash; "
    code += "cluster = crash.CLUSTERS[sys.argv[4]]; "
    code += "crash.live(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), cluster=cluster)"
    calls = "fsync,fdatasync"
    run = subprocess.run(
        [
            strace(), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
            "-e", f"inject={calls}:signal=KILL:when={number}",
            sys.executable, "-c", code, str(folder), str(life), "10", cluster,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths)))},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "PTRACE" in run.stderr or "Operation not permitted" in run.stderr:
        pytest.skip(f"strace may not be used here: {run.stderr.strip()}")
    return run.returncode in (-9, 137)


def test_a_daemon_killed_at_each_of_its_first_fsync_calls_loses_no_job(tmp_path):
    """Of a new journal, and then of one that goes on: the journal's thread has syncs of its own."""
    for number in SYNCS:
        assert die_at_sync(tmp_path, f"s{number}", number), number
    taken, started, _ = assert_nothing_was_lost(tmp_path)
    assert min(taken, started) > 10
    assert Diary(tmp_path / "acks").lines()


def test_a_daemon_killed_at_fsync_calls_while_a_solver_runs_loses_no_job(tmp_path, monkeypatch):
    """No answer counts twice, and the plan goes on with the request that was open."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    package(folder, Path(knapsack.__file__).read_text(), policies={"knapsack": "Knapsack"})
    for number in PLANNED_SYNCS:
        assert die_at_sync(tmp_path, f"p{number}", number, "planning", folder), number
    real = installed.load_plugin
    monkeypatch.setattr(
        installed,
        "load_plugin",
        lambda group, name: knapsack.Knapsack if name == "knapsack" else real(group, name),
    )
    taken, started, _ = assert_nothing_was_lost(tmp_path, PLANNING)
    assert min(taken, started) > 5
    journal = Journal(tmp_path / "db")
    inputs = [each for step in journal.records(0) for each in step.inputs]
    journal.close()
    numbers = [each.request for each in inputs if isinstance(each, Answered)]
    assert numbers
    assert numbers == sorted(set(numbers))
