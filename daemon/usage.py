"""What became of pools' GPUs over the last hour: looked at now and then, and kept in memory.

It is for people who look on. A restart begins it anew; what is to last goes to Prometheus.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from daemon.http.views import pool_views
from daemon.inbox import UnavailableError
from daemon.schemas import PoolView
from daemon.schemas_plan import UsageSample

if TYPE_CHECKING:
    from daemon.service import Service

EVERY = 30.0
"""Seconds of the machine between two looks: what people watch changes by the minute."""

KEPT = 120
"""Looks that are kept: an hour of them, 48 bytes each and pool."""

WHAT = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting_gpus")


class _Look(NamedTuple):
    """What there was at a time: `WHAT` of all pools together, then of each, in order."""

    time: float
    places: Mapping[str, int]
    values: array[int]


class Usage:
    """The last hour."""

    def __init__(self, service: Service) -> None:
        """Of this service; it knows nothing yet."""
        self._service = service
        self._looks: deque[_Look] = deque(maxlen=KEPT)
        self._places: dict[str, int] = {}

    async def run(self) -> None:
        """Look now, and ever again."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Once; where nobody knows what is durable, not. O(pools)."""
        try:
            await self._service.settled()
        except UnavailableError:
            return
        self.add(self._service.clock.now(), pool_views(self._service))

    def add(self, time: float, pools: Sequence[PoolView]) -> None:
        """Keep what these pools say."""
        places = {pool.name: i for i, pool in enumerate(pools, 1)}
        if places == self._places:
            places = self._places  # one for all looks: pools seldom change
        self._places = places
        rows = [[getattr(pool, what) for what in WHAT] for pool in pools]
        total = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(WHAT)
        values = array("q", (value for row in (total, *rows) for value in row))
        self._looks.append(_Look(time, places, values))

    def samples(self, pool: str | None) -> Iterator[UsageSample]:
        """Of a pool, or of all together, the oldest first. O(looks)."""
        for time, places, values in self._looks:
            place = 0 if pool is None else places.get(pool)
            if place is not None:
                begin = place * len(WHAT)
                yield UsageSample(time, *values[begin : begin + len(WHAT)])
