"""Inputs that wait for the next step: commands, whose clients wait, too, and observations."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from daemon.model.errors import UnavailableError
from daemon.model.inputs import Command, Observation
from daemon.model.limits import MAX_ASKED, MAX_BATCH, MAX_INBOX
from daemon.model.outputs import Answer, Refused

NOT_NOW = (429, 503)
"""HTTP statuses of commands that were not carried out and may be sent again."""


def not_now(error: UnavailableError) -> Refused:
    """Return the answer to a command that was not carried out, while others of its request were."""
    fix = f"retry in {max(1, round(error.retry_after))} s with the same id"
    title = "too many requests" if error.status == 429 else "unavailable"
    return Refused(error.status, title, error.shown(whole=False), fix, error.retry_after)


class PendingCommands:
    """The commands of one request.

    Attributes:
        origin: The client's address, if known.
        known: Answers of commands that need no step, by position.
    """

    def __init__(self, commands: Sequence[Command], origin: str = "") -> None:
        """Create a request, to be answered as a whole."""
        self.commands, self.origin = commands, origin
        self.known: Mapping[int, Answer] = {}
        self.answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    @property
    def todo(self) -> list[Command]:
        """The commands that need a step."""
        return [each for i, each in enumerate(self.commands) if i not in self.known]

    def answer(self, answers: Iterator[Answer]) -> None:
        """Answer the request; `answers` yields the answers to the commands that needed a step."""
        known = self.known
        found = [known[i] if i in known else next(answers) for i in range(len(self.commands))]
        if not self.answers.done():
            self.answers.set_result(found)

    def refuse(self, error: UnavailableError) -> None:
        """Fail the request; the client may retry."""
        if not self.answers.done():
            self.answers.set_exception(error)


class StepInputs:
    """The inputs of one step, observations first."""

    def __init__(self, asked: list[PendingCommands], seen: list[Observation]) -> None:
        """Create it from requests and observations, in order."""
        self.asked, self.seen = asked, seen

    def __len__(self) -> int:
        return len(self.seen) + sum(len(each.commands) for each in self.asked)

    @property
    def inputs(self) -> list[Observation | Command]:
        """The inputs that need a step."""
        return [*self.seen, *(command for each in self.asked for command in each.todo)]

    @property
    def commands(self) -> list[tuple[str, list[Command]]]:
        """For each request, its origin and the commands that need a step."""
        return [(each.origin, each.todo) for each in self.asked]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer all requests; the last of `answers` are the answers to their commands."""
        todo = sum(len(each.todo) for each in self.asked)
        left = iter(answers[len(answers) - todo :])
        for each in self.asked:
            each.answer(left)

    def refuse(self, error: UnavailableError) -> None:
        """Fail all requests; the clients may retry."""
        for each in self.asked:
            each.refuse(error)

    def alone(self) -> list[StepInputs]:
        """Return one batch for each observation and each request."""
        seen = [StepInputs([], [each]) for each in self.seen]
        return seen + [StepInputs([each], []) for each in self.asked]


class Inbox:
    """All inputs that wait for a step.

    Attributes:
        news: Set whenever an input arrives.
    """

    def __init__(self) -> None:
        """Create an empty inbox."""
        self.news = asyncio.Event()
        self._seen: deque[Observation] = deque()
        self._asked: deque[PendingCommands] = deque()
        self._commands = 0
        self._shut = False

    def __len__(self) -> int:
        return len(self._seen) + self._commands

    def __bool__(self) -> bool:
        return bool(self._seen or self._asked)

    def observe(self, seen: Observation) -> None:
        """Add an observation to those that wait for the next step."""
        if not self._shut:
            self._seen.append(seen)
            self.news.set()

    def shut(self) -> None:
        """Ignore further observations: the next daemon gets them when it reconciles."""
        self._shut = True
        self.news.set()

    def put_back(self, seen: Iterable[Observation]) -> None:
        """Put observations back, to be taken first."""
        self._seen.extendleft(reversed(list(seen)))

    def ask(
        self, commands: Sequence[Command], origin: str = ""
    ) -> list[asyncio.Future[list[Answer]]]:
        """Queue commands in pieces that fit into a step; return the future answers to each piece.

        Raises UnavailableError if too many commands wait already.
        """
        if self._commands + len(commands) > MAX_INBOX:
            raise UnavailableError(429, f"{self._commands} commands wait", 1.0)
        starts = range(0, len(commands), MAX_ASKED)
        asked = [PendingCommands(commands[start : start + MAX_ASKED], origin) for start in starts]
        self._asked += asked
        self._commands += len(commands)
        self.news.set()
        return [each.answers for each in asked]

    def take(self) -> StepInputs:
        """Take the inputs of the next step, at most `MAX_BATCH`.

        If both kinds wait, half of the step is for observations, and the next request is taken
        whatever its size, so that neither kind starves.
        """
        batch = StepInputs([], [])
        most = MAX_BATCH // 2 if self._asked else MAX_BATCH
        while self._seen and len(batch.seen) < most:
            batch.seen.append(self._seen.popleft())
        size = len(batch.seen)
        while self._asked and (not batch.asked or size + len(self._asked[0].commands) <= MAX_BATCH):
            batch.asked.append(self._asked.popleft())
            size += len(batch.asked[-1].commands)
        self._commands -= size - len(batch.seen)
        return batch

    def refuse_all(self, error: UnavailableError) -> None:
        """Fail all requests that wait; the clients may retry."""
        StepInputs(list(self._asked), []).refuse(error)
        self._asked.clear()
        self._commands = 0
