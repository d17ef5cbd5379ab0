"""What became of pools' GPUs over the last hour: looked at now and then, and noted in the journal.

It is for people who look on: a restart goes on with it. What is to last goes to Prometheus.
"""

from __future__ import annotations

import asyncio
import time as machine
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import DecodeError, Struct, ValidationError, json

from daemon.doors.views.resources import pool_views
from daemon.model.errors import JournalError, UnavailableError
from daemon.wire.jobs import PoolView
from daemon.wire.plan import UsageSample

if TYPE_CHECKING:
    from daemon.journal.attachments import NoteStore
    from daemon.service.service import Service

EVERY = 30.0
"""Seconds of the machine between two looks: what people watch changes by the minute."""

KEPT = 120
"""Looks that are kept: an hour of them, 48 bytes each and pool."""

PREFIX = "usage:"
"""Of the notes; their keys are as many as looks are kept, and used again in turn."""

WHAT = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting_gpus")


class _Look(NamedTuple):
    """What there was at a time: `WHAT` of all pools together, then of each, in order."""

    time: float
    places: Mapping[str, int]
    values: array[int]


class _Noted(Struct, frozen=True):
    """A look, as it is noted."""

    number: int
    at: float
    """When it was by the machine's clock: simulated ones go faster."""
    time: float
    pools: list[str]
    values: list[int]


_read = json.Decoder(_Noted).decode


def _readable(notes: Iterable[str]) -> Iterator[_Noted]:
    """Those that this release understands: another one's are left out, and written over."""
    for text in notes:
        with suppress(ValidationError, DecodeError):
            noted = _read(text)
            if len(noted.values) == (len(noted.pools) + 1) * len(WHAT):
                yield noted


class UsageHistory:
    """The last hour."""

    def __init__(self, service: Service, notes: NoteStore) -> None:
        """Of this service, and noted there; it knows nothing yet."""
        self._service, self._notes = service, notes
        self._looks: deque[_Look] = deque(maxlen=KEPT)
        self._places: dict[str, int] = {}
        self._number = 0

    async def run(self) -> None:
        """Go on with what was noted: look now, and ever again."""
        if not self._looks:
            with suppress(JournalError):  # nobody misses an hour of it for long
                await self.recall()
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def recall(self) -> None:
        """Know what was looked at within the last hour, by another daemon too.

        Raises JournalError.
        """
        noted = _readable((await self._notes.read(PREFIX)).values())
        oldest = machine.time() - KEPT * EVERY
        for each in sorted(noted, key=lambda each: each.at):  # a number may begin anew
            self._number = each.number
            if each.at > oldest:
                self._keep(each.time, each.pools, array("q", each.values))

    async def look(self) -> None:
        """Once; where nobody knows what is durable, not. O(pools)."""
        try:
            await self._service.settled()
        except UnavailableError:
            return
        self.add(self._service.clock.now(), pool_views(self._service))
        self._number += 1
        time, places, values = self._looks[-1]
        noted = _Noted(self._number, machine.time(), time, [*places], values.tolist())
        with suppress(JournalError):
            text = json.encode(noted).decode()
            await self._notes.write({f"{PREFIX}{self._number % KEPT:03}": text})

    def add(self, time: float, pools: Sequence[PoolView]) -> None:
        """Keep what these pools say."""
        rows = [[getattr(pool, what) for what in WHAT] for pool in pools]
        total = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(WHAT)
        values = array("q", (value for row in (total, *rows) for value in row))
        self._keep(time, [pool.name for pool in pools], values)

    def _keep(self, time: float, pools: Sequence[str], values: array[int]) -> None:
        places = {name: i for i, name in enumerate(pools, 1)}
        if places == self._places:
            places = self._places  # one for all looks: pools seldom change
        self._places = places
        self._looks.append(_Look(time, places, values))

    def samples(self, pool: str | None) -> Iterator[UsageSample]:
        """Of a pool, or of all together, the oldest first. O(looks)."""
        for time, places, values in self._looks:
            place = 0 if pool is None else places.get(pool)
            if place is not None:
                begin = place * len(WHAT)
                yield UsageSample(time, *values[begin : begin + len(WHAT)])
