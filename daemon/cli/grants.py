"""`sia grants`."""

from __future__ import annotations

import click

from daemon.cli.client import Client
from daemon.cli.common import asks, say
from sia.console.tables import show_table
from sia.wording import NONE


@click.command()
@asks
def grants(client: Client, as_json: bool) -> None:
    """Show what is granted to users and pools, and who uses how much of it.

    A value, and never to be stopped, are bounded by user and pool under [[grant]] in sia.toml.
    """
    said = client.get("/v1/grants")
    if as_json:
        say(said)
        return
    bounds = [
        [
            _user(each["user"]), each["pool"] or "all",
            *(_bound(each[key]) for key in ("max_value", "never_jobs", "never_gpus")),
        ]
        for each in said["grants"]
    ]  # fmt: skip
    header = ["user", "pool", "value of a job", "jobs never stopped", "their GPUs"]
    show_table("Most that is granted", header, bounds, ("user", "pool"))
    click.echo()
    used = [
        [
            each["user"] or NONE, each["pool"], f"{each['jobs']:,}", f"{each['value']:g}",
            f"{each['top_value']:g}", f"{each['never_jobs']:,}", f"{each['never_gpus']:,}",
        ]
        for each in said["used"]
    ]  # fmt: skip
    header = ["user", "pool", "jobs", "sum of values", "highest", "never stopped", "their GPUs"]
    show_table("In use by jobs that have not ended", header, used, ("user", "pool"))


def _user(user: str) -> str:
    return {"": "all together", "*": "each"}.get(user, user)


def _bound(value: float | None) -> str:
    return NONE if value is None else f"{value:,g}"
