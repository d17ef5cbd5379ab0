"""`sia lending, plan, grants`: the lending mode, the plan and reservations, and granted amounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from daemon.cli.client import Client
from daemon.cli.common import asks, moment, say
from daemon.model.job import LendingMode
from sia.console.tables import show_table
from sia.wording import NONE, as_typed, counted, duration

BOUNDS = {
    "max_value": "value of a job", "never_jobs": "jobs never stopped", "never_gpus": "their GPUs",
    "extra_budget": "extra budget", "gpu_hours": "GPU-hours by deadline",
}  # fmt: skip
"""Names of the bounds of a grant in tables."""


@click.command()
@click.argument("switch", type=click.Choice([mode.value for mode in LendingMode]), required=False)
@asks
def lending(client: Client, switch: str | None, as_json: bool) -> None:
    """Turn lending on or off, simulate it, or show its state.

    In shadow mode the daemon simulates loans and reports them, but makes none. Without an argument
    the command shows the mode.
    """
    if switch is None:
        answer = client.get("/v1/lending")
    else:
        answer = client.ask("PUT", "/v1/lending", {"mode": switch})
    if as_json:
        say(answer)
        return
    click.echo(f"lending is {answer['mode']}")
    if answer["recalls"] is not None:
        click.echo(worth_of(answer["recalls"]))
    if answer["pools"]:
        show_table("Turns and guests", [*TURNS], [turn_row(each) for each in answer["pools"]])
    if answer["shadow"] is not None:
        _show(answer["shadow"])


TURNS = ("pool", "turns", "late", "latest", "guests", "stops", "wasted GPU-hours")
"""Columns of turns and guests by pool."""


def turn_row(turns: Mapping[str, Any]) -> list[str]:
    """Return the row of a pool's turns and guests."""
    return [
        turns["pool"], f"{turns['turns']:,}", f"{turns['late_turns']:,}",
        duration(turns["latest_s"]) if turns["late_turns"] else NONE,
        f"{turns['guests']:,}", f"{turns['stops']:,}", f"{turns['wasted_gpu_s'] / 3600:,.1f}",
    ]  # fmt: skip


def worth_of(recalls: Mapping[str, Any]) -> str:
    """Return a line that describes the gains and costs of stops of spare jobs."""
    text = (
        f"{counted(recalls['stops'], 'spare job')} stopped for other jobs, after "
        f"{recalls['gpu_hours']:,.1f} GPU-hours on spare GPUs; {recalls['lost_gpu_hours']:,.1f} "
        "GPU-hours of work were lost"
    )
    if not recalls["left_s"]:
        return text
    return f"{text}; by estimates they would have run {duration(recalls['left_s'])} longer in total"


def _show(shadow: Mapping[str, Any]) -> None:
    for text in shadow_lines(shadow):
        click.echo(text)
    rows = [[p["lender"], p["borrower"], f"{p['gpu_hours']:,.1f}"] for p in shadow["lent"]]
    if rows:
        show_table("Would have lent", ["lender", "borrower", "GPU-hours"], rows, ("borrower",))


