"""When to run the garbage collector: while no request is waiting."""

from __future__ import annotations

import gc

YOUNG = 5_000
"""Number of new objects after which the young generations are collected; this takes 2 ms."""

BUSY = 50_000
"""Number of new objects after which Python itself collects the youngest generation of a daemon that
is never idle. With this number, a request of 9,000 jobs holds the event loop for up to 34 ms of CPU
time; with 200,000, as in a replay, for 48 ms."""

OLDER = 40
"""Number of such collections after which Python collects the next generation: 2,000,000 objects."""

FULL = 100
"""Number of collections since the last `freeze` after which all objects allocated since then are
collected. This frees reference cycles that survived a young collection, such as closed streams. The
next full collection comes after twice as many. Under many submissions nearly all new objects are
jobs, which stay; then the snapshot, which freezes them, comes first."""


def collect_in_small_steps() -> None:
    """Have Python collect the garbage of a busy daemon in steps of about 20 ms."""
    gc.set_threshold(BUSY, OLDER)


class GcScheduler:
    """Runs the garbage collector while the daemon is idle."""

    def __init__(self) -> None:
        """Start with no collection made."""
        self._looks = 0  # collections since `freeze`
        self._full = FULL  # number of collections at which the next full one is due

    def tidy(self) -> None:
        """Collect the young generations if many objects are new, now and then everything.

        Amortized O(new objects).
        """
        if gc.get_count()[0] < YOUNG:
            return
        self._looks += 1
        if self._looks < self._full:
            gc.collect(1)  # survivors move to the old generation
        else:
            self._full = 2 * self._looks
            gc.collect()

    def freeze(self) -> None:
        """Exclude all present objects from later collections.

        Collects first: unreachable cycles would otherwise be kept forever.
        """
        self._looks, self._full = 0, FULL
        gc.collect()
        gc.freeze()
