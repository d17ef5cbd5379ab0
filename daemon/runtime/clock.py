"""What time it is: never earlier than it was, whatever happens to the clock on the wall."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from daemon.model.limits import SLEW

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Names the run of the machine since it was started."""


class Anchor(NamedTuple):
    """The daemon's time at a moment of a machine's run: (boot, seconds since), and the time."""

    boot: str
    uptime: float
    now: float


def uptime() -> float:
    """Seconds since the machine was started, those in which it slept too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot() -> str:
    """Which run of the machine this is; empty where nobody says."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Clock:
    """Seconds since the epoch that go on evenly.

    They follow the machine's uptime and are led towards the clock on the wall by a thousandth at
    most, so that a step of that clock moves nothing.
    """

    def __init__(
        self,
        anchor: Anchor | None = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = uptime,
    ) -> None:
        """Go on from the last time that was recorded, if there is one.

        In the same run of the machine as many seconds have gone by since as it says; otherwise the
        clock on the wall must know, unless it is behind.
        """
        self._wall, self._steady = wall, steady
        self._boot = boot()
        self._at = steady()
        self._now = wall()
        if anchor is not None:
            same = anchor.boot == self._boot != "" and anchor.uptime <= self._at
            gone = self._at - anchor.uptime if same else 0.0
            self._now = anchor.now + gone if same else max(anchor.now, self._now)

    def now(self) -> float:
        """Seconds since the epoch, never less than before."""
        at = self._steady()
        gone = max(0.0, at - self._at)
        self._at = at
        ahead = self._wall() - (self._now + gone)
        self._now += gone + max(-SLEW * gone, min(SLEW * gone, ahead))
        return self._now

    def anchor(self) -> Anchor:
        """To go on from in another process."""
        now = self.now()
        return Anchor(self._boot, self._at, now)

    def seconds_until(self, moment: float) -> float:
        """How long to wait for a time, in seconds of the machine; 0 if it has come."""
        return max(0.0, moment - self.now())

    async def sleep_until(self, moment: float) -> None:
        """Wait for a time; it may be a little early."""
        await asyncio.sleep(self.seconds_until(moment))


class FastClock(Clock):
    """A clock that goes so many times as fast as the machine's, from a time of its own on."""

    def __init__(
        self,
        speed: float,
        start: float,
        anchor: Anchor | None = None,
        *,
        steady: Callable[[], float] = uptime,
    ) -> None:
        """Begin at `start`, or at the last time that was recorded if that is later."""
        self._speed = speed
        begin = start if anchor is None else max(start, anchor.now)
        super().__init__(wall=lambda: begin, steady=steady)

    def now(self) -> float:
        """Seconds since the epoch, or since whatever `start` is counted from."""
        at = self._steady()
        self._now += max(0.0, at - self._at) * self._speed
        self._at = at
        return self._now

    def seconds_until(self, moment: float) -> float:
        """How long to wait for a time, in seconds of the machine; 0 if it has come."""
        return max(0.0, moment - self.now()) / self._speed
