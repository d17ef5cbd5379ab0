"""Backend for an external cluster manager that is connected over MQTT.

Imports: doors.mqtt, backends.interface, config.
"""

from __future__ import annotations

from daemon.config.config import Ability

CAN: frozenset[Ability] = frozenset({"commands", "requeue"})
"""What the backend can do besides starting and ending jobs."""
