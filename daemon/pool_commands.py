"""`sia pools, pool, nodes, drain, resume, maintenance, loans`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import Client, at
from daemon.jobs import PoolMode
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import SPAN, Seconds
from sia.wording import counted, decimal

NO_LIMIT = -1
"""What `none` stands for among limits, of which those that are not given are None."""

LIMITS = ("lend_limit", "borrow_limit", "lend_budget_hours", "slowed_budget_pct")


class Whole(click.IntRange):
    """A whole number from 0 up."""

    name = "whole number"

    def __init__(self) -> None:
        """Any."""
        super().__init__(0)


class Limit(click.ParamType[int]):
    """A number of GPUs, or `none`."""

    name = "number|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse it, or fail as click wants."""
        text = str(value)
        if text == "none":
            return NO_LIMIT
        if not text.isdecimal():
            self.fail(f"{text!r} is no number of GPUs; write one, or none", param, ctx)
        return int(text)


class Bound(click.ParamType[float]):
    """A number from 0 up, or `none`."""

    name = "number|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it, or fail as click wants."""
        if str(value) == "none":
            return NO_LIMIT
        try:
            bound = float(str(value))
        except ValueError:
            bound = -1.0
        if not 0 <= bound < inf:
            self.fail(f"{value!r} is no bound; write a number from 0 up, or none", param, ctx)
        return bound


class Weight(click.ParamType[float]):
    """A number above 0."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it, or fail as click wants."""
        try:
            weight = float(str(value))
        except ValueError:
            weight = 0.0
        if not 0 < weight < inf:
            self.fail(f"{value!r} is no weight; write a number above 0", param, ctx)
        return weight


def _cells(
    _ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> dict[str, dict[str, int]] | None:
    """`CHAIN.TYPE=NUMBER` of each as the daemon has it; None where there is none."""
    cells: dict[str, dict[str, int]] = {}
    for text in value:
        names, _, number = text.partition("=")
        chain, _, kind = names.partition(".")
        if not chain or not kind or not number.isdecimal():
            raise click.BadParameter(f"{text!r}: write CHAIN.TYPE=NUMBER, like node.quad=3")
        cells.setdefault(chain, {})[kind] = int(number)
    return cells or None


KEEPS = "lends nothing"
"""Beside the state of a pool that guard rails keep from lending; `sia pool show` says why."""


@click.command()
@asks
def pools(client: Client, as_json: bool) -> None:
    """List pools: what they own, use, lend and borrow."""
    said = client.get("/v1/pools")
    if as_json:
        say(said)
        return
    header = [
        "pool", "state", "quota", "in quota", "borrowed", "lent", "idle", "jobs wait", "GPUs wait",
    ]  # fmt: skip
    rows = [
        [
            pool["name"], pool["state"] + (f", {KEEPS}" if pool["kept"] else ""),
            *(f"{pool[key]:,}" for key in ("quota", "dedicated", "borrowed", "lent", "idle")),
            f"{pool['waiting']:,}", f"{pool['waiting_gpus']:,}",
        ]
        for pool in said["pools"]
    ]  # fmt: skip
    show_table("Pools, in GPUs", header, rows, ("state",))


@click.group()
def pool() -> None:
    """Look at a pool, or change it."""


@pool.command("show")
@click.argument("name")
@asks
def show_pool(client: Client, name: str, as_json: bool) -> None:
    """Describe a pool."""
    said = client.get(f"/v1/pools/{at(name)}")
    if as_json:
        say(said)
        return
    for key, value in said.items():
        if value not in (None, "", {}):
            click.echo(printable(f"{key.replace('_', ' '):17}  {SHOWN.get(key, str)(value)}"))


def _override(value: Mapping[str, Any]) -> str:
    back = ", ".join(f"{field} {value[field]}" for field in value if field != "until")
    return f"until {moment(value['until'])}, then {back}"


def _written(cells: Mapping[str, Mapping[str, int]]) -> str:
    """Cells as --cells takes them."""
    return ", ".join(
        f"{chain}.{kind}={count}" for chain, kinds in cells.items() for kind, count in kinds.items()
    )


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "override": _override,
    "cells": _written,
    "kept": lambda why: "lends nothing: " + "; ".join(why.values()),
    "slowed_budget_pct": "{:g} %".format,
    "lend_budget_hours": "{:g} GPU-hours a month (UTC)".format,
    "lent_hours": lambda hours: f"{decimal(hours)} GPU-hours this month",
    "weight": decimal,
}
"""How values of a pool are said, where not as they are."""


