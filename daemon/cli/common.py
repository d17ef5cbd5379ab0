"""Shared code of the commands that ask a daemon: options, output of times and values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from daemon.cli.client import Client, find
from sia.console.as_json import json_option, print_json
from sia.wording import NONE, duration

INTERRUPTED = 130
"""Exit code after Ctrl-C; shells use 128 + SIGINT."""

Command = TypeVar("Command", bound=Callable[..., Any])

CONFIG = click.option(
    "--config",
    type=Path,
    help="The daemon's configuration, read for its address and token.  [default: ./sia.toml]",
)
JSON = json_option("Print the daemon's answer as JSON.")


def asks(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --config and --json, and a client as its first argument."""

    @wraps(command)
    def found(config: Path | None, **options: Any) -> Any:
        with closing(Client(find(config))) as client:
            return command(client, **options)

    return CONFIG(JSON(found))


def say(value: Any) -> None:
    """Print JSON, for scripts."""
    print_json(value)


def moment(time: float | None) -> str:
    """Return a time in the local time zone, with the name of the zone."""
    if time is None:
        return NONE
    return datetime.fromtimestamp(time, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def lasted(job: dict[str, Any], now: float) -> str:
    """Return the run time of a job so far, or in all if it has ended."""
    started = job.get("started")
    return NONE if started is None else duration(max(0.0, (job.get("ended") or now) - started))


def waited(job: dict[str, Any], now: float) -> str:
    """Return the waiting time of a job so far, or in all if it has started."""
    until = job.get("started") or job.get("ended") or now
    return duration(max(0.0, until - job["submitted"]))


def pairs_of(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse the `KEY=VALUE` of a repeatable option. Raises UsageError."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} {text}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def spread(gpus: dict[str, list[int]]) -> str:
    """Return GPUs by node, like `n1:0,1`."""
    return ";".join(f"{node}:{','.join(map(str, numbers))}" for node, numbers in gpus.items())
