"""What the service reports of itself while it works."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.engine import Step
from daemon.inputs import Input


class Watch:
    """Hears of it, and does nothing: for whoever measures to derive from."""

    def stepped(self, seconds: float, inputs: Sequence[Input], step: Step) -> None:
        """A step of these inputs took so long."""

    def committed(self, seconds: float, inputs: int) -> None:
        """A step became durable in so long."""

    def failed(self, why: str) -> None:
        """A step could not be made durable, and did not happen."""

    def broke(self, error: str, inputs: Sequence[Input]) -> None:
        """A defect of ours: these inputs were left out, as no step could be made of them."""
