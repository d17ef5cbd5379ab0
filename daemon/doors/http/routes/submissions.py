"""Jobs that are submitted, one or many: who may, and what becomes of them."""

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
from daemon.doors.views.estimates import estimate_view, say_estimates
from daemon.doors.views.submission import array_name, line_of, nothing_to_run, specs_of, together
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
from daemon.wire.limits import MAX_KEY, SUBMITTED_AT_ONCE
from daemon.wire.problems import ProblemError, refusal

if TYPE_CHECKING:
    from daemon.service.service import Service

_encode = msgspec.json.Encoder().encode

SubmissionGroup = list[JobSpec]
"""A job, or all of an array."""


class Submissions:
    """Takes them in."""

    def __init__(self, service: Service, admission: Admission, eta: EtaService) -> None:
        """For this service, as many as are admitted."""
        self._service, self._admission, self._eta = service, admission, eta
        self._job = msgspec.json.Decoder(JobRequest)

    async def submit(self, request: web.Request) -> web.Response:
        """One job or a batch, which begins with the key `jobs`."""
        body = await body_of(request)
        key = _key(request)
        if is_batch(body):
            jobs = await in_turns(read_batch(body, self._job, JobRequest, Batch))
            return await self._submit_batch(request, jobs, key)
        group = _specs(decoded(body, self._job, JobRequest), key)
        (found,) = await self._found(request, [group])
        name = array_name(group[0])
        if isinstance(found, Refused):
            if found.status in NOT_NOW and group[0].array is not None:  # some may be taken
                found = replace(found, mend=f"{found.mend}: {name}")
            raise refusal(found)
        body = b'{"id":"%b"}' % name.encode()  # an id needs no escapes
        given = self._eta.at_submission(name) if found.new else None
        if given is not None:
            body = _encode(Submitted(name, estimate_view(given)))
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
            waiting += len(some[-1])
            if waiting >= SUBMITTED_AT_ONCE or i == len(jobs):
                lines += await self._lines(request, some, begun=bool(lines))
                some, waiting = [], 0
        await say_estimates(self._eta, lines)
        statuses = [line.status for line in lines]
        new, known = statuses.count(201), statuses.count(200)
        return answer(BatchAnswer(new, known, len(lines) - new - known, lines))

    async def _lines(
        self, request: web.Request, groups: Sequence[SubmissionGroup], *, begun: bool
    ) -> list[BatchLine]:
        """What becomes of some jobs of a batch.

        Where others of it were taken already, those that cannot be taken now have a line that says
        so: an answer that speaks of the whole batch would have clients submit the others again.
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
        return [line_of(group, said) for group, said in zip(groups, found, strict=True)]

    async def _found(self, request: web.Request, groups: Sequence[SubmissionGroup]) -> list[Answer]:
        """What becomes of each. Only those are asked for that may be."""
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
        said = iter(await self._service.submit(commands, request.remote or ""))
        return [
            why or together([*islice(said, len(group))])
            for group, why in zip(groups, wrong, strict=True)
        ]

    def _wrong(self, who: Principal, spec: JobSpec) -> Refused | None:
        """Why a job is not even asked for."""
        return may_submit(who, spec) or nothing_to_run(spec, self._service.backend.can)


def _specs(job: JobRequest, key: str) -> SubmissionGroup:
    """A job as the daemon has it. Each pool has its own keys: none can take another's."""
    return specs_of(job, f"{job.pool}\0{key}" if key else "")


def may_submit(who: Principal, spec: JobSpec) -> Refused | None:
    """Why somebody may not submit this job; None if allowed. To go before others takes an admin."""
    refused = forbids(who, Rule.SUBMIT, spec.pool)
    if refused is None and spec.priority > 0 and not allows(who, Rule.ADMIN, spec.pool):
        why = f"token {who.name} may not put jobs of pool {spec.pool!r} before others"
        return Refused(403, "not allowed", why, "leave priority out, or ask an admin of the pool")
    return refused


def _is_denied(why: Refused | None) -> bool:
    return why is not None and why.status == 403


def _key(request: web.Request) -> str:
    key: str = request.headers.get("Idempotency-Key", "")
    if not key and "Idempotency-Key" in request.headers:
        raise ProblemError(
            422, "invalid", "Idempotency-Key is empty", "send a UUID, or leave the header out"
        )
    if len(key) > MAX_KEY:
        raise ProblemError(
            422, "invalid", f"Idempotency-Key is longer than {MAX_KEY}", "send a UUID"
        )
    return key
