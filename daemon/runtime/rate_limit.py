"""How often something may be: so many a second, and so many at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class TokenBucket:
    """So many a second, and so many at once."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin full."""
        self._rate, self._burst, self._left = rate, burst, burst
        self._clock = clock
        self._last = clock()

    def wait(self, count: int = 1) -> float:
        """0 where so many may be, otherwise the seconds until they may. O(1)."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._last) * self._rate)
        self._last = now
        return max(0.0, min(float(count), self._burst) - self._left) / self._rate

    def take(self, count: int = 1) -> float:
        """Take so many, where `wait` is 0; otherwise nothing, and what that says.

        More than fit are let through where it is full, and paid for by those that come after.
        """
        wait = self.wait(count)
        if not wait:
            self._left -= count
        return wait


class TokenBuckets:
    """One for each name, of the names that came last: who was forgotten begins with a full one."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        """So many are remembered."""
        self._rate, self._burst, self._most = rate, burst, most
        self._known: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str) -> float:
        """As `TokenBucket.take`, of the one of that name. O(1)."""
        bucket = self._known.get(name)
        if bucket is None:
            bucket = self._known[name] = TokenBucket(self._rate, self._burst)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return bucket.take()
