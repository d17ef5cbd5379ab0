"""One JSON document on standard output, for scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(about: str = "Print the result as JSON.") -> Callable[[Command], Command]:
    """Decorator that adds the option --json as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
