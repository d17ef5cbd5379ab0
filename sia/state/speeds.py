"""Speeds of jobs by the number of nodes on which they run (Chronus, §3.4.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SpeedRow(NamedTuple):
    """The speed of a model by number of GPUs and nodes; on the fewest nodes it is 1."""

    model: str
    gpus: int
    nodes: int
    speed: float


class Speeds:
    """Measured speeds by model, width and nodes.

    A width without rows uses the rows of the next larger width, or else of the largest. Between two
    numbers of nodes the speed is linear; beyond the largest number it is constant. A model without
    rows always runs at speed 1.
    """

    def __init__(self, rows: Iterable[SpeedRow] = ()) -> None:
        """Keep and index the `rows`; at most one for each model, width and number of nodes."""
        self.rows = tuple(rows)
        self._points: dict[str, dict[int, dict[int, float]]] = {}
        for model, gpus, nodes, speed in self.rows:
            self._points.setdefault(model, {}).setdefault(gpus, {})[nodes] = speed

    def speed(self, model: str, width: int, nodes: int, fewest: int) -> float:
        """Return the speed on `nodes` nodes of a job that fits on `fewest`. O(rows of the model).

        On the fewest nodes it is 1, whatever a row says.
        """
        by_width = self._points.get(model)
        if not by_width or nodes <= fewest:
            return 1.0
        wider = [gpus for gpus in by_width if gpus >= width]
        points = by_width[min(wider) if wider else max(by_width)]
        before, known = fewest, 1.0
        for there, speed in sorted(points.items()):
            if there <= fewest:
                continue
            if nodes <= there:
                part = (nodes - before) / (there - before)
                return known + part * (speed - known)
            before, known = there, speed
        return known
