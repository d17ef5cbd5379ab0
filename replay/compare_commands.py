"""`sia compare`."""

from __future__ import annotations

import click

from replay.limits import MAX_RESAMPLES
from sia.console.text import Seconds


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--warmup",
    type=Seconds(),
    default="0",
    show_default=True,
    help="Leave jobs out that A's log has before this second, like 2d.",
)
@click.option(
    "--resamples",
    type=click.IntRange(100, MAX_RESAMPLES),
    default=10_000,
    show_default=True,
    help="Times the pairs are drawn anew.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def compare(
    a: str, b: str, warmup: float, resamples: int, seed: int, as_json: bool
) -> None:  # fmt: skip
    """Compare A with B, pair by pair, with 95 % intervals.

    Both are a policy's folder of a replay (pairs are jobs), like out/sia, or an experiment's folder
    and a policy (pairs are runs), like experiment:sia; without policies, all that both have.
    """
    from replay.compare import Resampling  # noqa: PLC0415  numpy takes its time
    from replay.compare_show import show  # noqa: PLC0415

    show(a, b, warmup, Resampling(resamples, seed), as_json=as_json)
