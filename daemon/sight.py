"""What of all that happens somebody may know, whichever way it is told."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.access import Role, Who
from daemon.answers import Notice


def seen_by(who: Who, notice: Notice) -> Notice | None:
    """As much of a notice as somebody may know; None where that is nothing.

    Loans are told of the pool that lends, which knows not whose job it is.
    """
    if who.role is Role.OPERATOR:
        return notice
    if notice.kind.startswith("token_"):
        return None
    if who.sees_all or not notice.job or who.sees(notice.data.get("to") or ""):
        return notice
    if not notice.kind.startswith(("loan_", "would_lend")):
        return notice if who.sees(notice.pool) else None
    return replace(notice, job="") if who.sees(notice.pool) else None
