"""`sia wfq set, undo, show`: the point in force, beside the search of `replay.cli.wfq`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from daemon.cli.client import Client
from daemon.cli.common import asks, say
from replay.cli.wfq import point_of, read_front, wfq
from sia.console.errors import UserError

PATH = "/v1/policy"


@wfq.command("set")
@click.argument("point")
@click.option(
    "--front", "file", type=Path, help="front.json of a search, or its folder: POINT is one of its."
)
@asks
def set_(client: Client, point: str, file: Path | None, as_json: bool) -> None:
    """Let the daemon decide by other settings of wfq from now on.

    POINT is a label, like wfq:sizes=3600+28800:weights=2+1+1:zeta=0, or with --front the number of
    a point or a preset, like balanced. Running jobs change their widths at once. The change stays
    until the next one, also after a restart.
    """
    label = point if file is None else _label(client, file, point)
    _show(client.ask("PUT", PATH, {"policy": label}), as_json=as_json)


@wfq.command()
@asks
def undo(client: Client, as_json: bool) -> None:
    """Return to the settings before the last change; a second undo takes back the first."""
    _show(client.ask("PUT", PATH, {"undo": True}), as_json=as_json)


@wfq.command()
@asks
def show(client: Client, as_json: bool) -> None:
    """Show the settings in force."""
    _show(client.get(PATH), as_json=as_json)


def _label(client: Client, file: Path, point: str) -> str:
    """Return the label of a point of a front of this cluster. Raises UserError."""
    front = read_front(file)
    pool, gpus = front.get("pool"), front["gpus"]
    pools = {each["name"]: each["quota"] for each in client.get("/v1/pools")["pools"]}
    if pool is not None and pool not in pools:
        raise UserError(
            f"{file}: the front is of pool {pool}, which this daemon does not have; search on its "
            "own history"
        )
    quotas = [pools[pool]] if pool is not None else [*pools.values()]
    if gpus not in quotas:
        raise UserError(
            f"{file}: the front is of {gpus} GPUs, but the pool has "
            f"{', '.join(map(str, quotas))}; search again with this quota"
        )
    exact: str = point_of(front, point)["exact"]
    return exact


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say(answer)
        return
    click.echo(f"policy: {answer['policy']}")
    if answer["configured"] != answer["policy"]:
        click.echo(f"in the configuration: {answer['configured']}")
    if answer["before"] is not None:
        click.echo(f"before: {answer['before']} (sia wfq undo)")
