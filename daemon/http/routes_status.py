"""`/v1/status`: how the daemon and all its parts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from daemon.access import Rule
from daemon.http.operations import Operation, answer
from daemon.parts import PartState
from daemon.schemas_status import Part, Status
from sia import __version__

if TYPE_CHECKING:
    from daemon.service import Service


class StatusRoutes:
    """Handlers of that."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", "/v1/status", Rule.VIEW, self.status,
                "How the daemon and its parts are.", {200: Status},
            ),
        ]  # fmt: skip

    async def status(self, request: web.Request) -> web.Response:
        """It answers whatever is wrong. O(parts)."""
        service, now = self._service, self._service.clock.now()
        how = service.status()
        return answer(
            Status(
                now, __version__, how.serving, how.reason, how.since, how.last_commit or None,
                how.waiting, len(service.book.jobs), service.book.lending, parts_of(service),
            )
        )  # fmt: skip


def parts_of(service: Service) -> list[Part]:
    """How each part is, by name."""
    return [part_view(state) for state in service.parts.all()]


def part_view(state: PartState) -> Part:
    """A part, as it is shown."""
    return Part(state.name, state.ok, state.since, state.why, state.mend)
