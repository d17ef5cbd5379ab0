"""Several requests on their way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts(all_of: Sequence[T], at_once: int) -> Iterator[Sequence[T]]:
    """So many at a time as may be on their way."""
    for i in range(0, len(all_of), at_once):
        yield all_of[i : i + at_once]


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """What all of these come to; what went wrong is raised when none is on its way any more."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]
