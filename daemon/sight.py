"""What of all that happens somebody may know, whichever way it is told."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.access import Role, Who
from daemon.answers import Notice


def seen_by(who: Who, notice: Notice) -> Notice | None:
    """As much of a notice as somebody may know; None where that is nothing.

    Loans are told of the pool that lends, which knows not whose job it is.
    """
    told = outside(notice)
    if told is None or who.role is Role.OPERATOR:
        return told
    if told.kind.startswith("token_"):
        return None
    if who.sees_all or not told.job or who.sees(told.data.get("to") or ""):
        return told
    if not told.kind.startswith(("loan_", "would_lend")):
        return told if who.sees(told.pool) else None
    return replace(told, job="") if who.sees(told.pool) else None


def outside(notice: Notice) -> Notice | None:
    """A notice of loans as ledger and account count them; None for what is none, others as is.

    The engine tells of all GPUs of a spare job, its own pool's too (the replay's log has them, and
    the journal is exported to it): whoever would add up what is lent would count them as well.
    """
    if not notice.kind.startswith("loan_"):
        return notice
    to, data = notice.data.get("to"), notice.data
    if notice.kind != "loan_moved":
        return None if notice.pool == to else notice
    if data.get("previous") == to:
        return replace(notice, kind="loan_opened", data={"gpus": data["gpus"], "to": to})
    if notice.pool == to:
        gone = {"gpus": data["gpus"], "to": to}
        return replace(notice, kind="loan_closed", pool=data["previous"], data=gone)
    return notice
