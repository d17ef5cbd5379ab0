"""What the journal's rows are, as they are handed to it and come out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Self

from daemon.engine.engine import Step
from daemon.model.account import Booked
from daemon.model.book import JobRecord
from daemon.model.inputs import Input
from daemon.model.limits import SNAPSHOT_PART
from daemon.model.outputs import Notice
from daemon.runtime.clock import Anchor
from sia.decisions import Decision


class AuditRow(NamedTuple):
    """One change and who made it, as JSON; the digest is of it and of all before."""

    number: int
    body: str
    digest: str


class DeadLetter(NamedTuple):
    """What could not be delivered. The journal gives it its number where that is 0."""

    number: int
    hook: str
    seq: int
    time: float
    why: str
    body: str


class JournalEntry(NamedTuple):
    """One step as it is written."""

    seq: int
    anchor: Anchor
    inputs: Sequence[Input]
    decisions: Sequence[Decision]
    notices: Sequence[Notice] = ()
    over: Sequence[JobRecord] = ()
    audit: Sequence[AuditRow] = ()
    booked: Booked = Booked()

    @classmethod
    def of(
        cls,
        seq: int,
        anchor: Anchor,
        inputs: Sequence[Input],
        step: Step,
        audit: Sequence[AuditRow],
    ) -> Self:
        """What is written of a step."""
        return cls(seq, anchor, inputs, step.decisions, step.notices, step.over, audit, step.booked)


class StoredStep(NamedTuple):
    """One step as it is read; `decisions` are the bytes that the same inputs must give again."""

    seq: int
    now: float
    inputs: list[Input]
    decisions: bytes


class SnapshotPart(NamedTuple):
    """A piece of a snapshot that was taken after step `seq`."""

    seq: int
    part: int
    body: bytes
    last: bool
    digest: str = ""
    """Of the whole snapshot, in its last piece."""


def parts_of(seq: int, snapshot: bytes) -> list[SnapshotPart]:
    """A snapshot in pieces; it counts once the last of them is written."""
    starts = range(0, len(snapshot), SNAPSHOT_PART)
    parts = [
        SnapshotPart(seq, i, snapshot[start : start + SNAPSHOT_PART], last=start == starts[-1])
        for i, start in enumerate(starts)
    ]
    parts[-1] = parts[-1]._replace(digest=snapshot_digest(snapshot))
    return parts


def snapshot_digest(snapshot: bytes) -> str:
    """Return the digest by which damage to a snapshot is found."""
    return hashlib.sha256(snapshot).hexdigest()
