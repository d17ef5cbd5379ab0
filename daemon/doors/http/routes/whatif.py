"""`/v1/whatif`: simulate hypothetical changes on a copy of the state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import msgspec
from aiohttp import web

from daemon.answers.estimates.estimator import EtaService
from daemon.answers.simulate.fork import ASIDE_AGAIN
from daemon.answers.whatif.questions import what_if
from daemon.doors.http.authorization import FORBIDDEN, forbids, who_asks
from daemon.doors.http.operations import Operation, answer, body_of
from daemon.doors.views.submission import specs_of
from daemon.forecasts.forecaster import ForecastService
from daemon.model.access import Principal, Rule, allows
from daemon.model.outputs import Refused
from daemon.service.service import Service
from daemon.wire.bodies import decoded
from daemon.wire.problems import ProblemError, no_job, refusal
from daemon.wire.whatif import WHATIF_JOBS, WHATIF_STARTS, WhatIf, WhatIfAnswer


class WhatIfRoutes:
    """Handler of what-if requests."""

    def __init__(
        self, service: Service, foresight: ForecastService | None, eta: EtaService
    ) -> None:
        """Simulate with the state, forecasts and estimates of a service."""
        self._service, self._foresight, self._eta = service, foresight, eta
        self._decoder = msgspec.json.Decoder(WhatIf)
        self._asking: set[str] = set()  # names of tokens with a request in progress

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "POST", "/v1/whatif", Rule.VIEW, self.ask,
                "Which jobs would start or end earlier or later after a change. Changes nothing.",
                {200: WhatIfAnswer}, WhatIf, refusals=(404, 409, 413, 422),
            )
        ]  # fmt: skip

    async def ask(self, request: web.Request) -> web.Response:
        """Simulate in two forked processes. The comparison is O(starts) on the event loop."""
        payload = decoded(await body_of(request), self._decoder, WhatIf)
        await self._check(request, payload)
        new = [spec for job in payload.submit for spec in specs_of(job, "")]
        who = who_asks(request)
        with self._turn(who):
            found = await what_if(self._service, self._foresight, self._eta, payload, new, who.sees)
        if isinstance(found, Refused):
            raise refusal(found)
        return answer(found)

    @contextmanager
    def _turn(self, who: Principal) -> Iterator[None]:
        """Allow one what-if request of a token at a time. Raises ProblemError."""
        if who.name in self._asking:
            raise ProblemError(
                429, "too many requests", f"a what-if request of token {who.name} is in progress",
                "wait for its answer, then try again",
                headers={"Retry-After": str(ceil(ASIDE_AGAIN))},
            )  # fmt: skip
        self._asking.add(who.name)
        try:
            yield
        finally:
            self._asking.remove(who.name)

    async def _check(self, request: web.Request, payload: WhatIf) -> None:
        """Check that a request is valid and permitted. Raises ProblemError."""
        changes = payload.submit or payload.jobs or payload.pools or payload.drain
        if not changes and payload.lending is None and not payload.policy:
            raise ProblemError(
                422, "invalid", "no change given",
                "add submit, jobs, pools, drain, lending or policy",
            )  # fmt: skip
        if sum(job.array or 1 for job in payload.submit) > WHATIF_JOBS:
            why = f"more than {WHATIF_JOBS:,} jobs, including the jobs of arrays"
            raise ProblemError(413, "too many jobs", why, "submit fewer jobs")
        who = who_asks(request)
        if payload.starts > WHATIF_STARTS and not allows(who, Rule.OPERATE):
            why = f"more than {WHATIF_STARTS} starts require an operator token"
            raise ProblemError(403, FORBIDDEN, why, "use fewer starts, or ask an operator")
        # Any caller may vary pool limits and nodes, because all callers may see these numbers. The
        # result shows each caller only the jobs that this caller may see.
        for pool in [*(job.pool for job in payload.submit), *(job.pool for job in payload.jobs)]:
            if pool is not None and (wrong := forbids(who, Rule.VIEW, pool)) is not None:
                raise refusal(wrong)
        for job in payload.jobs:
            await self._check_job(request, job.job)

    async def _check_job(self, request: web.Request, job_id: str) -> None:
        """Check that a job exists, has not ended and is visible. Raises ProblemError."""
        sees, book = who_asks(request).sees, self._service.book
        pool = book.pool_of(job_id)
        if pool is None:
            past = await self._service.past_job(job_id)
            if past is not None and sees(past.spec.pool):
                detail = f"job {job_id} is {past.phase.value}"
                raise ProblemError(409, "job has ended", detail, "use a pending or running job")
        if pool is None or not sees(pool):
            raise no_job(job_id)
