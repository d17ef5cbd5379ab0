"""Authorization: roles, the rule of each operation, and which role may do what.

The table in docs/operate/access.md says the same for people.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from daemon.model.outputs import Notice

OPERATOR_NAME = "operator"
"""Name of the principal that the daemon's own token file identifies."""

RESERVED = frozenset((OPERATOR_NAME, "configuration", "mqtt", "slurm", "webhook"))
"""Actors in the audit that are not tokens. No token may have one of these names."""


class Role(Enum):
    """The role of a token."""

    JOB = "job"
    """A running job: it reports its own progress. The daemon gives it its token."""
    VIEWER = "viewer"
    """Reads, in all pools or in its pools."""
    SUBMITTER = "submitter"
    """Submits and changes jobs in its pools, and sees only jobs of these pools."""
    ADMIN = "admin"
    """A submitter that may also change the state and limits of its pools, and the order of their
    jobs."""
    OPERATOR = "operator"
    """May do everything."""


class Rule(Enum):
    """The permission that an operation requires."""

    OPEN = "open"
    """Needs no token."""
    REPORT = "report"
    VIEW = "view"
    SUBMIT = "submit"
    ADMIN = "admin"
    OPERATE = "operate"

    @property
    def words(self) -> str:
        """What the permission allows, as a phrase."""
        return _DOES[self]


_DOES = {
    Rule.OPEN: "use this",
    Rule.REPORT: "report progress of jobs",
    Rule.VIEW: "read",
    Rule.SUBMIT: "submit and manage jobs",
    Rule.ADMIN: "administer pools",
    Rule.OPERATE: "operate the daemon",
}

RULES = {
    Role.JOB: frozenset((Rule.OPEN, Rule.REPORT)),
    Role.VIEWER: frozenset((Rule.OPEN, Rule.VIEW)),
    Role.SUBMITTER: frozenset((Rule.OPEN, Rule.REPORT, Rule.VIEW, Rule.SUBMIT)),
    Role.ADMIN: frozenset((Rule.OPEN, Rule.REPORT, Rule.VIEW, Rule.SUBMIT, Rule.ADMIN)),
    Role.OPERATOR: frozenset(Rule),
}
"""The permissions of each role, in its pools."""

ISSUED = tuple(role for role in Role if role is not Role.JOB)
"""Roles of tokens that operators create."""

SCOPED = frozenset((Role.SUBMITTER, Role.ADMIN))
"""Roles that need at least one pool."""


class Principal(NamedTuple):
    """An authenticated client: its name, role and pools."""

    name: str
    role: Role
    pools: frozenset[str] = frozenset()
    """Empty for all pools (viewer). An operator has all pools in any case."""
    job: tuple[str, int] | None = None
    """For a job's own token: the id and the attempt for which it may report."""

    @property
    def sees_all(self) -> bool:
        """Whether the jobs of every pool are visible to it."""
        return self.role is Role.OPERATOR or (self.role is Role.VIEWER and not self.pools)

    def sees(self, pool: str) -> bool:
        """Return whether the jobs of this pool are visible to it."""
        return self.sees_all or pool in self.pools


MACHINE = Principal(OPERATOR_NAME, Role.OPERATOR)
"""The principal of a client that can read the token file of the daemon's machine."""


def allows(who: Principal | None, rule: Rule, pool: str | None = None) -> bool:
    """Return whether a client (None without a token) has this permission in a pool.

    Without a pool: whether it has the permission in any pool.
    """
    if rule is Rule.OPEN:
        return True
    if who is None or rule not in RULES[who.role]:
        return False
    return pool is None or who.sees(pool)


def wrong_scope(role: Role, pools: Collection[str]) -> tuple[str, str] | None:
    """Return why a role cannot have these pools, and the fix; None if it can."""
    if role is Role.JOB:
        return "tokens of jobs are not created", "jobs find theirs in SIA_REPORT_TOKEN"
    if role in SCOPED and not pools:
        return f"a token of role {role.value} needs at least one pool", "name its pools"
    if role is Role.OPERATOR and pools:
        return "an operator token is for all pools", "name no pools, or use role admin"
    return None


def visible_to(who: Principal, notice: Notice) -> Notice | None:
    """Return the part of a notice that a principal may see; None if there is none.

    A notice of a loan names the lender's pool, and a principal of that pool must not learn whose
    job uses the loan. For a principal that sees only the previous lender, a moved loan is closed.
    """
    public = public_notice(notice)
    if public is None or who.role is Role.OPERATOR:
        return public
    if public.kind.startswith("token_"):
        return None
    if who.sees_all or not public.job or who.sees(public.data.get("to") or ""):
        return public
    if not public.kind.startswith(("loan_", "would_lend")):
        return public if who.sees(public.pool) else None
    shown = public if who.sees(public.pool) else closed_loan(public)
    return replace(shown, job="") if shown is not None and who.sees(shown.pool) else None


def public_notice(notice: Notice) -> Notice | None:
    """Return a loan notice as ledger and accounts count it; None if they do not count it.

    Other notices are returned unchanged. The engine's notices cover all GPUs of a spare job,
    including those of its own pool, because exported journals need them. Sums of loans must not
    count these.
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
