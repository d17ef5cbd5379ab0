"""`sia status`."""

from __future__ import annotations

from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import DENIED, Client
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
