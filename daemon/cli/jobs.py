"""`sia submit, cancel, hold, release, priority, jobs, job`."""

from __future__ import annotations

import getpass
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from daemon.cli.client import DENIED, Client, DeniedError, at
from daemon.cli.common import INTERRUPTED, asks, lasted, moment, pairs_of, say, spread, waited
from daemon.model.job import JobPhase
from daemon.wire.wishes import IN, parse_wish
from replay.logs.regimes import regimes_text
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import SPAN, Seconds
from sia.limits import MAX_ITERATIONS
from sia.model import Regime
from sia.state.steps import steps_text
from sia.wording import NONE, counted, duration

OVER = ("finished", "failed", "cancelled", "lost")

LOOK = 1.0
"""Seconds between two polls of a job that the command waits for."""

WITH_FILE = ("file", "wait", "as_json", "config")
"""Parameters of `submit` that may be used with --file."""

NAMES = {
    "run_time": "estimated run", "alone": "virtual start", "kept": "work kept",
    "preempted": "last stop",
}  # fmt: skip
"""Labels that differ from the keys of the API."""

PAGE = 500
"""Maximum number of jobs in one request."""

WAITING = "waiting"
"""Another word for the phase `pending`."""

PHASES = [phase.value for phase in JobPhase]


class Wish(click.ParamType[Any]):
    """Parameter type: a field of a job, parsed by `daemon.wire.wishes`."""

    name = "value"

    def __init__(self, field: str) -> None:
        """Parse values of this field."""
        self._field = field

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Parse the text of an option."""
        if not isinstance(value, str):
            return value
        try:
            return parse_wish(self._field, value, 0.0)
        except ValueError as error:
            self.fail(str(error).removeprefix(f"{self._field} "), param, ctx)


class Due(Wish):
    """Parameter type: a deadline. `in 2h` stays a text, because it counts on the daemon's clock."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Parse the text of the option, or only check it if it is relative."""
        parsed = super().convert(value, param, ctx)
        return value if isinstance(value, str) and IN.fullmatch(value.strip()) else parsed


@click.command()
@click.option("--pool", help="Pool whose quota the job uses.")
@click.option(
    "--gpus", type=int, default=1, show_default=True, help="Number of GPUs; all start together."
)
@click.option("--id", "job_id", help="Job ID. Submitting the same ID again has no effect.")
@click.option(
    "--name", default="", help="Job name; run times are estimated from jobs with the same name."
)
@click.option("--user", help="User who owns the job.  [default: you]")
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Tag to find the job by; repeatable."
)
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="Environment variable; repeatable.")
@click.option("--cwd", help="Working directory.  [default: the current one]")
@click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="Jobs with a higher number start first.",
)
@click.option("--hold", is_flag=True, help="Hold the job until it is released.")
@click.option("--time-limit", type=SPAN, help="End the job after this time, like 2h.")
@click.option(
    "--warn", type=Seconds(), help="Warn the job this long before its time limit.  [default: 60s]"
)
@click.option("--run-time", type=Seconds(), help="Your estimate of the run time, like 3h.")
@click.option("--duration", type=Seconds(), help="Run time of a simulated job, like 10m.")
@click.option("--requeue", is_flag=True, help="Requeue the job if its node is lost.")
@click.option(
    "--min-width", type=Wish("min_width"), help="Minimum number of GPUs on which the job can run."
)
@click.option(
    "--max-width", type=Wish("max_width"), help="Maximum number of GPUs that the job can use."
)
@click.option(
    "--demand",
    type=Wish("demand"),
    metavar="GPUS:SECONDS;…",
    help="Run time by number of GPUs, like 1:3600;2:1900.",
)
@click.option(
    "--deadline",
    type=Due("deadline"),
    metavar="TIME",
    help="When the job should end at the latest: 2026-05-01T18:00, in 2h, or seconds since the "
    "epoch.",
)
@click.option(
    "--soft",
    type=Wish("soft"),
    metavar="STEPS",
    help="Later steps of the deadline, each with its reward: 1.1:80+1.5:20 for ends "
    "after 1.1 and 1.5 times the time to the deadline, or paper.",
)
@click.option("--value", type=Wish("value"), help="Value of an end by the deadline.")
@click.option(
    "--budget",
    type=Wish("budget"),
    help="Weight relative to other jobs, in policies with budgets.  [default: 1]",
)
@click.option(
    "--estimate", type=Wish("estimate"), metavar="TIME", help="Another name of --run-time."
)
@click.option("--prefers", help="Attribute of the nodes on which the job runs at full speed.")
@click.option("--slowdown", type=Wish("slowdown"), help="Factor on the run time on other nodes.")
@click.option(
    "--strl",
    type=Wish("strl"),
    metavar="EXPR",
    help="STRL expression: on which nodes the job may start when, how long it runs there, and its "
    "value: '(max (nck gpu 2 0 60 100) (nck all 2 0 90 100))'.",
)
@click.option(
    "--preemptible",
    type=Wish("preemptible"),
    metavar="COST",
    help="What a stop costs the job: a time like 30s, restart (all work), or never (no stops).",
)
@click.option(
    "--min-run-time",
    type=Wish("min_run_time"),
    metavar="TIME",
    help="Run the job before its turn only if it can be expected to keep its GPUs for this time.",
)
@click.option(
    "--checkpoint", help="Signal or command that tells the job to save its work before a stop."
)
@click.option(
    "--mode", type=Wish("mode"), help="Mode of the job's changes of configuration, like gns."
)
@click.option("--model", help="Name of the model that the job trains.")
@click.option(
    "--regimes",
    type=Wish("regimes"),
    metavar="CONFIG:EPOCHS:SECONDS;…",
    help="Its configurations in order, with expected epochs and seconds of an epoch, like "
    "32:9:36.5;64:21:20.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, MAX_ITERATIONS),
    help="Iterations of the whole work, of which the job reports how many are done.",
)
@click.option("--array", type=int, metavar="N", help="Submit N jobs, ID.0 to ID.(N-1).")
@click.option("--file", "file", type=click.File("rb"), help="Read jobs as JSON; - for stdin.")
@click.option(
    "--wait", is_flag=True, help="Wait until the job has ended; exit with code 1 if it failed."
)
@click.argument("command", nargs=-1)
@asks
def submit(client: Client, as_json: bool, file: Any, wait: bool, **options: Any) -> int:
    """Submit a job, an array, or a file of jobs.

    Example: sia submit --pool vision --gpus 4 -- python train.py
    """
    if isinstance(options["deadline"], str):
        now = client.get("/healthz")["time"]
        options["deadline"] = parse_wish("deadline", options["deadline"], now)
    body = _read(file, wait=wait) if file else _job(**options)
    answer = client.ask("POST", "/v1/jobs", body)
    if as_json and not wait:
        say(answer)
    elif not wait:
        _tell(answer)
    elif "jobs" not in answer:
        _note(answer)
    if "jobs" in answer:
        return DENIED if answer["refused"] else 0
    return _await(client, answer["id"], as_json=as_json) if wait else 0


