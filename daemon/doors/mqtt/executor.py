"""Execute messages: submit many in one call of the service, and collect the results."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from daemon.answers.estimates.estimator import EtaService
from daemon.doors.mqtt.requests import ParsedMessage
from daemon.doors.mqtt.schemas import Reply
from daemon.doors.views.estimates import add_estimates
from daemon.doors.views.submission import array_name, line_of, nothing_to_run, together
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Command, Reported
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import Answer, Refused
from daemon.service.admission import Admission, JobCount
from daemon.service.inbox import NOT_NOW
from daemon.service.service import Service
from daemon.wire.jobs import BatchLine

DEFECT = 500
"""Status of a command whose step failed because of a defect."""

BatchIndex = tuple[int, int]
"""Position of a job in a batch: index of the message, index of the job in it."""


class CommandHandler:
    """Submits jobs and changes jobs on behalf of a pool's users."""

    def __init__(
        self, service: Service, admission: Admission | None = None, eta: EtaService | None = None
    ) -> None:
        """Submit to a service within its admission limits; add estimates if available."""
        self._service, self._admission, self._eta = service, admission, eta

    async def answers(self, messages: Sequence[ParsedMessage | Reply]) -> list[Reply]:
        """Execute the messages durably and return a reply for each; replies pass through."""
        replies: dict[int, Reply] = {}
        gathered: dict[int, ParsedMessage] = {}
        named: set[str] = set()
        for i, message in enumerate(messages):
            if isinstance(message, Reply):
                replies[i] = message
                continue
            if message.command is None:
                named.update(_names(message))
            else:
                if message.job in named:  # submit first: then the pool of the job is known
                    replies.update(await self._do(gathered))
                    gathered, named = {}, set()
                if not await self._owns(message.pool, message.job):
                    replies[i] = _foreign(message)
                    continue
            gathered[i] = message
        replies.update(await self._do(gathered))
        return [replies[i] for i in range(len(messages))]

    async def _owns(self, pool: str, job_id: str) -> bool:
        """Return whether a job or array belongs to a pool."""
        found = self._service.book.named(job_id)
        while not found:
            try:
                past = await self._service.past_job(job_id)
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return past is not None and past.spec.pool == pool
        return found[0].spec.pool == pool

    async def _do(self, messages: dict[int, ParsedMessage]) -> dict[int, Reply]:
        """Execute messages in one call."""
        can = self._service.backend.can
        wrong = {
            (i, k): why
            for i, message in messages.items()
            for k, group in enumerate(message.groups)
            if (why := nothing_to_run(group[0], can)) is not None
        }
        wrong.update(await self._too_many(messages, wrong))
        asked = [_commands(i, message, wrong) for i, message in messages.items()]
        answers = await self._durable([each for some in asked for each in some])
        if any(isinstance(each, Refused) and each.status == DEFECT for each in answers):
            # The step was rolled back because of one message. Execute each message in a call of its
            # own.
            answers = [each for some in asked for each in await self._durable(some)]
        remaining = iter(answers)
        replies = {
            i: _reply(self._service, i, message, remaining, wrong)
            for i, message in messages.items()
        }
        if self._eta is not None:
            await add_estimates(
                self._eta, [line for each in replies.values() for line in each.jobs]
            )
        return replies

    async def _too_many(
        self, messages: dict[int, ParsedMessage], wrong: Collection[BatchIndex]
    ) -> dict[BatchIndex, Refused]:
        """Return the jobs that admission refuses now."""
        asks = {
            (i, k): JobCount(array_name(group[0]), message.pool, len(group))
            for i, message in messages.items()
            for k, group in enumerate(message.groups)
            if (i, k) not in wrong
        }
        while self._admission is not None and asks:
            try:
                refusals = await self._admission.refusals("", [*asks.values()])
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return {at: why for at, why in zip(asks, refusals, strict=True) if why is not None}
        return {}

    async def _durable(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands, and retry for as long as the journal is unavailable."""
        answers = await self._submit(commands)
        while late := [i for i, each in enumerate(answers) if _is_late(commands[i], each)]:
            await asyncio.sleep(PROBE_EVERY)
            again = await self._submit([commands[i] for i in late])
            for i, each in zip(late, again, strict=True):
                answers[i] = each
        return answers

    async def _submit(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands until the service accepts the call."""
        while True:
            try:
                return await self._service.submit(commands)
            except UnavailableError as error:
                await asyncio.sleep(min(error.retry_after, PROBE_EVERY))


def _is_late(command: Command, answer: Answer) -> bool:
    """Return whether a command was not executed and can be retried.

    A progress report that was refused as too frequent is not retried: it would be out of date.
    """
    late = isinstance(answer, Refused) and answer.status in NOT_NOW
    return late and type(command) is not Reported


def _commands(i: int, message: ParsedMessage, wrong: Collection[BatchIndex]) -> list[Command]:
    """Return the commands of a message without its refused jobs."""
    if message.command is not None:
        return [message.command]
    groups = (k for k in range(len(message.groups)) if (i, k) not in wrong)
    return [each for k in groups for each in message.submits(k)]


def _names(message: ParsedMessage) -> set[str]:
    """Return the ids under which the message's jobs can be addressed."""
    jobs = {spec.id for group in message.groups for spec in group}
    return jobs | {array_name(group[0]) for group in message.groups}


def _foreign(message: ParsedMessage) -> Reply:
    """Return the reply for a job of another pool, which must not reveal that it exists."""
    why = f"pool {message.pool} has no job {message.job!r}"
    mend = "submit the job first, and send the command after the reply"
    return Reply(200, [BatchLine(message.job, 404, why, mend)])


def _reply(
    service: Service, i: int, message: ParsedMessage, answers: Iterator[Answer],
    wrong: dict[BatchIndex, Refused],
) -> Reply:  # fmt: skip
    """Build the reply to a message from the next answers."""
    if message.command is not None:
        answer = next(answers)
        if isinstance(answer, Refused):
            line = BatchLine(message.job, answer.status, answer.detail, answer.mend)
        else:
            line = BatchLine(message.job, 200)
        return Reply(200, [line])
    return Reply(
        200,
        [
            line_of(
                service,
                group,
                wrong.get((i, k)) or together([*islice(answers, len(group))]),
                len(message.groups),
            )
            for k, group in enumerate(message.groups)
        ],
    )
