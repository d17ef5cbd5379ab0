"""An MQTT broker inside the daemon for trying out MQTT, on the loopback interface.

The broker stores nothing: after a restart, clients publish retained messages and subscribe again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from daemon.config.mqtt import MqttConfig
from sia.console.errors import UserError
from sia.wording import install_extra

CONNECTIONS = 1000
"""Maximum number of connections; a trial needs only a few."""


@asynccontextmanager
async def broker(config: MqttConfig | None) -> AsyncIterator[None]:
    """Run an embedded broker inside the context, if the configuration asks for one.

    Raises UserError if its port is not available or amqtt is not installed.
    """
    if config is None or config.broker != "embedded":
        yield
        return
    try:
        from amqtt.broker import Broker  # noqa: PLC0415  optional, and slow to import
        from amqtt.errors import BrokerError  # noqa: PLC0415
    except ImportError as error:
        raise UserError(f"mqtt.broker: amqtt is missing; {install_extra('broker')}") from error
    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.ERROR)  # otherwise they log every message
    found = Broker(
        {
            "listeners": {
                "default": {
                    "type": "tcp",
                    "bind": config.where,
                    "max_connections": CONNECTIONS,
                }
            },
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
    )
    try:
        await found.start()
    except (BrokerError, OSError) as error:
        raise UserError(f"mqtt.port: cannot listen on {config.where} ({error}); use another") from (
            error
        )
    try:
        yield
    finally:
        await found.shutdown()
