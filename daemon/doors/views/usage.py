"""Sample the use of each pool's GPUs over the last hour, stored in the journal.

The samples feed the pages and survive a restart. For longer history, use Prometheus.
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
"""Seconds (wall clock) between two samples."""

KEPT = 120
"""Number of samples: one hour of them, 48 bytes each and pool."""

PREFIX = "usage:"
"""Prefix of the note keys. `KEPT` keys are used as a ring."""

WHAT = ("quota", "dedicated", "lent", "borrowed", "idle", "waiting_gpus")


class _Look(NamedTuple):
    """One sample: the values of `WHAT` for all pools together, then for each pool in order."""

    time: float
    places: Mapping[str, int]
    values: array[int]


class _Noted(Struct, frozen=True):
    """A sample as stored in the journal."""

    number: int
    at: float
    """Wall-clock time: a simulated clock may run faster."""
    time: float
    pools: list[str]
    values: list[int]


_read = json.Decoder(_Noted).decode


def _readable(notes: Iterable[str]) -> Iterator[_Noted]:
    """Yield the notes that this release can decode. Others are skipped and later overwritten."""
    for text in notes:
        with suppress(ValidationError, DecodeError):
            noted = _read(text)
            if len(noted.values) == (len(noted.pools) + 1) * len(WHAT):
                yield noted


class UsageHistory:
    """Samples of the last hour."""

    def __init__(self, service: Service, notes: NoteStore) -> None:
        """Create an empty history for a service, stored in `notes`."""
        self._service, self._notes = service, notes
        self._looks: deque[_Look] = deque(maxlen=KEPT)
        self._places: dict[str, int] = {}
        self._number = 0

    async def run(self) -> None:
        """Load the stored samples, then take a sample every `EVERY` seconds until cancelled."""
        if not self._looks:
            with suppress(JournalError):  # without stored samples the history just starts empty
                await self.recall()
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def recall(self) -> None:
        """Load the samples of the last hour, including those of a former leader.

        Raises JournalError.
        """
        noted = _readable((await self._notes.read(PREFIX)).values())
        oldest = machine.time() - KEPT * EVERY
        for each in sorted(noted, key=lambda each: each.at):  # numbers restart with a new ring
            self._number = each.number
            if each.at > oldest:
                self._keep(each.time, each.pools, array("q", each.values))

    async def look(self) -> None:
        """Take one sample; skip it if the durable state is not known. O(pools)."""
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
        """Append a sample of these pools. O(pools)."""
        rows = [[getattr(pool, what) for what in WHAT] for pool in pools]
        total = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(WHAT)
        values = array("q", (value for row in (total, *rows) for value in row))
        self._keep(time, [pool.name for pool in pools], values)

    def _keep(self, time: float, pools: Sequence[str], values: array[int]) -> None:
        places = {name: i for i, name in enumerate(pools, 1)}
        if places == self._places:
            places = self._places  # share one mapping between samples: pools seldom change
        self._places = places
        self._looks.append(_Look(time, places, values))

    def samples(self, pool: str | None) -> Iterator[UsageSample]:
        """Yield the samples of one pool, or of all pools together, oldest first. O(samples)."""
        for time, places, values in self._looks:
            place = 0 if pool is None else places.get(pool)
            if place is not None:
                begin = place * len(WHAT)
                yield UsageSample(time, *values[begin : begin + len(WHAT)])
