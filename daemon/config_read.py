"""`sia.toml`: read whole, and all that is wrong with it said at once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from daemon.config import (
    DEFAULT_POOLS,
    LOOPBACK,
    Address,
    BackendConfig,
    Config,
    LocalConfig,
    NodeConfig,
    PoolConfig,
    SimulatedConfig,
    state_folder,
)
from daemon.config_check import cells_of, problems_of
from replay.errors import UserError
from replay.text import parse_seconds

MAX_CONFIG = 2**24
"""Bytes of a configuration: a thousand pools take 100,000."""

T = TypeVar("T", bound=Struct)

Time = float | str
"""Seconds, or text like `5m`."""

BACKENDS: dict[str, type[SimulatedConfig | LocalConfig]] = {
    "simulated": SimulatedConfig,
    "local": LocalConfig,
}


class ConfigError(UserError):
    """A configuration cannot be. `problems` has one line for each thing that is wrong."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        """Name the file and all that is wrong."""
        self.path, self.problems = path, problems
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))


class _Daemon(Struct, frozen=True):
    state: str = ""
    database: str = "sia.db"
    token_file: str = "token"  # noqa: S105  a file's name
    listen: str = "{}:{}".format(*LOOPBACK)
    policy: str = "sia"
    forecast: str = "peaks+survival"
    windows: tuple[Time, ...] = ("5m", "1h", "12h")
    tick: Time = "5m"
    slack: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    snapshot_every: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    retention: Time = "30d"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cells: str = ""


def read_config(path: Path | None) -> Config:
    """The configuration of a file, or the embedded one for None.

    Raises ConfigError with all that is wrong: each key by itself, then how they fit together.
    """
    if path is None:
        return Config.embedded()
    values = _values(path)
    problems: list[str] = []
    config = _config(path, values, problems)
    problems += problems_of(config)
    if problems:
        raise ConfigError(path, problems)
    return config


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
        raise ConfigError(path, ["is nested too deeply; see docs/daemon.md"]) from None


def _config(path: Path, values: dict[str, Any], problems: list[str]) -> Config:
    """What the file says, with defaults for what is wrong, which goes to the problems."""
    refuse_unknown(values, ("daemon", "backend", "pool", "node"), "", problems)
    said = table(values.get("daemon", {}), _Daemon, "daemon", problems) or _Daemon()
    base = path.absolute().parent
    state = base / said.state if said.state else state_folder()
    backend = _backend(values.get("backend", {}), problems)
    if isinstance(backend, LocalConfig):
        backend = msgspec.structs.replace(backend, folder=str(state / backend.folder))
    pools = _tables(values, "pool", PoolConfig, problems) if "pool" in values else DEFAULT_POOLS
    nodes = _tables(values, "node", NodeConfig, problems) if "node" in values else ()
    return Config(
        database=state / said.database,
        token_file=state / said.token_file,
        listen=_address(said.listen, problems),
        policy=said.policy,
        forecast=said.forecast,
        windows=tuple(_seconds("daemon.windows", window, problems) for window in said.windows),
        tick=_seconds("daemon.tick", said.tick, problems),
        slack=said.slack,
        snapshot_every=said.snapshot_every,
        retention=_seconds("daemon.retention", said.retention, problems),
        log_level=said.log_level,
        backend=backend,
        pools=pools,
        nodes=nodes,
        cells=cells_of(base / said.cells, pools, problems) if said.cells else None,
    )


def _backend(values: Any, problems: list[str]) -> BackendConfig:
    if not isinstance(values, dict):
        problems.append("backend: is no table; write [backend] and its keys below it")
        return SimulatedConfig()
    kind = values.get("kind", "simulated")
    if not isinstance(kind, str) or kind not in BACKENDS:
        problems.append(f"backend.kind: is {kind!r}; write {' or '.join(BACKENDS)}")
        return SimulatedConfig()
    rest = {key: value for key, value in values.items() if key != "kind"}
    return table(rest, BACKENDS[kind], "backend", problems) or SimulatedConfig()


def _tables(values: Mapping[str, Any], key: str, kind: type[T], said: list[str]) -> tuple[T, ...]:
    """The tables of an array that are well formed."""
    rows = values[key]
    if not isinstance(rows, list) or not rows:
        said.append(f"{key}: is no array of tables; write [[{key}]] before each")
        return ()
    read = (table(row, kind, f"{key}[{i}]", said) for i, row in enumerate(rows))
    return tuple(row for row in read if row is not None)


def table(values: Any, kind: type[T], where: str, problems: list[str]) -> T | None:
    """A table as a struct, with defaults for what is wrong, which is added to the problems.

    None where a key is wrong that has no default.
    """
    if not isinstance(values, dict):
        problems.append(f"{where}: is no table; write keys and values")
        return None
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    refuse_unknown(values, fields, where, problems)
    good = {}
    for name, field in fields.items():
        if name in values:
            try:
                good[name] = msgspec.convert(values[name], field.type)
            except msgspec.ValidationError as error:
                problems.append(f"{where}.{name}: {_mend(values[name], str(error), field.type)}")
        elif field.required:
            problems.append(f"{where}.{name}: is missing; add it")
    whole = all(name in good for name, field in fields.items() if field.required)
    return kind(**good) if whole else None


def refuse_unknown(values: Mapping[str, Any], known: Any, where: str, problems: list[str]) -> None:
    """Name each key that is not known, and the one that was likely meant."""
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            mend = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
            problems.append(f"{where}{'.' if where else ''}{key}: is unknown; {mend}")


def _mend(value: Any, message: str, kind: Any) -> str:
    """`Expected ...` as what is there and what to write instead."""
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    if message.startswith("Invalid enum value"):
        return f"is {shown}; write {', '.join(_choices(kind))}"
    wanted = re.sub(r", got .*| - at `.*", "", message.removeprefix("Expected ")).replace("`", "")
    return f"is {shown}; write {wanted}"


def _choices(kind: Any) -> list[str]:
    found = msgspec.inspect.type_info(kind)
    if isinstance(found, msgspec.inspect.EnumType):
        return [str(member.value) for member in found.cls]
    return [str(value) for value in getattr(found, "values", ())]


def _seconds(key: str, value: Time, problems: list[str]) -> float:
    """A time, which is above 0; five minutes where it is none."""
    try:
        seconds = parse_seconds(value if isinstance(value, str) else f"{value:f}")
    except ValueError as error:
        problems.append(f"{key}: {error}")
        return 300.0
    if seconds <= 0:
        problems.append(f"{key}: is {value!r}; write a time above 0, like 5m")
    return seconds


def _address(text: str, problems: list[str]) -> Address:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        problems.append(
            f"daemon.listen: is {text!r}; write HOST:PORT, like {LOOPBACK[0]}:{LOOPBACK[1]}"
        )
        return LOOPBACK
    return Address(found[1] or found[2], int(found[3]))
