"""`sia pools, pool, nodes, drain, resume, maintenance, loans, lending`."""

from __future__ import annotations

from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import Client, at
from daemon.jobs import PoolMode
from replay.tables import show_table
from replay.text import Seconds, counted, decimal

NO_LIMIT = -1
"""What `none` stands for among options, of which those that are not given are None."""


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
            pool["name"], pool["state"],
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
            click.echo(f"{key.replace('_', ' '):14}{_shown(key, value)}")


def _shown(key: str, value: Any) -> str:
    if key == "override":
        back = ", ".join(f"{field} {value[field]}" for field in value if field != "until")
        return f"until {moment(value['until'])}, then {back}"
    return decimal(value, 2) if key == "weight" else str(value)


@pool.command("set")
@click.argument("name")
@click.option("--quota", type=int, help="GPUs that it owns.")
@click.option(
    "--state",
    type=click.Choice([mode.value for mode in PoolMode]),
    help="open; hold: jobs are taken and wait; drain: no more are taken.",
)
@click.option("--lend-limit", type=Limit(), help="GPUs that others may hold, or none.")
@click.option(
    "--borrow-limit", type=Limit(), help="GPUs of others that its jobs may hold, or none."
)
@click.option("--weight", type=float, help="Pools are visited by use / (quota · weight).")
@click.option("--for", "span", type=Seconds(), help="Only for so long, then all goes back.")
@click.option("--version", type=int, help="Only if this is still its version.")
@asks
def set_pool(
    client: Client, name: str, span: float | None, version: int | None, as_json: bool, **wanted: Any
) -> None:
    """Change a pool, at once; what runs goes on running."""
    patch = {key: value for key, value in wanted.items() if value is not None}
    patch = {key: None if value == NO_LIMIT else value for key, value in patch.items()}
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
            "; ".join(f"{who}: {why}" for who, why in node["out"].items()) or "in",
            ", ".join(node["jobs"][:5]),
        ]
        for node in said["nodes"]
    ]  # fmt: skip
    show_table("Nodes", ["node", "GPUs", "used", "state", "jobs"], rows, ("state", "jobs"))


@click.command()
@click.argument("node")
@click.option("--why", default="", help="For those who look later.")
@asks
def drain(client: Client, node: str, why: str, as_json: bool) -> None:
    """Place nothing more on a node; what runs there goes on."""
    said = client.ask("POST", f"/v1/nodes/{at(node)}/drain", {"why": why})
    if as_json:
        say(said)


@click.command()
@click.argument("node")
@asks
def resume(client: Client, node: str, as_json: bool) -> None:
    """Place jobs on a node again."""
    said = client.ask("POST", f"/v1/nodes/{at(node)}/resume")
    if as_json:
        say(said)


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
@click.option("--for", "span", type=Seconds(), required=True, help="How long it takes, like 2h.")
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
    header = ["job", "borrower", "lender", "GPUs", "since"]
    total = counted(sum(said["lent"].values()), "GPU")
    show_table(f"Loans: {total}", header, rows, ("borrower", "lender", "since"))


@click.command()
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@asks
def lending(client: Client, switch: str | None, as_json: bool) -> None:
    """Stop all new loans at once, or go on; without a word, say which."""
    if switch is None:
        said = client.get("/v1/lending")
    else:
        said = client.ask("PUT", "/v1/lending", {"on": switch == "on"})
    if as_json:
        say(said)
    else:
        click.echo(f"lending is {'on' if said['on'] else 'off'}")
