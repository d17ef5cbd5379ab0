"""The daemon's configuration: what it may say, and all that is wrong with it at once."""

import re
import sys
import tomllib
from pathlib import Path
from subprocess import check_output

import msgspec
import pytest

from daemon.backends.kube.config import KubeConfig
from daemon.backends.local.config import LocalConfig
from daemon.backends.simulated.config import SimulatedConfig
from daemon.backends.slurm.config import SlurmConfig
from daemon.config.config import DEFAULT_POOLS, Address, Config, PoolConfig, state_folder
from daemon.config.database import DatabaseUrl
from daemon.config.read import ConfigError, read_config
from daemon.model.job import PoolMode
from replay.forecast import model_folder
from tests.support.files import written
from tests.support.paths import ROOT

WHOLE = """
[daemon]
state = "state"
listen = "[::1]:9000"
policy = "sia"
forecast = "peaks:0.9+survival+guard"
windows = ["5m", 3600]
tick = "1m"
retention = "2w"

[backend]
kind = "local"
gpus = 8
kill_after = 3

[[pool]]
name = "vision"
quota = 5
lend_limit = 2

[[pool]]
name = "speech"
quota = 3
group = "a100"
state = "hold"
"""


POOL = """
[[pool]]
name = "solo"
quota = 144
"""


def config(folder, text):
    """Parse a configuration file; add a pool if the text has none."""
    pool = "" if isinstance(text, bytes) or re.search(r"(?m)^\s*(pool\b|\[\[?pool)", text) else POOL
    return read_config(written(folder, text + pool if pool else text, "sia.toml"))


