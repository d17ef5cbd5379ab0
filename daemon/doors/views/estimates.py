"""Convert estimates to wire structs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from daemon.answers.estimates.calibration import Given, StatedMoment
from daemon.answers.estimates.estimator import AT_ONCE, EtaService
from daemon.answers.estimates.predict import little_known
from daemon.wire.estimates import EstimateView, Moment
from daemon.wire.jobs import BatchLine


def estimate_view(given: Given) -> EstimateView:
    """Convert an estimate."""
    start = None if given.start is None else _moment(given.start)
    by = "playout" if given.by == "playout" else "queue"
    little = little_known(given.pool, given.in_pool, stated=given.stated)
    return EstimateView(
        given.made,
        by,  # type: ignore[arg-type]
        _moment(given.end),
        given.similar,
        given.in_pool,
        little,
        start,
        given.stated,
    )


async def add_estimates(eta: EtaService, lines: Sequence[BatchLine]) -> None:
    """Set the estimate of each new job, where `EtaService.at_submission` has one. O(lines)."""
    for i, line in enumerate(lines, 1):
        given = eta.at_submission(line.id) if line.status == 201 else None
        if given is not None:
            line.estimate = estimate_view(given)
        if not i % AT_ONCE:
            await asyncio.sleep(0)


def _moment(stated: StatedMoment) -> Moment:
    return Moment(stated.p50, stated.p90, stated.mean)
