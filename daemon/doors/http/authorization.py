"""Check each request against the rule of its operation before the handler runs.

An operation without a rule is refused. A job that the caller may not see is answered exactly like a
job that does not exist.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from daemon.doors.http.authentication import TokenAuth
from daemon.doors.http.csrf import check_form
from daemon.doors.http.operations import Operation
from daemon.model.access import Principal, Role, Rule, allows
from daemon.model.errors import UnavailableError
from daemon.model.inputs import AuditNote
from daemon.model.limits import MAX_TOKENS
from daemon.model.outputs import Refused
from daemon.runtime.rate_limit import TokenBuckets
from daemon.wire.limits import DENIALS, DENIALS_AT_ONCE
from daemon.wire.problems import ProblemError, no_job

if TYPE_CHECKING:
    from daemon.service.service import Service

WHO = web.RequestKey("who", Principal)
"""Principal of a request."""


class Denial(NamedTuple):
    """A denied action, to be written to the audit: target and status.

    In a batch the status is that of the denied jobs, not of the response.
    """

    target: str
    status: int
    note: str = ""


DENIED = web.RequestKey("denied", Denial)
"""The denied action of a request, if any."""

FORBIDDEN = "not allowed"


def who_asks(request: web.Request) -> Principal:
    """Return the principal of a request. Not available for operations open to all."""
    return request[WHO]


def is_operator(request: web.Request) -> bool:
    """Return whether the caller is an operator; False before authentication."""
    who: Principal | None = request.get(WHO)
    return who is not None and who.role is Role.OPERATOR


def forbids(who: Principal, rule: Rule, pool: str | None = None) -> Refused | None:
    """Return why a principal may not act under this rule on a pool; None if it may."""
    if allows(who, rule, pool):
        return None
    pools = f" of {', '.join(sorted(who.pools))}" if who.pools else ""
    where = "" if pool is None else f" in pool {pool!r}"
    a = "an" if who.role.value[0] in "ao" else "a"
    detail = (
        f"token {who.name} is {a} {who.role.value} token{pools}: it may not {rule.words}{where}"
    )
    return Refused(403, FORBIDDEN, detail, "ask an operator for a token with this permission")


def demand(request: web.Request, rule: Rule, pool: str | None = None) -> None:
    """Require a permission of the caller. Raises ProblemError and records the denial."""
    refused = forbids(who_asks(request), rule, pool)
    if refused is not None:
        request[DENIED] = Denial(request.path, refused.status)
        raise ProblemError(refused.status, refused.title, refused.detail, refused.mend)


def check_own_job(request: web.Request, attempt: int) -> None:
    """Require that a job reports only about itself and its own attempt. Raises ProblemError.

    Other principals pass. The answer does not reveal whether another job exists.
    """
    own = who_asks(request).job
    if own is not None and own != (request.match_info["id"], attempt):
        request[DENIED] = Denial(request.path, 403)
        raise ProblemError(
            403, FORBIDDEN, f"this is the token of job {own[0]}, attempt {own[1]}: it reports for "
            "that attempt alone", "use SIA_REPORT_TOKEN of the attempt that reports",
        )  # fmt: skip


class AccessMiddleware:
    """Authenticates and authorizes each request before its handler."""

    def __init__(self, service: Service, gate: TokenAuth, operations: Iterable[Operation]) -> None:
        """Index the operations by method and path."""
        self._service, self._gate = service, gate
        self._operations = {(each.method, each.path): each for each in operations}
        self._denials = TokenBuckets(DENIALS, DENIALS_AT_ONCE, MAX_TOKENS + 1)
        self._unlogged: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, request: web.Request) -> None:
        """Authenticate and authorize a request. Raises ProblemError if it is refused."""
        operation = self._operation(request)
        if operation is not None and operation.rule is Rule.OPEN:
            return
        request[WHO] = self._gate.admit(request)
        if request.method != "GET" and self._gate.sessions.cookie_of(request):
            await check_form(request, self._gate.sessions)
        if operation is None:
            if request.match_info.http_exception is None:
                raise ProblemError(
                    403, FORBIDDEN, "the operation has no rule", "report this defect"
                )
            return  # no such path: the router answers 404 or 405
        await self.allow(request, operation)

    async def allow(self, request: web.Request, operation: Operation) -> None:
        """Authorize a request for an operation. Raises ProblemError if it is refused."""
        who = who_asks(request)
        demand(request, operation.rule)
        if who.job is not None and operation.of == "job":
            check_own_job(request, who.job[1])
        if operation.of == "pool" and operation.rule is not Rule.VIEW:
            demand(request, operation.rule, request.match_info["name"])
        if operation.of == "job" and not who.sees_all:
            await self._check_job(request, who)

    def _operation(self, request: web.Request) -> Operation | None:
        resource = request.match_info.route.resource
        if resource is None:
            return None
        return self._operations.get((request.method, resource.canonical))

    async def _check_job(self, request: web.Request, who: Principal) -> None:
        job_id = request.match_info["id"]
        pool = self._service.book.pool_of(job_id)
        if pool is not None and who.sees(pool):
            return
        past = await self._service.past_job(
            job_id
        )  # read in both cases, so that timing does not reveal hidden jobs
        if pool is None and past is not None:
            pool = past.spec.pool
        if pool is None or not who.sees(pool):
            if pool is not None:
                request[DENIED] = Denial(request.path, 404)
            raise no_job(job_id)

    async def remember(self, request: web.Request) -> None:
        """Write a denied change to the audit; above the rate limit only count it."""
        if DENIED not in request or request.method == "GET":
            return
        who, denial = who_asks(request), request[DENIED]
        if self._denials.take(who.name):
            self._unlogged[who.name] += 1
            return
        unlogged = self._unlogged.pop(who.name, 0)
        more = f"and {unlogged} more before" if unlogged else ""
        note = ", ".join(filter(None, (denial.note, more)))
        witness = AuditNote(request.method, denial.target[:500], denial.status, note, who.name)
        task = asyncio.create_task(self._write(witness, request.remote or "", unlogged + 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if denial.status == 403:  # never wait on 404: the time would reveal a hidden job
            await task

    async def _write(self, witness: AuditNote, origin: str, denials: int) -> None:
        try:
            await self._service.submit([witness], origin)
        except UnavailableError:
            self._unlogged[witness.actor] += denials
