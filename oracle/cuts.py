"""Rows that whole jobs keep and parts of jobs do not.

The LP has a job of eight GPUs start in eighths, as if each were a job of its own. But where 31 GPUs
are left for such jobs, three run, not 3.9. So for each slot, divide its row of capacity by a width,
count some of the narrower jobs as running, and round (mixed-integer rounding): with 32 GPUs, of the
jobs of eight and any narrower one no more than four run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, inf
from typing import NamedTuple

import numpy as np

from oracle.forms import CONSTANT, Floats, Model
from oracle.milp import Row
from oracle.problem import Counts

VIOLATED = 1e-3
"""By how much a row must be broken to be worth having: below, the LP hardly moves."""

MOST = 400
"""Rows added at once, those broken most: with more, later ones are mostly repetitions."""

NOTHING = 1e-7
"""Parts of jobs that do not count as running."""

TORN = 1e-6
"""What is between this and 1 less this runs in part."""


Span = tuple[int, int, int]
"""A job's place, and that it runs if its cell is one of low … high - 1."""


class Cut(NamedTuple):
    """A row, and the slot whose capacity it comes of."""

    slot: int
    row: Row


class _Broken(NamedTuple):
    """A row that may be added: of a slot, a divisor and so many narrower jobs as running.

    `order` are the places in `spans` of the jobs that run, those of which most runs first.
    """

    by: float
    slot: int
    divisor: int
    spans: list[Span]
    order: Counts
    counted: int


