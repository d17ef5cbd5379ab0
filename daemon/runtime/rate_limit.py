"""Rate limits as token buckets."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class TokenBucket:
    """A token bucket: `rate` tokens a second, at most `burst` at once."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with a full bucket."""
        self._rate, self._burst, self._left = rate, burst, burst
        self._clock = clock
        self._last = clock()

    def wait(self, count: int = 1) -> float:
        """Return the seconds until `count` tokens are available; 0 if they are now. O(1)."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._last) * self._rate)
        self._last = now
        return max(0.0, min(float(count), self._burst) - self._left) / self._rate

    def take(self, count: int = 1) -> float:
        """Take `count` tokens and return 0, or take none and return the seconds to wait.

        A full bucket lets a count above `burst` through; later callers wait for the debt.
        """
        wait = self.wait(count)
        if not wait:
            self._left -= count
        return wait


class TokenBuckets:
    """A bucket for each of the most recent names; an evicted name starts again with a full one."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        """Keep at most `most` names."""
        self._rate, self._burst, self._most = rate, burst, most
        self._known: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one token from the bucket of `name`; see `TokenBucket.take`. O(1)."""
        bucket = self._known.get(name)
        if bucket is None:
            bucket = self._known[name] = TokenBucket(self._rate, self._burst)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return bucket.take()