def problems(folder, text):
    with pytest.raises(ConfigError) as caught:
        config(folder, text)
    path = folder / "sia.toml"
    assert caught.value.message == "\n".join(f"{path}: {p}" for p in caught.value.problems)
    assert all("; " in problem and "\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def the_problem(folder, text):
    (problem,) = problems(folder, text)
    return problem


def test_without_a_file_jobs_are_simulated_and_no_pools_are_made_up():
    embedded = read_config(None)
    assert embedded.pools == DEFAULT_POOLS == (PoolConfig("default", 8),)
    assert embedded.backend == SimulatedConfig()
    assert embedded.listen.loopback


def test_a_file_with_only_a_pool_keeps_the_other_defaults(tmp_path):
    pools = (PoolConfig("solo", 144),)
    assert config(tmp_path, "") == msgspec.structs.replace(Config.embedded(), pools=pools)


@pytest.mark.parametrize("kind", ["simulated", "local", "mqtt", "slurm", "kubernetes"])
def test_a_file_without_pools_is_refused_whatever_runs_the_jobs(tmp_path, kind):
    path = written(tmp_path, f'[backend]\nkind = "{kind}"\n', "sia.toml")
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert "pool: is missing; add [[pool]] with name and quota" in caught.value.problems
    assert not any("queues" in each for each in caught.value.problems), "of pools that are missing"


def test_state_that_is_a_file_is_refused_in_one_line(tmp_path):
    file = written(tmp_path, "", "file")
    for state in (file, file / "deeper"):
        said = the_problem(tmp_path, f'[daemon]\nstate = "{state}"\n')
        assert said == f"daemon.state: {file} is a file and not a folder; name a folder"
    said = the_problem(tmp_path, f'[daemon]\ndatabase = "{tmp_path}"\n')
    assert said == f"daemon.database: {tmp_path} is a folder; name a file"


@pytest.mark.parametrize("url", ["postgresql://", "postgres://", "postgresql://me@"])
def test_a_url_without_a_host_and_a_database_is_refused(tmp_path, url):
    said = the_problem(tmp_path, f'[daemon]\ndatabase = "{url}"\n')
    assert "use postgresql://USER@HOST:PORT/NAME" in said


def test_every_key_is_read(tmp_path):
    read = config(tmp_path, WHOLE)
    assert read.listen == Address("::1", 9000)
    assert read.listen.url == "http://[::1]:9000"
    assert read.windows == (300.0, 3600.0)
    assert read.tick == 60.0
    assert read.retention == 14 * 86400.0
    assert read.backend == LocalConfig(str(tmp_path / "state" / "jobs"), 8, 3.0)
    assert read.database == tmp_path / "state" / "sia.db"
    assert read.token_file == tmp_path / "state" / "token"
    vision, speech = read.pools
    assert (vision.quota, vision.lend_limit, vision.borrow_limit) == (5, 2, None)
    assert speech.state is PoolMode.HOLD
    assert speech.pool.group == "a100"


def test_relative_paths_start_at_the_folder_of_the_configuration(tmp_path, monkeypatch):
    written(tmp_path, WHOLE, "sia.toml")
    monkeypatch.chdir(tmp_path)
    assert read_config(Path("sia.toml")).database == tmp_path / "state" / "sia.db"


def test_all_errors_are_reported_at_once(tmp_path):
    said = problems(
        tmp_path,
        """
        bogus = 1
        [daemon]
        polcy = "x"
        policy = "best"
        forecast = "perfect"
        tick = "5q"
        windows = ["1h", "5m"]
        listen = "foo"
        log_level = "loud"
        [backend]
        kind = "local"
        speed = 3
        gpus = -1
        [[pool]]
        name = "a"
        quota = -3
        state = "shut"
        [[pool]]
        nam = "b"
        quota = "4"
        [[pool]]
        name = "a"
        quota = "4"
        """,
    )
    foresees = (
        "daemon.forecast: invalid forecast 'perfect'; "
        "write FORECAST[:QUANTILE]+DURATIONS[:QUANTILE|:PERCENT]"
        "[+guard[:PERCENT]], like peaks:0.95+survival:0.9"
    )
    (able,) = [
        line for line in said if line.startswith("daemon.policy: unknown policy 'best'; use ")
    ]
    assert said[0].startswith("bogus: is unknown; use one of daemon, ")
    assert said[1:] == [
        "daemon.polcy: is unknown; did you mean policy?",
        "daemon.log_level: 'loud' is invalid; use debug, error, info, warning",
        "backend.speed: is unknown; use one of kind, folder, gpus, kill_after",
        "backend.gpus: -1 is invalid; use an integer of at least 0",
        "pool[0].quota: -3 is invalid; use an integer of at least 0",
        "pool[0].state: 'shut' is invalid; use open, hold, drain",
        "pool[1].nam: is unknown; did you mean name?",
        "pool[1].name: is missing; add it",
        "pool[1].quota: '4' is invalid; use an integer",
        "pool[2].quota: '4' is invalid; use an integer",
        "daemon.listen: invalid address 'foo'; use HOST:PORT, such as 127.0.0.1:8642",
        "daemon.tick: '5q' is not a time; write a number with s, m, h, d or w, like 5m",
        able,
        foresees,
        "daemon.windows: invalid list 1h, 5m; give 1 to 16 ascending times",
        "pool: the name 'a' is used 2 times; rename all but one",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("daemon = 3", "daemon: 3 is invalid; use keys"),
        ("backend = 3", "backend: 3 is invalid; use keys"),
        ("pool = 3", "pool: is not an array of tables"),
        ("pool = []", "pool: is not an array of tables"),
        ("pool = [3]", "pool[0]: 3 is invalid; use keys"),
        ("[backend]\nkind = 'cloud'", "backend.kind: unknown kind 'cloud'; use one of "),
        ("[backend]\nspeed = 0", "backend.speed: 0 is invalid; use more than 0"),
        ("[backend]\nspeed = nan", "backend.speed: nan is invalid"),
        ("[daemon]\nslack = inf", "daemon.slack: inf is invalid"),
        ("[daemon]\ntick = 0", "daemon.tick"),
        ("[daemon]\ntick = -5", "daemon.tick"),
        ("[daemon]\nwindows = []", "daemon.windows"),
        ("[daemon]\nwindows = ['60d']", "daemon.windows: 60d is too long; use at most 30d"),
        ("[daemon]\npolicy = 'best'", "daemon.policy: unknown policy 'best'"),
        ("[daemon]\npolicy = 'sia-reclam'", "Did you mean 'sia-reclaim'?"),
        ("[daemon]\nsolver = 'highz'", "daemon.solver: solver highz: not installed; use one of "),
        ("[daemon]\npolicy = 'sia-vc'", "daemon.policy: sia-vc knows the future"),
        (
            "[daemon]\npolicy = 'chronus:capacity=144'",
            "a profiler of 144 GPUs leaves nothing of the 144 of a sharing group; add a smaller",
        ),
        (
            "[daemon]\npolicy = 'las'\n[backend]\nkind = 'mqtt'",
            "daemon.policy: las stops and restarts jobs, and this backend cannot; use one of ",
        ),
        (
            "[daemon]\nforecast = 'perfect+perfect'",
            "daemon.forecast: perfect works only in replays",
        ),
        (
            "[daemon]\nforecast = 'peaks'",
            "daemon.forecast: invalid forecast 'peaks'; write FORECAST[",
        ),
        ("[daemon]\nforecast = 'peaks:0.9999+survival'", "use at most 0."),
        (
            "[daemon]\nforecast = 'peaks+survival'\nretrain = '1d'",
            "daemon.retrain: peaks trains no",
        ),
        ("[daemon]\nforecast = 'none'\nretrain = '1d'", "daemon.retrain: nothing is forecast"),
        ("[daemon]\npolicy = 'srtf'\nretrain = '1d'", "daemon.retrain: srtf forecasts no loads"),
        ("[daemon]\nretrain = '10m'", "daemon.retrain: 10m is too short; use at least 1h"),
        (
            "[daemon]\nforecast = 'learned+survival'\nretrain = '10m'",
            "daemon.retrain: 10m is too short; use at least 1h",
        ),
        ("[daemon]\ncells = 'gone.toml'", "daemon.cells"),
        ("[daemon]\nlisten = 'here:99999'", "daemon.listen"),
        (
            "[[node]]\nname = 'n1'\ngpus = 1",
            "node: the nodes have 1 GPU in total, but the pools own 144",
        ),
        ("[backend]\nkind = 'local'\ngpus = 1", "backend.gpus: is 1, and the pools own 144"),
        ('[[pool]]\nname = "a\\nb"\nquota = 1', "pool: invalid name 'a\\nb'"),
        ("[limits]\nburst = 5", "limits.burst: has no effect without a rate; add limits.rate"),
        ("[limits]\ntoken_burst = 5", "limits.token_burst: has no effect without a rate"),
        (
            "[[pool]]\nname = 'a'\nquota = 1\nburst = 5",
            "pool a: burst: has no effect without a rate",
        ),
        ("[[pool]]\nname = ''\nquota = 1", "pool[0].name: '' is invalid"),
        (
            "[[pool]]\nname = 'a'\nquota = 9999999",
            "pool[0].quota: 9999999 is invalid; use an integer of at most ",
        ),
    ],
)
def test_an_invalid_value_is_reported_with_a_fix(tmp_path, text, problem):
    assert problem in problems(tmp_path, text)[0]


