"""Grants of the site, and who uses them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class GrantView(Struct):
    """A grant. A bound that is null does not restrict."""

    user: Annotated[str, Meta(description="Empty: all users together; *: each user.")]
    pool: Annotated[str, Meta(description="Empty: all pools together.")]
    max_value: Annotated[float | None, Meta(description="Highest value of one job.")]
    never_jobs: Annotated[int | None, Meta(description="Most jobs that must not be stopped.")]
    never_gpus: Annotated[int | None, Meta(description="Most GPUs of such jobs.")]


class GrantUse(Struct):
    """What the unended jobs of a user in a pool use of what is granted."""

    user: str
    pool: str
    jobs: Annotated[int, Meta(description="Jobs that have a value or must not be stopped.")]
    value: Annotated[float, Meta(description="Sum of their values.")]
    top_value: Annotated[float, Meta(description="Highest value of one of them.")]
    never_jobs: Annotated[int, Meta(description="Jobs that must not be stopped.")]
    never_gpus: Annotated[int, Meta(description="GPUs of these jobs.")]


class GrantList(Struct):
    """All grants, in the order of the configuration, and their use by user and pool."""

    grants: list[GrantView]
    used: list[GrantUse]
