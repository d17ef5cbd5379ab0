"""`[backend] kind = "mqtt"`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from daemon.config.config import BackendConfig, Config
from daemon.config.mqtt_limits import GONE_AFTER
from daemon.doors.mqtt.manager import CAN

if TYPE_CHECKING:
    from daemon.backends.interface import Backend, BuildContext


class MqttBackendConfig(BackendConfig, frozen=True):
    """An external cluster manager on the broker of `[mqtt]`."""

    can = CAN

    gone_after: Annotated[float, Meta(ge=1, le=86400)] = GONE_AFTER
    """Seconds without a heartbeat after which the manager counts as gone."""

    def problems(self, config: Config) -> Iterator[str]:
        """Check that there is a broker."""
        if config.mqtt is None:
            yield "mqtt: is missing, and backend mqtt needs its broker; add [mqtt]"

    def build(self, context: BuildContext) -> Backend:
        """Build it on the broker of `[mqtt]`."""
        from daemon.doors.mqtt.manager.backend import MqttBackend  # noqa: PLC0415  few need it

        assert context.config.mqtt is not None, "it was checked"
        return MqttBackend(context.config.mqtt, self.gone_after)
