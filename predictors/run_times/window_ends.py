"""Running jobs by the windows that they have outlasted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar


class _Started(Protocol):
    """A job that has started."""

    start: float


R = TypeVar("R", bound=_Started)


class WindowEnds(Generic[R]):
    """Tells when each job has reached the end of each window, counted from its start."""

    def __init__(self, windows: Sequence[float]) -> None:
        """Take windows in seconds, ascending."""
        self._windows = windows
        # Jobs by the number of windows that they have outlasted, in order of their starts.
        self._young: list[deque[R]] = [deque() for _ in windows]
        self._next = inf  # no job reaches the end of a window before this time

    def add(self, run: R) -> None:
        """Add a job that starts no earlier than those before. O(1)."""
        self._young[0].append(run)
        self._next = min(self._next, run.start + self._windows[0])

    def advance(self, now: float, reach: Callable[[R, int], bool]) -> None:
        """Call `reach` with each job whose window ended before now, and the number of the window.

        It returns whether the job continues to the next window. O(1) if no window has ended, else
        O(windows + calls).
        """
        if now <= self._next:
            return
        self._next = inf
        for window, length in enumerate(self._windows):
            young = self._young[window]
            while young:
                run = young[0]
                if run.start + length >= now:
                    self._next = min(self._next, run.start + length)
                    break
                young.popleft()
                if reach(run, window) and window + 1 < len(self._young):
                    self._young[window + 1].append(run)
