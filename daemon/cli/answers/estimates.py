"""`sia eta, estimates`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from daemon.cli.client import Client, at
from daemon.cli.common import asks, moment, say
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, counted, duration

FAR = "not within a week,"
UNKNOWN = "not known yet,"
YET = "not known yet: "
"""Start of a reason. It is left out after `no estimate`, which says the same."""

APART = ", before a change"
"""Marks rows of estimates that were made before the policy's options changed."""

OLD = 60.0
"""Age in seconds above which an estimate is printed with its age."""

COLUMNS = """\b
of          what was estimated: starts or ends of jobs; "before a change": the
            options of the policy were changed between estimate and event
within      estimated time ahead; – is longer than all others
came        number of estimated starts or ends that have happened
by p50      share that happened by the estimated p50; 50 % is exact. Estimates
            whose p50 has passed without a start or end count too.
by p90      the same for the p90; 90 % is exact
off         median distance from the estimated p50 to the real time
p50 to p90  median distance from the estimated p50 to the estimated p90
Pred_err    for ends: median of |real - estimated| / estimated, from submission
"""
"""What the columns of `sia estimates` mean."""


@click.command()
@click.argument("job_id", metavar="ID")
@asks
def eta(client: Client, job_id: str, as_json: bool) -> None:
    """Estimate when a job starts and ends.

    Shows the p50 and the p90 of both, or why there is no estimate.
    """
    answer = client.get(f"/v1/jobs/{at(job_id)}/eta")
    if as_json:
        say(answer)
        return
    for line in estimate_lines(answer):
        click.echo(printable(line))


def estimate_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of an answer about a job."""
    yield f"{answer['id']} in {answer['pool']}: {answer['phase']}"
    for what in ("started", "ended"):
        if what in answer:
            turn = answer["phase"] == "starting"
            yield f"{'turn' if turn else what:8}{moment(answer[what])}"
    if (turn := answer.get("turn")) is not None:
        yield _turn(turn, answer["now"])
    if "estimate" not in answer:
        yield f"no estimate: {answer['why'].removeprefix(YET)}"
        return
    now, estimate = answer["now"], answer["estimate"]
    far = UNKNOWN if estimate["little"] else FAR
    for what, name in (("start", "starts"), ("end", "ends")):
        if what in estimate:
            times = estimate[what]
            yield f"{name:8}{_when(times['p50'], now, far)} with 50 % probability"
            yield f"{'':8}{_when(times['p90'], now, far)} with 90 % probability"
    yield evidence(estimate)
    if (age := now - answer.get("played", now)) > OLD:
        yield f"estimated {duration(age)} ago; the next estimate comes soon"
    for note in answer.get("notes", []):
        yield f"note: {note}"


def _turn(turn: dict[str, Any], now: float) -> str:
    """Return the line about a job's turn."""
    name, time = "alone", turn["time"]
    if time is None:
        return f"{name:8}its turn comes at an unknown time"
    if turn["came"]:
        return f"{name:8}{moment(time)}: its turn has come"
    guest = "; it is a guest until then" if turn["guest"] else ""
    return f"{name:8}{moment(time)}, in {duration(max(0.0, time - now))}: its turn{guest}"


def evidence(estimate: Mapping[str, Any]) -> str:
    """Return a phrase that says from how many ended jobs the run time was estimated."""
    similar, in_pool = counted(estimate["similar"], "ended job"), estimate["in_pool"]
    rests = f"based on {similar} like it, and {in_pool:,} of its pool in all"
    little = estimate.get("little")
    return f"{rests}: {little}" if little else rests


def _when(time: float | None, now: float, far: str) -> str:
    if time is None:
        return far
    return f"by {moment(time)}, in {duration(max(0.0, time - now))},"


@click.command(epilog=COLUMNS)
@click.option("--pool", help="Only estimates of this pool.")
@asks
def estimates(client: Client, pool: str | None, as_json: bool) -> None:
    """Show how accurate past estimates were.

    Each row is one pool and one range of estimated times ahead.
    """
    answer = client.get("/v1/estimates", pool=pool)
    if as_json:
        say(answer)
        return
    header = ["pool", "of", "within", "came", "by p50", "by p90", "off", "p50 to p90", "Pred_err"]
    rows = [
        [
            row["pool"], _what(row), NONE if row["horizon"] is None else duration(row["horizon"]),
            f"{row['count']:,}", _held(row, "p50"), _held(row, "p90"),
            _seconds(row["error"]), _seconds(row["width"]), _share(row["pred_err"]),
        ]
        for row in answer["rows"]
    ]  # fmt: skip
    played = answer["played"]
    title = "No estimate has been made yet" if played is None else f"Estimates of {moment(played)}"
    show_table(title, header, rows, ("pool", "of"))


def _what(row: dict[str, Any]) -> str:
    return f"{row['what']}{APART}" if row.get("apart") else str(row["what"])


def _held(row: dict[str, Any], quantile: str) -> str:
    """Return the share of outcomes up to the estimated quantile, and the number of outcomes."""
    share = row[f"{quantile}_covered"] if row["count"] else None
    return NONE if share is None else f"{_share(share)} of {row[f'{quantile}_judged']:,}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return NONE if value is None else duration(value)
