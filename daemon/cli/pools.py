"""`sia pools, pool, nodes, drain, resume, maintenance, loans`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import click

from daemon.cli.client import Client, at
from daemon.cli.common import asks, moment, say
from daemon.model.job import PoolMode
from daemon.model.limits import BUDGETS
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import SPAN, Seconds, WholeNumberType
from sia.wording import counted, decimal

NO_LIMIT = -1
"""Value of the argument `none`; None means that the option was not given."""

LIMITS = (
    "lend_limit", "borrow_limit", "lend_budget_hours", "slowed_budget_pct", "slowed_budget_minutes",
)  # fmt: skip


class GpuLimitType(click.ParamType[int]):
    """Parameter type: a number of GPUs, or `none`."""

    name = "number|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the value. Raises click.BadParameter."""
        text = str(value)
        if text == "none":
            return NO_LIMIT
        if not text.isdecimal():
            self.fail(f"{text!r} is not a number of GPUs; write a number or none", param, ctx)
        return int(text)


class BudgetType(click.ParamType[float]):
    """Parameter type: a number from 0 to the highest value, or `none`."""

    name = "number|none"

    def __init__(self, most: float) -> None:
        """Allow numbers up to `most`."""
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the value. Raises click.BadParameter."""
        if str(value) == "none":
            return NO_LIMIT
        try:
            bound = float(str(value))
        except ValueError:
            bound = -1.0
        if not 0 <= bound <= self._most:
            fix = f"write a number from 0 to {self._most:,.0f}, or none"
            self.fail(f"{value!r} is not a limit; {fix}", param, ctx)
        return bound


class WeightType(click.ParamType[float]):
    """Parameter type: a number above 0."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the value. Raises click.BadParameter."""
        try:
            weight = float(str(value))
        except ValueError:
            weight = 0.0
        if not 0 < weight < inf:
            self.fail(f"{value!r} is not a weight; write a number above 0", param, ctx)
        return weight


def _cells(
    _ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> dict[str, dict[str, int]] | None:
    """Parse each `CHAIN.TYPE=NUMBER`; return None if there is none."""
    cells: dict[str, dict[str, int]] = {}
    for text in value:
        names, _, number = text.partition("=")
        chain, _, kind = names.partition(".")
        if not chain or not kind or not number.isdecimal():
            raise click.BadParameter(f"{text!r}: write CHAIN.TYPE=NUMBER, like node.quad=3")
        cells.setdefault(chain, {})[kind] = int(number)
    return cells or None


KEEPS = "lends nothing"
"""Shown with the state of a pool that a guard rail stops from lending."""


@click.command()
@asks
def pools(client: Client, as_json: bool) -> None:
    """List pools: quota, use, lent and borrowed GPUs."""
    answer = client.get("/v1/pools")
    if as_json:
        say(answer)
        return
    header = [
        "pool", "state", "quota", "in quota", "borrowed", "lent", "idle", "pending",
        "pending GPUs",
    ]  # fmt: skip
    rows = [
        [
            pool["name"], pool["state"] + (f", {KEEPS}" if pool["kept"] else ""),
            *(f"{pool[key]:,}" for key in ("quota", "dedicated", "borrowed", "lent", "idle")),
            f"{pool['waiting']:,}", f"{pool['waiting_gpus']:,}",
        ]
        for pool in answer["pools"]
    ]  # fmt: skip
    show_table("Pools, in GPUs", header, rows, ("state",))


@click.group(cls=Group)
def pool() -> None:
    """Show or change a pool."""


@pool.command("show")
@click.argument("name")
@asks
def show_pool(client: Client, name: str, as_json: bool) -> None:
    """Show a pool."""
    answer = client.get(f"/v1/pools/{at(name)}")
    if as_json:
        say(answer)
        return
    for key, value in answer.items():
        if value not in (None, "", {}):
            label = LABELS.get(key, key.replace("_", " "))
            click.echo(printable(f"{label:17}  {SHOWN.get(key, str)(value)}"))


def _override(value: Mapping[str, Any]) -> str:
    back = ", ".join(f"{field} {value[field]}" for field in value if field != "until")
    return f"until {moment(value['until'])}, then {back}"


def _written(cells: Mapping[str, Mapping[str, int]]) -> str:
    """Return cells as --cells takes them."""
    return ", ".join(
        f"{chain}.{kind}={count}" for chain, kinds in cells.items() for kind, count in kinds.items()
    )


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "override": _override,
    "cells": _written,
    "kept": lambda why: "lends nothing: " + "; ".join(why.values()),
    "slowed_budget_pct": "{:g} %".format,
    "slowed_budget_minutes": "{:g} min a month (UTC)".format,
    "delayed_minutes": lambda minutes: f"{decimal(minutes)} min this month",
    "lend_budget_hours": "{:g} GPU-hours a month (UTC)".format,
    "lent_hours": lambda hours: f"{decimal(hours)} GPU-hours this month",
    "weight": decimal,
    "share": lambda share: "yes" if share else "no",
}
"""Formatters of those values of a pool that are not printed unchanged."""

