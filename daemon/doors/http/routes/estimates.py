"""`/v1/jobs/{id}/eta` and `/v1/estimates`: estimated starts and ends, and their accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import ceil, exp
from typing import TYPE_CHECKING

from aiohttp import web

from daemon.answers.estimates.calibration import HORIZONS, SHARES, AccuracyTally, TallyKey
from daemon.answers.estimates.estimator import EtaService
from daemon.answers.explain.explain import turn_of
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.doors.views.estimates import estimate_view
from daemon.model.access import Rule
from daemon.model.errors import JournalError
from daemon.wire.estimates import EstimateAccuracy, EstimateRow
from daemon.wire.estimates import Eta as EtaView
from daemon.wire.jobs import Label
from daemon.wire.problems import ProblemError, no_job, no_pool

if TYPE_CHECKING:
    from daemon.service.service import Service

JOB = Parameter("id", str, "Id of the job.", "path")
POOL = (Parameter("pool", Label, "Only of this pool."),)


class EtaRoutes:
    """Handlers of estimates."""

    def __init__(self, service: Service, eta: EtaService) -> None:
        """Serve the estimates of a service."""
        self._service, self._eta = service, eta

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/jobs/{id}/eta", Rule.VIEW, self.job,
                "Estimated or actual start and end of a job.", {200: EtaView},
                parameters=(JOB,), refusals=(404, 422), of="job",
            ),
            Operation(
                "GET", "/v1/estimates", Rule.VIEW, self.estimates,
                "Accuracy of the estimates by pool and horizon.", {200: EstimateAccuracy},
                parameters=POOL, refusals=(404, 422),
            ),
        ]  # fmt: skip

    async def job(self, request: web.Request) -> web.Response:
        """Return a job's estimate. O(log n + earlier estimates)."""
        service, eta, job_id = self._service, self._eta, request.match_info["id"]
        await service.settled()
        if job_id in service.book.arrays:
            raise ProblemError(
                422, "an array", f"{job_id} is an array", f"use one of its jobs, like {job_id}.0"
            )
        record = service.book.job(job_id) or await service.past_job(job_id)
        if record is None:
            raise no_job(job_id)
        found = EtaView(
            job_id, record.spec.pool, record.phase, service.clock.now(), record.decided,
            record.ended,
        )  # fmt: skip
        if record.ended is None:
            found.turn = turn_of(service.engine.core, record)
            given = eta.estimate(record)
            found.estimate = None if given is None else estimate_view(given)
            found.why = eta.why_unknown(record) if given is None else ""
            if given is not None and given.start is not None and eta.outlook is not None:
                found.played, found.notes = eta.outlook.now, eta.outlook.notes
        else:
            found.why = "the job has ended"
        with suppress(JournalError):
            found.given = [estimate_view(each) for each in await eta.store.of_job(job_id)]
        return answer(found)

    async def estimates(self, request: web.Request) -> web.Response:
        """Return the accuracy of estimates in visible pools. O(pools · horizons)."""
        params, who = query_of(request, POOL), who_asks(request)
        eta, pool = self._eta, params["pool"]
        if pool is not None and pool not in self._service.book.pools:
            raise no_pool(pool, self._service.book.pools)
        known = eta.heard.calibration
        rows = [
            self._row(key, tally, apart=tallies is known.apart)
            for tallies in (known.tallies, known.apart)
            for key, tally in sorted(tallies.items())
            if who.sees(key[1]) and pool in (None, key[1])
        ]
        played = None if eta.outlook is None else eta.outlook.now
        return answer(EstimateAccuracy(eta.ready, played, rows))

    def _row(self, key: TallyKey, tally: AccuracyTally, *, apart: bool) -> EstimateRow:
        what, pool, number = key
        shift = self._eta.heard.calibration.shift
        covered = [
            hits / count if count else None
            for hits, count in zip(tally.covered, tally.judged, strict=True)
        ]
        p50, p90 = (exp(shift(key, share)) for share in SHARES)
        return EstimateRow(
            pool, what, HORIZONS[number] if number < len(HORIZONS) else None, tally.count,
            covered[0], covered[1], _quantile(tally.errors, 0.5), _quantile(tally.widths, 0.5),
            _quantile(tally.pred_errors, 0.5), _quantile(tally.pred_errors, 0.9), p50, p90,
            tally.judged[0], tally.judged[1], apart,
        )  # fmt: skip


def _quantile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[ceil(len(ordered) * share) - 1] if ordered else None
