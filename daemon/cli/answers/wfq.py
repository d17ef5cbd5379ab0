"""`sia wfq update, set, undo, show`: the current point; `replay.cli.wfq` has the search."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import click

from daemon.cli.client import Client
from daemon.cli.common import asks, say
from daemon.cli.journal import CONFIG, STATE, written
from daemon.config.read import find_config, peek
from replay.cli.wfq import (
    ARRIVALS,
    FIGURE,
    FRONT,
    POINTS,
    POOL,
    SIMULATIONS,
    ObjectiveType,
    point_of,
    read_front,
    search_command,
    wfq,
)
from replay.experiment.folder import locked, writable
from replay.logs.limits import MAX_LOAD
from replay.search.front import BALANCED, FIFO, PRESETS
from replay.search.objectives import DEFAULT, Objective, parse_objective
from sia import __version__
from sia.console.as_json import json_option
from sia.console.errors import UserError
from sia.console.text import BoundedFloatType
from sia.policies import make

PATH = "/v1/policy"

NICE = 10
"""Niceness of an update, so that the daemon and its jobs have precedence."""

UNFINISHED = "next-"
"""Prefix of the folders of stopped updates; a digest of their options follows."""

KEPT = (POINTS, f"{FIGURE}.svg", f"{FIGURE}.png", FRONT)
"""Files of a search that an update keeps; the daemon reads the last one."""


@wfq.command("update")
@STATE
@CONFIG
@POOL
@click.option(
    "--objective",
    "objectives",
    type=ObjectiveType(),
    multiple=True,
    help="What to minimise, like avg:jct; repeatable.  [default: those of the stored front, else "
    "avg:jct and avg:pred_err]",
)
@SIMULATIONS
@ARRIVALS
@click.option(
    "--load",
    type=BoundedFloatType(0, MAX_LOAD, min_open=True),
    help="Load at which jobs arrive, like 0.8.  [default: that of the history]",
)
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of processes."
)
@json_option("Print front.json.")
@click.pass_context
def update(
    context: click.Context, /, state: Path | None, config: Path | None, as_json: bool,
    processes: int, **options: Any,
) -> None:  # fmt: skip
    """Search settings of wfq on the daemon's own history, and store the front for its pages.

    Runs beside the daemon, on its machine, with low priority. The daemon keeps its settings until
    you set a point. Ctrl-C stops the search, and the front of the last one stays; the same command
    continues it, on the same history.
    """
    os.nice(NICE)
    kept = peek(find_config(config)).front.parent if state is None else state / "front"
    if not kept.parent.is_dir():
        raise UserError(f"{kept.parent}: no such folder; use the --state of the daemon")
    with writable(kept):
        kept.mkdir(mode=0o700, exist_ok=True)
    with writable(kept), locked(kept, "sia wfq update", "stop it"):
        options["objectives"] = options["objectives"] or _preferred(kept)
        work = _unfinished(kept, options)
        if not (work / "search").exists():  # nothing is simulated yet: take the present history
            rmtree(work, ignore_errors=True)
            work.mkdir(mode=0o700, parents=True)  # 0700, because the history names users
            written(state, config, work / "history", alive=False)

        def keep() -> None:
            for name in KEPT:
                (work / "search" / name).replace(kept / name)
            (work / "search").rename(work / "stored")  # what is left in it must not be continued
            rmtree(work)

        logs = {name: work / "history" / f"{name}.csv" for name in ("trace", "pools")}
        context.invoke(
            search_command, log=logs["trace"], pools=logs["pools"], processes=processes,
            as_json=as_json, out=work / "search", keep=keep, **options,
        )  # fmt: skip
    if not as_json:
        click.echo(f"stored: {kept / FRONT}; sia wfq set POINT --front {kept} sets a point")


def _unfinished(kept: Path, options: Mapping[str, Any]) -> Path:
    """Return the folder of an update with these options; remove the folders of other updates."""
    key = sha256(repr([__version__, *sorted(options.items())]).encode()).hexdigest()
    work = kept / f"{UNFINISHED}{key[:12]}"
    for other in kept.glob(f"{UNFINISHED}*"):
        if other != work:
            rmtree(other)  # it has other options, or is of another release
    return work


def _preferred(kept: Path) -> Sequence[Objective]:
    """Return the objectives of the stored front, or the usual ones."""
    if (kept / FRONT).exists():
        return tuple(parse_objective(each) for each in read_front(kept)["objectives"])
    return tuple(parse_objective(each) for each in DEFAULT)


@wfq.command("set")
@click.argument("point")
@click.option(
    "--front",
    "file",
    type=Path,
    help="front.json of a search, or its folder; POINT is one of its points.",
)
@asks
def set_(client: Client, point: str, file: Path | None, as_json: bool) -> None:
    """Change the options of wfq by which the daemon decides.

    POINT is a label, like wfq:sizes=3600+28800:weights=2+1+1:zeta=0, or with --front the number of
    a point or a preset, like balanced. Running jobs change their widths at once. The options stay
    in force until they are changed again, also after a restart of the daemon.
    """
    if file is None and (point.isdecimal() or point in (FIFO, *PRESETS, BALANCED)):
        raise click.UsageError(f"{point} is a point of a front; name the front with --front")
    label = point if file is None else label_of(client, file, point)
    _show(client.ask("PUT", PATH, {"policy": label}), as_json=as_json)


@wfq.command()
@asks
def undo(client: Client, as_json: bool) -> None:
    """Return to the settings before the last change; a second undo takes back the first."""
    _show(client.ask("PUT", PATH, {"undo": True}), as_json=as_json)


@wfq.command()
@asks
def show(client: Client, as_json: bool) -> None:
    """Show the settings in force."""
    _show(client.get(PATH), as_json=as_json)


def label_of(client: Client, file: Path, point: str) -> str:
    """Return the label of a point of a front of this cluster. Raises UserError."""
    front = read_front(file)
    pool, gpus = front.get("pool"), front["gpus"]
    pools = {each["name"]: each["quota"] for each in client.get("/v1/pools")["pools"]}
    if pool is not None and pool not in pools:
        raise UserError(
            f"{file}: the front is of pool {pool}, which this daemon does not have; search on its "
            "own history"
        )
    quotas = [pools[pool]] if pool is not None else [*pools.values()]
    if gpus not in quotas:
        raise UserError(
            f"{file}: the front is of {gpus} GPUs, but the pool has "
            f"{', '.join(map(str, quotas))}; search again with this quota"
        )
    exact: str = point_of(front, point)["exact"]
    return exact


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say(answer)
        return
    click.echo(f"policy: {answer['policy']}")
    if answer["configured"] != answer["policy"]:
        click.echo(f"in the configuration: {answer['configured']}")
    if answer["before"] is not None:
        click.echo(f"before: {answer['before']} (sia wfq undo)")
    if note := make(answer["policy"]).unlike_live:
        click.echo(f"note: {note}")
