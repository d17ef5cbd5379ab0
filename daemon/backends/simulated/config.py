"""`[backend] kind = "simulated"`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from daemon.backends.simulated import CAN
from daemon.config.config import BackendConfig

if TYPE_CHECKING:
    from daemon.backends.interface import Backend, BuildContext

MAX_SPEED = 1e6
"""Maximum speed, as a factor of real time: a year in half a minute."""


class SimulatedConfig(BackendConfig, frozen=True):
    """Jobs that are timers, and take as long as their duration says."""

    can = CAN

    speed: Annotated[float, Meta(gt=0, le=MAX_SPEED)] = 1.0
    """Speed of the daemon's clock, as a factor of real time."""
    stop_time: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds that a job takes to save its work when it is told to stop."""
    report: Annotated[float, Meta(ge=0, le=1e6)] = 60.0
    """Seconds between two reports of a job that has said how many iterations it has; 0 for none."""

    @property
    def clock_speed(self) -> float:
        """Speed of the daemon's clock, as a factor of real time: that of the jobs."""
        return self.speed

    def build(self, context: BuildContext) -> Backend:
        """Build the backend with the daemon's clock."""
        from daemon.backends.simulated.backend import SimulatedBackend  # noqa: PLC0415  clients

        return SimulatedBackend(context.clock, stop_time=self.stop_time, report=self.report)