@pool.command("set")
@click.argument("name")
@click.option("--quota", type=Whole(), help="GPUs that it owns.")
@click.option(
    "--cells",
    callback=_cells,
    multiple=True,
    metavar="CHAIN.TYPE=NUMBER",
    help="With cells: how many of a type it owns. Say all of them.",
)
@click.option(
    "--state",
    type=click.Choice([mode.value for mode in PoolMode]),
    help="open; hold: jobs are taken and wait; drain: no more are taken.",
)
@click.option("--lend-limit", type=Limit(), help="GPUs that others may hold, or none.")
@click.option(
    "--borrow-limit", type=Limit(), help="GPUs of others that its jobs may hold, or none."
)
@click.option("--weight", type=Weight(), help="Pools are visited by use / (quota · weight).")
@click.option(
    "--lend-budget-hours", type=Bound(), help="GPU-hours that it lends in a month, or none."
)
@click.option(
    "--slowed-budget-pct",
    type=Bound(),
    help="Percent of its jobs that may begin later than in the pool alone, or none.",
)
@click.option("--for", "span", type=SPAN, help="Only for so long, then all goes back.")
@click.option("--version", type=int, help="Only if this is still its version.")
@asks
def set_pool(
    client: Client, name: str, span: float | None, version: int | None, as_json: bool, **wanted: Any
) -> None:
    """Change a pool, at once; what runs goes on running."""
    patch = {key: value for key, value in wanted.items() if value is not None}
    patch |= {key: None for key in LIMITS if patch.get(key) == NO_LIMIT}
    if not patch:
        raise click.UsageError("nothing is to change: give --quota, --state or another option")
    if span is not None:
        patch["until"] = client.get("/healthz")["time"] + span
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    said = client.ask("PATCH", f"/v1/pools/{at(name)}", patch, headers)
    if as_json:
        say(said)
    else:
        click.echo(f"{name}: version {said['version']}")


@click.command()
@asks
def nodes(client: Client, as_json: bool) -> None:
    """List nodes, who takes them out and why."""
    said = client.get("/v1/nodes")
    if as_json:
        say(said)
        return
    rows = [
        [
            node["name"], f"{node['gpus']:,}", f"{node['used']:,}",
            _out(node), ", ".join(node["jobs"][:5]),
        ]
        for node in said["nodes"]
    ]  # fmt: skip
    show_table("Nodes", ["node", "GPUs", "used", "state", "jobs"], rows, ("state", "jobs"))


def _out(node: Mapping[str, Any]) -> str:
    """Who takes a node out, and why."""
    return "; ".join(f"{who}: {why}" for who, why in node["out"].items()) or "in"


def _tell(node: Mapping[str, Any], *, as_json: bool) -> None:
    """What a node is now."""
    if as_json:
        say(node)
        return
    text = f"out, {_out(node)}" if node["out"] else "in"
    click.echo(printable(f"{node['name']}: {text}; {counted(node['used'], 'GPU')} in use"))
    if node.get("note"):
        click.echo(printable(f"note: {node['note']}"))


@click.command()
@click.argument("node")
@click.option("--why", default="", help="For those who look later.")
@asks
def drain(client: Client, node: str, why: str, as_json: bool) -> None:
    """Place nothing more on a node; what runs there goes on."""
    _tell(client.ask("POST", f"/v1/nodes/{at(node)}/drain", {"why": why}), as_json=as_json)


@click.command()
@click.argument("node")
@asks
def resume(client: Client, node: str, as_json: bool) -> None:
    """Place jobs on a node again."""
    _tell(client.ask("POST", f"/v1/nodes/{at(node)}/resume"), as_json=as_json)


@click.group()
def maintenance() -> None:
    """Plan when nodes are out."""


@maintenance.command("list")
@asks
def list_maintenance(client: Client, as_json: bool) -> None:
    """What is to come or under way."""
    said = client.get("/v1/maintenance")
    if as_json:
        say(said)
        return
    rows = [
        [
            window["id"], window["node"], moment(window["start"]), moment(window["end"]),
            "under way" if window["begun"] else "to come", window["why"],
        ]
        for window in said["maintenance"]
    ]  # fmt: skip
    header = ["id", "node", "from", "to", "state", "why"]
    show_table("Maintenance", header, rows, header)


@maintenance.command("add")
@click.argument("node")
@click.option("--in", "wait", type=Seconds(), default="0", show_default=True, help="Begin then.")
@click.option("--for", "span", type=SPAN, required=True, help="How long it takes, like 2h.")
@click.option("--why", default="", help="For those who look later.")
@click.option("--id", "window", help="To call it off by.")
@asks
def add_maintenance(
    client: Client, node: str, wait: float, span: float, why: str, window: str | None, as_json: bool
) -> None:
    """Have a node be out for some time: nothing is placed there meanwhile."""
    start = client.get("/healthz")["time"] + wait
    asked = {"node": node, "start": start, "end": start + span, "why": why}
    said = client.ask("POST", "/v1/maintenance", asked | ({"id": window} if window else {}))
    if as_json:
        say(said)
    else:
        click.echo(f"{said['id']}: from {moment(said['start'])} to {moment(said['end'])}")


@maintenance.command("cancel")
@click.argument("window", metavar="ID")
@asks
def cancel_maintenance(client: Client, window: str, as_json: bool) -> None:
    """Call it off, or end it before its time."""
    client.ask("DELETE", f"/v1/maintenance/{at(window)}")
    if as_json:
        say({"id": window})
    else:
        click.echo(printable(f"{window}: called off"))


@click.command()
@asks
def loans(client: Client, as_json: bool) -> None:
    """List open loans: who lends GPUs to whose jobs."""
    said = client.get("/v1/loans")
    if as_json:
        say(said)
        return
    rows = [
        [loan["job"], loan["borrower"], loan["donor"], f"{loan['gpus']:,}", moment(loan["since"])]
        for loan in said["loans"]
    ]
    header = ["job", "borrower", "donor", "GPUs", "since"]
    total = counted(sum(said["lent"].values()), "GPU")
    show_table(f"Loans: {total}", header, rows, ("borrower", "donor", "since"))