def test_wrong_options_of_a_policy_are_named_once(tmp_path):
    text = "[daemon]\npolicy = 'shockwave:k=-1'\n[[pool]]\nname = 'a'\nquota = 1\n"
    wrong = "daemon.policy: shockwave:k=-1: k must be at least 0 (got -1); change it"
    assert the_problem(tmp_path, text) == wrong


def test_more_queues_than_gpus_are_refused(tmp_path):
    text = "daemon.policy = 'wfq:sizes=5:weights=2+1'\n[[pool]]\nname = 'a'\nquota = 1\n"
    assert "2 queues, but the largest pool has 1 GPU; give fewer sizes" in the_problem(
        tmp_path, text
    )


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_trials_need_a_backend_that_can_run_them(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("daemon.backends.kube.config.find_spec", lambda _: True)
    text = f"[daemon]\npolicy = 'chronus:capacity=8'\n[backend]\nkind = '{kind}'\n"
    text += "commands = true\n" if kind == "slurm" else ""
    text += "[[pool]]\nname = 'a'\nquota = 16\n"
    assert config(tmp_path, text).policy == "chronus:capacity=8"
    base = SlurmConfig if kind == "slurm" else KubeConfig
    monkeypatch.setattr(base, "can", base.can - {"trials"})
    assert the_problem(tmp_path, text) == (
        "daemon.policy: chronus:capacity=8: this backend cannot run trials; add profile=0"
    )


def test_two_pools_of_one_name_are_refused(tmp_path):
    pool = "[[pool]]\nname = 'a'\nquota = 1\n"
    assert the_problem(tmp_path, 2 * pool).startswith("pool: the name 'a' is used 2 times")


def test_two_nodes_of_one_name_are_refused(tmp_path):
    node = "[[node]]\nname = 'n'\ngpus = 100\n"
    assert the_problem(tmp_path, 2 * node).startswith("node: the name 'n' is used 2 times")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("gpus = 200\nattributes = ['']", "node.n: '' is no attribute; write a word, or a kind"),
        ("gpus = 200\nattributes = ['rack:']", "node.n: 'rack:' is no attribute; write a word"),
        ("gpus = 200\nattributes = ['a b']", "node.n: 'a b' is no attribute; write a word"),
        ("gpus = 200\nattributes = ['a', 'a']", "node.n: an attribute stands twice; remove one"),
        ("attributes = ['a']", "node.n: gpus is missing; write how many GPUs the node has"),
    ],
)
def test_wrong_attributes_of_nodes_are_named(tmp_path, node, said):
    assert problems(tmp_path, f"[[node]]\nname = 'n'\n{node}\n")[0].startswith(said)


