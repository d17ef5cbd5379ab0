"""When to look for garbage: not while somebody waits."""

from __future__ import annotations

import gc

YOUNG = 5_000
"""Objects that are new since the last look after which it is worth another: 2 ms. Where nobody
ever rests, Python looks by itself after `sia.console.main.GARBAGE`, which takes up to 90 ms."""

FULL = 40
"""Looks of which the last is at all that came since the last `freeze`: after as many objects as
`GARBAGE`. What refers to itself and was alive at a look before, as streams are, goes then."""


class GcScheduler:
    """Looks for it while nobody waits."""

    def __init__(self) -> None:
        """Nothing has been looked at."""
        self._looks = 0

    def tidy(self) -> None:
        """Look through what is new, if it is much, and once in a long while through what was."""
        if gc.get_count()[0] < YOUNG:
            return
        self._looks += 1
        if self._looks < FULL:
            gc.collect(1)  # what is left is old from then on
        else:
            self._looks = 0
            gc.collect()

    def freeze(self) -> None:
        """What is there now stays: no use in looking at it again and again.

        What refers to itself and is of no use goes before: it would stay for good.
        """
        self._looks = 0
        gc.collect()
        gc.freeze()
