"""List of all pages below `/ui/`."""

from __future__ import annotations

from daemon.doors.http.authentication import UI, TokenAuth
from daemon.doors.http.event_stream import SSE, EventRoutes
from daemon.doors.http.operations import Operation
from daemon.doors.web.page import MenuEntry, Pages, PageSet
from daemon.doors.web.pages.audit import AuditPages
from daemon.doors.web.pages.front import FrontPages
from daemon.doors.web.pages.job import JobPages
from daemon.doors.web.pages.loans import LoanPages
from daemon.doors.web.pages.nodes import NodePages
from daemon.doors.web.pages.overview import OverviewPages
from daemon.doors.web.pages.plan import PlanPages
from daemon.doors.web.pages.pool import PoolPages
from daemon.doors.web.pages.queue import QueuePages
from daemon.doors.web.pages.series import SeriesPages
from daemon.doors.web.pages.settings import SettingsPages
from daemon.doors.web.pages.whatif import WhatIfPages
from daemon.doors.web.sign_in import SignPages
from daemon.model.access import Rule

PAGES: tuple[type[PageSet], ...] = (
    OverviewPages, QueuePages, PlanPages, NodePages, LoanPages, WhatIfPages, SettingsPages,
    FrontPages, AuditPages, PoolPages, JobPages, SeriesPages,
)  # fmt: skip
"""All pages, in the order of the menu."""


def operations_of(pages: Pages, gate: TokenAuth, events: EventRoutes) -> list[Operation]:
    """Return the operations of all pages, and set the menu. OpenAPI does not list them."""
    sets = [kind(pages) for kind in PAGES]
    shown = [operation for each in sets for operation in each.operations()]
    rules = {operation.path: operation.rule for operation in shown if operation.method == "GET"}
    pages.menu = [MenuEntry(path, title, rules[path]) for each in sets for path, title in each.menu]
    live = Operation(
        "GET", f"{UI}/events", Rule.VIEW, events.events,
        "Event stream for pages, which reload on each event.", {200: SSE}, stream=True,
    )  # fmt: skip
    return [live, *SignPages(pages, gate).operations(), *shown, *pages.assets.operations()]
