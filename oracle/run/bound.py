"""A bound on the waiting by the program's LP alone, while somebody watches."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import perf_counter

from oracle.bounds.lp import LpBound
from oracle.run.run import Instance, lp_bound

LOOK = 0.2
"""Seconds between two looks at how far it is."""


class Bounding:
    """The LPs of an instance while they are solved, in a thread: Ctrl-C would not reach them."""

    def __init__(self, instance: Instance, form: str, until: float) -> None:
        """Prove what can be proven until the clock reads `until` (seconds)."""
        self.bound = 0.0
        self.proven = LpBound(0.0, finished=False)
        """What the LPs came to, at their end."""
        self._instance, self._form, self._until = instance, form, until
        self._stop, self._ended = Event(), Event()
        self._died: Exception | None = None

    def run(self, tell: Callable[[float, float], object]) -> str:
        """Do so; what stopped it: `bound only` where nothing did, `time`, `memory`, `interrupted`.

        `tell` is told the bound so far (seconds) and the seconds left. Raises SolverError where the
        solver died, NoScheduleError where there is no schedule.
        """
        thread = Thread(target=self._prove, daemon=True)
        thread.start()
        try:
            ended = False
            while not ended:  # a join that Ctrl-C ends takes the thread for ended as well
                ended = self._ended.wait(LOOK)
                tell(self.bound, max(0.0, self._until - perf_counter()))
        except KeyboardInterrupt:
            self._stop.set()
        self._ended.wait()
        thread.join()
        if isinstance(self._died, MemoryError):
            return "memory"
        if self._died is not None:
            raise self._died
        if self._stop.is_set():
            return "interrupted"
        return "bound only" if self.proven.finished else "time"

    def _prove(self) -> None:
        try:
            self.proven = lp_bound(
                self._instance, self._form, self._until, self._rose, self._stop.is_set
            )
        except Exception as error:  # noqa: BLE001  it is raised again where it can be heard
            self._died = error
        finally:
            self._ended.set()

    def _rose(self, bound: float) -> None:
        self.bound = bound