def test_attributes_of_nodes_need_one_sharing_group(tmp_path):
    pools = "".join(f"[[pool]]\nname = '{n}'\nquota = 1\ngroup = '{n}'\n" for n in "ab")
    node = "[[node]]\nname = 'n'\ngpus = 2\nattributes = ['gpu', 'rack:r1']\n"
    assert the_problem(tmp_path, pools + node).startswith("node: the pools are of 2 sharing groups")
    found = config(tmp_path, node.replace("= 2", "= 200"))
    assert found.nodes[0].attributes == ("gpu", "rack:r1")


def test_this_machine_is_one_node(tmp_path):
    text = "[backend]\nkind = 'local'\n"
    text += "".join(f"[[node]]\nname = 'n{i}'\ngpus = 100\n" for i in range(2))
    assert the_problem(tmp_path, text).startswith("node: backend local has only this machine")


def test_gpus_that_this_machine_lacks_are_reported_at_once(tmp_path, monkeypatch):
    text = "[backend]\nkind = 'local'\n[[pool]]\nname = 'a'\nquota = 3\n"
    monkeypatch.setattr("daemon.backends.local.config.count_gpus", lambda: 2)
    assert the_problem(tmp_path, text) == (
        "backend.gpus: this machine has 2 GPUs, and the pools own 3; give the pools smaller "
        "quotas, or declare backend.gpus"
    )
    monkeypatch.setattr("daemon.backends.local.config.count_gpus", lambda: 3)
    assert config(tmp_path, text).backend.gpus is None
    monkeypatch.setattr("daemon.backends.local.config.count_gpus", lambda: 0)
    node = "[[node]]\nname = 'here'\ngpus = 3\n"
    assert config(tmp_path, text + node).nodes[0].gpus == 3


def test_cells_are_checked_against_the_pools(tmp_path):
    kinds = "{ name = 'gpu' }, { name = 'node', child = 'gpu', count = 8, node = true }"
    written(tmp_path, f"types = [{kinds}]", "cells.toml")
    read = config(tmp_path, "[daemon]\ncells = 'cells.toml'")
    assert read.cells is not None
    assert sum(len(top.nodes) for top in read.cells.tops) == 144 // 8
    said = the_problem(tmp_path, "[daemon]\ncells = 'cells.toml'\npolicy = 'easy'")
    assert said.startswith("daemon.policy: easy does not support cells; use one of fcfs")


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    assert the_problem(tmp_path, "a = ").startswith("is not valid TOML: ")
    assert the_problem(tmp_path, b"\xff").startswith("is not UTF-8")
    assert the_problem(tmp_path, "a = " + "[" * 5000).startswith("is nested too deeply")
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "gone.toml")


def test_a_forecast_that_learns_needs_what_it_learns_with(tmp_path, monkeypatch):
    text = "[daemon]\nforecast = 'learned+survival'\nretrain = '1d'"
    monkeypatch.setattr(model_folder, "find_spec", lambda _: object())
    read = config(tmp_path, text)
    assert (read.retrain, read.models.name) == (86400.0, "models")
    monkeypatch.setattr(model_folder, "find_spec", lambda _: None)
    assert "xgboost, which is not installed" in the_problem(tmp_path, text)


def test_a_site_that_names_no_forecast_has_it_chosen(tmp_path):
    unasked = config(tmp_path, "[daemon]\nretrain = '2d'")
    assert (unasked.forecast, unasked.chosen_by_backtest) == ("peaks+survival", True)
    assert unasked.retrain == 2 * 86400.0
    named = config(tmp_path, "[daemon]\nforecast = 'peaks+survival'")
    assert (named.forecast, named.chosen_by_backtest) == ("peaks+survival", False)


def test_sia_in_cells_uses_careful_run_times_unless_the_site_names_a_forecast(tmp_path):
    kinds = '{ name = "gpu" }, { name = "node", child = "gpu", count = 8, node = true }'
    written(tmp_path, f"types = [{kinds}]", "cells.toml")
    unasked = config(tmp_path, "[daemon]\ncells = 'cells.toml'")
    assert (unasked.forecast, unasked.chosen_by_backtest) == ("peaks+survival:0.95", False)
    trained = config(tmp_path, "[daemon]\ncells = 'cells.toml'\nretrain = '1d'")
    assert (trained.forecast, trained.chosen_by_backtest) == ("peaks+survival", True)
    named = config(tmp_path, "[daemon]\ncells = 'cells.toml'\nforecast = 'peaks+boosted'")
    assert (named.forecast, named.chosen_by_backtest) == ("peaks+boosted", False)
    stopping = "[daemon]\ncells = 'cells.toml'\npreemptible = 'restart'"
    assert config(tmp_path, stopping).policy == "sia-reclaim"
    assert config(tmp_path, stopping).forecast == "peaks+survival"


