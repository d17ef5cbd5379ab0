"""`sia webhook`."""

from __future__ import annotations

from typing import Any

import click

from daemon.cli.client import DENIED, Client, at
from daemon.cli.common import asks, moment, say
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, counted

NUMBERS = click.argument("numbers", type=click.IntRange(1), nargs=-1, metavar="[NUMBER]...")


@click.group(cls=Group)
def webhook() -> None:
    """Show and test webhooks, and retry failed deliveries."""


@webhook.command("list")
@asks
def list_webhooks(client: Client, as_json: bool) -> None:
    """List webhooks and their state."""
    answer = client.get("/v1/webhooks")
    if as_json:
        say(answer)
        return
    rows = [
        [
            hook["name"], hook["to"], hook["state"], f"{hook['lag']:,}", f"{hook['dead']:,}",
            str(hook["status"] or NONE), moment(hook["asked"]), hook["why"],
        ]
        for hook in answer["webhooks"]
    ]  # fmt: skip
    header = ["webhook", "to", "state", "lag", "dead", "answer", "at", "why"]
    show_table("Webhooks", header, rows, ("to", "state", "at", "why"))


@webhook.command()
@click.argument("name")
@click.option(
    "--after", type=click.IntRange(0), default=0, help="Only dead letters after this number."
)
@asks
def dead(client: Client, name: str, after: int, as_json: bool) -> None:
    """List the dead letters of a webhook: deliveries that failed for good."""
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
    """Resume a webhook now, and send its dead letters again.

    With NUMBER, only those dead letters.
    """
    answer = client.ask("POST", f"/v1/webhooks/{at(name)}/retry", {"numbers": [*numbers]})
    if as_json:
        say(answer)
    else:
        letters = counted(answer["letters"], "dead letter")
        also = (
            f", and sends {letters} once more; see: sia webhook dead {name}"
            if answer["letters"]
            else ""
        )
        click.echo(printable(f"{name}: resumed{also}"))


@webhook.command()
@click.argument("name")
@NUMBERS
@click.option("--all", "every", is_flag=True, help="Drop all dead letters.")
@asks
def drop(client: Client, name: str, numbers: tuple[int, ...], every: bool, as_json: bool) -> None:
    """Delete dead letters for good."""
    if bool(numbers) is every:
        raise click.UsageError("Name the numbers of dead letters, or use --all.")
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
    """Send one test event, and show the answer."""
    answer = client.ask("POST", f"/v1/webhooks/{at(name)}/test")
    if as_json:
        say(answer)
    elif answer["delivered"]:
        click.echo(printable(f"{name}: delivered, answered with {answer['status']}"))
    else:
        click.echo(printable(f"{name}: {answer['why']}; {answer['mend']}"))
    return 0 if answer["delivered"] else DENIED
