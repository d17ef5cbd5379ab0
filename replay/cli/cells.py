"""`sia cells`."""

from __future__ import annotations

from pathlib import Path

import click

from sia.console.groups import Group
from sia.console.text import Seconds


@click.group(cls=Group)
def cells() -> None:
    """Show clusters that are divided into cells."""


@cells.command()
@click.argument("file", type=Path)
@click.option("--jobs", type=Path, help="jobs.csv of a replay; with --at, show the running jobs.")
@click.option("--at", type=Seconds(), help="Time of the replay, like 3d12h.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def show(file: Path, jobs: Path | None, at: float | None, as_json: bool) -> None:
    """Draw the cells of FILE: chains, racks, nodes and GPUs, and the pools that own them.

    With --jobs and --at, shows where the jobs of a replay with --cells run at that time.
    """
    from replay.cluster.show import show as draw  # noqa: PLC0415  the cells take their time

    draw(file, jobs, at, as_json=as_json)
