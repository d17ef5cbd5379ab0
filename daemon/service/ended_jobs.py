"""What is asked of jobs that ended so long ago that only the journal knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from daemon.engine.engine import Engine
from daemon.engine.jobs import Jobs
from daemon.engine.step import StepContext
from daemon.model.book import Book, JobRecord, array_of
from daemon.model.inputs import Cancel, Command, Hold, Release, SetPriority, Submit
from daemon.model.limits import KEEP_ENDED
from daemon.model.outputs import Answer, Refused
from daemon.service.inbox import PendingCommands


def evicted_ids(asked: Iterable[PendingCommands], book: Book) -> list[str]:
    """The ids that the journal may know and the book does not; none while none is forgotten.

    O(commands).
    """
    if len(book.ended) < KEEP_ENDED:
        return []
    ids = {id_: None for each in asked for command in each.commands for id_ in _named(command)}
    return [id_ for id_ in ids if book.job(id_) is None and id_ not in book.arrays]


def _named(command: Command) -> tuple[str, ...]:
    """The job that a command is for, and the array that this is of; nothing if it is for none."""
    if isinstance(command, Submit):
        spec = command.spec
        return (spec.id,) if spec.array is None else (spec.id, array_of(spec))
    return (command.job,) if isinstance(command, Cancel | Hold | Release | SetPriority) else ()


def answer(
    asked: Iterable[PendingCommands], known: Mapping[str, JobRecord], engine: Engine
) -> None:
    """Answer what is asked of these jobs, as the engine would if they were still in the book."""
    if not known:
        return
    book = Book(engine.book.setup, ended=dict(known), pools=engine.book.pools)
    jobs = Jobs(StepContext(book, engine.core, None))
    answers: dict[type, Callable[[Any], Answer]] = {
        Submit: jobs.submit,
        Cancel: jobs.cancel,
        Hold: jobs.hold,
        Release: jobs.release,
        SetPriority: jobs.set_priority,
    }
    for each in asked:
        each.known = {
            i: answers[type(command)](command)
            for i, command in enumerate(each.commands)
            if not known.keys().isdisjoint(_named(command))
        }
        each.known = {**each.known, **_whole(each)}


def _whole(asked: PendingCommands) -> dict[int, Answer]:
    """All jobs of arrays of which one is refused: an array is taken whole or not at all."""
    names = {
        i: array_of(command.spec)
        for i, command in enumerate(asked.commands)
        if isinstance(command, Submit) and command.spec.array is not None
    }
    refused = {
        names[i]: said
        for i, said in asked.known.items()
        if i in names and isinstance(said, Refused)
    }
    return {i: refused[name] for i, name in names.items() if name in refused}
