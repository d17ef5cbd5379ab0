"""The first minute: `make run` is `sia demo`."""

import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from daemon.config.check import problems_of
from daemon.journal.journal import Journal
from daemon.process.demo import BEFORE, DAYS, MORNING, POOLS, WINDOWS, _config, _remember, _week
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.wording import DAY, HOUR

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def begun(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "sia", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_plays_an_hour_a_second_shows_who_gained_and_ends(scratch):
    out, err = (demo := begun("--for", "4s")).communicate(timeout=60)
    assert (demo.returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("A simulated cloud: p0 with 8 GPUs")
    assert any(line.startswith("  export SIA_URL=http://127.0.0.1:") for line in lines)
    hours = [line.split() for line in lines if line.startswith("  day 1, ")]
    assert [words[2] for words in hours[:2]] == ["09:00", "10:00"]
    assert int(hours[0][3]) > 0, "jobs start from the first hour on"
    # an hour is told when its second is over, more or less: the last of it may fall to the next
    trace = _week(make_cloud(Cloud(pools=POOLS, days=BEFORE + DAYS), 1)[0])
    come = sum(job.submit < (MORNING + 1) * HOUR for job, _ in trace.arrivals)
    assert int(hours[0][3]) + int(hours[1][3]) + int(hours[1][6]) >= come > 0
    header = lines.index(next(line for line in lines if line.startswith("pool  GPUs")))
    pools = [line.split()[0] for line in lines[header + 2 : header + 2 + POOLS]]
    assert pools == [f"p{i}" for i in range(POOLS)]
    assert all(line.split()[-1] in ("0", "–") for line in lines[header + 2 : header + 2 + POOLS])
    assert list(scratch.iterdir()) == []


def test_the_demo_knows_the_two_weeks_before(tmp_path):
    whole, table = make_cloud(Cloud(pools=POOLS, days=BEFORE + DAYS), 1)
    config = _config(tmp_path, table)
    _remember(config, whole, table)
    with closing(Journal(config.database)) as journal:
        now = journal.anchor().now
        past = [record for _, record in journal.history(0, 9999)]
    assert 4000 < len(past) < len(whole.arrivals)
    assert all(now - 15 * DAY < job.submitted <= job.started < job.ended < now for job in past)
    assert not {job.spec.id for job in past} & {job.id for job, _ in _week(whole).arrivals}


def test_interrupted_it_ends_in_order(scratch):
    demo = begun()
    first = (demo.stdout.readline() for _ in range(60))  # more than it says by then
    assert any(line.startswith("  day 1, 09:00") for line in first)
    (folder,) = scratch.iterdir()
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert (demo.returncode, err) == (0, "")
    assert "Mean waits with sharing and alone" in out
    assert list(scratch.iterdir()) == []


def test_its_configuration_is_one_that_could_be_written():
    _, table = make_cloud(Cloud(pools=POOLS, days=1.0), 1)
    config = _config(Path(tempfile.gettempdir()), table)
    assert problems_of(config) == []
    assert config.windows == WINDOWS
