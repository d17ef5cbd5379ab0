"""What a daemon does beside serving: tasks that a defect does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log

BEGIN_AGAIN = 15.0
"""Seconds until what failed begins again: soon enough to be missed by few, and the log stays
readable."""


class BackgroundTask(NamedTuple):
    """One of them: the part that it is, and what begins it, each time anew."""

    part: str
    work: Callable[[], Awaitable[None]]


@asynccontextmanager
async def meanwhile(parts: HealthRegistry, *those: BackgroundTask) -> AsyncIterator[None]:
    """Have all this be done until the end. Whatever goes wrong there, nothing is raised."""
    tasks = [asyncio.create_task(_kept(parts, each)) for each in those]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _kept(parts: HealthRegistry, one: BackgroundTask) -> None:
    task = asyncio.current_task()
    assert task is not None, "it is one"
    while True:
        try:
            await one.work()
        except Exception:  # noqa: BLE001  whatever it is, the others go on
            log().exception("a part of the daemon failed; it begins again", part=one.part)
        else:
            return
        if task.cancelling():  # the end came first, and it failed at that
            return
        parts.say(one.part, "a defect of the daemon", "look into its log, and report it")
        await asyncio.sleep(BEGIN_AGAIN)
        parts.say(one.part)