def test_forecasts_may_be_none(tmp_path):
    assert config(tmp_path, "[daemon]\nforecast = 'none'").forecast == "none"
    assert config(tmp_path, "[daemon]\npolicy = 'fcfs'").policy == "fcfs"


def test_a_database_is_a_file_or_a_postgresql(tmp_path):
    text = "[daemon]\nstate = 'state'\ndatabase = '{}'"
    assert config(tmp_path, text.format("x.db")).database == tmp_path / "state" / "x.db"
    for url in ("postgresql://me@host:1/db", "postgres:///db?host=/run/postgresql"):
        assert config(tmp_path, text.format(url)).database == DatabaseUrl(url)
    assert "neither a file nor a URL" in the_problem(tmp_path, text.format("mysql://me@host/db"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host:port/db",
        "postgresql://me:s3cret@host:99999/db",
        "postgresql://me:s3cret%zz@host/db",
        "postgresql://me:s3cret@host/db?pasword=s3cret",
        "postgresql://[me:s3cret@host/db",
        "postgresql://me:top/s3cret@host:5/db",
        "postgresql://me:top#s3cret@host/db",
        "postgresql://me:top?s3cret@host/db",
        "postgresql://me:top@s3cret@host/db",
    ],
)
def test_an_invalid_url_is_shown_without_its_password(tmp_path, url):
    said = the_problem(tmp_path, f"[daemon]\ndatabase = '{url}'")
    assert "use postgresql://USER@HOST:PORT/NAME" in said
    assert "s3cret" not in said
    assert "top" not in said


def test_postgresql_needs_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = the_problem(tmp_path, "[daemon]\ndatabase = 'postgresql:///db'")
    root = ROOT
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "postgres" in project["optional-dependencies"]
    mend = f"pipx install --force '{project['name']}[postgres]'"
    assert mend in said
    assert mend in (root / "docs" / "operate/postgres.md").read_text()


@pytest.mark.parametrize(
    ("line", "policy", "cost"),
    [
        ("", "sia", None),
        ('preemptible = "never"', "sia", "never"),
        ('preemptible = "restart"', "sia-reclaim", "restart"),
        ('preemptible = "5m"', "sia-reclaim", 300.0),
        ("preemptible = 0", "sia-reclaim", 0.0),
        ('preemptible = "restart"\npolicy = "srtf"', "srtf", "restart"),
    ],
)
def test_a_site_with_preemptible_jobs_has_another_default_policy(tmp_path, line, policy, cost):
    found = config(tmp_path, f"[daemon]\n{line}\n")
    assert (found.policy, found.preemptible) == (policy, cost)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"often"', "daemon.preemptible: is 'often'; use a time such as 5m, restart"),
        ("-1", "daemon.preemptible: is -1.0; use a time such as 5m, restart"),
        ('"2d"', "daemon.preemptible: 2d is too long; use at most 1d, or restart"),
    ],
)
def test_the_cost_of_a_stop_is_a_time_or_a_word(tmp_path, value, said):
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, f"[daemon]\npreemptible = {value}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(said), problem


def test_jobs_of_a_backend_that_cannot_stop_them_may_not_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(SimulatedConfig, "can", frozenset())
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, '[daemon]\npreemptible = "restart"\n')
    (problem,) = caught.value.problems
    assert problem.startswith("daemon.preemptible: this backend cannot stop and restart jobs")


def test_every_key_of_the_section_daemon_is_documented(tmp_path):
    page = (ROOT / "docs/operate/daemon.md").read_text()
    with pytest.raises(ConfigError) as error:
        read_config(written(tmp_path, "[daemon]\nnosuchkey = 1", "sia.toml"))
    keys = re.search("use one of (.*)", str(error.value))[1].split(", ")
    assert "grace" in keys
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_tests_do_not_see_the_state_of_the_user_who_runs_them():
    assert not state_folder().exists()
    assert state_folder().parent.name.startswith("sia-state-")  # of tests/conftest.py
    said = [sys.executable, "-c", "from daemon.config.config import *; print(state_folder())"]
    assert check_output(said, text=True).strip() == str(state_folder())
