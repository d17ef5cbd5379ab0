"""`/v1/status`: how the daemon and all its parts are."""

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
        whole = is_operator(request)
        reason = how.reason if whole or not how.reason else AWAY
        parts = parts_of(service, whole=whole)
        return answer(
            Status(
                now, __version__, how.serving, reason, how.since, how.last_commit or None,
                how.waiting, len(service.book.jobs), service.book.lending, parts,
                service.book.mode, _kept(service), len(service.book.seatless),
            )
        )  # fmt: skip


def _kept(service: Service) -> dict[str, list[str]]:
    """Pools that lend nothing, by name, and kinds of reason: all see that of each pool."""
    pools = service.book.pools
    return {name: list(pools[name].kept) for name in sorted(pools) if pools[name].kept}


def parts_of(service: Service, *, whole: bool = False) -> list[ComponentHealth]:
    """How each part is, by name; why, and the mend, name files, hosts and users: for operators."""
    return [part_view(state, whole=whole) for state in service.parts.all()]


def part_view(state: ComponentState, *, whole: bool) -> ComponentHealth:
    """A part, as it is shown."""
    why, mend = (state.why, state.mend) if whole else ("", "")
    return ComponentHealth(state.name, state.ok, state.since, why, mend)
