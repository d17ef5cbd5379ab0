"""Backend that runs jobs as processes on this machine.

Imports: backends.interface, model, runtime, config.
"""

from __future__ import annotations

from daemon.config.config import Ability

CAN: frozenset[Ability] = frozenset(
    {"commands", "logs", "preempt", "requeue", "save_by_command", "save_by_signal", "trials"}
)
"""What the backend can do besides starting and ending jobs."""
