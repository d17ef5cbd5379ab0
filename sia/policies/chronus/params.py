"""The options of policy chronus, as its label has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sia.limits import MAX_GROUP, MAX_RESUME_COST

LEASE, BE_LEASE, PROFILE = 1200.0, 300.0, 300.0
"""Seconds of the two kinds of leases and of a trial (§3.3.4, §3.3.5)."""


SEARCH, MAX_SEARCH = 100_000, 1_000_000
"""Combined placements that the local search tries (§5.3), and the most that may be asked for."""


class ChronusParams(Struct, frozen=True):
    """Options of Chronus. Times are in seconds."""

    lease: Annotated[float, Meta(gt=0, le=MAX_RESUME_COST)] = LEASE
    """Length of the leases of guaranteed jobs; a multiple of `be`."""
    be: Annotated[float, Meta(ge=1, le=MAX_RESUME_COST)] = BE_LEASE
    """Length of the leases of best-effort jobs."""
    profile: Annotated[float, Meta(ge=0, le=MAX_RESUME_COST)] = PROFILE
    """Length of a trial; 0 for none."""
    fill: bool = False
    """Whether guaranteed jobs get what best effort leaves, and idle GPUs are given at once."""
    roundup: bool = True
    """Whether guaranteed jobs count as 1, 2, 4 GPUs or whole nodes."""
    patience: Annotated[float, Meta(ge=0)] = 0.0
    """A best-effort job that waits this long goes before the others; 0 for never."""
    user: Annotated[int, Meta(ge=1, le=MAX_GROUP)] = 24
    """GPUs of the trials of a user that are let in within each interval of `profile`."""
    capacity: Annotated[int, Meta(ge=1, le=MAX_GROUP)] | None = None
    """GPUs of the profiler; None for as many as jobs of the last hour need."""
    floor: Annotated[int, Meta(ge=1, le=MAX_GROUP)] = 16
    """The least GPUs of the profiler without `capacity`."""
    search: Annotated[int, Meta(ge=0, le=MAX_SEARCH)] = SEARCH
    """Combined placements that the local search tries, where nodes are known."""

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
