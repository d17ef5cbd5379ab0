"""When to look for garbage: not while somebody waits."""

from __future__ import annotations

import gc

YOUNG = 5_000
"""Objects that are new since the last look after which it is worth another: 2 ms. Where nobody
ever rests, Python looks by itself after `sia.__main__.GARBAGE`, which takes up to 90 ms."""


def tidy() -> None:
    """Look through what is new, if it is much: now nobody waits. What is left is old from then on.

    It is looked through again by `freeze` alone.
    """
    if gc.get_count()[0] >= YOUNG:
        gc.collect(1)


def freeze() -> None:
    """What is there now stays: no use in looking at it again and again.

    What refers to itself and is of no use goes before: it would stay for good.
    """
    gc.collect()
    gc.freeze()
