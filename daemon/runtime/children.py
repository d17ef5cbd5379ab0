"""What child processes of the daemon do first: they end with the daemon, and before it."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal to receive when the parent dies."""

_prctl = getattr(
    ctypes.CDLL(None), "prctl", None
)  # looked up here, as a forked child must not load libraries


def end_with(parent: int) -> None:
    """Have the kernel end this process when the daemon dies, as its successor needs the cores."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call of prctl
        os._exit(1)


def end_first() -> None:
    """Have the kernel kill this process before the daemon when memory runs out."""
    with suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, b"1000")
        os.close(score)
