"""`sia status`."""

from __future__ import annotations

from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import DENIED, Client
from replay.tables import show_table
from replay.text import counted


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
    parts = [
        ["commands", "taken" if said["serving"] else "refused", moment(said["since"]),
         said["why"], ""],
        *(
            [part["name"], "well" if part["ok"] else "NOT WELL", moment(part["since"]),
             part.get("why", ""), part.get("mend", "")]
            for part in said["parts"]
        ),
    ]  # fmt: skip
    lending = "on" if said["lending"] else "off"
    title = f"sia {said['version']}: {counted(said['jobs'], 'job')}, lending is {lending}"
    header = ["part", "state", "since", "why", "mend"]
    show_table(title, header, parts, header)
