"""What goes over HTTP of tokens and of the audit. Times are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from daemon.model.access import Role
from daemon.model.names import Name
from daemon.wire.jobs import Id, TimeLimit

MAX_POOLS = 1000
"""Of one token: more than any cluster is split into."""


class TokenRequest(Struct, forbid_unknown_fields=True):
    """A token that is to be issued."""

    name: Annotated[Id, Meta(description="Of whoever has it, in log and audit.")]
    role: Role
    pools: Annotated[
        list[Name],
        Meta(
            max_length=MAX_POOLS,
            description="That it is for. A submitter and an admin need some, an operator has all, "
            "and a viewer without any sees all.",
        ),
    ] = []
    lasts: Annotated[TimeLimit | None, Meta(description="Seconds; null: until it is revoked.")] = (
        None
    )


class TokenMade(Struct):
    """A token. Nobody can find it out later."""

    name: str
    role: Role
    pools: list[str]
    token: str
    expires: float | None


class TokenView(Struct):
    """A token, but for what is secret."""

    name: str
    role: Role
    pools: list[str]
    created: float
    by: str
    expires: float | None
    expired: bool


class TokenList(Struct):
    """All tokens."""

    tokens: list[TokenView]


class AuditView(Struct):
    """A change, as it was written, and the digest of it and of all before."""

    number: int
    record: Raw
    digest: str


class Audit(Struct):
    """A page of the audit, and where all of it ends."""

    records: list[AuditView]
    next: Annotated[int, Meta(description="`after` of the next page.")]
    newest: int
    head: Annotated[str, Meta(description="The newest digest, to be kept elsewhere.")]
