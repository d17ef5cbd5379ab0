"""All pages: what the application serves below `/ui/`."""

from __future__ import annotations

from daemon.doors.http.authentication import TokenAuth
from daemon.doors.http.event_stream import SSE, EventRoutes
from daemon.doors.http.operations import Operation
from daemon.doors.http.sessions import UI
from daemon.doors.web.page import Pages
from daemon.doors.web.pages.audit import AuditPages
from daemon.doors.web.pages.job import JobPages
from daemon.doors.web.pages.loans import LoanPages
from daemon.doors.web.pages.nodes import NodePages
from daemon.doors.web.pages.overview import OverviewPages
from daemon.doors.web.pages.plan import PlanPages
from daemon.doors.web.pages.pool import PoolPages
from daemon.doors.web.pages.queue import QueuePages
from daemon.doors.web.pages.settings import SettingsPages
from daemon.doors.web.pages.whatif import WhatIfPages
from daemon.doors.web.sign_in import SignPages
from daemon.model.access import Rule


def operations_of(pages: Pages, gate: TokenAuth, events: EventRoutes) -> list[Operation]:
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
