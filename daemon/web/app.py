"""All pages: what the application serves below `/ui/`."""

from __future__ import annotations

from daemon.access import Rule
from daemon.http.auth import Gate
from daemon.http.events import SSE, EventRoutes
from daemon.http.operations import Operation
from daemon.http.sessions import UI
from daemon.web.audit import AuditPages
from daemon.web.job import JobPages
from daemon.web.loans import LoanPages
from daemon.web.nodes import NodePages
from daemon.web.overview import OverviewPages
from daemon.web.pages import Pages
from daemon.web.plan import PlanPages
from daemon.web.pool import PoolPages
from daemon.web.queue import QueuePages
from daemon.web.settings import SettingsPages
from daemon.web.sign import SignPages
from daemon.web.whatif import WhatIfPages


def operations_of(pages: Pages, gate: Gate, events: EventRoutes) -> list[Operation]:
    """Their operations. They stand beside the API's, and not in its document."""
    parts = (
        SignPages(pages, gate),
        OverviewPages(pages),
        PoolPages(pages),
        QueuePages(pages),
        JobPages(pages),
        PlanPages(pages),
        NodePages(pages),
        LoanPages(pages),
        WhatIfPages(pages),
        AuditPages(pages),
        SettingsPages(pages),
        pages.assets,
    )
    live = Operation(
        "GET", f"{UI}/events", Rule.VIEW, events.events,
        "What happens, for pages: they look again when anything does.", {200: SSE}, stream=True,
    )  # fmt: skip
    return [live, *(operation for part in parts for operation in part.operations())]
