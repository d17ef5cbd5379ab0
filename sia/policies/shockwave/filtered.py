"""Themis with a filter: the jobs with the worst fairness get GPUs first (Shockwave, §2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from msgspec import Struct

from sia.contract.policy import Needs
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.policies.shockwave.rounds import MOMENT, RoundPolicy, RoundSeconds


class FilterParams(Struct, frozen=True):
    """The options of `filter`."""

    f: tuple[str, ...] = ("0.2",)
    """Fractions of the jobs, each with `*N` for N rounds; the last one applies from then on."""
    round: RoundSeconds = 120.0
    """Seconds."""

    def __post_init__(self) -> None:
        """Check the fractions. Raises ValueError."""
        _fractions(self.f)


class Filter(RoundPolicy):
    """Gives GPUs to the jobs that pass the filter, then to the others."""

    Params = FilterParams
    needs = Needs(run_times=True, preemption=True, resizing=True)
    heeds = frozenset({"min_run_time", "min_width", "mode", "regimes"})

    def attach(self, state: ClusterStateView) -> None:
        """Start with the first fraction."""
        self._rounds: dict[str, int] = {}
        super().attach(state)

    def memory(self) -> Any:
        """Return the number of rounds of each pool, and the latest round."""
        return [self._decided, self._rounds]

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Continue with these rounds."""
        self.attach(state)
        self._decided, self._rounds = memory[0], dict(memory[1])

    def choose(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> Mapping[JobStateView, int]:
        """Give GPUs to a fraction of the jobs, then to the others. O(n · log n + GPUs)."""
        number = self._rounds[pool.name] = self._rounds.get(pool.name, -1) + 1
        fractions = _fractions(self.params.f)
        share = fractions[min(number, len(fractions) - 1)]
        left: dict[JobStateView, float] = {}
        unfair: dict[JobStateView, float] = {}
        for job in jobs:
            seen = self.foresee(job, now, "last")
            left[job] = max(MOMENT, seen.remaining)
            age = now - job.job.submit
            unfair[job] = (age + left[job]) / max(MOMENT, seen.run + left[job])
        ranked = sorted(jobs, key=lambda job: (-unfair[job], job.sequence))
        first = ceil(share * len(ranked))
        dealt: dict[JobStateView, int] = {}
        for some in (ranked[:first], ranked[first:]):
            self._deal(some, left, pool.quota - sum(dealt.values()), dealt)
        return dealt

    def _deal(
        self,
        jobs: Sequence[JobStateView],
        left: Mapping[JobStateView, float],
        gpus: int,
        dealt: dict[JobStateView, int],
    ) -> None:
        """Give gangs all of their GPUs, least remaining first, and elastic jobs GPUs in turn."""
        gangs = [job for job in jobs if not 0 < job.job.min_width < job.job.width]
        for job in sorted(gangs, key=lambda job: (left[job], job.sequence)):
            if job.job.width <= gpus:
                dealt[job] = job.job.width
                gpus -= job.job.width
        elastic = {job: 0 for job in jobs if 0 < job.job.min_width < job.job.width}
        for job in elastic:
            if job.job.min_width <= gpus:
                elastic[job] = job.job.min_width
                gpus -= job.job.min_width
        grows = True
        while gpus and grows:
            grows = False
            for job, has in elastic.items():
                if gpus and 0 < has < self._wants(job, left[job]):
                    elastic[job] += 1
                    gpus -= 1
                    grows = True
        dealt |= {job: has for job, has in elastic.items() if has}

    def _wants(self, job: JobStateView, left: float) -> int:
        """Return the GPUs that an elastic job can use in a round."""
        need = ceil(
            Fraction(left * job.job.width) / Fraction(self.params.round) - Fraction(1, 10**9)
        )
        return min(job.job.width, max(job.job.min_width, need))


def _fractions(parts: Sequence[str]) -> list[Fraction]:
    """Return the fraction of each round. Raises ValueError in one line."""
    found: list[Fraction] = []
    for part in parts:
        text, times, count = part.partition("*")
        try:
            fraction = Fraction(text)
            rounds = int(count) if times else 1
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"f: {part!r} is not a fraction; write one like 0.2 or 2/3*3"
            ) from None
        if not (0 < fraction <= 1 and 1 <= rounds <= 1000):
            raise ValueError(
                f"f: {part!r} is out of bounds; write a fraction above 0 and at most 1, for 1 to "
                "1000 rounds"
            )
        found += [fraction] * rounds
    return found
