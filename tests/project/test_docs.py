"""What the docs show is what the code does."""

import itertools
import re
import subprocess
import sys

import pytest

from benchmarks.pictures import pictures
from tests.support.paths import DOCS, ROOT


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import drawn  # noqa: PLC0415  it stands beside the docs

    yield drawn
    del sys.modules["drawn"]


def test_the_example_of_the_paper_runs_as_described(drawn):
    table = drawn.lines(drawn.table(drawn.played()))
    assert table in (DOCS / "understand/algorithm.md").read_text()


def test_in_the_example_of_the_paper_only_max_min_slows_a_job(drawn):
    ends = {name: schedule.ends for name, schedule in drawn.played().items()}
    alone = ends["fcfs"]
    slowed = {
        name: [drawn.NAMES[i] for i, end in enumerate(found) if end > alone[i]]
        for name, found in ends.items()
    }
    assert slowed == {"fcfs": [], "mmfs": ["J6", "J7"], "sia": []}
    pairs = zip(drawn.NAMES, ends["sia"], alone, strict=True)
    sooner = [name for name, end, usual in pairs if end < usual]
    assert sooner == ["J3", "J4", "J5"]


def test_the_picture_shows_each_job_on_as_many_gpus_as_it_has(drawn):
    for schedule in drawn.played().values():
        bars = drawn.bars(schedule)
        for name, _, _, gpus, hours in drawn.STORY:
            mine = sum(bar.end - bar.start for bar in bars if bar.job == name)
            assert mine == pytest.approx(gpus * hours)
        for row in range(4):
            spans = sorted((bar.start, bar.end) for bar in bars if bar.row == row)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_the_pictures_of_lending_show_the_stored_results():
    drawn = dict(pictures())
    assert len(drawn) == 5
    old = [path.name for path, content in drawn.items() if path.read_bytes() != content]
    assert not old, "run python -m benchmarks.pictures"


GUIDES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/understand/where.md")


@pytest.mark.parametrize("guide", GUIDES)
def test_the_files_that_contributors_are_sent_to_exist(guide):
    words = re.findall(r"`([^`\s]+)`", (ROOT / guide).read_text())
    rooms = {path.name for path in ROOT.iterdir()}
    paths = {
        word for word in words if "/" in word and word.partition("/")[0] in rooms
        and "NAME" not in word
    }  # fmt: skip
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_architecture_fits_on_two_screens():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 100


STUBS = """
sia() { tries=$((tries + 1)); return 1; }
sleep() { :; }
tail -f /dev/null &
"""
"""A daemon that runs, and refuses every command, for example for a wrong token."""


@pytest.mark.parametrize("page", ["README.md", "docs/start/tutorial.md", "docs/operate/mqtt.md"])
def test_nobody_waits_for_ever_for_a_daemon_that_refuses(page):
    waiting = re.findall(r"^.*sia pools >/dev/null.*$", (ROOT / page).read_text(), re.MULTILINE)
    assert waiting
    for loop in waiting:
        script = f"{STUBS}{loop}\nkill $!\necho $tries"
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == "60\n"
        ends = script.replace("tail -f /dev/null &", "true & wait $!").replace("kill $!", "")
        done = subprocess.run(
            ["sh", "-c", ends], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == "1\n", "it does not wait for a daemon that has ended"
