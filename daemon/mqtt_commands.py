"""`sia asyncapi`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from daemon.config_read import find_config, read_config


@click.command()
@click.option("--config", type=Path, help="For the broker's address.  [default: ./sia.toml]")
def asyncapi(config: Path | None) -> None:
    """Print the AsyncAPI document of the daemon's MQTT topics."""
    from daemon.mqtt.asyncapi import document  # noqa: PLC0415  other commands need none of it

    made = document(read_config(find_config(config)).mqtt)
    click.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
