"""Commands that show the state: `sia status`, `why`, `events`, `completion` and `log`."""

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

from daemon.cli.client import DENIED, Client, at, find
from daemon.cli.common import CONFIG, INTERRUPTED, asks, moment, say, spread
from daemon.cli.jobs import LOOK
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import counted, some


@click.command()
@asks
def status(client: Client, as_json: bool) -> int:
    """Show the health of the daemon.

    The exit code is 1 if a component is unhealthy.
    """
    answer = client.get("/v1/status")
    if as_json:
        say(answer)
    else:
        _show(answer)
    return 0 if answer["serving"] and all(part["ok"] for part in answer["parts"]) else DENIED


def _show(answer: dict[str, Any]) -> None:
    rows = [
        ["commands", "accepted" if answer["serving"] else "refused", moment(answer["since"])],
        *(
            [part["name"], "healthy" if part["ok"] else "UNHEALTHY", moment(part["since"])]
            for part in answer["parts"]
        ),
    ]
    jobs, mode = counted(answer["jobs"], "job"), answer["lending_mode"]
    title = f"sia {answer['version']}: {jobs}, lending is {mode}"
    header = ["component", "state", "since"]
    show_table(title, header, rows, header)
    click.echo()
    if answer["kept"]:
        limited = [f"{name} ({', '.join(why)})" for name, why in answer["kept"].items()]
        click.echo(
            printable(f"pools that lend nothing: {some(limited)}; reason: sia pool show NAME")
        )
    if answer.get("starting"):
        jobs = counted(answer["starting"], "job")
        click.echo(
            f"starting: {jobs} cannot start yet, GPUs are not free; see sia jobs --phase starting"
        )
    reasons = {part.get("why") for part in answer["parts"]}
    if answer["why"] and not any(why and answer["why"].startswith(why) for why in reasons):
        click.echo(printable(f"commands: {answer['why']}"))
    for part in answer["parts"]:
        if part.get("why"):
            mend = f"; {part['mend']}" if part.get("mend") else ""
            click.echo(printable(f"{part['name']}: {part['why']}{mend}"))


@click.command()
@click.argument("job_id", metavar="ID")
@asks
def why(client: Client, job_id: str, as_json: bool) -> None:
    """Explain why a job is pending.

    Shows what the job waits for, and which change would start it now.
    """
    answer = client.get(f"/v1/jobs/{at(job_id)}/why")
    if as_json:
        say(answer)
        return
    for line in answer["words"]:
        click.echo(printable(line))


PAGE = 1000
"""Maximum number of events in one request."""

TIMES = ("at", "by", "deadline", "end", "expires", "latest", "planned", "soonest", "until")
"""Keys of an event's data whose values are times."""


@click.command()
@click.option("--follow", is_flag=True, help="Keep printing new events until interrupted.")
@click.option("--after", type=click.IntRange(0), help="Only events after this number.")
@asks
def events(client: Client, follow: bool, after: int | None, as_json: bool) -> int:
    """Print past events, or follow new ones.

    With --json each event is one line of JSON.
    """
    found = client.follow(after) if follow else _past(client, after or 0)
    try:
        for event in found:
            click.echo(msgspec.json.encode(event).decode() if as_json else line(event))
    except KeyboardInterrupt:  # Ctrl-C is the normal end
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
    """Return an event as one line: number, time, kind, subject and data."""
    of = " ".join(event[key] for key in ("job", "pool", "node") if event.get(key))
    more = ", ".join(
        f"{key} {_shown(key, value)}"
        for key, value in event.get("data", {}).items()
        if value not in (None, "", []) or (value is None and event["kind"] == "pool_changed")
    )
    text = f"{event['seq']:>7}  {moment(event['time'])}  {event['kind']:13} {of}"
    return printable(f"{text}  {more}" if more else text)


def _shown(key: str, value: Any) -> Any:
    """Return a value of an event as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "nodes":
        return spread(dict(value))
    if key == "loans":
        return " ".join(f"{pool}:{gpus}" for pool, gpus in value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return moment(value) if key in TIMES and isinstance(value, float) else value


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    To use it: eval "$(sia completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click supports these three"
    click.echo(kind(context.find_root().command, {}, "sia", "_SIA_COMPLETE").source())


@click.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True,
    help="Which output stream.",
)  # fmt: skip
@click.option(
    "--attempt", type=click.IntRange(1), help="Which attempt of the job.  [default: the latest]"
)
@click.option("--follow", is_flag=True, help="Keep printing new output until the job ends.")
@CONFIG
def log(config: Path | None, job_id: str, stream: str, attempt: int | None, *, follow: bool) -> int:
    """Print the output of a job.

    The output is copied byte for byte.
    """
    path = f"/v1/jobs/{at(job_id)}/log?stream={stream}"
    if attempt is not None:
        path += f"&attempt={attempt}"
    with closing(Client(find(config))) as client:
        try:
            if follow:
                _await_start(client, job_id)
            for piece in _pieces(client, path, follow=follow):
                click.echo(piece, nl=False)
        except KeyboardInterrupt:  # Ctrl-C is the normal end
            return INTERRUPTED
    return 0


def _await_start(client: Client, job_id: str) -> None:
    """Poll a job until it has started, or has ended without a start."""
    while True:
        view = client.patiently(partial(client.get, f"/v1/jobs/{at(job_id)}"))
        if view.get("attempt") or view.get("phase") not in ("held", "pending"):
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
