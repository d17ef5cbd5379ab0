"""The state before and after a command, as far as the audit records it: without secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from daemon.model.access import OPERATOR_NAME
from daemon.model.book import Book, PoolRecord
from daemon.model.inputs import (
    AuditNote,
    Cancel,
    CancelMaintenance,
    Drain,
    Hold,
    IssueToken,
    Lending,
    Maintain,
    Release,
    Resume,
    RevokeToken,
    SetPolicy,
    SetPool,
    SetPriority,
    SignOut,
)
from daemon.model.job import LendingMode

AuditFacts = Mapping[str, Any]


class AuditChange(NamedTuple):
    """The target of a command, and the target's facts before and after."""

    target: str
    before: AuditFacts
    after: AuditFacts


POOL = (
    "quota", "cells", "state", "lend_limit", "borrow_limit", "weight", "lend_budget_hours",
    "slowed_budget_pct", "slowed_budget_minutes", "version", "override",
)  # fmt: skip


def _job(book: Book, asked: Cancel | Hold | Release | SetPriority) -> AuditFacts:
    records = book.named(asked.job)
    if not records:
        return {}
    if records[0].spec.id != asked.job:
        phases = Counter(record.phase.value for record in records)
        return {"pool": records[0].spec.pool, "jobs": dict(phases)}
    record = records[0]
    return {
        "pool": record.spec.pool, "phase": record.phase.value, "priority": record.priority,
        "stop": record.stop,
    }  # fmt: skip


def _pool(book: Book, asked: SetPool) -> AuditFacts:
    pool = book.pools.get(asked.pool)
    return {} if pool is None else _pool_facts(pool)


def _pool_facts(pool: PoolRecord) -> AuditFacts:
    facts: dict[str, Any] = {name: getattr(pool, name) for name in POOL}
    facts["state"] = pool.state.value
    facts["override"] = None if pool.override is None else pool.override.until
    return facts


def _node(book: Book, asked: Drain | Resume) -> AuditFacts:
    node = book.nodes.get(asked.node)
    return {} if node is None else {"out": dict(node.reasons)}


def _window(book: Book, asked: Maintain | CancelMaintenance) -> AuditFacts:
    window = book.windows.get(asked.id)
    if window is None:
        return {}
    return {"node": window.node, "start": window.start, "end": window.end, "why": window.why}


def _lending(book: Book, _: Lending) -> AuditFacts:
    return {"on": book.lending, "shadow": book.mode is LendingMode.SHADOW}


def _policy(book: Book, _: SetPolicy) -> AuditFacts:
    return {"policy": book.setup.policy}


def _token(book: Book, asked: IssueToken | RevokeToken) -> AuditFacts:
    token = book.token(asked.name)
    if token is None:
        return {}
    return {"role": token.role.value, "pools": list(token.pools), "expires": token.expires}


def _sessions(book: Book, asked: SignOut) -> AuditFacts:
    token = book.token(asked.name)
    if token is not None:
        return {"signed_out": token.signed_out}
    return {"signed_out": book.signed_out} if asked.name == OPERATOR_NAME else {}


def _witness(*_: object) -> AuditFacts:
    return {}


_FACTS: dict[type, tuple[str, Callable[[Book, Any], AuditFacts]]] = {
    Cancel: ("job", _job),
    Hold: ("job", _job),
    Release: ("job", _job),
    SetPriority: ("job", _job),
    SetPool: ("pool", _pool),
    Drain: ("node", _node),
    Resume: ("node", _node),
    Maintain: ("id", _window),
    CancelMaintenance: ("id", _window),
    Lending: ("", _lending),
    SetPolicy: ("", _policy),
    IssueToken: ("name", _token),
    RevokeToken: ("name", _token),
    SignOut: ("name", _sessions),
    AuditNote: ("target", _witness),
}


def facts_of(book: Book, command: object) -> AuditFacts | None:
    """Return the facts about a command's target; None if the command is not audited.

    O(1); O(size) for an array.
    """
    known = _FACTS.get(type(command))
    return None if known is None else known[1](book, command)


def trace(command: object, before: AuditFacts, after: AuditFacts) -> AuditChange:
    """Return the facts that differ."""
    name = _FACTS[type(command)][0]
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return AuditChange(
        str(getattr(command, name)) if name else "",
        {key: before[key] for key in keys if key in before},
        {key: after[key] for key in keys if key in after},
    )
