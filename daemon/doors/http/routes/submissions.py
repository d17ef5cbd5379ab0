"""Submit one job or a batch: check permission and admission, then ask the engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from msgspec.structs import replace

from daemon.answers.estimates.estimator import EtaService
from daemon.doors.http.authorization import DENIED, Denial, forbids, who_asks
from daemon.doors.http.operations import JSON, answer, body_of
from daemon.doors.views.estimates import add_estimates, estimate_view
from daemon.doors.views.notes import notes_of, planned_for
from daemon.doors.views.resources import promise_of
from daemon.doors.views.submission import (
    array_name,
    line_of,
    nothing_to_run,
    specs_of,
    together,
)
from daemon.model.access import Principal, Rule, allows
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import Answer, Refused
from daemon.service.admission import Admission, JobCount
from daemon.service.inbox import NOT_NOW, not_now
from daemon.wire.bodies import decoded, in_turns, is_batch, read_batch
from daemon.wire.jobs import Batch, BatchAnswer, BatchLine, JobRequest, Submitted
from daemon.wire.limits import MAX_KEY, STRL_OF_A_JOB, SUBMITTED_AT_ONCE
from daemon.wire.problems import ProblemError, refusal

if TYPE_CHECKING:
    from daemon.service.service import Service

_encode = msgspec.json.Encoder().encode

SubmissionGroup = list[JobSpec]
"""A job, or all jobs of an array."""


class Submissions:
    """Handler of submissions."""

    def __init__(self, service: Service, admission: Admission, eta: EtaService) -> None:
        """Submit to a service what the admission allows."""
        self._service, self._admission, self._eta = service, admission, eta
        self._job = msgspec.json.Decoder(JobRequest)

    async def submit(self, request: web.Request) -> web.Response:
        """Submit one job, or a batch: a body whose first key is `jobs`."""
        body = await body_of(request)
        key = _key(request)
        if is_batch(body):
            jobs = await in_turns(read_batch(body, self._job, JobRequest, Batch))
            return await self._submit_batch(request, jobs, key)
        group = _specs(decoded(body, self._job, JobRequest), key)
        (found,) = await self._found(request, [group])
        name = array_name(group[0])
        if isinstance(found, Refused):
            if found.status in NOT_NOW and group[0].array is not None:  # some may be accepted
                found = replace(found, mend=f"{found.mend}: {name}")
            raise refusal(found)
        body = b'{"id":"%b"}' % name.encode()  # an id needs no escapes
        given = self._eta.at_submission(name) if found.new else None
        alone = len(group) == 1  # the planned start of one job does not apply to the whole array
        planned = planned_for(self._service, group[0]) if alone else None
        notes = notes_of(self._service, group[0], planned)
        promise = promise_of(self._service, group)
        if given is not None or notes or promise is not None or planned is not None:
            estimate = None if given is None else estimate_view(given)
            body = _encode(Submitted(name, estimate, notes, promise, planned))
        return web.Response(
            body=body,
            status=201 if found.new else 200,
            content_type=JSON,
            headers={"Location": f"/v1/jobs/{name}"} if found.new else None,
        )

    async def _submit_batch(
        self, request: web.Request, jobs: Sequence[JobRequest], key: str
    ) -> web.Response:
        lines: list[BatchLine] = []
        some: list[SubmissionGroup] = []
        waiting = 0
        for i, job in enumerate(jobs, 1):
            some.append(_specs(job, f"{key} {i - 1}" if key else ""))
            waiting += len(some[-1]) + len(job.strl) // STRL_OF_A_JOB
            if waiting >= SUBMITTED_AT_ONCE or i == len(jobs):
                lines += await self._lines(request, some, begun=bool(lines))
                some, waiting = [], 0
        await add_estimates(self._eta, lines)
        statuses = [line.status for line in lines]
        new, known = statuses.count(201), statuses.count(200)
        return answer(BatchAnswer(new, known, len(lines) - new - known, lines))

    async def _lines(
        self, request: web.Request, groups: Sequence[SubmissionGroup], *, begun: bool
    ) -> list[BatchLine]:
        """Return the result lines of some jobs of a batch.

        If an earlier part of the batch was accepted, an unavailable daemon gives these jobs a line
        of their own: an error for the whole batch would make clients resubmit the accepted part.
        """
        try:
            found: list[Answer] = await self._found(request, groups)
        except UnavailableError as error:
            if not begun:
                raise
            found = [not_now(error)] * len(groups)
        except JournalError as error:
            if not begun:
                raise
            found = [not_now(UnavailableError(503, str(error), PROBE_EVERY))] * len(groups)
        return [
            line_of(self._service, group, answers, len(groups))
            for group, answers in zip(groups, found, strict=True)
        ]

    async def _found(self, request: web.Request, groups: Sequence[SubmissionGroup]) -> list[Answer]:
        """Return the answer for each group. Only permitted and admitted ones reach the engine."""
        who = who_asks(request)
        wrong = [self._wrong(who, group[0]) for group in groups]
        denied = [group for group, why in zip(groups, wrong, strict=True) if _is_denied(why)]
        if denied:
            target, jobs = f"{request.path} {array_name(denied[0][0])}", sum(map(len, denied))
            request[DENIED] = Denial(target, 403, f"{jobs} jobs" if jobs > 1 else "")
        asks = [
            JobCount(array_name(group[0]), group[0].pool, len(group))
            for group, why in zip(groups, wrong, strict=True)
            if why is None
        ]
        full = iter(await self._admission.refusals(who.name, asks))
        wrong = [next(full) if why is None else why for why in wrong]
        right = [group for group, why in zip(groups, wrong, strict=True) if why is None]
        commands = [Submit(spec, actor=who.name) for group in right for spec in group]
        answers = iter(await self._service.submit(commands, request.remote or ""))
        return [
            why or together([*islice(answers, len(group))])
            for group, why in zip(groups, wrong, strict=True)
        ]

    def _wrong(self, who: Principal, spec: JobSpec) -> Refused | None:
        """Return why a job is refused before admission, or None."""
        return may_submit(who, spec) or nothing_to_run(spec, self._service.backend.can)


def _specs(job: JobRequest, key: str) -> SubmissionGroup:
    """Convert a job to specs. Idempotency keys are scoped by pool, so pools cannot collide."""
    return specs_of(job, f"{job.pool}\0{key}" if key else "")


def may_submit(who: Principal, spec: JobSpec) -> Refused | None:
    """Return why a principal may not submit a job, or None. A priority above 0 needs an admin."""
    refused = forbids(who, Rule.SUBMIT, spec.pool)
    if refused is None and spec.priority > 0 and not allows(who, Rule.ADMIN, spec.pool):
        why = f"token {who.name} may not set a priority above 0 in pool {spec.pool!r}"
        return Refused(403, "not allowed", why, "omit priority, or ask an admin of the pool")
    return refused


def _is_denied(why: Refused | None) -> bool:
    return why is not None and why.status == 403


def _key(request: web.Request) -> str:
    key: str = request.headers.get("Idempotency-Key", "")
    if not key and "Idempotency-Key" in request.headers:
        raise ProblemError(
            422, "invalid", "Idempotency-Key is empty", "send a UUID, or omit the header"
        )
    if len(key) > MAX_KEY:
        raise ProblemError(
            422, "invalid", f"Idempotency-Key is longer than {MAX_KEY} characters", "send a UUID"
        )
    return key
