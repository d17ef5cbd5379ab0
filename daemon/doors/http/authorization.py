"""Whether whoever asks may do what is asked for: the rule of each operation, before its handler.

What has no rule cannot be asked for. Who may not know of a job hears of it what everybody hears of
one that is not there.
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
"""Whoever sends a request."""


class Denial(NamedTuple):
    """What of a request was denied: what it was for, and how, as HTTP has it.

    Of a batch that is not the status of the answer.
    """

    target: str
    status: int
    note: str = ""


DENIED = web.RequestKey("denied", Denial)
"""What of it is to be remembered as denied."""

FORBIDDEN = "not allowed"


def who_asks(request: web.Request) -> Principal:
    """Whoever sends it, as the guard has found. Not for what is open to all."""
    return request[WHO]


def is_operator(request: web.Request) -> bool:
    """Whether whoever sends it may know all; not where nobody knows yet who that is."""
    who: Principal | None = request.get(WHO)
    return who is not None and who.role is Role.OPERATOR


def forbids(who: Principal, rule: Rule, pool: str | None = None) -> Refused | None:
    """Why somebody may not do what has this rule, to a pool or its jobs; None if allowed."""
    if allows(who, rule, pool):
        return None
    pools = f" of {', '.join(sorted(who.pools))}" if who.pools else ""
    where = "" if pool is None else f" in pool {pool!r}"
    a = "an" if who.role.value[0] in "ao" else "a"
    detail = f"token {who.name} is {a} {who.role.value}'s{pools}: it may not {rule.words}{where}"
    return Refused(403, FORBIDDEN, detail, "ask an operator for a token that may")


def demand(request: web.Request, rule: Rule, pool: str | None = None) -> None:
    """Go on only where whoever asks may do that. Raises ProblemError, and has it remembered."""
    refused = forbids(who_asks(request), rule, pool)
    if refused is not None:
        request[DENIED] = Denial(request.path, refused.status)
        raise ProblemError(refused.status, refused.title, refused.detail, refused.mend)


class AccessMiddleware:
    """Stands before all handlers."""

    def __init__(self, service: Service, gate: TokenAuth, operations: Iterable[Operation]) -> None:
        """Know the rule of each operation."""
        self._service, self._gate = service, gate
        self._operations = {(each.method, each.path): each for each in operations}
        self._denials = TokenBuckets(DENIALS, DENIALS_AT_ONCE, MAX_TOKENS + 1)
        self._unsaid: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def check(self, request: web.Request) -> None:
        """Find out who asks, and whether they may. Raises ProblemError if not."""
        operation = self._operation(request)
        if operation is not None and operation.rule is Rule.OPEN:
            return
        request[WHO] = self._gate.admit(request)
        if request.method != "GET" and self._gate.sessions.said(request):
            await check_form(request, self._gate.sessions)
        if operation is None:
            if request.match_info.http_exception is None:
                raise ProblemError(403, FORBIDDEN, "it has no rule", "report it: a defect")
            return  # there is nothing that could be done
        await self.allow(request, operation)

    async def allow(self, request: web.Request, operation: Operation) -> None:
        """Go on only where whoever asks may do this. Raises ProblemError if not."""
        who = who_asks(request)
        demand(request, operation.rule)
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
        past = await self._service.past_job(job_id)  # in any case: to take as long as for none
        if pool is None and past is not None:
            pool = past.spec.pool
        if pool is None or not who.sees(pool):
            if pool is not None:
                request[DENIED] = Denial(request.path, 404)
            raise no_job(job_id)

    async def remember(self, request: web.Request) -> None:
        """Have a change that was denied stand in the audit; not every one of a flood."""
        if DENIED not in request or request.method == "GET":
            return
        who, denial = who_asks(request), request[DENIED]
        if self._denials.take(who.name):
            self._unsaid[who.name] += 1
            return
        unsaid = self._unsaid.pop(who.name, 0)
        more = f"and {unsaid} more before" if unsaid else ""
        note = ", ".join(filter(None, (denial.note, more)))
        witness = AuditNote(request.method, denial.target[:500], denial.status, note, who.name)
        task = asyncio.create_task(self._write(witness, request.remote or "", unsaid + 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if denial.status == 403:  # how long it takes must not tell a job that is hidden from none
            await task

    async def _write(self, witness: AuditNote, origin: str, denials: int) -> None:
        try:
            await self._service.submit([witness], origin)
        except UnavailableError:
            self._unsaid[witness.actor] += denials
