"""Work that goes on whatever becomes of it: a defect ends it neither in silence nor for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from daemon.doors.mqtt.reconnecting import Say
from daemon.model.limits import PROBE_EVERY
from daemon.runtime.logs import log


async def again(work: Callable[[], Awaitable[None]], say: Say) -> None:
    """Do it to its end, and after a defect anew; `say` hears of each."""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            log().exception("mqtt failed")
            say(f"a defect of the daemon: {error!r}", "report it; it is tried again")
            await asyncio.sleep(PROBE_EVERY)
        else:
            return
