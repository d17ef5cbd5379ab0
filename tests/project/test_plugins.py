"""Another package adds a policy, a forecast, a backend: nothing of the project changes for it."""

import json

import pytest

from tests.support.files import written
from tests.support.plugins import each_with, package, python_with, sia_with

POOL = '[[pool]]\nname = "a"\nquota = 1\n'
"""The least that a configuration needs."""

POLICY_AND_FORECASTS = '''
"""A policy and two predictors."""

from sia.forecasts import Loads, QuantileLimit, RunTimes
from sia.model import Load
from sia.policies.sia.policy import Sia


class Shy(Sia):
    """SIA under another name."""


class Half(Loads):
    """Every pool needs half of a thousand GPUs, at once."""

    summary = "always the same"
    takes_quantile = True

    def __init__(self, pools, windows, gpus):
        self.loads = [Load(pool, window, gpus) for pool in pools for window in range(len(windows))]

    @classmethod
    def build(cls, context):
        return cls(context.pools, context.windows, int(1000 * (context.quantile or 0.5)))

    @classmethod
    def quantile_limit(cls, windows):
        return QuantileLimit(0.75, "half is less than that")

    def changes(self, now):
        said, self.loads = self.loads, []
        return said


class Told(RunTimes):
    """Every job runs a minute; for comparison only."""

    summary = "a minute each"
    replay_only = True

    def run_time(self, job):
        return 60.0
'''


@pytest.fixture
def others(tmp_path):
    folder = tmp_path / "others"
    folder.mkdir()
    return package(
        folder,
        POLICY_AND_FORECASTS,
        policies={"shy": "Shy"},
        loads={"half": "Half"},
        run_times={"told": "Told"},
    )


@pytest.fixture
def log(tmp_path):
    trace, pools = tmp_path / "jobs.csv", tmp_path / "pools.csv"
    rows = (f"j{i},{'ab'[i % 2]},{60 * i},{90},{1 + i % 3}" for i in range(12))
    trace.write_text("job_id,pool,submit,duration,width\n" + "\n".join(rows) + "\n")
    pools.write_text("pool,quota\na,4\nb,4\n")
    return "--trace", trace, "--pools", pools


def test_a_policy_and_predictors_of_another_package_replay_a_log(others, log, tmp_path):
    label = "shy@half:0.6+told"
    done = sia_with(
        others, "replay", *log, "--policy", f"sia,{label}", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert label in found["policies"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "half: always the same, 0.6 quantile" in page
    assert "told: a minute each" in page


NAMES = [
    ("shi@half+told", "no policy 'shi'; there is "),
    ("shy@haf+told", "no forecast 'haf'; for a model write learned and give --forecast"),
    ("shy@haf+told", "write half, joint, none, peaks, perfect, random, sliding-max. Did you mean"),
    ("shy@half+tol", "noisy, perfect, random, stated, survival, told, within. Did you mean"),
    ("shy@half+told:0.9", "told takes no quantile; only boosted, history, jvupredict, surviv"),
    ("shy@half:0.8+told", "too high for half, because half is less than that; use at most "),
]
"""Labels, and what is wrong with them."""


def test_names_of_a_plugin_appear_in_error_messages(others, log, tmp_path):
    commands = [
        ("replay", *log, "--policy", label, "--out", tmp_path / "out") for label, _ in NAMES
    ]
    for (label, words), done in zip(NAMES, each_with(others, commands), strict=True):
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), label
        assert words in done.stderr


def test_the_daemon_takes_its_forecast_but_not_what_is_for_replays(others, tmp_path):
    commands = []
    for forecast in ("half+survival", "half+told"):
        text = f'[daemon]\npolicy = "shy"\nforecast = "{forecast}"\n{POOL}'
        config = written(tmp_path, text, f"{forecast}.toml")
        commands.append(("serve", "--check", "--config", config))
    fits, only_for_replays = each_with(others, commands)
    assert fits.returncode == 0, fits.stderr
    assert only_for_replays.returncode == 2
    assert "told works only in replays" in only_for_replays.stderr


def test_a_plugin_that_cannot_be_imported_is_named_with_its_package(tmp_path, log):
    broken = package(tmp_path, "import nothing_of_that_name\n", policies={"broken": "Broken"})
    done = sia_with(broken, "replay", *log, "--policy", "broken", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "sia.policies: broken (others:Broken, of sia-others) cannot be imported" in done.stderr


BACKEND = '''
"""A backend whose jobs are timers, with a section of its own."""

from daemon.config.config import BackendConfig


class Cloud(BackendConfig, frozen=True):
    """Jobs elsewhere."""

    region: str
    keys: str = "keys"

    def placed(self, base, state):
        return type(self)(self.region, str(base / self.keys))

    def problems(self, config):
        if self.region == "moon":
            yield "backend.region: there is no machine on the moon; write earth"

    def build(self, context):
        from daemon.backends.simulated.backend import SimulatedBackend

        print("built in", self.region, "with", self.keys)
        return SimulatedBackend(context.clock)
'''


@pytest.fixture
def cloud(tmp_path):
    return package(tmp_path, BACKEND, backends={"cloud": "Cloud"})


SECTIONS = [
    ('kind = "cloud"\nregion = "earth"', ""),
    ('kind = "cloud"\nregion = "moon"', "backend.region: there is no machine on the moon"),
    ('kind = "cloud"', "backend.region: is missing; add it"),
    ('kind = "cloud"\nregion = "a"\nregoin = 1', "backend.regoin: is unknown; did you mean r"),
    (
        'kind = "clout"',
        "backend.kind: unknown kind 'clout'; use one of cloud, kubernetes, local, mqtt",
    ),
    ('kind = "clout"', "Did you mean 'cloud'?"),
]
"""Sections of a backend, and what is wrong with them."""


def test_a_backend_of_another_package_has_a_section_that_is_checked(cloud, tmp_path):
    commands = []
    for number, (section, _) in enumerate(SECTIONS):
        config = written(tmp_path, f"[backend]\n{section}\n{POOL}", f"{number}.toml")
        commands.append(("serve", "--check", "--config", config))
    for (section, said), done in zip(SECTIONS, each_with(cloud, commands), strict=True):
        assert done.returncode == (2 if said else 0), (section, done.stderr)
        assert said in done.stderr


def test_a_daemon_is_built_on_a_backend_of_another_package(cloud, tmp_path):
    text = f'[daemon]\nstate = "{tmp_path}"\n[backend]\nkind = "cloud"\nregion = "earth"\n{POOL}'
    config = written(tmp_path, text, "sia.toml")
    program = """if True:
        import sys
        from pathlib import Path
        from daemon.config.read import read_config
        from daemon.process.build import build
        from daemon.service.observer import Observer
        build(read_config(Path(sys.argv[1])), Observer()).journal.close()
    """
    done = python_with(cloud, "-c", program, config)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"built in earth with {tmp_path / 'keys'}\n"