def shadow_lines(shadow: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe the simulated loans."""
    goes_on = shadow["until"] is None
    until = "" if goes_on else f" to {moment(shadow['until'])}"
    summary = (
        f"from {moment(shadow['since'])}{until} it would have lent {shadow['gpu_hours']:,.1f} "
        f"GPU-hours in {counted(shadow['jobs'], 'start')}; {counted(shadow['sooner'], 'job')} "
        f"would have started earlier ({duration(shadow['gained_s'])} together), "
        f"{shadow['later']:,} later ({duration(shadow['lost_s'])})"
    )
    lines = [summary]
    if shadow["pending"]:
        known = (
            "known yet: their jobs have not ended" if goes_on else "known: their jobs had not ended"
        )
        lines.append(f"the GPU-hours of {shadow['pending']:,} of these starts are not {known}")
    if shadow["unknown"]:
        lines.append(f"{counted(shadow['unknown'], 'borrower')} never ran and is not counted")
    return lines


ROWS = 12
"""Maximum number of steps of a group that are printed: about half a screen. `--json` has all."""


@click.command()
@asks
def plan(client: Client, as_json: bool) -> None:
    """Show the resource-time plan of each sharing group.

    It consists of the estimated ends of running jobs, the GPUs reserved for pools in each window,
    starts that the policy has planned, and maintenance.
    """
    answer = client.get("/v1/plan", next=0)
    if as_json:
        say(answer)
        return
    for group in answer["groups"]:
        _show_plan(group, answer["time"])


def _show_plan(group: dict[str, Any], now: float) -> None:
    name = group["group"] or "all pools"
    rows = [
        [as_typed(each["window"]), f"{each['held_back']:,}", f"{each['usable']:,}"]
        for each in group["windows"]
    ]
    header = ["window", "reserved", "can be lent"]
    show_table(f"{name}: {counted(group['idle'], 'idle GPU')}", header, rows, ("window",))
    steps = [
        ["now" if step["time"] <= now else moment(step["time"]), f"{step['idle']:,}"]
        for step in group["ahead"]
    ]
    more = f" (first {ROWS} of {len(steps)})" if len(steps) > ROWS else ""
    if steps:  # policies that plan all GPUs themselves, like chronus, have none
        title = f"{name}: idle GPUs from then on{more}"
        show_table(title, ["from", "idle"], steps[:ROWS], ("from",))
    if group["starts"]:
        starts = [
            [start["job"], moment(start["start"]), moment(start["end"]), f"{start['gpus']:,}"]
            for start in group["starts"]
        ]
        show_table(f"{name}: planned starts", ["job", "start", "end", "GPUs"], starts, ("job",))
    if group.get("promised"):
        spans = [
            [moment(span["start"]), moment(span["end"]), f"{span['gpus']:,}"]
            for span in group["promised"]
        ]
        more = f" (first {ROWS} of {len(spans)})" if len(spans) > ROWS else ""
        show_table(f"{name}: GPUs promised to deadlines{more}", ["from", "until", "promised"],
                   spans[:ROWS], ("from", "until"))  # fmt: skip


@click.command()
@asks
def grants(client: Client, as_json: bool) -> None:
    """Show what is granted to users and pools, and who uses how much of it.

    Values, budgets, the GPU-hours of jobs with a deadline, and jobs that must never be stopped are
    bounded by user and pool under [[grant]] in sia.toml.
    """
    answer = client.get("/v1/grants")
    if as_json:
        say(answer)
        return
    bounds = [
        [
            _user(each["user"]), each["pool"] or "all",
            *(_bound(each[key]) for key in BOUNDS),
        ]
        for each in answer["grants"]
    ]  # fmt: skip
    header = ["user", "pool", *BOUNDS.values()]
    show_table("Granted at most", header, bounds, ("user", "pool"))
    click.echo()
    used = [
        [
            each["user"] or NONE, each["pool"], f"{each['jobs']:,}", f"{each['value']:g}",
            f"{each['top_value']:g}", f"{each['never_jobs']:,}", f"{each['never_gpus']:,}",
            f"{each['extra_budget']:g}", f"{each['deadline_jobs']:,} of {each['all_jobs']:,}",
            f"{each['promised_jobs']:,}", f"{each['gpu_hours']:,.1f}",
        ]
        for each in answer["used"]
    ]  # fmt: skip
    header = [
        "user", "pool", "jobs", "sum of values", "highest", "never stopped", "their GPUs",
        "extra budget", "with a deadline", "promised", "GPU-hours by deadline",
    ]  # fmt: skip
    show_table("In use by jobs that have not ended", header, used, ("user", "pool"))


def _user(user: str) -> str:
    return {"": "all together", "*": "each"}.get(user, user)


def _bound(value: float | None) -> str:
    return NONE if value is None else f"{value:,g}"
