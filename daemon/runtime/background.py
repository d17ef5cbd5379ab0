"""Background tasks that restart after a failure, and bounded concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log

BEGIN_AGAIN = 15.0
"""Seconds before a failed task restarts: short for users, long enough to keep the log readable."""


class BackgroundTask(NamedTuple):
    """A background task: the component it belongs to and the coroutine function that runs it."""

    part: str
    work: Callable[[], Awaitable[None]]


@asynccontextmanager
async def meanwhile(parts: HealthRegistry, *those: BackgroundTask) -> AsyncIterator[None]:
    """Run the tasks until the context ends. Their exceptions are logged and never raised here."""
    tasks = [asyncio.create_task(_keep_running(parts, each)) for each in those]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _keep_running(parts: HealthRegistry, one: BackgroundTask) -> None:
    task = asyncio.current_task()
    assert task is not None, "runs as a task"
    while True:
        try:
            await one.work()
        except Exception:  # noqa: BLE001  a defect of one task must not stop the daemon
            log().exception("background task failed, restarting it", part=one.part)
        else:
            return
        if task.cancelling():  # it failed while being cancelled
            return
        parts.say(one.part, "internal error", "see the daemon's log and report it")
        await asyncio.sleep(BEGIN_AGAIN)
        parts.say(one.part)


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