def _read(file: Any, *, wait: bool) -> bytes:
    """Read the jobs of a file. Raises UsageError for options that --file does not allow."""
    if wait:
        raise click.UsageError("--wait does not work with --file; leave one of them out")
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in WITH_FILE:
            raise click.UsageError(
                f"{option.get_error_hint(context)} does not work with --file; put it in the file"
            )
    data: bytes = file.read()
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{file.name}: {error}; write JSON in UTF-8: one job, or a list of jobs"
        ) from None
    jobs = values if isinstance(values, list) else [values]
    if isinstance(values, dict) and isinstance(values.get("jobs"), list):
        jobs = values["jobs"]
    for job in jobs:
        if isinstance(job, dict):
            job.setdefault("user", getpass.getuser())  # the default without --file
    return msgspec.json.encode({"jobs": values} if isinstance(values, list) else values)


def _job(
    pool: str | None, gpus: int, job_id: str | None, name: str, user: str | None,
    tags: tuple[str, ...], env: tuple[str, ...], cwd: str | None, priority: int, hold: bool,
    command: tuple[str, ...], **given: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the body of the request."""
    if pool is None:
        raise click.UsageError("--pool is missing; sia pools lists all pools")
    job = {
        "pool": pool, "gpus": gpus, "name": name, "user": user or getpass.getuser(),
        "tags": pairs_of(tags, "--tag"), "env": pairs_of(env, "--env"),
        "cwd": cwd or str(Path.cwd()), "priority": priority, "hold": hold, "command": command,
    }  # fmt: skip
    if job_id is not None:
        job["id"] = job_id
    return job | {key: value for key, value in given.items() if value is not None}


def _tell(answer: dict[str, Any]) -> None:
    if "jobs" not in answer:
        click.echo(printable(answer["id"]))
        _note(answer)
        return
    for line in answer["jobs"]:
        why = f": {line['detail']}; {line['mend']}" if line["status"] >= 400 else ""
        click.echo(printable(f"{line['id']}{why}"), err=bool(why))
        _note(line)


def _note(line: dict[str, Any]) -> None:
    """Print the notes on an accepted job, beginning with its deadline."""
    if "promise" in line:
        click.echo(printable(f"sia: {line['id']}: {promise_text(line['promise'])}"), err=True)
    for note in line.get("notes", ()):
        click.echo(printable(f"sia: {line['id']}: {note}"), err=True)


def promise_text(promise: dict[str, Any]) -> str:
    """Describe what the policy promised for a job's deadline."""
    why = promise.get("why", "")
    if promise["guaranteed"]:
        text = f"guaranteed: it ends by {moment(promise['latest'])} at the latest"
        if promise["by"] < promise["latest"]:
            text += f"; the current plan meets the step at {moment(promise['by'])}"
        return f"{text}; {why}" if why else text
    text = f"not guaranteed: {why}"
    if "soonest" in promise:
        soonest = moment(promise["soonest"])
        text += f"; its earliest end in the present plan is {soonest}, which is not promised"
    return text


def _await(client: Client, job_id: str, *, as_json: bool) -> int:
    """Poll a job or an array until it has ended."""
    try:
        click.echo(f"submitted {printable(job_id)}", err=True)
        view = _over(client, job_id)
    except KeyboardInterrupt:
        click.echo(f"sia: interrupted; the job runs on; see: sia job {printable(job_id)}", err=True)
        return INTERRUPTED
    phases = [job["phase"] for job in view.get("jobs", [view])]
    if as_json:
        say(view)
    else:
        click.echo(printable(f"{job_id} {_outcome(view)}" if "phase" in view else job_id))
    return 0 if all(phase == "finished" for phase in phases) else DENIED


def _over(client: Client, job_id: str) -> dict[str, Any]:
    """Return a job or an array once it has ended."""
    while True:
        view: dict[str, Any] = client.patiently(partial(client.get, f"/v1/jobs/{at(job_id)}"))
        if all(job["phase"] in OVER for job in view.get("jobs", [view])):
            return view
        time.sleep(LOOK)


def _outcome(job: dict[str, Any]) -> str:
    """Describe how a job ended."""
    parts = [job["phase"], job.get("why", "")]
    parts += [f"{key} {job[key]}" for key in ("code", "signal") if job.get(key)]
    return ", ".join(part for part in parts if part)


def _each(
    client: Client, ids: tuple[str, ...], method: str, path: str, *, as_json: bool, body: Any = None
) -> int:
    """Send a request for each job and print the results, also if some are refused."""
    answers, code = [], 0
    for job_id in ids:
        try:
            answers.append(client.ask(method, path.format(at(job_id)), body))
        except DeniedError as error:
            if len(ids) == 1:
                raise
            code = error.exit_code
            click.echo(printable(f"sia: {job_id}: {error.message}"), err=True)
            continue
        if not as_json:
            now = answers[-1] if method != "DELETE" else client.get(f"/v1/jobs/{at(job_id)}")
            click.echo(printable(f"{job_id}: {_standing(now)}"))
    if as_json:
        say(answers)
    return code


def _standing(view: dict[str, Any]) -> str:
    """Return the phase of a job, or the number of jobs in each phase of an array."""
    if "phases" not in view:
        now: str = view["phase"]
        return now if now in OVER else f"{now}, priority {view.get('priority', 0)}"
    of = Counter(view["phases"])
    return ", ".join(f"{count:,} {phase}" for phase, count in sorted(of.items()))


@click.command()
@click.argument("ids", nargs=-1, required=True)
@asks
def cancel(client: Client, ids: tuple[str, ...], as_json: bool) -> int:
    """Cancel jobs or arrays.

    Running jobs are ended. The ID of an array cancels all of its jobs.
    """
    return _each(client, ids, "DELETE", "/v1/jobs/{}", as_json=as_json)


@click.command()
@click.argument("ids", nargs=-1, required=True)
@asks
def hold(client: Client, ids: tuple[str, ...], as_json: bool) -> int:
    """Hold pending jobs.

    A held job does not start until it is released.
    """
    return _each(client, ids, "POST", "/v1/jobs/{}/hold", as_json=as_json)


@click.command()
@click.argument("ids", nargs=-1, required=True)
@asks
def release(client: Client, ids: tuple[str, ...], as_json: bool) -> int:
    """Release held jobs."""
    return _each(client, ids, "POST", "/v1/jobs/{}/release", as_json=as_json)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("number", type=int)
@click.argument("ids", nargs=-1, required=True)
@asks
def priority(client: Client, number: int, ids: tuple[str, ...], as_json: bool) -> int:
    """Set the priority of pending jobs within their pool.

    Jobs with a higher NUMBER start first.
    """
    return _each(client, ids, "PATCH", "/v1/jobs/{}", as_json=as_json, body={"priority": number})


@click.command()
@click.option("--pool", help="Only jobs of this pool.")
@click.option(
    "--phase",
    type=click.Choice([*PHASES, WAITING]),
    help="Only jobs in this phase; waiting means pending.",
)
@click.option("--user", help="Only jobs of this user.")
@click.option("--tag", metavar="KEY[=VALUE]", help="Only jobs with this tag.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of jobs to list.",
)
@asks
def jobs(client: Client, as_json: bool, limit: int, **filters: Any) -> None:
    """List jobs, newest first."""
    if filters["phase"] == WAITING:
        filters["phase"] = JobPhase.PENDING.value
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < limit:
        asked = min(PAGE, limit - len(found))
        page = client.get("/v1/jobs", limit=asked, cursor=cursor, **filters)
        found += page["jobs"]
        cursor = page["next"]
        if cursor is None:
            break
    if not found and filters["pool"] is not None:
        client.get(f"/v1/pools/{at(filters['pool'])}")  # raises if the pool does not exist
    if as_json:
        say({"jobs": found, "next": cursor})
        return
    now = client.get("/healthz")["time"]
    show_jobs("Jobs, newest first", found, now)
    if cursor is not None:
        click.echo(
            f"\n{counted(limit, 'job')} shown, there are more; list them with a higher --limit"
        )


def show_jobs(title: str, found: list[dict[str, Any]], now: float) -> None:
    """Print a table of jobs."""
    header = ["job", "pool", "GPUs", "phase", "user", "name", "waited", "ran", "stream", "from"]
    rows = [
        [
            job["id"], job["pool"], _width(job), job["phase"], job.get("user", ""),
            job.get("name", ""), waited(job, now), lasted(job, now), job.get("stream") or NONE,
            ", ".join(job.get("loans", {})),
        ]
        for job in found
    ]  # fmt: skip
    show_table(title, header, rows, ("pool", "phase", "user", "name", "stream", "from"))


def _width(job: dict[str, Any]) -> str:
    """Return the GPUs that a job asked for, and those that it has if these are others."""
    now = job.get("width")
    return f"{job['gpus']:,}, now {now:,}" if now else f"{job['gpus']:,}"


@click.command()
@click.argument("job_id", metavar="ID")
@asks
def job(client: Client, job_id: str, as_json: bool) -> None:
    """Show a job or an array.

    A pending job also shows what it waits for.
    """
    view = client.get(f"/v1/jobs/{at(job_id)}")
    if as_json:
        say(view)
    elif "jobs" in view:
        phases = ", ".join(f"{count:,} {phase}" for phase, count in view["phases"].items())
        now = client.get("/healthz")["time"]
        show_jobs(f"Array {view['id']} of {view['size']:,}: {phases}", view["jobs"], now)
    else:
        for name, text in description(view):
            _line(name, text)


def description(view: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the label and the text of each known fact about a job."""
    shown: dict[str, Callable[[Any], str]] = {
        "submitted": moment, "started": moment, "ended": moment, "alone": moment,
        "time_limit": duration, "run_time": duration, "duration": duration, "warn": duration,
        "deadline": moment, "soft": steps_text, "promise": promise_text,
        "estimate": duration, "preemptible": _cost, "demand": _demand,
        "regimes": lambda regimes: regimes_text([Regime(*regime) for regime in regimes]),
        "min_run_time": duration,
        "nodes": spread, "tags": _pairs, "env": _pairs, "loans": _pairs, "command": shlex.join,
        "progress": _progress, "kept": duration,
        "array": lambda array: f"number {array[0]} of {array[1]}",
    }  # fmt: skip
    keys = [key for key in view if key not in ("alone", "waits", "ran", "notes")]
    if "alone" in view:
        keys.insert(keys.index("started" if "started" in view else "submitted") + 1, "alone")
    for key in keys:
        value = view[key]
        if value not in (None, "", {}, [], False):
            yield NAMES.get(key, key), shown[key](value) if key in shown else str(value)
            if key == "ended" and "started" in view:
                yield "ran", lasted(view, value)
    if "command" in view and view.get("attempt"):
        yield "output", f"sia log {shlex.quote(view['id'])}, if the backend keeps it"
    for label in ("waits", "notes"):
        for i, line in enumerate(view.get(label, [])):
            yield "" if i else label, line


def _cost(cost: float | str) -> str:
    return cost if isinstance(cost, str) else f"{duration(cost)} a stop"


def _demand(points: list[tuple[int, float]]) -> str:
    return ";".join(f"{gpus}:{seconds:g}" for gpus, seconds in points)


def _line(name: str, text: str) -> None:
    click.echo(f"{name.replace('_', ' '):16}{printable(text)}")


def _progress(progress: dict[str, Any]) -> str:
    """Describe a job's latest progress report."""
    words = f"{progress['done']:.1%} done, at {moment(progress['at'])}"
    if progress["speed"] != 1.0:
        words += f", speed {progress['speed']:g}"
    if progress.get("regime") is not None:
        words += f", regime {progress['regime']}"
    return (
        words if progress.get("end") is None else f"{words}, ends about {moment(progress['end'])}"
    )


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
