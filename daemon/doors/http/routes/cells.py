"""`/v1/cells`: free cells by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from daemon.doors.http.operations import Operation, answer
from daemon.doors.views.free_cells import vacancies
from daemon.model.access import Rule
from daemon.wire.cells import CellsView

if TYPE_CHECKING:
    from daemon.service.service import Service


class CellRoutes:
    """Handler of cells."""

    def __init__(self, service: Service) -> None:
        """Serve the cells of a service."""
        self._service = service

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/cells", Rule.VIEW, self.cells,
                "Free cells by chain and type.", {200: CellsView},
            )
        ]  # fmt: skip

    async def cells(self, request: web.Request) -> web.Response:
        """Return the free cells. O(GPUs + live jobs)."""
        await self._service.settled()
        return answer(CellsView(vacancies(self._service.book)))
