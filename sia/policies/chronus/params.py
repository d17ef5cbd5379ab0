"""The options of policy chronus, as its label has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sia.limits import MAX_GROUP, MAX_RESUME_COST

LEASE, BE_LEASE, PROFILE = 1200.0, 300.0, 300.0
"""Seconds of a lease of guaranteed jobs, of a best-effort lease and of a trial (§3.3.4, §3.3.5)."""


SEARCH, MAX_SEARCH = 100_000, 1_000_000
"""Default and maximum of the number of combined placements that the local search tries (§5.3)."""


class ChronusParams(Struct, frozen=True):
    """Options of Chronus. Times are in seconds."""

    lease: Annotated[float, Meta(gt=0, le=MAX_RESUME_COST)] = LEASE
    """Length of the leases of guaranteed jobs; a multiple of `be`."""
    be: Annotated[float, Meta(ge=1, le=MAX_RESUME_COST)] = BE_LEASE
    """Length of the leases of best-effort jobs."""
    profile: Annotated[float, Meta(ge=0, le=MAX_RESUME_COST)] = PROFILE
    """Length of a trial; 0 for none."""
    fill: bool = False
    """Whether guaranteed jobs get GPUs that best effort leaves, and idle GPUs are used at once."""
    roundup: bool = True
    """Whether widths of guaranteed jobs are rounded up to 1, 2 or 4 GPUs, or to whole nodes."""
    patience: Annotated[float, Meta(ge=0)] = 0.0
    """A best-effort job that waits this long goes before the others; 0 for never."""
    user: Annotated[int, Meta(ge=1, le=MAX_GROUP)] = 24
    """Largest number of GPUs of a user's trials that are admitted in each interval of `profile`."""
    capacity: Annotated[int, Meta(ge=1, le=MAX_GROUP)] | None = None
    """GPUs of the profiler; None for the number that the jobs of the last hour need."""
    floor: Annotated[int, Meta(ge=1, le=MAX_GROUP)] = 16
    """Smallest number of GPUs of the profiler without `capacity`."""
    search: Annotated[int, Meta(ge=0, le=MAX_SEARCH)] = SEARCH
    """Number of combined placements that the local search tries, if nodes are known."""

    @property
    def first_capacity(self) -> int:
        """GPUs of the profiler at the start."""
        if not self.profile:
            return 0
        return self.floor if self.capacity is None else self.capacity

    def __post_init__(self) -> None:
        """Raise ValueError if leases do not begin together."""
        times = self.lease / self.be
        if times < 1 or times != int(times):
            raise ValueError(
                f"lease={self.lease:g} must be a multiple of be={self.be:g}; change one of them"
            )
