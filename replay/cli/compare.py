"""`sia compare`."""

from __future__ import annotations

import click

from replay.logs.limits import MAX_RESAMPLES
from sia.console.text import Seconds


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--warmup",
    type=Seconds(),
    default="0",
    show_default=True,
    help="Leave out jobs that were submitted before this time of A's log, like 2d.",
)
@click.option(
    "--resamples",
    type=click.IntRange(100, MAX_RESAMPLES),
    default=10_000,
    show_default=True,
    help="Number of bootstrap resamples.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the resamples."
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def compare(
    a: str, b: str, warmup: float, resamples: int, seed: int, as_json: bool
) -> None:  # fmt: skip
    """Compare two results pair by pair, with 95 % intervals.

    A and B are two policies' folders of a replay, like out/sia (the pairs are jobs), or folders of
    experiments with a policy, like experiment:sia (the pairs are runs). Without policies, all
    policies are compared that both experiments have.
    """
    from replay.compare.compare import Resampling  # noqa: PLC0415  numpy takes its time
    from replay.compare.show import show  # noqa: PLC0415

    show(a, b, warmup, Resampling(resamples, seed), as_json=as_json)
