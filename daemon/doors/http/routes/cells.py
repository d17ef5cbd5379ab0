"""`/v1/cells`: how large the pieces are that are free."""

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
    """The handler of it."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", "/v1/cells", Rule.VIEW, self.cells,
                "How large the cells are that are free.", {200: CellsView},
            )
        ]  # fmt: skip

    async def cells(self, request: web.Request) -> web.Response:
        """O(GPUs + jobs alive)."""
        await self._service.settled()
        return answer(CellsView(vacancies(self._service.book)))
