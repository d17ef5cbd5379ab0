"""Who may do what: roles, the rules of what can be asked for, and how the two meet.

Denied is what is not allowed here. The table in docs/operate/access.md says the same in words.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

OPERATOR_NAME = "operator"
"""Who has the token of the daemon's own file."""

RESERVED = frozenset((OPERATOR_NAME, "configuration", "mqtt", "slurm", "webhook"))
"""Whom the audit knows besides tokens: none of these is called so."""


class Role(Enum):
    """What a token is for."""

    VIEWER = "viewer"
    """Reads; of all pools, or of those that are named."""
    SUBMITTER = "submitter"
    """Has jobs run in the pools that are named, and sees these pools' jobs alone."""
    ADMIN = "admin"
    """A submitter who also sets these pools' state and limits, and orders their jobs."""
    OPERATOR = "operator"
    """Everything."""


class Rule(Enum):
    """Whom something is for, from everybody on."""

    OPEN = "open"
    """Whoever reaches the daemon, without a token."""
    VIEW = "view"
    SUBMIT = "submit"
    ADMIN = "admin"
    OPERATE = "operate"

    @property
    def words(self) -> str:
        """What one may do by it: who has it may so."""
        return _DOES[self]


_DOES = {
    Rule.OPEN: "ask",
    Rule.VIEW: "look",
    Rule.SUBMIT: "work with jobs (submit, change, read what they wrote)",
    Rule.ADMIN: "do what is an admin's",
    Rule.OPERATE: "do what is an operator's",
}

RULES = {
    Role.VIEWER: frozenset((Rule.OPEN, Rule.VIEW)),
    Role.SUBMITTER: frozenset((Rule.OPEN, Rule.VIEW, Rule.SUBMIT)),
    Role.ADMIN: frozenset((Rule.OPEN, Rule.VIEW, Rule.SUBMIT, Rule.ADMIN)),
    Role.OPERATOR: frozenset(Rule),
}
"""What each role may do, in its pools."""

SCOPED = frozenset((Role.SUBMITTER, Role.ADMIN))
"""Roles that are nothing without the names of pools."""


class Principal(NamedTuple):
    """Somebody who asks: by which name, as what, and for which pools."""

    name: str
    role: Role
    pools: frozenset[str] = frozenset()
    """Of a viewer none means all; an operator has all in any case."""

    @property
    def sees_all(self) -> bool:
        """Whether no pool's jobs are hidden from it."""
        return self.role is Role.OPERATOR or (self.role is Role.VIEWER and not self.pools)

    def sees(self, pool: str) -> bool:
        """Whether it may know of this pool's jobs."""
        return self.sees_all or pool in self.pools


MACHINE = Principal(OPERATOR_NAME, Role.OPERATOR)
"""Whoever can read the token file of the daemon's machine."""


def allows(who: Principal | None, rule: Rule, pool: str | None = None) -> bool:
    """Whether somebody, or nobody (None), may do what has this rule, to a pool and its jobs.

    Without a pool: whether it may do that to any at all.
    """
    if rule is Rule.OPEN:
        return True
    if who is None or rule not in RULES[who.role]:
        return False
    return pool is None or who.sees(pool)


def wrong_scope(role: Role, pools: Collection[str]) -> tuple[str, str] | None:
    """Why a role cannot have these pools, and the mend; None where it can."""
    if role in SCOPED and not pools:
        return f"the token of role {role.value} names no pool", "name the pools that it is for"
    if role is Role.OPERATOR and pools:
        return "an operator's token has all pools", "leave the pools out, or take the role admin"
    return None
