"""`sia lending`: the operator's switch, and what lending would come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import Client
from daemon.jobs import LendingMode
from sia.console.tables import show_table
from sia.wording import counted, duration


@click.command()
@click.argument("switch", type=click.Choice([mode.value for mode in LendingMode]), required=False)
@asks
def lending(client: Client, switch: str | None, as_json: bool) -> None:
    """Stop all new loans at once, or go on; without a word, say which.

    On shadow none are made, and what they would come to is worked out and told.
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
    """What lending would have come to, in lines for people."""
    goes_on = shadow["until"] is None
    until = "" if goes_on else f" to {moment(shadow['until'])}"
    said = (
        f"from {moment(shadow['since'])}{until} it would have lent {shadow['gpu_hours']:,.1f} "
        f"GPU-hours in {counted(shadow['jobs'], 'start')}; {counted(shadow['sooner'], 'job')} "
        f"would have begun sooner ({duration(shadow['gained_s'])} together), "
        f"{shadow['later']:,} later ({duration(shadow['lost_s'])})"
    )
    lines = [said]
    if shadow["pending"]:
        known = "known yet: their jobs are" if goes_on else "known: their jobs were"
        lines.append(f"of {shadow['pending']:,} of these starts the hours are not {known} not over")
    if shadow["unknown"]:
        lines.append(f"{counted(shadow['unknown'], 'borrower')} never ran, and counts for nothing")
    return lines
