"""Run a bounded number of requests concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts(all_of: Sequence[T], at_once: int) -> Iterator[Sequence[T]]:
    """Yield slices of at most `at_once` items."""
    for i in range(0, len(all_of), at_once):
        yield all_of[i : i + at_once]


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all of `work` and return the results; raise the first exception once all have ended."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]
