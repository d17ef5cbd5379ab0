"""`sia whatif`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from daemon.asking import asks, moment, say
from daemon.client import Client
from daemon.pool_commands import NO_LIMIT, Limit, Weight, Whole
from daemon.schemas_whatif import WHATIF_LONGEST, WHATIF_MOST, WHATIF_STARTS
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import SPAN, Seconds
from sia.wording import NONE, counted, duration

JOB = ("gpus", "pool", "time_limit", "priority")
"""What may be otherwise of a job, and what a new one has."""

NEW = ("run_time", "name", "user")
"""What a new job has besides."""

LISTED = 20
"""Jobs of each table: a screen."""


class Of(click.ParamType[tuple[str, Any]]):
    """`NAME=VALUE`, the value as another type has it."""

    name = "pool=number"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        """Read values so."""
        self._kind = kind

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Parse it, or fail as click wants."""
        name, equals, said = str(value).rpartition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write POOL=NUMBER", param, ctx)
        return name, self._kind.convert(said, param, ctx)


def _pool_option(name: str, kind: click.ParamType[Any], about: str) -> Callable[..., Any]:
    return click.option(name, type=Of(kind), multiple=True, metavar="POOL=NUMBER", help=about)


@click.command()
@click.option("--job", help="This job, otherwise; without it --pool submits a new one.")
@click.option("--cancel", is_flag=True, help="It is cancelled.")
@click.option("--pool", help="Its pool.")
@click.option("--gpus", type=click.IntRange(1), help="Its GPUs.  [default: 1 of a new job]")
@click.option("--time-limit", type=SPAN, help="Its limit, like 2h.")
@click.option("--priority", type=int, help="Its priority.")
@click.option("--run-time", type=Seconds(), help="How long you think a new job runs.")
@click.option("--name", help="What a new job is; forecasts compare jobs of one name.")
@click.option("--user", help="Whose a new job is.")
@_pool_option("--quota", Whole(), "A pool's GPUs.")
@_pool_option("--lend-limit", Limit(), "GPUs that it lends at most; 0 for none, none for no limit.")
@_pool_option("--borrow-limit", Limit(), "GPUs that it borrows at most.")
@_pool_option("--weight", Weight(), "Its weight.")
@click.option("--lending", type=click.Choice(["on", "off"]), help="Whether new loans are made.")
@click.option("--drain", multiple=True, metavar="NODE", help="Nothing more is placed there.")
@click.option(
    "--horizon",
    type=Seconds(most=WHATIF_LONGEST),
    help="How far to look, 30d at most.  [default: 1d]",
)
@click.option(
    "--starts",
    type=click.IntRange(1, WHATIF_MOST),
    help=f"Starts to play at most.  [default: {WHATIF_STARTS}]",
)
@click.option("--file", type=click.File("rb"), help="The question as JSON instead; - for stdin.")
@asks
def whatif(client: Client, as_json: bool, file: Any, **options: Any) -> None:
    """Say what would start earlier and later, were something otherwise. Nothing is changed."""
    if file and any(value not in (None, ()) and value is not False for value in options.values()):
        raise click.UsageError("--file: has the whole question; give nothing beside it")
    body = file.read() if file else _question(**options)
    if not body:
        raise click.UsageError("nothing is otherwise: give --job, --pool, --quota, --lending…")
    said = client.ask("POST", "/v1/whatif", body)
    if as_json:
        say(said)
    else:
        _show(said, new="" if file else "the new job")


def _question(
    job: str | None, *, cancel: bool, lending: str | None, drain: tuple[str, ...], **given: Any
) -> dict[str, Any]:
    """What the daemon is to be asked."""
    asked: dict[str, Any] = {"jobs": [], "submit": [], "pools": _pools(given)}
    of_job = {key: given[key] for key in JOB if given[key] is not None}
    of_new = {key: given[key] for key in NEW if given[key] is not None}
    if job is not None:
        if of_new:
            raise click.UsageError(f"--{next(iter(of_new)).replace('_', '-')}: of a new job only")
        asked["jobs"] = [{"job": job, "cancel": cancel} | of_job]
    elif cancel or ((of_job or of_new) and "pool" not in of_job):
        raise click.UsageError("whose? give --job, or --pool for a new one")
    elif of_job:
        asked["submit"] = [{"gpus": 1} | of_job | of_new]
    if lending is not None:
        asked["lending"] = lending == "on"
    asked["drain"] = list(drain)
    asked |= {key: given[key] for key in ("horizon", "starts") if given[key] is not None}
    return {key: value for key, value in asked.items() if value != []}


def _pools(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    pools: dict[str, dict[str, Any]] = {}
    for key in ("quota", "lend_limit", "borrow_limit", "weight"):
        for name, value in given[key]:
            pools.setdefault(name, {"pool": name})[key] = None if value == NO_LIMIT else value
    return list(pools.values())


def _show(said: dict[str, Any], new: str = "") -> None:
    """An answer; a `new` job is called so, if anything: its id is nobody's."""
    now = said["time"]
    until = duration(said["until"] - now)
    cut = ", as far as was allowed" if said["cut"] else ""
    click.echo(f"played: the next {until}{cut}")
    for job in said["jobs"]:
        name = job["job"] if job["now"] is not None else new or job["job"]
        click.echo(printable(f"{name} ({job['pool']}, {counted(job['gpus'], 'GPU')}): ")
                   + _fate(job, until))  # fmt: skip
    for way, word in (("earlier", "sooner"), ("later", "later")):
        _table(said, way, word)
    if not said["pools"]:
        click.echo("no other job would start at another time")
    for note in said["notes"]:
        click.echo(printable(f"note: {note}"))


def _fate(job: Mapping[str, Any], until: str) -> str:
    if job["then"] is None:
        return "would be gone"
    then = _span(job["then"], until)
    if job.get("held"):
        then += ", as it is held"
    return then if job["now"] is None else f"{then}; as it is, {_span(job['now'], until)}"


def _span(span: Mapping[str, Any], until: str) -> str:
    if span["start"] is None:
        return f"no start within the next {until}"
    end = "nobody knows when" if span["end"] is None else moment(span["end"])
    return f"starts {moment(span['start'])}, ends {end}"


def _table(said: Mapping[str, Any], way: str, word: str) -> None:
    moved = said[way]
    count = sum(pool[way] for pool in said["pools"])
    if not count:
        return
    seconds = sum(pool[f"{way}_seconds"] for pool in said["pools"])
    rows = [
        [job["job"], job["pool"], f"{job['gpus']:,}", _time(job["now"]), _time(job["then"]),
         _by(job)]
        for job in moved[:LISTED]
    ]  # fmt: skip
    least = "at least " if any(job["now"] is None or job["then"] is None for job in moved) else ""
    title = f"{counted(count, 'job')} would start {way}, by {least}{duration(seconds)} together"
    show_table(title, ["job", "pool", "GPUs", "as it is", "then", word], rows,
               ("pool", "as it is", "then"))  # fmt: skip
    if count > len(rows):
        click.echo(f"… and {counted(count - len(rows), 'job')} more (--json has {len(moved):,})")
    for pool in said["pools"]:
        if pool[way]:
            hours = pool[f"{way}_gpu_hours"]
            click.echo(
                printable(f"{pool['pool']}: {counted(pool[way], 'job')}, {hours:,.1f} GPU-h")
            )


def _time(time: float | None) -> str:
    return NONE if time is None else moment(time)


def _by(job: Mapping[str, Any]) -> str:
    least = "" if job["now"] is not None and job["then"] is not None else "at least "
    return least + duration(job["by"])
