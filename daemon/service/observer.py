"""What the service reports about its own work, such as to metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from daemon.engine.engine import Step
from daemon.model.inputs import Input


class Observer:
    """Receives the service's reports. Each method does nothing unless a subclass overrides it."""

    def stepped(self, seconds: float, inputs: Sequence[Input], step: Step) -> None:
        """Handle a step: its duration, its inputs and its result."""

    def committed(self, seconds: float, inputs: int) -> None:
        """Handle a commit: its duration and the number of inputs that became durable."""

    def failed(self, why: str) -> None:
        """Handle a failed commit: the step did not happen."""

    def broke(self, error: str, inputs: Sequence[Input]) -> None:
        """Handle inputs that were dropped because a defect of the daemon broke their step."""

    def blind(self, why: str) -> None:
        """Handle a failure of the forecasts."""

    def paused(self, seconds: float) -> None:
        """Handle a pause of the event loop, while the process forked."""

    def miscounted(self, error: str) -> None:
        """Handle an exception that one of the other methods raised."""


REPORTS = ("stepped", "committed", "failed", "broke", "blind", "paused")
"""The methods of `Observer` that the service calls."""


class SafeObserver(Observer):
    """Forwards reports to another observer, and keeps its exceptions from the service."""

    def __init__(self, observer: Observer) -> None:
        """Forward to this observer. An exception goes to its `miscounted`."""
        for name in REPORTS:
            setattr(self, name, partial(_report, observer, getattr(observer, name)))


def _report(observer: Observer, method: Callable[..., None], *args: Any) -> None:
    try:
        method(*args)
    except Exception as error:  # noqa: BLE001  a wrong metric must not stop the scheduler
        with suppress(Exception):
            observer.miscounted(repr(error))
