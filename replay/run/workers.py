"""Worker processes for independent tasks, which end with the command that started them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def worker_processes(count: int, begin: Callable[..., None], *args: Any) -> Iterator[Executor]:
    """Yield an executor with `count` processes; each calls `begin` with `args` first.

    Submit tasks within `signals_held`. When the block ends, processes that still work are killed.
    """
    executor = ProcessPoolExecutor(count, get_context("spawn"), _begin, (begin, args))
    try:
        yield executor
        executor.shutdown()
    finally:
        for process in active_children():
            process.kill()
        executor.shutdown(cancel_futures=True)


@contextmanager
def signals_held() -> Iterator[None]:
    """Block signals: new processes inherit the mask, so only this process handles signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(begin: Callable[..., None], args: tuple[Any, ...]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    Thread(target=_end_with_parent, daemon=True).start()
    begin(*args)


def _end_with_parent() -> None:
    """Exit when the parent process ends, so that no orphan writes into the folder."""
    parent = parent_process()
    assert parent is not None, "a worker has a parent process"
    wait([parent.sentinel])
    os._exit(1)
