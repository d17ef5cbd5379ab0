"""`sia report`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from daemon.cli.client import Client, Endpoint, at, checked_url, find
from daemon.cli.common import CONFIG, JSON, moment, say
from daemon.runtime.token_file import checked_token, read_token
from daemon.wire.wishes import gpus_and_seconds
from sia.console.errors import UserError
from sia.console.terminal import printable
from sia.console.text import BoundedFloatType, WholeNumberType
from sia.limits import MAX_ITERATIONS, MAX_REGIME, MAX_SPEED, MIN_SPEED


class TrialsType(click.ParamType[tuple[tuple[int, float], ...]]):
    """Parameter type: GPUs and seconds of each remaining trial."""

    name = "gpus:seconds;…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, float], ...]:
        """Parse `1:3600;2:1800`."""
        try:
            return gpus_and_seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


HERE = "it is set in the environment of each job that runs; outside of a job, give the option"


@click.command()
@click.option(
    "--done",
    type=BoundedFloatType(0, 1),
    help="Share of the whole work that is done.",
)
@click.option(
    "--iterations",
    type=WholeNumberType(0, MAX_ITERATIONS),
    help="In place of --done: iterations that are done, of those stated at submission.",
)
@click.option(
    "--trials",
    type=TrialsType(),
    help="In place of --done: GPUs and seconds of each trial that is left, like 1:3600;2:1800.",
)
@click.option(
    "--speed",
    type=BoundedFloatType(MIN_SPEED, MAX_SPEED),
    help="Speed from now on, relative to the nominal one.  [default: as before]",
)
@click.option(
    "--regime",
    type=WholeNumberType(0, MAX_REGIME),
    help="Number of the regime that the job is in.  [default: as before]",
)
@click.option("--job", "job_id", help="ID of the job.  [default: SIA_JOB_ID]")
@click.option("--attempt", type=WholeNumberType(1), help="Its attempt.  [default: SIA_ATTEMPT]")
@click.option("--url", help="URL of the daemon.  [default: SIA_REPORT_URL, or as other commands]")
@click.option(
    "--token-file",
    type=Path,
    help="File with a token.  [default: the token in SIA_REPORT_TOKEN, or as other commands]",
)
@CONFIG
@JSON
def report(
    done: float | None, iterations: int | None,
    trials: tuple[tuple[int, float], ...] | None, speed: float | None,
    regime: int | None, job_id: str | None,
    attempt: int | None, url: str | None, token_file: Path | None, config: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Report the progress of a running job.

    A job runs it; SIA_JOB_ID, SIA_ATTEMPT, SIA_REPORT_URL and SIA_REPORT_TOKEN say for which
    attempt and where to. Estimates of its end follow at once.

    Example: sia report --done 0.4 --speed 1.7 --regime 3
    """
    if [done, iterations, trials].count(None) != 2:
        raise click.UsageError("give either --done, --iterations or --trials")
    job_id = job_id or _given("SIA_JOB_ID", "--job")
    number = attempt if attempt is not None else _number(_given("SIA_ATTEMPT", "--attempt"))
    body: dict[str, Any] = {"attempt": number, "speed": speed, "regime": regime}
    said = {"done": done, "iterations": iterations, "trials": trials}
    body |= {name: value for name, value in said.items() if value is not None}
    with closing(Client(_endpoint(url, token_file, config))) as client:
        answer = client.ask("POST", f"/v1/jobs/{at(job_id)}/progress", body)
    if as_json:
        say(answer)
        return
    share = done if answer is None else answer["done"]
    told = f"{job_id}: {share or 0.0:.1%} done"
    if answer is not None and answer.get("end") is not None:
        told += f", ends about {moment(answer['end'])}"
    click.echo(printable(told))


def _given(variable: str, option: str) -> str:
    """Return an environment variable. Raises UsageError if it is not set."""
    value = os.environ.get(variable, "")
    if not value:
        raise click.UsageError(f"{option} is missing, and {variable} is not set: {HERE}")
    return value


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise click.UsageError(f"SIA_ATTEMPT: {text!r} is not a number from 1: {HERE}")
    return int(text)


def _endpoint(url: str | None, token_file: Path | None, config: Path | None) -> Endpoint:
    """Return where to report: the options, else the job's variables, else as other commands do."""
    urls, token = url or os.environ.get("SIA_REPORT_URL", ""), os.environ.get("SIA_REPORT_TOKEN")
    if token_file is not None:
        token = read_token(token_file, "name the file of a token with --token-file")
    elif token:
        token = checked_token(token, "SIA_REPORT_TOKEN", HERE)
    if not urls or not token:
        found = find(config)
        return found._replace(urls=_urls(urls) if urls else found.urls, token=token or found.token)
    get = os.environ.get
    certificate = get("SIA_CERT_FILE", "")
    return Endpoint(
        _urls(urls), token, get("SIA_CA_FILE", ""), certificate,
        get("SIA_KEY_FILE", certificate),
    )  # fmt: skip


def _urls(text: str) -> tuple[str, ...]:
    """Return the URLs of the daemon and its standbys. Raises UserError."""
    try:
        return tuple(checked_url(url.strip().rstrip("/")) for url in text.split(","))
    except UserError as error:
        raise UserError(str(error).replace("SIA_URL", "--url or SIA_REPORT_URL", 1)) from None