LABELS = {"dedicated": "in quota", "waiting": "pending", "waiting_gpus": "pending GPUs"}
"""Labels of the values that `sia pools` has as columns, in the words of its header."""


@pool.command("set")
@click.argument("name")
@click.option("--quota", type=WholeNumberType(), help="GPUs that the pool owns.")
@click.option(
    "--cells",
    callback=_cells,
    multiple=True,
    metavar="CHAIN.TYPE=NUMBER",
    help="In a cluster with cells: number of cells of a type that the pool owns; repeat for all.",
)
@click.option(
    "--state",
    type=click.Choice([mode.value for mode in PoolMode]),
    help="open: jobs start; hold: new jobs stay pending; drain: new jobs are refused.",
)
@click.option(
    "--lend-limit",
    type=GpuLimitType(),
    help="Maximum GPUs that the pool lends, or none for no limit.",
)
@click.option(
    "--borrow-limit",
    type=GpuLimitType(),
    help="Maximum GPUs that the pool borrows, or none for no limit.",
)
@click.option(
    "--weight", type=WeightType(), help="Pools are served in the order of use / (quota · weight)."
)
@click.option(
    "--lend-budget-hours",
    type=BudgetType(BUDGETS["lend_budget_hours"]),
    help="Maximum GPU-hours that the pool lends in a month, or none.",
)
@click.option(
    "--slowed-budget-pct",
    type=BudgetType(BUDGETS["slowed_budget_pct"]),
    help="Maximum percentage of its jobs that sharing may delay, or none.",
)
@click.option(
    "--slowed-budget-minutes",
    type=BudgetType(BUDGETS["slowed_budget_minutes"]),
    help="Maximum minutes by which sharing may delay its jobs in a month, or none.",
)
@click.option("--for", "span", type=SPAN, help="Undo the change after this time, like 2h.")
@click.option("--version", type=int, help="Refuse the change if the pool has another version.")
@asks
def set_pool(
    client: Client, name: str, span: float | None, version: int | None, as_json: bool, **wanted: Any
) -> None:
    """Change a pool at once.

    Running jobs continue.
    """
    patch = {key: value for key, value in wanted.items() if value is not None}
    patch |= {key: None for key in LIMITS if patch.get(key) == NO_LIMIT}
    if not patch:
        raise click.UsageError("No change given. Use --quota, --state or another option.")
    if span is not None:
        patch["until"] = client.get("/healthz")["time"] + span
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    answer = client.ask("PATCH", f"/v1/pools/{at(name)}", patch, headers)
    if as_json:
        say(answer)
    else:
        click.echo(f"{name}: version {answer['version']}")


@click.command()
@asks
def nodes(client: Client, as_json: bool) -> None:
    """List nodes.

    A node that is out shows who took it out, and why.
    """
    answer = client.get("/v1/nodes")
    if as_json:
        say(answer)
        return
    differ = any(node.get("attributes") for node in answer["nodes"])
    rows = [
        [
            node["name"], f"{node['gpus']:,}", f"{node['used']:,}",
            *([" ".join(node.get("attributes", ()))] if differ else []),
            _out(node), ", ".join(node["jobs"][:5]),
        ]
        for node in answer["nodes"]
    ]  # fmt: skip
    columns = ["node", "GPUs", "used", *(["attributes"] if differ else []), "state", "jobs"]
    show_table("Nodes", columns, rows, ("attributes", "state", "jobs"))


