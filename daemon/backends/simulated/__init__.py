"""Jobs that are only timers.

Imports: backends.interface, model, config.
"""

from __future__ import annotations

from daemon.config.config import Ability

CAN: frozenset[Ability] = frozenset({"preempt", "requeue", "trials"})
"""What the backend can do besides starting and ending jobs."""
