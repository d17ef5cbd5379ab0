"""What waits for the next step: commands, whose clients wait too, and what the backend saw."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from daemon.model.errors import UnavailableError
from daemon.model.inputs import Command, Observation
from daemon.model.limits import MAX_ASKED, MAX_BATCH, MAX_INBOX
from daemon.model.outputs import Answer, Refused

NOT_NOW = (429, 503)
"""Statuses of commands that were not done, and that may be sent again."""


def not_now(error: UnavailableError) -> Refused:
    """The answer to one of several commands, where others of them were done."""
    mend = f"send it again in {max(1, round(error.retry_after))} s, under the same id"
    title = "too many requests" if error.status == 429 else "unavailable"
    return Refused(error.status, title, error.shown(whole=False), mend, error.retry_after)


class PendingCommands:
    """Commands that one client waits for.

    Attributes:
        origin: The address that they come from, if any.
        known: Answers, by place, of commands that need no step.
    """

    def __init__(self, commands: Sequence[Command], origin: str = "") -> None:
        """To be answered together."""
        self.commands, self.origin = commands, origin
        self.known: Mapping[int, Answer] = {}
        self.answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    @property
    def todo(self) -> list[Command]:
        """Those that a step is for."""
        return [each for i, each in enumerate(self.commands) if i not in self.known]

    def answer(self, answers: Iterator[Answer]) -> None:
        """Answer all, with as many of these as a step was for."""
        known = self.known
        found = [known[i] if i in known else next(answers) for i in range(len(self.commands))]
        if not self.answers.done():
            self.answers.set_result(found)

    def refuse(self, error: UnavailableError) -> None:
        """Have the client come again."""
        if not self.answers.done():
            self.answers.set_exception(error)


class StepInputs:
    """What one step takes of it, observations first."""

    def __init__(self, asked: list[PendingCommands], seen: list[Observation]) -> None:
        """These, in order."""
        self.asked, self.seen = asked, seen

    def __len__(self) -> int:
        return len(self.seen) + sum(len(each.commands) for each in self.asked)

    @property
    def inputs(self) -> list[Observation | Command]:
        """All that a step is for."""
        return [*self.seen, *(command for each in self.asked for command in each.todo)]

    @property
    def commands(self) -> list[tuple[str, list[Command]]]:
        """Of each client where it asks from, and its commands that a step is for."""
        return [(each.origin, each.todo) for each in self.asked]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer all clients; the answers end with those to their commands."""
        todo = sum(len(each.todo) for each in self.asked)
        left = iter(answers[len(answers) - todo :])
        for each in self.asked:
            each.answer(left)

    def refuse(self, error: UnavailableError) -> None:
        """Have all clients come again."""
        for each in self.asked:
            each.refuse(error)

    def alone(self) -> list[StepInputs]:
        """Each observation and each client by itself."""
        seen = [StepInputs([], [each]) for each in self.seen]
        return seen + [StepInputs([each], []) for each in self.asked]


class Inbox:
    """Everything that waits.

    Attributes:
        news: Set whenever something comes.
    """

    def __init__(self) -> None:
        """Nothing waits."""
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
        """Take what a backend saw."""
        if not self._shut:
            self._seen.append(seen)
            self.news.set()

    def shut(self) -> None:
        """Take no more of what is seen: the next daemon is told of it when it looks."""
        self._shut = True
        self.news.set()

    def put_back(self, seen: Iterable[Observation]) -> None:
        """What was taken is to be taken again, before all else."""
        self._seen.extendleft(reversed(list(seen)))

    def ask(
        self, commands: Sequence[Command], origin: str = ""
    ) -> list[asyncio.Future[list[Answer]]]:
        """Take commands, in pieces of which a step may have as many as fit.

        Returns the answers to each piece. Raises UnavailableError where too many wait already.
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
        """What comes next, but no more than one step should have.

        Neither waits for the other: where both wait, half is for what was seen, and the client
        who is next is always taken.
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
        """Have all clients that wait come again."""
        StepInputs(list(self._asked), []).refuse(error)
        self._asked.clear()
        self._commands = 0
