"""`sia.toml`: read whole, and all that is wrong with it said at once."""

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
    DEFAULT_POOLS,
    FIRST_NAME,
    LOOPBACK,
    USUAL_BACKEND,
    Address,
    BackendConfig,
    ClusterName,
    Config,
    DriftMode,
    NodeConfig,
    PoolConfig,
    backend_section,
    state_folder,
)
from daemon.config.database import database_of
from daemon.config.mqtt import MqttConfig
from daemon.config.validation import ConfigProblem, T, read, refuse_unknown, shown
from daemon.config.webhooks import read_webhooks
from daemon.model.job import LendingMode
from daemon.model.limits import KEEP_RECORDS, SNAPSHOT_EVERY
from sia.console.errors import UserError
from sia.plugins import plugins
from sia.wording import did_you_mean, parse_seconds

MAX_CONFIG = 2**24
"""Bytes of a configuration: a thousand pools take 100,000."""

ConfigTime = float | str
"""Seconds, or text like `5m`."""


class ConfigError(UserError):
    """A configuration cannot be. `problems` has one line for each thing that is wrong."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        """Name the file and all that is wrong."""
        self.path, self.problems = path, problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


SECTIONS = ("daemon", "backend", "pool", "node", "webhook", "mqtt", "tls", "limits")


class _Daemon(Struct, frozen=True):
    state: str = ""
    database: str = "sia.db"
    token_file: str = "token"  # noqa: S105  a file's name
    listen: str = "{}:{}".format(*LOOPBACK)
    cluster: ClusterName = CLUSTER
    policy: str = "sia"
    forecast: str = "peaks+survival"
    retrain: ConfigTime | None = None
    windows: tuple[ConfigTime, ...] = ("5m", "1h", "12h")
    tick: ConfigTime = "5m"
    slack: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    lending: LendingMode | None = None
    drift: DriftMode = "say"
    estimates: bool = True
    snapshot_every: Annotated[int, Meta(ge=1, le=10_000_000)] = SNAPSHOT_EVERY
    retention: ConfigTime = KEEP_RECORDS
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cells: str = ""


def read_config(path: Path | None) -> Config:
    """The configuration of a file, or the embedded one for None.

    Raises ConfigError with all that is wrong: each key by itself, then how they fit together.
    """
    if path is None:
        return Config.embedded()
    from daemon.config.check import problems_of  # noqa: PLC0415  clients need none of it

    values = _values(path)
    problems: list[ConfigProblem] = []
    config = _config(path, values, problems)
    said = [*map(str, problems), *problems_of(config, _names(values, "pool"))]
    if said:
        raise ConfigError(path, said)
    return config


def find_config(path: Path | None) -> Path | None:
    """The file that is meant: the one named, or else `sia.toml` where it is here."""
    here = Path(FIRST_NAME)
    return here if path is None and here.exists() else path


def peek(path: Path | None) -> Config:
    """As much of a configuration as tells a client where the daemon is and what its token.

    Raises ConfigError where the file cannot be read.
    """
    if path is None:
        return Config.embedded()
    values = {key: value for key, value in _values(path).items() if key in ("daemon", "tls")}
    if isinstance(values.get("daemon"), dict):
        values["daemon"].pop("cells", None)
    return _config(path, values, [])


def _values(path: Path) -> dict[str, Any]:
    """The tables of the file. Raises ConfigError where it is none."""
    try:
        if path.stat().st_size > MAX_CONFIG:
            raise ConfigError(path, [f"more than {MAX_CONFIG} bytes; give a configuration"])
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(path, [f"{error.strerror}; give a file that can be read"]) from None
    except UnicodeDecodeError:
        raise ConfigError(path, ["is not UTF-8 text; write it in TOML"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, [f"is no TOML: {error}; mend that place"]) from None
    except RecursionError:
        raise ConfigError(path, ["is nested too deeply; see docs/operate/daemon.md"]) from None


def _config(path: Path, values: dict[str, Any], problems: list[ConfigProblem]) -> Config:
    """What the file says, with defaults for what is wrong, which goes to the problems."""
    refuse_unknown(values, SECTIONS, (), problems)
    said = read(values.get("daemon", {}), _Daemon, ("daemon",), problems) or _Daemon()
    base = path.absolute().parent
    state = base / said.state if said.state else state_folder()
    backend = _backend(values.get("backend", {}), problems).placed(base, state)
    pools = _tables(values, "pool", PoolConfig, problems) if "pool" in values else DEFAULT_POOLS
    nodes = _tables(values, "node", NodeConfig, problems) if "node" in values else ()
    tls = read(values.get("tls", {}), TlsConfig, ("tls",), problems) or TlsConfig()
    limits = read(values.get("limits", {}), LimitsConfig, ("limits",), problems)
    return Config(
        database=database_of(said.database, state),
        token_file=state / said.token_file,
        models=state / "models",
        listen=_address(said.listen, problems)._replace(scheme="https" if tls.on else "http"),
        cluster=said.cluster,
        policy=said.policy,
        forecast=said.forecast,
        retrain=None if said.retrain is None else _seconds("retrain", said.retrain, problems),
        windows=tuple(_seconds("windows", window, problems) for window in said.windows),
        tick=_seconds("tick", said.tick, problems),
        slack=said.slack,
        lending=said.lending,
        drift=said.drift,
        estimates=said.estimates,
        snapshot_every=said.snapshot_every,
        retention=_seconds("retention", said.retention, problems),
        log_level=said.log_level,
        backend=backend,
        pools=pools,
        nodes=nodes,
        tls=tls.beside(base),
        limits=limits or LimitsConfig(),
        cells=_cells(base / said.cells, pools, problems) if said.cells else None,
        webhooks=read_webhooks(values, base, problems),
        mqtt=_mqtt(values["mqtt"], said.cluster, base, problems) if "mqtt" in values else None,
    )


def _backend(values: Any, problems: list[ConfigProblem]) -> BackendConfig:
    """The section of the kind that is named; the usual one with its defaults if that fails."""
    usual = backend_section(USUAL_BACKEND)
    kind = values.get("kind", USUAL_BACKEND) if isinstance(values, dict) else USUAL_BACKEND
    if not isinstance(kind, str) or kind not in plugins(BACKENDS):
        known = list(plugins(BACKENDS))
        close = did_you_mean(kind, known) if isinstance(kind, str) else ""
        mend = f"write {', '.join(known)}{close and f'.{close}'}"
        problems.append(ConfigProblem(("backend", "kind"), f"is {shown(kind)}", mend))
        return usual()
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if key != "kind"}
    return read(values, backend_section(kind), ("backend",), problems) or usual()


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
    """The tables of an array that are well formed."""
    rows = values[key]
    if not isinstance(rows, list) or not rows:
        problems.append(
            ConfigProblem((key,), "is no array of tables", f"write [[{key}]] before each")
        )
        return ()
    found = (read(row, kind, (key, i), problems) for i, row in enumerate(rows))
    return tuple(row for row in found if row is not None)


def _names(values: Mapping[str, Any], key: str) -> list[str]:
    """Names in all tables of an array, well formed or not."""
    rows = values.get(key)
    tables = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [row["name"] for row in tables if isinstance(row.get("name"), str)]


def _cells(path: Path, pools: Sequence[PoolConfig], problems: list[ConfigProblem]) -> Spec | None:
    """The cells of a file, which are those of the pools."""
    from daemon.config.check import cells_of  # noqa: PLC0415  clients need none of it

    try:
        return cells_of(path, pools)
    except UserError as error:
        what, _, mend = error.format_message().rpartition("; ")
        problems.append(ConfigProblem(("daemon", "cells"), what, mend))
        return None


def _seconds(key: str, value: ConfigTime, problems: list[ConfigProblem]) -> float:
    """A time, which is above 0; five minutes where it is none."""
    try:
        seconds = parse_seconds(value if isinstance(value, str) else f"{value:f}s")
    except ValueError as error:
        what, _, mend = str(error).rpartition("; ")
        problems.append(ConfigProblem(("daemon", key), what, mend))
        return 300.0
    if seconds <= 0:
        problems.append(
            ConfigProblem(("daemon", key), f"is {value!r}", "write a time above 0, like 5m")
        )
    return seconds


def _address(text: str, problems: list[ConfigProblem]) -> Address:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        mend = "write HOST:PORT, like {}:{}".format(*LOOPBACK)
        problems.append(ConfigProblem(("daemon", "listen"), f"is {text!r}", mend))
        return LOOPBACK
    return Address(found[1] or found[2], int(found[3]))
