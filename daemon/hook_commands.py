"""`sia webhook`."""

from __future__ import annotations

from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import DENIED, Client, at
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, counted

NUMBERS = click.argument("numbers", type=click.IntRange(1), nargs=-1, metavar="[NUMBER]...")


@click.group()
def webhook() -> None:
    """Look at webhooks, and at what they could not deliver."""


@webhook.command("list")
@asks
def list_webhooks(client: Client, as_json: bool) -> None:
    """List webhooks and how they are."""
    said = client.get("/v1/webhooks")
    if as_json:
        say(said)
        return
    rows = [
        [
            hook["name"], hook["to"], hook["state"], f"{hook['lag']:,}", f"{hook['dead']:,}",
            str(hook["status"] or NONE), moment(hook["asked"]), hook["why"],
        ]
        for hook in said["webhooks"]
    ]  # fmt: skip
    header = ["webhook", "to", "state", "lag", "dead", "answer", "at", "why"]
    show_table("Webhooks", header, rows, ("to", "state", "at", "why"))


@webhook.command()
@click.argument("name")
@click.option("--after", type=click.IntRange(0), default=0, help="Only after this number.")
@asks
def dead(client: Client, name: str, after: int, as_json: bool) -> None:
    """List deliveries that were given up."""
    letters: list[dict[str, Any]] = []
    while True:
        page = client.get(f"/v1/webhooks/{at(name)}/dead", after=after)
        letters += page["letters"]
        if page["next"] == after:
            break
        after = page["next"]
    if as_json:
        say({"letters": letters})
        return
    rows = [
        [
            str(letter["number"]), letter["delivery"], f"{len(letter['events']):,}",
            moment(letter["time"]), letter["why"],
        ]
        for letter in letters
    ]  # fmt: skip
    header = ["number", "delivery", "events", "given up", "why"]
    show_table(f"Dead letters of {name}", header, rows, ("delivery", "given up", "why"))


@webhook.command()
@click.argument("name")
@NUMBERS
@asks
def retry(client: Client, name: str, numbers: tuple[int, ...], as_json: bool) -> None:
    """Try again at once, also one that is gone; send its dead letters, or these, once more."""
    said = client.ask("POST", f"/v1/webhooks/{at(name)}/retry", {"numbers": [*numbers]})
    if as_json:
        say(said)
    else:
        letters = counted(said["letters"], "dead letter")
        also = f", and tries {letters} once: sia webhook dead {name}" if said["letters"] else ""
        click.echo(printable(f"{name}: goes on{also}"))


@webhook.command()
@click.argument("name")
@NUMBERS
@click.option("--all", "every", is_flag=True, help="All of them.")
@asks
def drop(client: Client, name: str, numbers: tuple[int, ...], every: bool, as_json: bool) -> None:
    """Forget dead letters for good."""
    if bool(numbers) is every:
        raise click.UsageError("name the numbers of dead letters, or give --all")
    path = f"/v1/webhooks/{at(name)}/dead"
    paths = [path] if every else [f"{path}?number={number}" for number in numbers]
    dropped = sum(client.ask("DELETE", each)["letters"] for each in paths)
    if as_json:
        say({"letters": dropped})
    else:
        click.echo(printable(f"{name}: dropped {counted(dropped, 'dead letter')}"))


@webhook.command()
@click.argument("name")
@asks
def test(client: Client, name: str, as_json: bool) -> int:
    """Send an event that nothing stands for, once; say what came of it."""
    said = client.ask("POST", f"/v1/webhooks/{at(name)}/test")
    if as_json:
        say(said)
    elif said["delivered"]:
        click.echo(printable(f"{name}: delivered, it answers {said['status']}"))
    else:
        click.echo(printable(f"{name}: {said['why']}; {said['mend']}"))
    return 0 if said["delivered"] else DENIED
