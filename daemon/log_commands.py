"""`sia log`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from daemon.asking import CONFIG, INTERRUPTED
from daemon.client import Client, at, find
from daemon.job_commands import LOOK


@click.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True,
    help="Which of the two.",
)  # fmt: skip
@click.option("--attempt", type=click.IntRange(1), help="Of its starts.  [default: the latest]")
@click.option("--follow", is_flag=True, help="Go on with what it writes, until it ends.")
@CONFIG
def log(config: Path | None, job_id: str, stream: str, attempt: int | None, *, follow: bool) -> int:
    """Print what a job wrote, byte for byte."""
    path = f"/v1/jobs/{at(job_id)}/log?stream={stream}"
    if attempt is not None:
        path += f"&attempt={attempt}"
    with closing(Client(find(config))) as client:
        try:
            if follow:
                _await_start(client, job_id)
            for piece in _pieces(client, path, follow=follow):
                click.echo(piece, nl=False)
        except KeyboardInterrupt:  # as it is meant to end
            return INTERRUPTED
    return 0


def _await_start(client: Client, job_id: str) -> None:
    """Look at a job until it has been started, or never will be."""
    while True:
        said = client.patiently(partial(client.get, f"/v1/jobs/{at(job_id)}"))
        if said.get("attempt") or said.get("phase") not in ("held", "pending"):
            return
        time.sleep(LOOK)


def _pieces(client: Client, path: str | None, *, follow: bool) -> Iterator[bytes]:
    while path is not None:
        ask = partial(client.piece, path)
        piece, path = client.patiently(ask) if follow else ask()
        if piece:
            yield piece
        elif follow:
            time.sleep(LOOK)
        else:
            return
