"""What the service reports of itself while it works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from daemon.engine.engine import Step
from daemon.model.inputs import Input


class Observer:
    """Hears of it, and does nothing: for whoever measures to derive from."""

    def stepped(self, seconds: float, inputs: Sequence[Input], step: Step) -> None:
        """A step of these inputs took so long."""

    def committed(self, seconds: float, inputs: int) -> None:
        """A step became durable in so long."""

    def failed(self, why: str) -> None:
        """A step could not be made durable, and did not happen."""

    def broke(self, error: str, inputs: Sequence[Input]) -> None:
        """A defect of ours: these inputs were left out, as no step could be made of them."""

    def blind(self, why: str) -> None:
        """Nothing is foreseen for now."""

    def paused(self, seconds: float) -> None:
        """The loop stood still for so long, until a child was made."""

    def miscounted(self, error: str) -> None:
        """A defect of this one: something was not counted."""


class SafeObserver(Observer):
    """Passes on what it hears: whoever counts wrongly must not end who decides.

    What goes wrong there is a defect as well, and told as one.
    """

    def __init__(self, watch: Observer) -> None:
        """To this one."""
        self._watch = watch

    def stepped(self, seconds: float, inputs: Sequence[Input], step: Step) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.stepped(seconds, inputs, step))

    def committed(self, seconds: float, inputs: int) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.committed(seconds, inputs))

    def failed(self, why: str) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.failed(why))

    def broke(self, error: str, inputs: Sequence[Input]) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.broke(error, inputs))

    def blind(self, why: str) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.blind(why))

    def paused(self, seconds: float) -> None:
        """Pass it on."""
        self._tell(lambda: self._watch.paused(seconds))

    def _tell(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:  # noqa: BLE001  nothing of it is worth a step
            with suppress(Exception):
                self._watch.miscounted(repr(error))
