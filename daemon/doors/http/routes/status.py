"""`/v1/status`: state of the daemon and health of its components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from daemon.doors.http.authorization import is_operator
from daemon.doors.http.operations import Operation, answer
from daemon.model.access import Rule
from daemon.model.errors import AWAY
from daemon.runtime.health import ComponentState
from daemon.wire.status import ComponentHealth, Status
from sia import __version__

if TYPE_CHECKING:
    from daemon.service.service import Service


class StatusRoutes:
    """Handler of the status."""

    def __init__(self, service: Service) -> None:
        """Serve the status of a service."""
        self._service = service

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/status", Rule.VIEW, self.status,
                "State of the daemon and health of its components.", {200: Status},
            ),
        ]  # fmt: skip

    async def status(self, request: web.Request) -> web.Response:
        """Return the status, also while the daemon is unavailable. O(components)."""
        service, now = self._service, self._service.clock.now()
        how = service.status()
        whole = is_operator(request)
        reason = how.reason if whole or not how.reason else AWAY
        parts = parts_of(service, whole=whole)
        return answer(
            Status(
                now, __version__, how.serving, reason, how.since, how.last_commit or None,
                how.waiting, len(service.book.jobs), service.book.lending, parts,
                service.book.mode, _not_lending(service), len(service.book.seatless),
            )
        )  # fmt: skip


def _not_lending(service: Service) -> dict[str, list[str]]:
    """Return the pools that do not lend and the kinds of reason. Visible to everyone."""
    pools = service.book.pools
    return {name: list(pools[name].kept) for name in sorted(pools) if pools[name].kept}


def parts_of(service: Service, *, whole: bool = False) -> list[ComponentHealth]:
    """Return each component's health. Reason and fix (`whole`) name hosts: for operators only."""
    return [part_view(state, whole=whole) for state in service.parts.all()]


def part_view(state: ComponentState, *, whole: bool) -> ComponentHealth:
    """Convert one component's health."""
    why, mend = (state.why, state.mend) if whole else ("", "")
    return ComponentHealth(state.name, state.ok, state.since, why, mend)
