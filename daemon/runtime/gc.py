"""When to run the garbage collector: while no request is waiting."""

from __future__ import annotations

import gc

YOUNG = 5_000
"""New objects that make a collection of the young generations worthwhile; it takes 2 ms. A daemon
that is never idle is collected by Python after `sia.console.main.GARBAGE` objects: up to 90 ms."""

FULL = 40
"""Every this many collections is a full one, over everything allocated since the last `freeze`. It
frees reference cycles that had survived a young collection, such as closed streams."""


class GcScheduler:
    """Runs the garbage collector while the daemon is idle."""

    def __init__(self) -> None:
        """Start with no collection made."""
        self._looks = 0

    def tidy(self) -> None:
        """Collect the young generations if many objects are new; every `FULL` times, everything."""
        if gc.get_count()[0] < YOUNG:
            return
        self._looks += 1
        if self._looks < FULL:
            gc.collect(1)  # survivors move to the old generation
        else:
            self._looks = 0
            gc.collect()

    def freeze(self) -> None:
        """Exclude all present objects from later collections.

        Collects first: unreachable cycles would otherwise be kept forever.
        """
        self._looks = 0
        gc.collect()
        gc.freeze()
