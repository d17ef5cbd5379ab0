"""`sia lending`: turn lending on or off, or simulate it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from daemon.cli.client import Client
from daemon.cli.common import asks, moment, say
from daemon.model.job import LendingMode
from sia.console.tables import show_table
from sia.wording import counted, duration


@click.command()
@click.argument("switch", type=click.Choice([mode.value for mode in LendingMode]), required=False)
@asks
def lending(client: Client, switch: str | None, as_json: bool) -> None:
    """Turn lending on or off, simulate it, or show its state.

    In shadow mode the daemon simulates loans and reports them, but makes none. Without an argument
    the command shows the mode.
    """
    if switch is None:
        said = client.get("/v1/lending")
    else:
        said = client.ask("PUT", "/v1/lending", {"mode": switch})
    if as_json:
        say(said)
        return
    click.echo(f"lending is {said['mode']}")
    if said["shadow"] is not None:
        _show(said["shadow"])


def _show(shadow: Mapping[str, Any]) -> None:
    for text in said_of(shadow):
        click.echo(text)
    rows = [[p["lender"], p["borrower"], f"{p['gpu_hours']:,.1f}"] for p in shadow["lent"]]
    if rows:
        show_table("Would have lent", ["lender", "borrower", "GPU-hours"], rows, ("borrower",))


def said_of(shadow: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe the simulated loans."""
    goes_on = shadow["until"] is None
    until = "" if goes_on else f" to {moment(shadow['until'])}"
    said = (
        f"from {moment(shadow['since'])}{until} it would have lent {shadow['gpu_hours']:,.1f} "
        f"GPU-hours in {counted(shadow['jobs'], 'start')}; {counted(shadow['sooner'], 'job')} "
        f"would have started sooner ({duration(shadow['gained_s'])} together), "
        f"{shadow['later']:,} later ({duration(shadow['lost_s'])})"
    )
    lines = [said]
    if shadow["pending"]:
        known = (
            "known yet: their jobs have not ended" if goes_on else "known: their jobs had not ended"
        )
        lines.append(f"the GPU-hours of {shadow['pending']:,} of these starts are not {known}")
    if shadow["unknown"]:
        lines.append(f"{counted(shadow['unknown'], 'borrower')} never ran and is not counted")
    return lines
