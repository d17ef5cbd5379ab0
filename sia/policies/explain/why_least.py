"""What may be taken away so that a waiting job starts, and the least of it that will do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum
from itertools import combinations
from typing import Any, NamedTuple

from sia.model import Stream

MANY = 8
"""Pools that are named one by one: more are one obstacle, as nobody reads them, and as it would
take seconds to find those of a thousand pools that could be spared."""

ROUNDS = 2
"""Passes after which all other pools are taken for rivals, where there are many."""

FEW = 6
"""Obstacles of which all parts are tried: that one less is too few says it for nearly all others
as well, and 2⁶ are thought through in a millisecond or two."""


class Kind(Enum):
    """What may be taken away."""

    TURN = "jobs of the pool that wait before the job"
    END = "a running job"
    QUEUE = "all other jobs that wait in a pool"
    LOAD = "all that is foreseen for a pool"
    KEEP = "that a pool lends nothing"
    OUT = "that GPUs are out"
    LENDING = "that lending is off"
    LEND = "a pool's limit on lending"
    BORROW = "a pool's limit on borrowing"
    LENDS = "all pools' limits on lending"
    OTHERS = "all that waits or is foreseen in several pools"


class Unit(NamedTuple):
    """One thing that is taken away as a whole; `of` is a pool, several pools or a running job."""

    kind: Kind
    of: Any


class EnoughError(Exception):
    """As much was thought through as is allowed."""


class Least:
    """Trials of one job, none of them twice."""

    def __init__(self, tried: Callable[[Collection[Unit], Stream | None], bool]) -> None:
        """`tried` says whether it starts, in a stream if one is given, were these things gone.

        It raises EnoughError where it will try no more.
        """
        self._tried = tried
        self._known: dict[tuple[frozenset[Unit], Stream | None], bool] = {}

    def starts(self, units: Collection[Unit], stream: Stream | None = None) -> bool:
        """Whether it starts, in its turn if that is asked for, were these gone."""
        gone = frozenset(units)
        for asked in {stream, Stream.DEDICATED}:
            if self._known.get((gone, asked)):
                return True
        known = self._known.get((gone, stream))
        if known is None:
            known = self._known[gone, stream] = self._tried(units, stream)
        return known

    def of(
        self, units: Iterable[Unit], stream: Stream | None = None
    ) -> tuple[tuple[Unit, ...], bool]:
        """As few of these as will do, and whether it is sure that no part of them would."""
        kept = list(dict.fromkeys(units))
        try:
            if not self.starts(kept, stream):
                return tuple(kept), False
            self._drop(kept, stream)
            while len(kept) <= FEW and (part := self._part(kept, stream)) is not None:
                kept = [*part]
        except EnoughError:
            return tuple(kept), False
        return tuple(kept), True

    def _drop(self, kept: list[Unit], stream: Stream | None) -> None:
        for unit in kept[::-1]:
            less = [each for each in kept if each is not unit]
            if self.starts(less, stream):
                kept.remove(unit)

    def _part(self, units: list[Unit], stream: Stream | None) -> tuple[Unit, ...] | None:
        for size in range(len(units)):
            for part in combinations(units, size):
                if self.starts(part, stream):
                    return part
        return None
