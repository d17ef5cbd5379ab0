"""What the commands that ask a daemon have in common: where it is, and how answers are shown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from daemon.client import Client, find
from sia.wording import NONE, duration

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

Command = TypeVar("Command", bound=Callable[..., Any])

CONFIG = click.option(
    "--config",
    type=Path,
    help="The daemon's configuration, for its address and token.  [default: ./sia.toml]",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the daemon's JSON instead.")


def asks(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose first argument is a client, and which is told --json."""

    @wraps(command)
    def found(config: Path | None, **options: Any) -> Any:
        with closing(Client(find(config))) as client:
            return command(client, **options)

    return CONFIG(JSON(found))


def say(value: Any) -> None:
    """Print JSON, for scripts."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def moment(time: float | None) -> str:
    """A time of the daemon's, as people here read it, with the zone: others read it elsewhere."""
    if time is None:
        return NONE
    return datetime.fromtimestamp(time, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def lasted(job: dict[str, Any], now: float) -> str:
    """How long a job has run, or ran."""
    started = job.get("started")
    return NONE if started is None else duration(max(0.0, (job.get("ended") or now) - started))


def waited(job: dict[str, Any], now: float) -> str:
    """How long a job has waited, or did."""
    until = job.get("started") or job.get("ended") or now
    return duration(max(0.0, until - job["submitted"]))


def pairs_of(given: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` of an option that may be given several times. Raises UsageError."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} {text}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def spread(gpus: dict[str, list[int]]) -> str:
    """GPUs by node, as `n1:0-3`."""
    return ";".join(f"{node}:{','.join(map(str, numbers))}" for node, numbers in gpus.items())
