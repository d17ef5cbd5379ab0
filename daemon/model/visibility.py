"""Which notices, and which of their fields, a principal may see on any interface."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.model.access import Principal, Role
from daemon.model.outputs import Notice


def visible_to(who: Principal, notice: Notice) -> Notice | None:
    """Return the part of a notice that a principal may see; None if there is none.

    A notice of a loan names the lender's pool, and a principal of that pool does not see whose job
    it is. A loan that moved on is closed for those who only see its previous lender.
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
    """Return a loan notice as ledger and accounts count it; None if they do not count it.

    Other notices are returned as they are. The engine's notices cover all GPUs of a spare job,
    those of its own pool too, because exported journals need them. The sums of loans must not count
    these.
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
    """Return a `loan_moved` notice as its previous lender sees it: closed. None for other kinds."""
    if notice.kind != "loan_moved":
        return None
    data = {"gpus": notice.data["gpus"], "to": notice.data.get("to")}
    return replace(notice, kind="loan_closed", pool=notice.data.get("previous", ""), data=data)
