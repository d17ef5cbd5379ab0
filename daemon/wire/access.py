"""HTTP bodies of tokens, the audit and grants. Times are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from daemon.model.access import Role
from daemon.model.names import Name
from daemon.wire.jobs import Id, TimeLimit

MAX_POOLS = 1000
"""Maximum number of pools of one token. No known cluster has more pools."""


class TokenRequest(Struct, forbid_unknown_fields=True):
    """Request to issue a token."""

    name: Annotated[Id, Meta(description="Name of the holder, shown in the log and the audit.")]
    role: Role
    pools: Annotated[
        list[Name],
        Meta(
            max_length=MAX_POOLS,
            description="Pools that the token may act on. Required for a submitter and an admin. "
            "An operator has all pools. A viewer without pools sees all.",
        ),
    ] = []
    lasts: Annotated[
        TimeLimit | None, Meta(description="Lifetime in seconds; null: no expiry.")
    ] = None


class TokenMade(Struct):
    """An issued token. The response is the only place where the secret is shown."""

    name: str
    role: Role
    pools: list[str]
    token: str
    expires: float | None


class TokenView(Struct):
    """A token without its secret."""

    name: str
    role: Role
    pools: list[str]
    created: float
    by: str
    expires: float | None
    expired: bool


class TokenList(Struct):
    """All issued tokens."""

    tokens: list[TokenView]


class AuditView(Struct):
    """An audit record as it was stored, with the digest that chains it to all earlier records."""

    number: int
    record: Raw
    digest: str


class Audit(Struct):
    """A page of audit records, and the end of the chain."""

    records: list[AuditView]
    next: Annotated[int, Meta(description="Value of `after` for the next page.")]
    newest: int
    head: Annotated[str, Meta(description="Newest digest. Store it outside the daemon.")]
    first: Annotated[int, Meta(description="Number of the first record since `from`.")]
    end: Annotated[int, Meta(description="Number of the first record that is not before `to`.")]


class GrantView(Struct):
    """A grant. A bound that is null does not restrict."""

    user: Annotated[
        str,
        Meta(
            description="User whose jobs the grant bounds. Empty: all users together; *: each "
            "user on its own."
        ),
    ]
    pool: Annotated[
        str, Meta(description="Pool whose jobs the grant bounds. Empty: all pools together.")
    ]
    max_value: Annotated[float | None, Meta(description="Highest value of one job.")]
    never_jobs: Annotated[
        int | None, Meta(description="Maximum number of unended jobs that must not be stopped.")
    ]
    never_gpus: Annotated[int | None, Meta(description="Maximum number of GPUs of such jobs.")]
    extra_budget: Annotated[
        float | None,
        Meta(description="Maximum of the budgets above 1, summed over jobs: (budget - 1) each."),
    ]
    gpu_hours: Annotated[
        float | None,
        Meta(description="Maximum GPU-hours of jobs with a deadline: GPUs times estimate."),
    ]


class GrantUse(Struct):
    """What the unended jobs of a user in a pool use of what is granted."""

    user: str
    pool: str
    jobs: Annotated[
        int, Meta(description="Number of jobs with a field that a grant can bound.")
    ] = 0
    value: Annotated[float, Meta(description="Sum of the values of these jobs.")] = 0.0
    top_value: Annotated[float, Meta(description="Highest value of one of these jobs.")] = 0.0
    never_jobs: Annotated[int, Meta(description="Number of jobs that must not be stopped.")] = 0
    never_gpus: Annotated[int, Meta(description="Sum of the GPUs of these jobs.")] = 0
    extra_budget: Annotated[
        float, Meta(description="Sum of the budgets of these jobs above 1.")
    ] = 0.0
    deadline_jobs: Annotated[int, Meta(description="Number of jobs with a deadline.")] = 0
    promised_jobs: Annotated[
        int, Meta(description="Number of jobs whose deadline is guaranteed.")
    ] = 0
    all_jobs: Annotated[
        int, Meta(description="Number of all jobs, including those without such a field.")
    ] = 0
    gpu_hours: Annotated[
        float,
        Meta(
            description="GPU-hours of the jobs with a deadline, by their own "
            "estimates or time limits."
        ),
    ] = 0.0


class GrantList(Struct):
    """All grants, in the order of the configuration, and their use by user and pool."""

    grants: list[GrantView]
    used: list[GrantUse]
