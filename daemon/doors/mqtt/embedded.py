"""A broker in the daemon itself, for a first try: on the loopback, for whoever is on this machine.

It keeps nothing beyond its life: what is retained, and sessions, are told it anew by everybody.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from daemon.config.mqtt import MqttConfig
from sia.console.errors import UserError

CONNECTIONS = 1000
"""At a time: a first try has a few."""


@asynccontextmanager
async def broker(config: MqttConfig | None) -> AsyncIterator[None]:
    """Have one for as long as this lasts, if the configuration says so.

    Raises UserError where its port cannot be had, or amqtt is missing.
    """
    if config is None or config.broker != "embedded":
        yield
        return
    try:
        from amqtt.broker import Broker  # noqa: PLC0415  few need it, and it takes its time
        from amqtt.errors import BrokerError  # noqa: PLC0415
    except ImportError as error:
        raise UserError("mqtt.broker: amqtt is missing; pip install 'sia-scheduler[broker]'") from (
            error
        )
    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.ERROR)  # each message of each client, otherwise
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
        raise UserError(f"mqtt.port: {config.where} cannot be had ({error}); give another") from (
            error
        )
    try:
        yield
    finally:
        await found.shutdown()
