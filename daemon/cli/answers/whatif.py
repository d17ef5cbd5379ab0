"""`sia whatif`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from daemon.cli.answers.estimates import evidence
from daemon.cli.client import Client
from daemon.cli.common import asks, moment, say
from daemon.cli.pools import NO_LIMIT, GpuLimitType, WeightType
from daemon.wire.whatif import WHATIF_LONGEST, WHATIF_MOST, WHATIF_STARTS
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import SPAN, Seconds, WholeNumberType
from sia.wording import NONE, counted, duration

JOB = ("gpus", "pool", "time_limit", "priority")
"""Settings that apply to an existing and to a new job."""

NEW = ("run_time", "name", "user")
"""Settings that apply to a new job only."""

LISTED = 20
"""Maximum number of jobs in each table: one screen."""


class NamedValueType(click.ParamType[tuple[str, Any]]):
    """`NAME=VALUE`, where another type parses the value."""

    name = "pool=number"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        """Parse values with `kind`."""
        self._kind = kind

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Parse the value. Raises click.BadParameter."""
        name, equals, text = str(value).rpartition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write POOL=NUMBER", param, ctx)
        return name, self._kind.convert(text, param, ctx)


def _pool_option(name: str, kind: click.ParamType[Any], about: str) -> Callable[..., Any]:
    return click.option(
        name, type=NamedValueType(kind), multiple=True, metavar="POOL=NUMBER", help=about
    )


@click.command()
@click.option("--job", help="Job to change. Without --job, --pool submits a new job.")
@click.option("--cancel", is_flag=True, help="Cancel the job.")
@click.option("--pool", help="Pool of the job.")
@click.option("--gpus", type=click.IntRange(1), help="GPUs of the job.  [default: 1 for a new job]")
@click.option("--time-limit", type=SPAN, help="Time limit of the job, like 2h.")
@click.option("--priority", type=int, help="Priority of the job.")
@click.option(
    "--run-time", type=Seconds(), help="Your estimate of the run time of a new job, like 3h."
)
@click.option(
    "--name", help="Name of a new job; run times are estimated from jobs with the same name."
)
@click.option("--user", help="User who owns a new job.")
@_pool_option("--quota", WholeNumberType(), "Quota of a pool in GPUs.")
@_pool_option(
    "--lend-limit",
    GpuLimitType(),
    "Maximum GPUs that a pool lends: 0 for no lending, none for no limit.",
)
@_pool_option(
    "--borrow-limit", GpuLimitType(), "Maximum GPUs that a pool borrows, or none for no limit."
)
@_pool_option("--weight", WeightType(), "Weight of a pool.")
@click.option("--lending", type=click.Choice(["on", "off"]), help="Turn lending on or off.")
@click.option(
    "--policy", metavar="LABEL", help="Policy in force with other options, like wfq:weights=1."
)
@click.option("--front", type=Path, help="front.json of a search: --policy is one of its points.")
@click.option("--drain", multiple=True, metavar="NODE", help="Drain a node; repeatable.")
@click.option(
    "--horizon",
    type=Seconds(most=WHATIF_LONGEST),
    help="How far ahead to simulate, at most 30d.  [default: 1d]",
)
@click.option(
    "--starts",
    type=click.IntRange(1, WHATIF_MOST),
    help=f"Maximum number of job starts to simulate.  [default: {WHATIF_STARTS}]",
)
@click.option("--file", type=click.File("rb"), help="Read the question as JSON; - for stdin.")
@asks
def whatif(client: Client, as_json: bool, file: Any, **options: Any) -> None:
    """Show which jobs would start or end earlier or later after a change."""
    if file and any(value not in (None, ()) and value is not False for value in options.values()):
        raise click.UsageError("--file excludes other options; put the whole question in the file")
    body = file.read() if file else _question(client, **options)
    if not body:
        raise click.UsageError(
            "No change given. Use --job, --pool, --quota, --policy or another option."
        )
    answer = client.ask("POST", "/v1/whatif", body)
    if as_json:
        say(answer)
    else:
        _show(answer, new="" if file else "the new job")