def _out(node: Mapping[str, Any]) -> str:
    """Return who took a node out, and why."""
    return "; ".join(f"{who}: {why}" for who, why in node["out"].items()) or "in"


def _tell(node: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the state of a node."""
    if as_json:
        say(node)
        return
    text = f"out, {_out(node)}" if node["out"] else "in"
    click.echo(printable(f"{node['name']}: {text}; {counted(node['used'], 'GPU')} in use"))
    if node.get("note"):
        click.echo(printable(f"note: {node['note']}"))


@click.command()
@click.argument("node")
@click.option("--why", default="", help="Reason, shown to others.")
@asks
def drain(client: Client, node: str, why: str, as_json: bool) -> None:
    """Stop placing jobs on a node; running jobs continue."""
    _tell(client.ask("POST", f"/v1/nodes/{at(node)}/drain", {"why": why}), as_json=as_json)


@click.command()
@click.argument("node")
@asks
def resume(client: Client, node: str, as_json: bool) -> None:
    """Place jobs on a node again."""
    _tell(client.ask("POST", f"/v1/nodes/{at(node)}/resume"), as_json=as_json)


@click.group(cls=Group)
def maintenance() -> None:
    """Plan maintenance windows of nodes."""


@maintenance.command("list")
@asks
def list_maintenance(client: Client, as_json: bool) -> None:
    """List planned and open maintenance windows."""
    answer = client.get("/v1/maintenance")
    if as_json:
        say(answer)
        return
    rows = [
        [
            window["id"], window["node"], moment(window["start"]), moment(window["end"]),
            "open" if window["begun"] else "planned", window["why"],
        ]
        for window in answer["maintenance"]
    ]  # fmt: skip
    header = ["id", "node", "from", "to", "state", "why"]
    show_table("Maintenance", header, rows, header)


@maintenance.command("add")
@click.argument("node")
@click.option(
    "--in", "wait", type=Seconds(), default="0", show_default=True,
    help="Time until the window opens, like 2h.",
)  # fmt: skip
@click.option("--for", "span", type=SPAN, required=True, help="Length of the window, like 2h.")
@click.option("--why", default="", help="Reason, shown to others.")
@click.option("--id", "window", help="ID of the window, to cancel it by.")
@asks
def add_maintenance(
    client: Client, node: str, wait: float, span: float, why: str, window: str | None, as_json: bool
) -> None:
    """Plan a maintenance window: no job is placed on the node while it is open."""
    start = client.get("/healthz")["time"] + wait
    asked = {"node": node, "start": start, "end": start + span, "why": why}
    answer = client.ask("POST", "/v1/maintenance", asked | ({"id": window} if window else {}))
    if as_json:
        say(answer)
    else:
        click.echo(f"{answer['id']}: from {moment(answer['start'])} to {moment(answer['end'])}")


@maintenance.command("cancel")
@click.argument("window", metavar="ID")
@asks
def cancel_maintenance(client: Client, window: str, as_json: bool) -> None:
    """Cancel a planned maintenance window, or close an open one."""
    client.ask("DELETE", f"/v1/maintenance/{at(window)}")
    if as_json:
        say({"id": window})
    else:
        click.echo(printable(f"{window}: cancelled"))


@click.command()
@asks
def loans(client: Client, as_json: bool) -> None:
    """List open loans."""
    answer = client.get("/v1/loans")
    if as_json:
        say(answer)
        return
    rows = [
        [loan["job"], loan["borrower"], loan["donor"], f"{loan['gpus']:,}", moment(loan["since"])]
        for loan in answer["loans"]
    ]
    header = ["job", "borrower", "lender", "GPUs", "since"]
    total = counted(sum(answer["lent"].values()), "GPU")
    show_table(f"Loans: {total}", header, rows, ("borrower", "lender", "since"))
