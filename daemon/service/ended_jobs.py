"""Commands for jobs that ended so long ago that only the journal has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.engine.jobs import answer_to_resubmit, answer_when_ended, id_taken
from daemon.model.book import Book, JobRecord, array_of
from daemon.model.inputs import Cancel, Command, Hold, Release, SetPriority, Submit
from daemon.model.limits import KEEP_ENDED
from daemon.model.outputs import Answer, Refused
from daemon.service.inbox import PendingCommands

ForJob = Cancel | Hold | Release | SetPriority
"""Commands that name a job."""


def evicted_ids(asked: Iterable[PendingCommands], book: Book) -> list[str]:
    """Return the job ids in these commands that may have been evicted from memory. O(commands)."""
    if len(book.ended) < KEEP_ENDED:
        return []
    ids = {id_: None for each in asked for command in each.commands for id_ in _named(command)}
    return [id_ for id_ in ids if book.job(id_) is None and id_ not in book.arrays]


def _named(command: Command) -> tuple[str, ...]:
    """Return the ids of the job that a command names and of that job's array, if any."""
    if isinstance(command, Submit):
        spec = command.spec
        return (spec.id,) if spec.array is None else (spec.id, array_of(spec))
    return (command.job,) if isinstance(command, ForJob) else ()


def answer(asked: Iterable[PendingCommands], known: Mapping[str, JobRecord]) -> None:
    """Answer the commands that name an evicted job, as if the job were still in the book.

    `known` has the evicted jobs by id. The other commands stay for the next step.
    """
    if not known:
        return
    for each in asked:
        each.known = {
            i: found
            for i, command in enumerate(each.commands)
            if (found := _answer(command, known)) is not None
        }
        each.known = {**each.known, **_whole(each)}


def _answer(command: Command, known: Mapping[str, JobRecord]) -> Answer | None:
    """Return the answer to a command; None if it names none of these jobs."""
    ids = [job_id for job_id in _named(command) if job_id in known]
    if not ids:
        return None
    if isinstance(command, Submit):
        record = known.get(command.spec.id)
        return id_taken(ids[0]) if record is None else answer_to_resubmit(record, command.spec)
    assert isinstance(command, ForJob), "only these name a job"
    return answer_when_ended(known[ids[0]], command)


def _whole(asked: PendingCommands) -> dict[int, Answer]:
    """Refuse the whole array if one of its jobs is refused."""
    names = {
        i: array_of(command.spec)
        for i, command in enumerate(asked.commands)
        if isinstance(command, Submit) and command.spec.array is not None
    }
    refused = {
        names[i]: found
        for i, found in asked.known.items()
        if i in names and isinstance(found, Refused)
    }
    return {i: refused[name] for i, name in names.items() if name in refused}
