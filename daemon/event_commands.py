"""`sia events, completion`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from click.shell_completion import get_completion_class

from daemon.asking import INTERRUPTED, asks, moment, spread
from daemon.client import Client
from sia.console.terminal import printable

PAGE = 1000
"""Events asked for at a time."""

TIMES = ("at", "until")
"""Of what else an event says, what is a time."""


@click.command()
@click.option("--follow", is_flag=True, help="Go on with what happens, until interrupted.")
@click.option("--after", type=click.IntRange(0), help="Only after this number.")
@asks
def events(client: Client, follow: bool, after: int | None, as_json: bool) -> int:
    """Print what has happened, or with --follow what happens."""
    found = client.follow(after) if follow else _past(client, after or 0)
    try:
        for event in found:
            click.echo(msgspec.json.encode(event).decode() if as_json else line(event))
    except KeyboardInterrupt:  # as it is meant to end
        return INTERRUPTED
    return 0


def _past(client: Client, after: int) -> Iterator[dict[str, Any]]:
    while True:
        page = client.get("/v1/events", after=after, limit=PAGE)
        yield from page["events"]
        if page["next"] == after:
            return
        after = page["next"]


def line(event: dict[str, Any]) -> str:
    """An event for people: when, what, of whom, and what else is to say."""
    of = " ".join(event[key] for key in ("job", "pool", "node") if event.get(key))
    more = ", ".join(
        f"{key} {_said(key, value)}"
        for key, value in event.get("data", {}).items()
        if value not in (None, "", []) or (value is None and event["kind"] == "pool_changed")
    )
    text = f"{event['seq']:>7}  {moment(event['time'])}  {event['kind']:13} {of}"
    return printable(f"{text}  {more}" if more else text)


def _said(key: str, value: Any) -> Any:
    """A value of an event, as people here read it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "nodes":
        return spread(dict(value))
    if key == "loans":
        return " ".join(f"{pool}:{gpus}" for pool, gpus in value)
    return moment(value) if key in TIMES and isinstance(value, float) else value


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what completes commands in a shell: eval "$(sia completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(kind(context.find_root().command, {}, "sia", "_SIA_COMPLETE").source())
