"""The daemon's time, which never goes back, whatever happens to the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from daemon.model.limits import SLEW

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The file that identifies the current boot of the machine."""


class Anchor(NamedTuple):
    """A recorded time: boot id, uptime in seconds, and the daemon's time then."""

    boot: str
    uptime: float
    now: float


def uptime() -> float:
    """Return the seconds since boot, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot() -> str:
    """Return the boot id, or an empty string if the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Clock:
    """Seconds since the epoch that advance evenly.

    The clock follows the machine's uptime and is slewed towards the wall clock by `SLEW` at most,
    so a step of the wall clock starts and ends no job.

    Attributes:
        speed: Seconds of this clock in a real second.
    """

    speed = 1.0

    def __init__(
        self,
        anchor: Anchor | None = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = uptime,
    ) -> None:
        """Continue from the recorded time `anchor`, if there is one.

        Within the same boot the uptime says how much time has passed. After a reboot the clock
        starts at the wall clock's time, but not before the recorded time.
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
        """Return the seconds since the epoch; never less than before."""
        at = self._steady()
        gone = max(0.0, at - self._at)
        self._at = at
        ahead = self._wall() - (self._now + gone)
        self._now += gone + max(-SLEW * gone, min(SLEW * gone, ahead))
        return self._now

    def anchor(self) -> Anchor:
        """Return the time to record, from which another process can continue."""
        now = self.now()
        return Anchor(self._boot, self._at, now)

    def seconds_until(self, moment: float) -> float:
        """Return the real seconds until `moment`; 0 if it has passed."""
        return max(0.0, moment - self.now())

    async def sleep_until(self, moment: float) -> None:
        """Sleep until a time; may return slightly early."""
        await asyncio.sleep(self.seconds_until(moment))


class FastClock(Clock):
    """A clock that runs `speed` times as fast as real time, from a given start."""

    def __init__(
        self,
        speed: float,
        start: float,
        anchor: Anchor | None = None,
        *,
        steady: Callable[[], float] = uptime,
    ) -> None:
        """Begin at `start`, or at the recorded time if that is later."""
        self.speed = speed
        begin = start if anchor is None else max(start, anchor.now)
        super().__init__(wall=lambda: begin, steady=steady)

    def now(self) -> float:
        """Return the seconds since the epoch, or since the origin of `start`."""
        at = self._steady()
        self._now += max(0.0, at - self._at) * self.speed
        self._at = at
        return self._now

    def seconds_until(self, moment: float) -> float:
        """Return the real seconds until `moment`; 0 if it has passed."""
        return max(0.0, moment - self.now()) / self.speed