class Cuts:
    """Finds broken rows of one model."""

    def __init__(self, model: Model) -> None:
        """O(entries of the model)."""
        self._model = model
        widths = sorted({t.width for t in model.problem.tasks if t.width > 1}, reverse=True)
        spans, capacity = _spans(model), model.problem.capacity()
        self._capacity = {slot: int(capacity[slot]) for slot in spans}
        alike: dict[int, list[int]] = {}
        for slot in sorted(spans):
            alike.setdefault(len(spans[slot]).bit_length(), []).append(slot)
        self._blocks = [
            _Block(model, widths, {slot: spans[slot] for slot in slots})
            for _, slots in sorted(alike.items())
        ]

    def broken(self, values: Sequence[float]) -> list[Cut]:
        """The rows that these values of the LP break most."""
        begun = np.append(self._model.begun(values), 0.0)
        found = [one for block in self._blocks for one in block.broken(begun)]
        found.sort(key=lambda one: (-one.by, one.slot, -one.divisor))
        cuts = [self._cut(one) for one in found[:MOST]]
        return [cut for cut in cuts if cut.row.variables]

    def _cut(self, broken: _Broken) -> Cut:
        slot, u = broken.slot, broken.divisor
        jobs = [broken.spans[k] for k in broken.order]
        narrow = [job for job in jobs if self._width(job) < u]
        running = narrow[: broken.counted]
        left = self._capacity[slot] - sum(map(self._width, running))
        over, high = left % u / u, float(left // u)
        row: dict[int, float] = {}
        for job in [job for job in jobs if self._width(job) >= u] + narrow[broken.counted :]:
            self._add(row, job, _weight(self._width(job) / u, over))
        for job in running:
            weight = -_weight(-self._width(job) / u, over)
            self._add(row, job, weight)
            high += weight
        high -= row.pop(CONSTANT, 0.0)
        kept = {variable: c for variable, c in row.items() if abs(c) > 1e-12}
        return Cut(slot, Row([*kept], [*kept.values()], -inf, high))

    def _width(self, job: Span) -> int:
        return self._model.problem.tasks[job[0]].width

    def _add(self, row: dict[int, float], job: Span, weight: float) -> None:
        if weight:
            for variable, coefficient in self._model.terms(*job).items():
                row[variable] = row.get(variable, 0.0) + weight * coefficient


class _Block:
    """Slots with about as many jobs: as rows of one table no more than twice what they hold."""

    def __init__(
        self, model: Model, widths: Sequence[int], spans: Mapping[int, list[Span]]
    ) -> None:
        self._widths, self._slots, self._spans = widths, [*spans], [*spans.values()]
        self._capacity = model.problem.capacity()[self._slots]
        shape = len(spans), max(map(len, self._spans))
        at = np.cumsum([0, *(len(cells) for cells in model.cells)])
        # where a slot has fewer jobs, the rest have no width and never run: the index -1 is of 0
        self._width = np.zeros(shape, dtype=np.int64)
        self._from, self._to = np.full(shape, -1), np.full(shape, -1)
        for i, jobs in enumerate(self._spans):
            for k, (place, low, high) in enumerate(jobs):
                self._width[i, k] = model.problem.tasks[place].width
                self._to[i, k] = at[place] + high - 1
                self._from[i, k] = at[place] + low - 1 if low else -1

    def broken(self, begun: Floats) -> Iterator[_Broken]:
        """Its broken rows; `begun` is how much of each job has started by each cell, then 0."""
        parts = begun[self._to] - begun[self._from]
        torn = (parts > TORN) & (parts < 1.0 - TORN) & (self._width > 1)
        rows = np.flatnonzero(torn.any(axis=1))
        if not len(rows):
            return
        parts, torn, width = parts[rows], torn[rows], self._width[rows]
        order = np.lexsort((-width, -parts), axis=1)
        order = order[:, : int((parts > NOTHING).sum(axis=1).max())]
        parts, width, torn = (np.take_along_axis(of, order, 1) for of in (parts, width, torn))
        parts[parts <= NOTHING] = 0.0
        for u in self._widths:
            own = np.flatnonzero((torn & (width >= u)).any(axis=1))
            if not len(own):
                continue
            by, counted = _most(self._capacity[rows[own]], u, width[own], parts[own])
            for i in np.flatnonzero(by > VIOLATED):
                row = own[i]
                slot, spans = self._slots[rows[row]], self._spans[rows[row]]
                runs = order[row][parts[row] > 0.0]
                yield _Broken(float(by[i]), slot, u, spans, runs, int(counted[i]))


def _spans(model: Model) -> dict[int, list[Span]]:
    """Of each slot where capacity may bind: the places of the jobs that may run, in which cells."""
    contended = model.problem.contended()
    found: dict[int, list[Span]] = {}
    for place, task in enumerate(model.problem.tasks):
        for slot, low, high in model.spans(place, task):
            if contended[slot]:
                found.setdefault(slot, []).append((place, low, high))
    return found


def _most(capacity: Counts, u: int, width: Counts, parts: Floats) -> tuple[Floats, Counts]:
    """By how much each slot's most broken row is, and how many narrower jobs it has as running.

    A row of `width` and `parts` is a slot: its jobs, those of which most runs first.
    """
    narrow = (width < u) & (parts > 0.0)
    shape = len(width), width.shape[1] + 1
    left = np.tile(capacity[:, None], shape[1])
    left[:, 1:] -= np.cumsum(width * narrow, axis=1)
    over = left % u / u
    by = -(left // u).astype(np.float64)
    for of in np.unique(width[parts > 0.0]):
        own = parts * (width == of)
        if of >= u:
            by += _weights(of / u, over) * own.sum(axis=1)[:, None]
            continue
        sums, counts = np.zeros(shape), np.zeros(shape)
        sums[:, 1:] = np.cumsum(own, axis=1)
        counts[:, 1:] = np.cumsum(own > 0.0, axis=1)
        by += _weights(of / u, over) * (sums[:, -1:] - sums)
        by -= _weights(-of / u, over) * (sums - counts)
    by[over == 0.0] = -inf
    best = by.argmax(axis=1)
    pairs = np.arange(len(by)), best
    return by[pairs], np.cumsum(narrow, axis=1)[pairs[0], best - 1] * (best > 0)


def _weights(part: float, over: Floats) -> Floats:
    """`_weight` of many."""
    return floor(part) + np.maximum(0.0, (part - floor(part) - over) / (1.0 - over))


def _weight(part: float, over: float) -> float:
    """How much a job counts in a rounded row, that takes `part` of the divisor."""
    return floor(part) + max(0.0, (part - floor(part) - over) / (1.0 - over))
