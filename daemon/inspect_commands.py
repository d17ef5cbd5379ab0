"""`sia status, why, events, completion, log`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import get_completion_class

from daemon.asking import CONFIG, INTERRUPTED, asks, moment, say, spread
from daemon.client import DENIED, Client, at, find
from daemon.job_commands import LOOK
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import counted, some


@click.command()
@asks
def status(client: Client, as_json: bool) -> int:
    """Say how the daemon and its parts are; the exit code is 1 where something is not well."""
    said = client.get("/v1/status")
    if as_json:
        say(said)
    else:
        _show(said)
    return 0 if said["serving"] and all(part["ok"] for part in said["parts"]) else DENIED


def _show(said: dict[str, Any]) -> None:
    rows = [
        ["commands", "taken" if said["serving"] else "refused", moment(said["since"])],
        *(
            [part["name"], "well" if part["ok"] else "NOT WELL", moment(part["since"])]
            for part in said["parts"]
        ),
    ]
    jobs, mode = counted(said["jobs"], "job"), said["lending_mode"]
    title = f"sia {said['version']}: {jobs}, lending is {mode}"
    header = ["part", "state", "since"]
    show_table(title, header, rows, header)
    click.echo()
    if said["kept"]:
        kept = [f"{name} ({', '.join(why)})" for name, why in said["kept"].items()]
        click.echo(printable(f"lend nothing: {some(kept)}; why: sia pool show NAME"))
    if said.get("starting"):
        jobs = counted(said["starting"], "job")
        click.echo(
            f"starting: the GPUs of {jobs} are not free: sia jobs --phase starting, sia why ID"
        )
    told = {part.get("why") for part in said["parts"]}
    if said["why"] and not any(why and said["why"].startswith(why) for why in told):
        click.echo(printable(f"commands: {said['why']}"))
    for part in said["parts"]:
        if part.get("why"):
            mend = f"; {part['mend']}" if part.get("mend") else ""
            click.echo(printable(f"{part['name']}: {part['why']}{mend}"))


@click.command()
@click.argument("job_id", metavar="ID")
@asks
def why(client: Client, job_id: str, as_json: bool) -> None:
    """Say what a job waits for, and without what it would start now."""
    said = client.get(f"/v1/jobs/{at(job_id)}/why")
    if as_json:
        say(said)
        return
    for line in said["words"]:
        click.echo(printable(line))


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


@click.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True,
    help="Which of the two.",
)  # fmt: skip
@click.option("--attempt", type=click.IntRange(1), help="Of its starts.  [default: the latest]")
@click.option("--follow", is_flag=True, help="Go on with what it writes, until it ends.")
@CONFIG
def log(config: Path | None, job_id: str, stream: str, attempt: int | None, *, follow: bool) -> int:
    """Print what a job wrote, byte for byte."""
    path = f"/v1/jobs/{at(job_id)}/log?stream={stream}"
    if attempt is not None:
        path += f"&attempt={attempt}"
    with closing(Client(find(config))) as client:
        try:
            if follow:
                _await_start(client, job_id)
            for piece in _pieces(client, path, follow=follow):
                click.echo(piece, nl=False)
        except KeyboardInterrupt:  # as it is meant to end
            return INTERRUPTED
    return 0


def _await_start(client: Client, job_id: str) -> None:
    """Look at a job until it has been started, or never will be."""
    while True:
        said = client.patiently(partial(client.get, f"/v1/jobs/{at(job_id)}"))
        if said.get("attempt") or said.get("phase") not in ("held", "pending"):
            return
        time.sleep(LOOK)


def _pieces(client: Client, path: str | None, *, follow: bool) -> Iterator[bytes]:
    while path is not None:
        ask = partial(client.piece, path)
        piece, path = client.patiently(ask) if follow else ask()
        if piece:
            yield piece
        elif follow:
            time.sleep(LOOK)
        else:
            return
