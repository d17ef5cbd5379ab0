"""Compute a lower bound on the waiting with LPs only, with progress reports."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import perf_counter

from oracle.bounds.lp import LpBound
from oracle.run.run import Instance, lp_bound

POLL = 0.2
"""Seconds between two progress reports."""


class Bounding:
    """Solves the LPs of an instance in a thread, because Ctrl-C does not interrupt the solver."""

    def __init__(self, instance: Instance, form: str, until: float) -> None:
        """Prepare a computation that ends when the clock reads `until` (seconds)."""
        self.bound = 0.0
        self.proven = LpBound(0.0, finished=False)
        """The result of the LPs, at their end."""
        self._instance, self._form, self._until = instance, form, until
        self._stop, self._ended = Event(), Event()
        self._error: Exception | None = None

    def run(self, progress: Callable[[float, float], object]) -> str:
        """Compute the bound and return the status.

        The status is `bound only` if the LPs were solved, else `time`, `memory` or `interrupted`.
        `progress` is called with the bound so far and the time left, in seconds. Raises SolverError
        if the solver crashed, NoScheduleError if there is no schedule.
        """
        thread = Thread(target=self._prove, daemon=True)
        thread.start()
        try:
            ended = False
            while not ended:  # an interrupted join would mark the thread as ended
                ended = self._ended.wait(POLL)
                progress(self.bound, max(0.0, self._until - perf_counter()))
        except KeyboardInterrupt:
            self._stop.set()
        self._ended.wait()
        thread.join()
        if isinstance(self._error, MemoryError):
            return "memory"
        if self._error is not None:
            raise self._error
        if self._stop.is_set():
            return "interrupted"
        return "bound only" if self.proven.finished else "time"

    def _prove(self) -> None:
        try:
            self.proven = lp_bound(
                self._instance, self._form, self._until, self._raise_bound, self._stop.is_set
            )
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._error = error
        finally:
            self._ended.set()

    def _raise_bound(self, bound: float) -> None:
        self.bound = bound
