"""Restart background work after a defect, and report the defect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from daemon.doors.mqtt.reconnecting import Say
from daemon.model.limits import PROBE_EVERY
from daemon.runtime.logs import log


async def again(work: Callable[[], Awaitable[None]], say: Say) -> None:
    """Run work until it returns; after an exception report it to `say` and run the work again."""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  a defect in one task must not stop the others
            log().exception("mqtt task failed")
            say(f"internal error: {error!r}", "report this defect; the daemon retries")
            await asyncio.sleep(PROBE_EVERY)
        else:
            return
