"""`sia serve, demo, asyncapi`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from daemon.config.config import FIRST_NAME, RECLAIMING, Address, Config, usual_policy
from daemon.config.database import DatabaseUrl, require_psycopg
from daemon.config.read import ConfigError, find_config, read_config
from daemon.runtime.gc import collect_in_small_steps
from daemon.runtime.logs import begin
from daemon.runtime.sd_notify import ready
from sia.console.as_json import json_option, print_json
from sia.console.terminal import printable
from sia.console.text import Seconds
from sia.contract.labels import name_of
from sia.model import NEVER_STOPPED
from sia.policies import make
from sia.wording import as_typed, counted

MISUSE = 2


@click.command()
@click.option(
    "--config",
    type=Path,
    help="Configuration file (docs/operate/daemon.md).  [default: ./sia.toml]",
)
@click.option("--check", is_flag=True, help="Only check the configuration, then exit.")
@json_option("With --check: print the result as JSON.")
def serve(config: Path | None, check: bool, as_json: bool) -> int:
    """Run the daemon until SIGTERM.

    The daemon accepts jobs, starts them, and lends idle GPUs. Running jobs continue when it stops.
    """
    if as_json and not check:
        raise click.UsageError("--json works only with --check; the daemon logs to standard error")
    path = find_config(config)
    try:
        settings = read_config(path)
    except ConfigError as error:
        if as_json:
            print_json({"valid": False, "config": str(error.path), "problems": error.problems})
            return MISUSE
        for problem in error.problems:
            click.echo(f"sia: {printable(f'{error.path}: {problem}')}", err=True)
        return MISUSE
    if check:
        return _checked(settings, path, as_json=as_json)
    if path is None:
        click.echo(_tryout(settings), err=True)
    _say_unlike(settings)
    begin(settings.log_level)
    with suppress(KeyboardInterrupt):  # it came before `_serve` handled signals
        collect_in_small_steps()
        asyncio.run(_serve(settings))
    return 0


def _checked(settings: Config, path: Path | None, *, as_json: bool) -> int:
    """Print that a configuration is valid, with its policy; or what the journal lacks."""
    if isinstance(settings.database, Path) and (lost := _lost(settings.database)):
        if as_json:
            print_json({"valid": False, "config": str(path or ""), "problems": [lost]})
        else:
            click.echo(f"sia: {printable(lost)}", err=True)
        return MISUSE
    if as_json:
        found = None if path is None else str(path)
        gpus = sum(pool.quota for pool in settings.pools)
        print_json(
            {
                "valid": True, "config": found, "pools": len(settings.pools), "gpus": gpus,
                "policy": settings.policy, "preemptible": settings.preemptible,
                "note": make(settings.policy).unlike_live,
            }
        )  # fmt: skip
        return 0
    click.echo(f"{path or 'the built-in configuration'}: valid, {_summary(settings)}")
    click.echo(_stops(settings), err=True)
    _say_unlike(settings)
    return 0


def _say_unlike(config: Config) -> None:
    """Print what the options of the policy mean here, if that differs from replays."""
    if note := make(config.policy).unlike_live:
        click.echo(f"policy {config.policy}: {note}", err=True)


KILLING = ("jvu", "prio")
"""Policies that kill: a stop costs a job without `preemptible` all of its work."""


def _lost(database: Path) -> str:
    """Return which acknowledged steps the journal lacks; "" if a daemon runs: it has checked."""
    from daemon.export.loss import loss_in  # noqa: PLC0415  help needs none of it

    return loss_in(database, running="")


def _tryout(config: Config) -> str:
    """Return a line that describes a daemon without a configuration."""
    (pool,) = config.pools
    return (
        f"NO CONFIGURATION, FOR A TRY ONLY: JOBS ARE SIMULATED, on {counted(pool.quota, 'GPU')} of "
        f"one pool, {pool.name}; files are in {config.models.parent}; for your own pools write "
        f"{FIRST_NAME} (docs/operate/daemon.md), for a whole company see sia demo"
    )


def _stops(config: Config) -> str:
    """Return a line on the policy, or ask whether jobs may be stopped if that is not configured."""
    if config.preemptible is not None:
        said = config.preemptible
        lost = as_typed(said) if isinstance(said, float) else "all of their work"
        may = f"may be stopped, and each stop costs {lost}"
        if said == NEVER_STOPPED:
            may = "are not stopped"
        return f"policy {config.policy}; jobs without preemptible {may} (docs/lending.md)"
    if "preempt" not in config.backend.can:
        return f"policy {config.policy}; this backend cannot stop and restart jobs"
    if not make(config.policy).needs.preemption and config.policy != usual_policy(None):
        return f"policy {config.policy}; it stops no jobs"
    if name_of(config.policy) in (RECLAIMING, "sia-recall"):
        return (
            f"policy {config.policy}; it stops only jobs that were submitted with preemptible; if "
            'the others may be stopped, too, write preemptible = "restart" in [daemon] '
            "(docs/lending.md)"
        )
    if config.policy != usual_policy(None):
        cost = f"each stop costs resume_cost ({as_typed(config.resume_cost)})"
        if name_of(config.policy) in KILLING:
            cost = "a job that it kills loses all of its work"
        return (
            f"policy {config.policy}; it may stop jobs without preemptible, and {cost}; "
            "preemptible in [daemon] changes this (docs/lending.md)"
        )
    return (
        f"policy {config.policy}; may jobs be stopped and started again? If they may, write "
        f'preemptible = "restart" in [daemon]: without daemon.policy, {RECLAIMING} then lends '
        'every idle GPU, and no pool waits for its own (docs/lending.md). If not, write "never"'
    )


def _summary(config: Config) -> str:
    gpus = sum(pool.quota for pool in config.pools)
    return f"{counted(len(config.pools), 'pool')} with {counted(gpus, 'GPU')}"


async def _serve(config: Config) -> None:
    from daemon.config.tls import survive_hangup  # noqa: PLC0415  the same
    from daemon.process.serve import serving, stop_on_signals, until  # noqa: PLC0415  aiohttp takes time

    survive_hangup()
    stop = stop_on_signals()
    if isinstance(config.database, DatabaseUrl):
        require_psycopg()
        from daemon.process.leadership import serve_in_turn  # noqa: PLC0415  not everybody has psycopg

        await serve_in_turn(config, config.database, stop, lambda at: _say(config, at))
        return
    async with serving(config) as (daemon, address):
        _say(config, address)
        await until(daemon, stop)


def _say(config: Config, address: Address) -> None:
    click.echo(f"serving on {address.url}; the token is in {config.token_file}")
    ready(f"serving on {address.url}")


@click.command()
@click.option(
    "--for", "span", type=Seconds(), help="Stop after this time, like 30s.  [default: at Ctrl-C]"
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulated cloud.")
def demo(span: float | None, seed: int) -> None:
    """Watch pools lend to each other in a simulated cloud.

    One second of the demo is one hour of the cloud.
    """
    from daemon.process.demo.show import show  # noqa: PLC0415  aiohttp takes its time

    begin("error")  # the pages show unhealthy components; log lines would break the table
    asyncio.run(show(span, seed))


@click.command()
@click.option(
    "--config",
    type=Path,
    help="Configuration, read for the broker's address.  [default: ./sia.toml]",
)
def asyncapi(config: Path | None) -> None:
    """Print the AsyncAPI document of the MQTT topics.

    The document is JSON.
    """
    from daemon.doors.mqtt.asyncapi import document  # noqa: PLC0415  other commands need none of it

    made = document(read_config(find_config(config)).mqtt)
    click.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
