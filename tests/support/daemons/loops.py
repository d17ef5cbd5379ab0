"""An event loop that says how long it was held: the CPU time of its longest callback."""

import asyncio
import gc
import time
from contextlib import contextmanager


class Held:
    """The longest callbacks so far.

    Attributes:
        longest: Seconds of this thread's CPU time, whatever else the machine does.
        what: The callback that took them.
    """

    def __init__(self):
        self.longest, self.what = 0.0, ""

    def forget(self):
        self.longest, self.what = 0.0, ""


@contextmanager
def watched_loop(monkeypatch):
    """Measure each callback of all loops of this thread, garbage collection left out.

    The daemon's command sets up the collector for itself; in a test it looks through all of pytest.
    """
    held, run = Held(), asyncio.events.Handle._run

    def timed(handle):
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > held.longest:
            held.longest, held.what = took, repr(handle)

    gc.collect()
    gc.disable()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        try:
            yield held
        finally:
            gc.enable()
