"""`sia eta, estimates`."""

from __future__ import annotations

from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import Client, at
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, duration

FAR = "more than a week away"

OLD = 60.0
"""Seconds for which what was played forward goes for the present, without a word."""

COLUMNS = """\b
of          starts, or ends, that were estimated
within      how far away they were thought to be; – is beyond the others
came        of so many it has come what was estimated
by p50      the share that came by the p50 said, of all of which that is known:
            those that came, and those that have not and should have; 50 % is right
by p90      the same of the p90 said; 90 % is right
off         from the p50 said to when it came, the median
p50 to p90  from one to the other, as they were said, the median
Pred_err    of ends, |true - said| / said from the submission on, the median
"""
"""What the columns of `sia estimates` mean."""


@click.command()
@click.argument("job_id", metavar="ID")
@asks
def eta(client: Client, job_id: str, as_json: bool) -> None:
    """Say when a job starts and ends, with p50 and p90, or why that is not known."""
    said = client.get(f"/v1/jobs/{at(job_id)}/eta")
    if as_json:
        say(said)
        return
    click.echo(printable(f"{said['id']} in {said['pool']}: {said['phase']}"))
    for what in ("started", "ended"):
        if what in said:
            name = "turn" if said["phase"] == "starting" else what
            click.echo(f"{name:8}{moment(said[what])}")
    if "estimate" in said:
        _show(said["estimate"], said["now"])
        if (age := said["now"] - said.get("played", said["now"])) > OLD:
            click.echo(f"by how things were {duration(age)} ago; it is looked at again soon")
    else:
        click.echo(printable(f"not known, because {said['why']}"))


def _show(estimate: dict[str, Any], now: float) -> None:
    for what, name in (("start", "starts"), ("end", "ends")):
        if what in estimate:
            click.echo(f"{name:8}{_when(estimate[what]['p50'], now)} as likely as not")
            click.echo(f"{'':8}{_when(estimate[what]['p90'], now)} nine times in ten")


def _when(time: float | None, now: float) -> str:
    if time is None:
        return FAR
    return f"by {moment(time)}, in {duration(max(0.0, time - now))},"


@click.command(epilog=COLUMNS)
@click.option("--pool", help="Only of this pool.")
@asks
def estimates(client: Client, pool: str | None, as_json: bool) -> None:
    """Say how true estimates were, by pool and how far away things were thought to be."""
    said = client.get("/v1/estimates", pool=pool)
    if as_json:
        say(said)
        return
    header = ["pool", "of", "within", "came", "by p50", "by p90", "off", "p50 to p90", "Pred_err"]
    rows = [
        [
            row["pool"], row["what"], NONE if row["horizon"] is None else duration(row["horizon"]),
            f"{row['count']:,}", _held(row, "p50"), _held(row, "p90"),
            _seconds(row["error"]), _seconds(row["width"]), _share(row["pred_err"]),
        ]
        for row in said["rows"]
    ]  # fmt: skip
    played = said["played"]
    title = "No estimate was made yet" if played is None else f"Estimates of {moment(played)}"
    show_table(title, header, rows, ("pool", "of"))


def _held(row: dict[str, Any], quantile: str) -> str:
    """What share came in time, and of how many; none where nothing has come."""
    share = row[f"{quantile}_covered"] if row["count"] else None
    return NONE if share is None else f"{_share(share)} of {row[f'{quantile}_judged']:,}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return NONE if value is None else duration(value)
