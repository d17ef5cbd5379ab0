"""What of all that happens somebody may know, whichever way it is told."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.model.access import Principal, Role
from daemon.model.outputs import Notice


def visible_to(who: Principal, notice: Notice) -> Notice | None:
    """As much of a notice as somebody may know; None where that is nothing.

    Loans are told of the pool that lends, which knows not whose job it is; one that moved on is
    over for who sees the pool that lent it before, and not the one that does now.
    """
    told = public_notice(notice)
    if told is None or who.role is Role.OPERATOR:
        return told
    if told.kind.startswith("token_"):
        return None
    if who.sees_all or not told.job or who.sees(told.data.get("to") or ""):
        return told
    if not told.kind.startswith(("loan_", "would_lend")):
        return told if who.sees(told.pool) else None
    shown = told if who.sees(told.pool) else closed_loan(told)
    return replace(shown, job="") if shown is not None and who.sees(shown.pool) else None


def public_notice(notice: Notice) -> Notice | None:
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
    return closed_loan(notice) if notice.pool == to else notice


def closed_loan(notice: Notice) -> Notice | None:
    """What a loan that moved on is to who lent it before; None of what is no such thing."""
    if notice.kind != "loan_moved":
        return None
    data = {"gpus": notice.data["gpus"], "to": notice.data.get("to")}
    return replace(notice, kind="loan_closed", pool=notice.data.get("previous", ""), data=data)
