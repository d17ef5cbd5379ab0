"""`sia cells`."""

from __future__ import annotations

from pathlib import Path

import click

from sia.console.text import Seconds


@click.group()
def cells() -> None:
    """Look at clusters of cells."""


@cells.command()
@click.argument("file", type=Path)
@click.option("--jobs", type=Path, help="A replay's jobs.csv: show who is where, with --at.")
@click.option("--at", type=Seconds(), help="Second of the replay, like 3d12h.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def show(file: Path, jobs: Path | None, at: float | None, as_json: bool) -> None:
    """Draw the cells of a FILE: chains, racks, nodes and GPUs, and what each pool owns.

    With --jobs and --at, who is where at that second of a replay with --cells.
    """
    from replay.cells_show import show as draw  # noqa: PLC0415  the cells take their time

    draw(file, jobs, at, as_json=as_json)
