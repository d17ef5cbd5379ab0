"""The policy that docs/policies.md builds: installed beside sia it works in both drivers."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.plugins import each_with

PAGE = ROOT / "docs/policies.md"
BLOCK = re.compile(r"```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)```", re.DOTALL)

CONFIG = """
[daemon]
state = "{state}"
listen = "127.0.0.1:0"
policy = "turns:term=1800"
forecast = "none"

[backend]
kind = "simulated"

[[pool]]
name = "a"
quota = 8
"""

DRIVEN = """
from daemon.engine.engine import Engine
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from sia import Pool
engine = Engine.new(Setup((Pool("a", 1),), "turns:term=10"))
for name in ("one", "two"):
    engine.step(0.0, [Submit(JobSpec(name, "a", 1), 50.0)])
restored = Engine.restore(engine.dump())
for each in (engine, restored):
    step = each.step(20.0, [Submit(JobSpec("three", "a", 1), 50.0)])
    each.check()
    print([(type(decision).__name__, decision.job_id) for decision in step.decisions[:2]])
"""


def blocks():
    return dict(BLOCK.findall(PAGE.read_text()))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder with the package's files, and one in which it is installed."""
    folder = tmp_path_factory.mktemp("turns")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name, text in blocks().items():
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(site), str(source)], check=True
    )
    (source / "sia_turns.py").unlink()  # what runs is what was installed
    return source, site


def run(installed, *words):
    source, site = installed
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the test of the page needs none of them
    done = subprocess.run(
        [sys.executable, *words], cwd=source, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_test_of_the_page_passes(installed):
    run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_turns.py")


def test_the_commands_of_the_page_work(installed):
    source, _ = installed
    (source / "sia.toml").write_text(CONFIG.format(state=source / "state"))
    lines = blocks()["run.sh"].splitlines()
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "sia"
        run(installed, "-m", *words)
    assert (source / "out/turns:term=1800/segments.csv").exists()


def test_an_engine_of_the_daemon_runs_it_and_goes_on_after_a_restart(installed):
    one, other = run(installed, "-c", DRIVEN).splitlines()
    assert one == other
    assert one.startswith("[('PreemptJob', 'one'), ('StartJob', 'two')")


def test_a_wrong_option_is_refused_in_one_line(installed):
    _, site = installed
    wrong = {
        "turns:temr=5": "turns has no option 'temr'; it has term. Did you mean 'term'?",
        "turns:term=soon": "term must be a number (got 'soon')",
        "turns:term=0": "term must be above 0 (got 0)",
        "turns:5:term=6": "option term is given twice; leave one out",
    }
    replay = ("replay", "--trace", "t", "--pools", "p", "--policy")
    ended = each_with(site, [(*replay, label) for label in wrong])
    for why, done in zip(wrong.values(), ended, strict=True):
        assert done.returncode == 2
        assert why in done.stderr.replace("\n", " ")
