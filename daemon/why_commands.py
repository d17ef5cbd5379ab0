"""`sia why`."""

from __future__ import annotations

import click

from daemon.asking import asks, say
from daemon.client import Client, at
from sia.console.terminal import printable


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
