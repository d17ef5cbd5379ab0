"""Load as a quantile of what all pools of a sharing group need together.

Without cells any idle GPU will do, so a lender does not have to keep GPUs of its own: it is enough
that the reservations of all pools of its group together suffice. `peaks` reserves for each pool a
quantile of its own peaks. That all pools need so much in the same window is mostly much rarer than
the quantile says, and sometimes, if pools are busy together, more frequent.

At each tick this forecast asks how many of the GPUs that the pools' quotas have left now would have
been needed in each window of the past: for each pool the peak of the window, but no more than what
the jobs that are there now leave of its quota; then the sum over the pools. The group's need is a
quantile of these sums. Each pool gets a quantile of its own peaks, at the lowest common level at
which the pools' shares add up to the need or more. If the quotas of all pools but one are in use,
that one gets what `peaks` would state.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import Self

import numpy as np
from numpy.typing import NDArray

from predictors.loads.peaks import PeakLoads
from sia.forecasts import PredictorContext
from sia.model import Job

QUANTILE = 0.99
"""The share of windows in which a group should not need more than the forecast. It is higher than
that of `peaks`, which reserves more for the same quantile (docs/results/forecasts.md)."""

Rows = NDArray[np.intp]


class JointLoads(PeakLoads):
    """A quantile of the sum over the pools of a group, shared among them; see the module.

    Pools that have too few windows of their own get the forecast of `peaks`, in addition to the
    others' need. A query costs O(pools · n log n) for the n windows that are remembered.
    """

    stated_by_pool = False
    usual_quantile = QUANTILE
    summary = "the most GPUs that new jobs of all pools together needed in recent windows"

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        made = super().build(context)
        made.group(context.groups)
        return made

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        quantile: float = QUANTILE,
        since: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        """Start to observe at `start`; all pools are in one group. Arguments are as of `peaks`."""
        super().__init__(pools, windows, start, quantile, since, quotas)
        self._quantile = quantile
        self._alone = self._last  # what `peaks` states
        self._present = np.zeros(len(pools), np.int64)  # GPUs of pending and running jobs
        self._there: set[str] = set()  # these jobs
        self._groups: list[Rows] = []
        self.group({})

    def group(self, groups: Mapping[str, Hashable]) -> None:
        """Set the sharing group of each pool; pools without one are in one group."""
        rows: dict[Hashable, list[int]] = {}
        for row, pool in enumerate(self._pools):
            rows.setdefault(groups.get(pool), []).append(row)
        self._groups = [np.array(each, np.intp) for each in rows.values()]

    def submitted(self, now: float, job: Job) -> None:
        """Add a job."""
        super().submitted(now, job)
        if job.id not in self._there:
            self._there.add(job.id)
            self._present[self._rows[job.pool]] += job.width

    def finished(self, now: float, job: Job) -> None:
        """Remove a job."""
        super().finished(now, job)
        if job.id in self._there:
            self._there.remove(job.id)
            self._present[self._rows[job.pool]] -= job.width

    def _foresee(self, rows: Rows, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the loads of all pools."""
        self._alone = super()._foresee(rows, self._alone)
        loads = self._alone.copy()
        unused = np.maximum(0, self._quotas - self._present).astype(np.int32)
        for window, past in enumerate(self._past):
            for group in self._groups:
                earned = group[past.earned(group)]
                if len(earned):
                    loads[earned, window] = self._share(past.common(earned), unused[earned])
        return loads

    def _share(self, peaks: NDArray[np.int32], unused: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the GPUs of each pool, from its peaks in past windows (pools, windows)."""
        most = unused[:, None]
        needs = np.minimum(peaks, most).sum(axis=0)
        place = min(ceil((len(needs) + 1) * self._quantile), len(needs)) - 1
        need = np.partition(needs, place)[place]
        ranked = np.sort(peaks, axis=1)
        by_level = np.minimum(ranked, most).sum(axis=0)  # ascending
        share: NDArray[np.int32] = ranked[:, np.searchsorted(by_level, need)]
        return share