def _question(
    client: Client,
    job: str | None,
    *,
    cancel: bool,
    lending: str | None,
    policy: str | None,
    front: Path | None,
    drain: tuple[str, ...],
    **given: Any,
) -> dict[str, Any]:
    """Return the body of the request."""
    asked: dict[str, Any] = {"jobs": [], "submit": [], "pools": _pools(given)}
    of_job = {key: given[key] for key in JOB if given[key] is not None}
    of_new = {key: given[key] for key in NEW if given[key] is not None}
    if job is not None:
        if of_new:
            raise click.UsageError(
                f"--{next(iter(of_new)).replace('_', '-')} is for new jobs only; leave out --job"
            )
        asked["jobs"] = [{"job": job, "cancel": cancel} | of_job]
    elif cancel or ((of_job or of_new) and "pool" not in of_job):
        raise click.UsageError("No job given. Use --job, or --pool for a new one.")
    elif of_job:
        asked["submit"] = [{"gpus": 1} | of_job | of_new]
    if lending is not None:
        asked["lending"] = lending == "on"
    if front is not None:
        if policy is None:
            raise click.UsageError("--front needs --policy with a point, like balanced")
        from daemon.cli.answers.wfq import label_of  # noqa: PLC0415  the search is slow to import

        policy = label_of(client, front, policy)
    if policy is not None:
        asked["policy"] = policy
    asked["drain"] = list(drain)
    asked |= {key: given[key] for key in ("horizon", "starts") if given[key] is not None}
    return {key: value for key, value in asked.items() if value != []}


def _pools(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    pools: dict[str, dict[str, Any]] = {}
    for key in ("quota", "lend_limit", "borrow_limit", "weight"):
        for name, value in given[key]:
            pools.setdefault(name, {"pool": name})[key] = None if value == NO_LIMIT else value
    return list(pools.values())


def _show(answer: dict[str, Any], new: str = "") -> None:
    """Print an answer; `new` is the name for a job that does not exist yet."""
    now = answer["time"]
    until = duration(answer["until"] - now)
    cut = " (limit of --starts reached)" if answer["cut"] else ""
    click.echo(f"simulated: the next {until}{cut}")
    for job in answer["jobs"]:
        name = job["job"] if job["now"] is not None else new or job["job"]
        click.echo(printable(f"{name} ({job['pool']}, {counted(job['gpus'], 'GPU')}): ")
                   + _fate(job, until))  # fmt: skip
    for way, word in (("earlier", "sooner"), ("later", "later")):
        _table(answer, way, word)
    if not answer["pools"]:
        click.echo(f"no other job would {answer['compared']} at another time")
    for pool in answer["guests"]:
        counts = (f"{what} {then:,} (today: {now:,})"
                  for what in ("guests", "stops") for now, then in [pool[what]])  # fmt: skip
        click.echo(printable(f"{pool['pool']}: {', '.join(counts)}"))
    for note in answer["notes"]:
        click.echo(printable(f"note: {note}"))


def _fate(job: Mapping[str, Any], until: str) -> str:
    if job["then"] is None:
        return "would be cancelled"
    then = _span(job["then"], until)
    if job.get("held"):
        then += ", because it is held"
    return then if job["now"] is None else f"{then}; today: {_span(job['now'], until)}"


def _span(span: Mapping[str, Any], until: str) -> str:
    if span.get("by"):
        return _estimated(span)
    if span["start"] is None:
        return f"its start is not known yet: none in a simulation of the next {until}"
    end = "its end is not known yet" if span["end"] is None else f"ends {moment(span['end'])}"
    return f"starts {moment(span['start'])}, {end}"


def _estimated(span: Mapping[str, Any]) -> str:
    """Describe a time by its p50 and p90, and the number of jobs from which it was estimated."""
    words = []
    far = "not known yet" if span.get("little") else f"not within {duration(span['within'])}"
    for what, name in (("start", "starts"), ("end", "ends")):
        p50, p90 = span[what], span.get(f"{what}_p90")
        if p50 is None:
            words.append(f"{name} {far}")
        elif p50 == p90:
            words.append(f"{name} {moment(p50)}")
        else:
            late = far if p90 is None else moment(p90)
            words.append(f"{name} by {moment(p50)} (p90: {late})")
    return f"{', '.join(words)} ({evidence(span)})"


def _table(answer: Mapping[str, Any], way: str, word: str) -> None:
    moved = answer[way]
    count = sum(pool[way] for pool in answer["pools"])
    if not count:
        return
    seconds = sum(pool[f"{way}_seconds"] for pool in answer["pools"])
    rows = [
        [job["job"], job["pool"], f"{job['gpus']:,}", _time(job["now"]), _time(job["then"]),
         _by(job)]
        for job in moved[:LISTED]
    ]  # fmt: skip
    least = "at least " if any(job["now"] is None or job["then"] is None for job in moved) else ""
    what = answer["compared"]
    title = f"{counted(count, 'job')} would {what} {way}, by {least}{duration(seconds)} together"
    show_table(title, ["job", "pool", "GPUs", "today", "then", word], rows,
               ("pool", "today", "then"))  # fmt: skip
    if count > len(rows):
        click.echo(f"… and {counted(count - len(rows), 'job')} more (--json lists {len(moved):,})")
    for pool in answer["pools"]:
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
