"""Reads `sia.toml` and reports all of its problems at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from cells.layout.spec import Spec
from daemon.config.access import LimitsConfig, TlsConfig
from daemon.config.config import (
    BACKENDS,
    CLUSTER,
    FIRST_NAME,
    LOOPBACK,
    USUAL_BACKEND,
    USUAL_FORECAST,
    Address,
    BackendConfig,
    ClusterName,
    Config,
    DriftMode,
    NodeConfig,
    PoolConfig,
    backend_section,
    state_folder,
    usual_forecast,
    usual_policy,
)
from daemon.config.database import database_of
from daemon.config.mqtt import MqttConfig
from daemon.config.validation import ConfigProblem, T, read, refuse_unknown, shown
from daemon.config.webhooks import read_webhooks
from daemon.model.job import LendingMode
from daemon.model.limits import GRACE, KEEP_RECORDS, SNAPSHOT_EVERY, STOPS_PER_JOB
from daemon.model.setup import Grant
from sia.console.errors import UserError
from sia.contract.plugins import plugins
from sia.model import STOP_WORDS, StopCost
from sia.wording import did_you_mean, parse_seconds

MAX_CONFIG = 2**24
"""Maximum bytes of a configuration file; a thousand pools take about 100,000."""

ConfigTime = float | str
"""Seconds, or text like `5m`."""


class ConfigError(UserError):
    """A configuration is invalid. `problems` has one line for each problem."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        """Create an error that names the file and lists the problems."""
        self.path, self.problems = path, problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


SECTIONS = ("daemon", "backend", "pool", "node", "webhook", "mqtt", "tls", "limits", "grant")


class _Daemon(Struct, frozen=True):
    state: str = ""
    database: str = "sia.db"
    token_file: str = "token"  # noqa: S105  a file name, not a secret
    listen: str = "{}:{}".format(*LOOPBACK)
    url: Annotated[str, Meta(max_length=1000)] = ""
    cluster: ClusterName = CLUSTER
    policy: str | None = None
    solver: str = ""
    forecast: str | None = None
    retrain: ConfigTime | None = None
    windows: tuple[ConfigTime, ...] = ("5m", "1h", "12h")
    tick: ConfigTime = "5m"
    slack: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    lending: LendingMode | None = None
    drift: DriftMode = "say"
    grace: ConfigTime = GRACE
    resume_cost: ConfigTime | None = None
    preemptible: ConfigTime | None = None
    stops_per_job: Annotated[int, Meta(ge=0, le=1_000_000)] = STOPS_PER_JOB
    stops_per_hour: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    estimates: bool = True
    snapshot_every: Annotated[int, Meta(ge=1, le=10_000_000)] = SNAPSHOT_EVERY
    retention: ConfigTime = KEEP_RECORDS
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cells: str = ""


def read_config(path: Path | None) -> Config:
    """Read and check a configuration file; None gives the built-in defaults: one pool.

    Raises ConfigError with all problems: first those of single keys, then those of combinations.
    """
    if path is None:
        return Config.embedded()
    from daemon.config.check import problems_of  # noqa: PLC0415  clients do not need it

    values = _values(path)
    problems: list[ConfigProblem] = []
    config = _config(path, values, problems)
    errors = [*map(str, problems), *problems_of(config, _names(values, "pool"))]
    if errors:
        raise ConfigError(path, errors)
    return config


def find_config(path: Path | None) -> Path | None:
    """Return `path`, or `sia.toml` if `path` is None and the working directory has that file."""
    here = Path(FIRST_NAME)
    return here if path is None and here.exists() else path


def peek(path: Path | None) -> Config:
    """Read what a client needs to reach the daemon: the sections `[daemon]` and `[tls]`.

    Raises ConfigError if the file cannot be read.
    """
    if path is None:
        return Config.embedded()
    values = {key: value for key, value in _values(path).items() if key in ("daemon", "tls")}
    if isinstance(values.get("daemon"), dict):
        values["daemon"].pop("cells", None)
    return _config(path, values, [])


def _values(path: Path) -> dict[str, Any]:
    """Parse the file. Raises ConfigError if it is not TOML."""
    try:
        if path.stat().st_size > MAX_CONFIG:
            raise ConfigError(path, [f"larger than {MAX_CONFIG} bytes; name a configuration"])
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(path, [f"{error.strerror}; name a readable file"]) from None
    except UnicodeDecodeError:
        raise ConfigError(path, ["is not UTF-8 text; save the file as UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, [f"is not valid TOML: {error}; correct that line"]) from None
    except RecursionError:
        raise ConfigError(path, ["is nested too deeply; see docs/operate/daemon.md"]) from None


def _config(path: Path, values: dict[str, Any], problems: list[ConfigProblem]) -> Config:
    """Build the configuration; each invalid value adds a problem and becomes the default."""
    refuse_unknown(values, SECTIONS, (), problems)
    section = read(values.get("daemon", {}), _Daemon, ("daemon",), problems) or _Daemon()
    base = path.absolute().parent
    state = base / section.state if section.state else state_folder()
    backend = _backend(values.get("backend", {}), problems).placed(base, state)
    pools = _tables(values, "pool", PoolConfig, problems)
    nodes = _tables(values, "node", NodeConfig, problems) if "node" in values else ()
    tls = read(values.get("tls", {}), TlsConfig, ("tls",), problems) or TlsConfig()
    limits = read(values.get("limits", {}), LimitsConfig, ("limits",), problems)
    stop_cost = _stop_cost(section.preemptible, problems)
    stops = stop_cost if "preempt" in backend.can else None
    policy = usual_policy(stops) if section.policy is None else section.policy
    forecast = section.forecast
    if forecast is None:
        trained = section.retrain is not None  # the site asks for a choice of models
        forecast = usual_forecast(policy, cells=bool(section.cells) and not trained)
    return Config(
        database=database_of(section.database, state),
        token_file=state / section.token_file,
        models=state / "models",
        listen=_address(section.listen, problems)._replace(scheme="https" if tls.on else "http"),
        url=section.url,
        cluster=section.cluster,
        policy=policy,
        solver=section.solver,
        forecast=forecast,
        chosen_by_backtest=section.forecast is None and forecast == USUAL_FORECAST,
        retrain=None if section.retrain is None else _seconds("retrain", section.retrain, problems),
        windows=tuple(_seconds("windows", window, problems) for window in section.windows),
        tick=_seconds("tick", section.tick, problems),
        slack=section.slack,
        lending=section.lending,
        drift=section.drift,
        grace=_seconds("grace", section.grace, problems),
        resume_cost=_cost(section.resume_cost, problems),
        preemptible=stop_cost,
        stops_per_job=section.stops_per_job,
        stops_per_hour=section.stops_per_hour,
        estimates=section.estimates,
        snapshot_every=section.snapshot_every,
        retention=_seconds("retention", section.retention, problems),
        log_level=section.log_level,
        backend=backend,
        pools=pools,
        nodes=nodes,
        tls=tls.relative_to(base),
        limits=limits or LimitsConfig(),
        grants=_tables(values, "grant", Grant, problems) if "grant" in values else (),
        cells=_cells(base / section.cells, pools, problems) if section.cells else None,
        webhooks=read_webhooks(values, base, problems),
        mqtt=_mqtt(values["mqtt"], section.cluster, base, problems) if "mqtt" in values else None,
    )


def _cost(value: ConfigTime | None, problems: list[ConfigProblem]) -> float:
    return 0.0 if value is None else _seconds("resume_cost", value, problems)


def _stop_cost(value: ConfigTime | None, problems: list[ConfigProblem]) -> StopCost | None:
    """Return the cost of a stop for jobs that do not state it: a word, or seconds (0 or more)."""
    if value is None or value in STOP_WORDS:
        return None if value is None else STOP_WORDS[str(value)]
    try:
        return parse_seconds(value if isinstance(value, str) else f"{value:f}s")
    except ValueError:
        mend = "use a time such as 5m, restart (all work is lost), or never"
        problems.append(ConfigProblem(("daemon", "preemptible"), f"is {shown(value)}", mend))
        return None


def _backend(values: Any, problems: list[ConfigProblem]) -> BackendConfig:
    """Read the section of the named backend; return the default backend if it is invalid."""
    usual = backend_section(USUAL_BACKEND)
    kind = values.get("kind", USUAL_BACKEND) if isinstance(values, dict) else USUAL_BACKEND
    if not isinstance(kind, str) or kind not in plugins(BACKENDS):
        known = list(plugins(BACKENDS))
        close = did_you_mean(kind, known) if isinstance(kind, str) else ""
        mend = f"use one of {', '.join(known)}{close and f'.{close}'}"
        problems.append(ConfigProblem(("backend", "kind"), f"unknown kind {shown(kind)}", mend))
        return usual()
    return read(values, backend_section(kind), ("backend",), problems, ["kind"]) or usual()


def _mqtt(
    values: Any, cluster: str, base: Path, problems: list[ConfigProblem]
) -> MqttConfig | None:
    if isinstance(values, dict):
        values = {"cluster": cluster, **values}
    found = read(values, MqttConfig, ("mqtt",), problems)
    return None if found is None else found.under(base)


def _tables(
    values: Mapping[str, Any], key: str, kind: type[T], problems: list[ConfigProblem]
) -> tuple[T, ...]:
    """Return the valid tables of an array; a missing array and invalid tables add problems."""
    if key not in values:
        problems.append(ConfigProblem((key,), "is missing", f"add [[{key}]] with name and quota"))
        return ()
    rows = values[key]
    if not isinstance(rows, list) or not rows:
        problems.append(
            ConfigProblem((key,), "is not an array of tables", f"write [[{key}]] before each")
        )
        return ()
    found = (read(row, kind, (key, i), problems) for i, row in enumerate(rows))
    return tuple(row for row in found if row is not None)


def _names(values: Mapping[str, Any], key: str) -> list[str]:
    """Return the names in all tables of an array, including invalid tables."""
    rows = values.get(key)
    tables = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [row["name"] for row in tables if isinstance(row.get("name"), str)]


def _cells(path: Path, pools: Sequence[PoolConfig], problems: list[ConfigProblem]) -> Spec | None:
    """Read a cells file and check it against the pools; None adds a problem."""
    from daemon.config.check import cells_of  # noqa: PLC0415  clients do not need it

    try:
        return cells_of(path, pools)
    except UserError as error:
        what, _, mend = error.format_message().rpartition("; ")
        problems.append(ConfigProblem(("daemon", "cells"), what, mend))
        return None


def _seconds(key: str, value: ConfigTime, problems: list[ConfigProblem]) -> float:
    """Return a positive time in seconds; an invalid one adds a problem and becomes 300."""
    try:
        seconds = parse_seconds(value if isinstance(value, str) else f"{value:f}s")
    except ValueError as error:
        what, _, mend = str(error).rpartition("; ")
        problems.append(ConfigProblem(("daemon", key), what, mend))
        return 300.0
    if seconds <= 0:
        problems.append(
            ConfigProblem(("daemon", key), f"is {value!r}", "use a time above 0, such as 5m")
        )
    return seconds


def _address(text: str, problems: list[ConfigProblem]) -> Address:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        mend = "use HOST:PORT, such as {}:{}".format(*LOOPBACK)
        problems.append(ConfigProblem(("daemon", "listen"), f"invalid address {text!r}", mend))
        return LOOPBACK
    return Address(found[1] or found[2], int(found[3]))
