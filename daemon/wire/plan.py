"""What goes over HTTP of loans, of what is foreseen, and of what starts next."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.model.job import LendingMode
from daemon.wire.jobs import JobView


class LoanView(Struct):
    """GPUs that a pool lends to a job of another one."""

    job: str
    borrower: str
    donor: str
    gpus: int
    since: float


class LoanList(Struct):
    """All that are open; `lent` and `borrowed` sum them up by pool."""

    loans: list[LoanView]
    lent: dict[str, int]
    borrowed: dict[str, int]


class LendingSwitch(Struct, forbid_unknown_fields=True):
    """How the switch is to stand: `mode`, or `on` alone."""

    on: bool | None = None
    mode: LendingMode | None = None


class WouldLend(Struct):
    """What a pool would have lent to another's jobs that are over."""

    lender: str
    borrower: str
    gpu_hours: float


class LendingShadow(Struct):
    """What lending would have come to while it was not done but worked out."""

    since: float
    until: Annotated[float | None, Meta(description="Null while it goes on.")]
    jobs: Annotated[int, Meta(description="Starts that would have borrowed.")]
    gpu_hours: Annotated[float, Meta(description="Of those that are over.")]
    sooner: Annotated[int, Meta(description="Jobs that would have begun sooner.")]
    later: int
    gained_s: Annotated[float, Meta(description="Seconds sooner, together.")]
    lost_s: float
    unknown: Annotated[int, Meta(description="Borrowers that never ran in truth.")]
    renewed: Annotated[int, Meta(description="Times that it began anew from what is real.")]
    lent: Annotated[list[WouldLend], Meta(description="Of pools that the asker sees.")]
    pending: Annotated[
        int,
        Meta(
            description="Of these starts, those whose hours are not known: their jobs are (`until`"
            " is null) or were not over."
        ),
    ] = 0


class LendingState(Struct):
    """Whether new loans are made."""

    on: bool
    mode: LendingMode
    shadow: Annotated[
        LendingShadow | None, Meta(description="Of the last time that it stood on shadow.")
    ] = None


class PoolForecast(Struct, omit_defaults=True):
    """New load foreseen for a pool, in GPUs, and what is held back for it, by window."""

    pool: str
    load: list[int]
    held_back: list[int]
    judged: Annotated[
        list[int], Meta(description="Forecasts of each window whose time is over, of late.")
    ] = []
    missed: Annotated[list[int], Meta(description="Of these, how many fell short.")] = []


class UsageSample(Struct):
    """GPUs at a time, and those that jobs waited for."""

    time: float
    quota: int
    dedicated: int
    lent: int
    borrowed: int
    idle: int
    waiting_gpus: int


class Usage(Struct):
    """What became of GPUs over the last hour, the oldest first, those before a restart too."""

    pool: Annotated[str, Meta(description="Empty: of all pools together.")]
    samples: list[UsageSample]


class Forecasts(Struct):
    """What is foreseen at this moment."""

    policy: str
    forecast: str
    ready: Annotated[bool, Meta(description="Whether anything is foreseen yet.")]
    model: Annotated[str, Meta(description="Its digest, where one has learned.")]
    learned: Annotated[str, Meta(description="What came of the last training, if any.")]
    windows: Annotated[list[float], Meta(description="Seconds.")]
    pools: list[PoolForecast]


class PlanWindow(Struct):
    """What could be lent in a sharing group for so long."""

    window: float
    idle: int
    held_back: int
    usable: int


class PlanPool(Struct):
    """A pool's next jobs, in the order in which they are looked at."""

    pool: str
    ratio: Annotated[float | None, Meta(description="What it uses / (quota · weight).")]
    waiting: int
    next: list[JobView]


class PlanGroup(Struct):
    """Pools that lend to each other, in the order in which they are looked at."""

    group: str
    idle: int
    windows: list[PlanWindow]
    pools: list[PlanPool]


class Plan(Struct):
    """What would start next, were GPUs to become idle."""

    time: float
    lending: bool
    groups: list[PlanGroup]
