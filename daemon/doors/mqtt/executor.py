"""The clerk: has letters done, many in one call of the service, and says what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from daemon.answers.estimates.estimator import EtaService
from daemon.doors.mqtt.requests import ParsedMessage
from daemon.doors.mqtt.schemas import Reply
from daemon.doors.views.estimates import say_estimates
from daemon.doors.views.submission import array_name, line_of, nothing_to_run, together
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Command
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import Answer, Refused
from daemon.service.admission import Admission, JobCount
from daemon.service.inbox import NOT_NOW
from daemon.service.service import Service
from daemon.wire.jobs import BatchLine

DEFECT = 500
"""The status of what broke a step by a defect of ours."""

BatchIndex = tuple[int, int]
"""Of a job in a batch: which letter, and which of its jobs."""


class CommandHandler:
    """Does for a pool what its people may ask for: take its jobs, and change these."""

    def __init__(
        self, service: Service, admission: Admission | None = None, eta: EtaService | None = None
    ) -> None:
        """Ask this one, within these limits; say when jobs start and end, if anybody knows."""
        self._service, self._admission, self._eta = service, admission, eta

    async def answers(self, letters: Sequence[ParsedMessage | Reply]) -> list[Reply]:
        """What became of each, durably; replies stay what they are."""
        said: dict[int, Reply] = {}
        gathered: dict[int, ParsedMessage] = {}
        named: set[str] = set()
        for i, letter in enumerate(letters):
            if isinstance(letter, Reply):
                said[i] = letter
                continue
            if letter.command is None:
                named.update(_names(letter))
            else:
                if letter.job in named:  # whose it is shows once it is taken
                    said.update(await self._do(gathered))
                    gathered, named = {}, set()
                if not await self._owns(letter.pool, letter.job):
                    said[i] = _foreign(letter)
                    continue
            gathered[i] = letter
        said.update(await self._do(gathered))
        return [said[i] for i in range(len(letters))]

    async def _owns(self, pool: str, job_id: str) -> bool:
        """Whether a job or an array is of this pool."""
        found = self._service.book.named(job_id)
        while not found:
            try:
                past = await self._service.past_job(job_id)
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return past is not None and past.spec.pool == pool
        return found[0].spec.pool == pool

    async def _do(self, letters: dict[int, ParsedMessage]) -> dict[int, Reply]:
        """Have all of it done in one call."""
        can = self._service.backend.can
        wrong = {
            (i, k): why
            for i, letter in letters.items()
            for k, group in enumerate(letter.groups)
            if (why := nothing_to_run(group[0], can)) is not None
        }
        wrong.update(await self._too_many(letters, wrong))
        asked = [_commands(i, letter, wrong) for i, letter in letters.items()]
        answers = await self._durable([each for some in asked for each in some])
        if any(isinstance(each, Refused) and each.status == DEFECT for each in answers):
            # nothing was done of what one of them broke: once more, each by itself
            answers = [each for some in asked for each in await self._durable(some)]
        said = iter(answers)
        replies = {i: _reply(i, letter, said, wrong) for i, letter in letters.items()}
        if self._eta is not None:
            await say_estimates(
                self._eta, [line for each in replies.values() for line in each.jobs]
            )
        return replies

    async def _too_many(
        self, letters: dict[int, ParsedMessage], wrong: Collection[BatchIndex]
    ) -> dict[BatchIndex, Refused]:
        """Which jobs are not taken now, for all that have come of their pools."""
        asks = {
            (i, k): JobCount(array_name(group[0]), letter.pool, len(group))
            for i, letter in letters.items()
            for k, group in enumerate(letter.groups)
            if (i, k) not in wrong
        }
        while self._admission is not None and asks:
            try:
                said = await self._admission.refusals("", [*asks.values()])
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return {at: why for at, why in zip(asks, said, strict=True) if why is not None}
        return {}

    async def _durable(self, commands: Sequence[Command]) -> list[Answer]:
        """Have commands done, however long the journal cannot be written."""
        answers = await self._asked(commands)
        while late := [i for i, each in enumerate(answers) if _is_late(each)]:
            await asyncio.sleep(PROBE_EVERY)
            again = await self._asked([commands[i] for i in late])
            for i, each in zip(late, again, strict=True):
                answers[i] = each
        return answers

    async def _asked(self, commands: Sequence[Command]) -> list[Answer]:
        """Have as many of these done as can be, and at least some."""
        while True:
            try:
                return await self._service.submit(commands)
            except UnavailableError as error:
                await asyncio.sleep(min(error.retry_after, PROBE_EVERY))


def _is_late(answer: Answer) -> bool:
    """Whether a command was not done, and can be asked for again."""
    return isinstance(answer, Refused) and answer.status in NOT_NOW


def _commands(i: int, letter: ParsedMessage, wrong: Collection[BatchIndex]) -> list[Command]:
    """What a letter asks the service for, but for what is refused already."""
    if letter.command is not None:
        return [letter.command]
    groups = (k for k in range(len(letter.groups)) if (i, k) not in wrong)
    return [each for k in groups for each in letter.submits(k)]


def _names(letter: ParsedMessage) -> set[str]:
    """Ids by which its jobs can be named."""
    jobs = {spec.id for group in letter.groups for spec in group}
    return jobs | {array_name(group[0]) for group in letter.groups}


def _foreign(letter: ParsedMessage) -> Reply:
    """Whose the job is, if anybody's, is nobody else's business."""
    why = f"pool {letter.pool} has no job {letter.job!r}"
    mend = "submit it first, and send this again once it is taken"
    return Reply(200, [BatchLine(letter.job, 404, why, mend)])


def _reply(
    i: int, letter: ParsedMessage, said: Iterator[Answer], wrong: dict[BatchIndex, Refused]
) -> Reply:
    """What became of a letter; its answers are the next of those that were said."""
    if letter.command is not None:
        answer = next(said)
        if isinstance(answer, Refused):
            line = BatchLine(letter.job, answer.status, answer.detail, answer.mend)
        else:
            line = BatchLine(letter.job, 200)
        return Reply(200, [line])
    return Reply(
        200,
        [
            line_of(group, wrong.get((i, k)) or together([*islice(said, len(group))]))
            for k, group in enumerate(letter.groups)
        ],
    )
