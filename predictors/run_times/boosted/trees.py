"""Boosted trees for the probability that a job runs longer than a window, given that it reached it.

One set of trees serves all windows: each job is one example for each window whose begin it reached,
once the window has passed since its start. An early end counts no earlier, because otherwise the
first failing jobs of a batch would bias the trees. New trees are trained while jobs start, one
round of boosting at a time, so that no event takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sia.forecasts import Aside

if TYPE_CHECKING:
    from xgboost import Booster, QuantileDMatrix

MOST_JOBS = 20_000
"""Largest number of stored jobs; with a hundred numbers each they take 8 MB."""

MOST_EXAMPLES = 30_000
"""Largest number of examples of one training, from the newest jobs. A round takes about 10 ms."""

FIRST = 500
"""Number of started jobs before the first training. With fewer, life tables are as good."""

GROWN = 0.2
"""The next training begins when the number of jobs has grown by this fraction since the last one,
or
by `EVERY` jobs."""

EVERY = 2_000
"""Largest number of jobs between two trainings: two days of Philly. Half as many is no better."""

ROUNDS = 80

TREES: dict[str, Any] = {
    "objective": "binary:logistic",
    "base_score": 0.5,
    "tree_method": "hist",
    "nthread": 1,
    "seed": 0,
    "max_depth": 5,
    "eta": 0.1,
    "min_child_weight": 10,
    "subsample": 0.5,
    "colsample_bynode": 0.3,
    "reg_lambda": 5,
}

Rows = NDArray[np.float32]


def at_once(work: Callable[[], None]) -> None:
    """Do work now."""
    work()


class Trees:
    """Started jobs, and the trees that have learned from them."""

    def __init__(self, windows: Sequence[float], numbers: int) -> None:
        """Take windows in seconds, ascending, and the number of features of a job."""
        self._windows = np.array(windows)
        self._rows: Rows = np.zeros((FIRST, numbers), np.float32)
        self._starts = np.zeros(FIRST)
        self._lasted = np.zeros(FIRST)  # seconds that the job ran; inf while it runs
        self._seen = np.zeros(FIRST)  # seconds for which the job was observed
        self._count = 0  # jobs so far; job i is in row i % MOST_JOBS
        self._next = FIRST
        self._learned = -np.inf  # when the latest round was made
        self._trees: Booster | None = None
        self._training: tuple[Booster, QuantileDMatrix, int] | None = None  # with its rounds
        self._begins = False  # the examples of the next training are being sorted
        self._failure: Exception | None = None  # why sorting failed
        self.aside: Aside = at_once

    @property
    def ready(self) -> bool:
        """Whether there are trees."""
        return self._trees is not None

    def add(self, start: float, row: Sequence[float]) -> int:
        """Add a job that starts, and return its number. O(1) amortised."""
        number, at = self._count, self._count % MOST_JOBS
        if at == len(self._starts):
            more = min(2 * at, MOST_JOBS)
            self._rows = np.resize(self._rows, (more, self._rows.shape[1]))
            self._starts, self._lasted, self._seen = (
                np.resize(each, more) for each in (self._starts, self._lasted, self._seen)
            )
        self._rows[at], self._starts[at] = row, start
        self._lasted[at] = self._seen[at] = np.inf
        self._count += 1
        return number

    def ended(self, number: int, run_time: float, *, seen: float = np.inf) -> None:
        """Record the run time of a job. A withdrawn job was observed for `seen` seconds."""
        if number >= self._count - MOST_JOBS:
            self._lasted[number % MOST_JOBS] = run_time
            self._seen[number % MOST_JOBS] = seen

    def learn(self, now: float) -> None:
        """Do one round of a due training; at most one for each value of `now`.

        Raises the exception of the last sorting of examples, if it failed.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if now == self._learned:
            return
        self._learned = now
        if self._begins:
            return
        if self._training is None:
            if self._count < self._next:
                return
            self._next = self._count + min(EVERY, int(GROWN * self._count))
            self._begin(now)
            return
        trees, examples, rounds = self._training
        trees.update(examples, rounds)
        self._training = (trees, examples, rounds + 1) if rounds + 1 < ROUNDS else None
        if self._training is None:
            self._trees = trees

    def _begin(self, now: float) -> None:
        """Begin a training: copy its examples (20 ms), and sort them by `aside` (0.3 s)."""
        rows, windows, labels = self._examples(now)
        if not 0 < labels.sum() < len(labels):
            return  # all outcomes are equal
        inputs = _inputs(self._rows[rows], windows)

        def order() -> None:
            try:
                from xgboost import Booster, QuantileDMatrix  # noqa: PLC0415  an extra, slow to load

                examples = QuantileDMatrix(inputs, labels, nthread=1)
                self._training = Booster(TREES, [examples]), examples, 0
            except Exception as error:  # noqa: BLE001  an exception in another thread would be lost
                self._failure = error
            finally:
                self._begins = False

        self._begins = True
        self.aside(order)

    def _examples(self, now: float) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return, for each example, the job's row, the window, and whether the job ran longer.

        The examples are those of the newest jobs, sorted by window, then by job.
        """
        kept = min(self._count, MOST_JOBS)
        order = (np.arange(self._count - kept, self._count) % MOST_JOBS)[::-1]  # newest first
        lasted, ends = self._lasted[order, None], self._windows
        known = (self._starts[order, None] + ends <= now) & (ends <= self._seen[order, None])
        known[:, 1:] &= lasted > ends[:-1]
        within = np.cumsum(known.sum(axis=1)) <= MOST_EXAMPLES
        windows, jobs = np.nonzero((known & within[:, None]).T)
        return order[jobs], windows, (lasted > ends)[jobs, windows]

    def hazards(self, rows: Rows) -> NDArray[np.float32]:
        """Return the probability to run longer than each window, given that it was reached.

        Takes (jobs, features), returns (jobs, windows). There must be trees.
        """
        assert self._trees is not None, "ask only when ready"
        jobs, windows = len(rows), len(self._windows)
        inputs = _inputs(np.repeat(rows, windows, axis=0), np.tile(np.arange(windows), jobs))
        chances: NDArray[np.float32] = self._trees.inplace_predict(inputs)
        return chances.reshape(jobs, windows)


def _inputs(rows: Rows, windows: NDArray[Any]) -> Rows:
    return np.concatenate([rows, windows[:, None].astype(np.float32)], axis=1)
