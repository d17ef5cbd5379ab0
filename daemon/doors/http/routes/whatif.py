"""`/v1/whatif`: what would come of a change, asked of a copy."""

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
    """The handler of it."""

    def __init__(
        self, service: Service, foresight: ForecastService | None, eta: EtaService
    ) -> None:
        """Ask these."""
        self._service, self._foresight, self._eta = service, foresight, eta
        self._decoder = msgspec.json.Decoder(WhatIf)
        self._asking: set[str] = set()  # tokens

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "POST", "/v1/whatif", Rule.VIEW, self.ask,
                "What would start earlier and later, were something otherwise. Changes nothing.",
                {200: WhatIfAnswer}, WhatIf, refusals=(404, 409, 413, 422),
            )
        ]  # fmt: skip

    async def ask(self, request: web.Request) -> web.Response:
        """Two forks, and what they do beside the loop; the comparison is O(starts)."""
        asked = decoded(await body_of(request), self._decoder, WhatIf)
        await self._check(request, asked)
        new = [spec for job in asked.submit for spec in specs_of(job, "")]
        who = who_asks(request)
        with self._turn(who):
            found = await what_if(self._service, self._foresight, self._eta, asked, new, who.sees)
        if isinstance(found, Refused):
            raise refusal(found)
        return answer(found)

    @contextmanager
    def _turn(self, who: Principal) -> Iterator[None]:
        """Nobody has both children of two questions. Raises ProblemError where one is asked."""
        if who.name in self._asking:
            raise ProblemError(
                429, "too many requests", f"a question of token {who.name} is being answered",
                "wait for its answer, then ask again",
                headers={"Retry-After": str(ceil(ASIDE_AGAIN))},
            )  # fmt: skip
        self._asking.add(who.name)
        try:
            yield
        finally:
            self._asking.remove(who.name)

    async def _check(self, request: web.Request, asked: WhatIf) -> None:
        """Whether that can be asked, by whoever asks. Raises ProblemError."""
        changes = asked.submit or asked.jobs or asked.pools or asked.drain
        if not changes and asked.lending is None:
            raise ProblemError(
                422, "invalid", "nothing is otherwise",
                "give submit, jobs, pools, drain or lending",
            )  # fmt: skip
        if sum(job.array or 1 for job in asked.submit) > WHATIF_JOBS:
            why = f"more than {WHATIF_JOBS:,} jobs, those of arrays counted"
            raise ProblemError(413, "too many jobs", why, "ask of fewer")
        who = who_asks(request)
        if asked.starts > WHATIF_STARTS and not allows(who, Rule.OPERATE):
            why = f"more than {WHATIF_STARTS} starts are played for operators alone"
            raise ProblemError(403, FORBIDDEN, why, "ask for fewer starts, or ask an operator")
        # Pools that are to have other numbers, and nodes, may be anybody's: these numbers all see,
        # and of what follows from them each sees what becomes of the own jobs.
        for pool in [*(job.pool for job in asked.submit), *(job.pool for job in asked.jobs)]:
            if pool is not None and (wrong := forbids(who, Rule.VIEW, pool)) is not None:
                raise refusal(wrong)
        for job in asked.jobs:
            await self._check_job(request, job.job)

    async def _check_job(self, request: web.Request, job_id: str) -> None:
        """Whether a job is there, and may be seen by whoever asks."""
        sees, book = who_asks(request).sees, self._service.book
        pool = book.pool_of(job_id)
        if pool is None:
            past = await self._service.past_job(job_id)
            if past is not None and sees(past.spec.pool):
                detail = f"job {job_id} is {past.phase.value}"
                raise ProblemError(409, "job has ended", detail, "ask of one that waits or runs")
        if pool is None or not sees(pool):
            raise no_job(job_id)
