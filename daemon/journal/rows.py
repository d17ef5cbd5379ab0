"""The rows that the journal writes and reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Self

from msgspec import Struct, json

from daemon.engine.engine import Step
from daemon.model.account import Booked
from daemon.model.book import JobRecord
from daemon.model.inputs import Input
from daemon.model.limits import SNAPSHOT_PART
from daemon.model.outputs import Notice
from daemon.runtime.clock import Anchor
from sia.decisions import Decision, SolveProgram


class AuditRow(NamedTuple):
    """An audit record as JSON, and the digest of this record and all earlier ones."""

    number: int
    body: str
    digest: str


class DeadLetter(NamedTuple):
    """A webhook delivery that was given up. For number 0 the journal assigns the number."""

    number: int
    hook: str
    seq: int
    time: float
    why: str
    body: str


class JournalEntry(NamedTuple):
    """A step as the journal writes it."""

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
        """Build the entry of a step."""
        return cls(seq, anchor, inputs, step.decisions, step.notices, step.over, audit, step.booked)


class StoredRequest(Struct, frozen=True, tag="SolveProgram"):
    """A request to a solver as the journal stores it: a program of 10,000 columns has 1 MB."""

    request: int
    digest: str
    """SHA-256 of the request."""


def decisions_json(decisions: Sequence[Decision]) -> bytes:
    """Return the decisions as JSON, with a digest instead of each program."""
    return json.encode([_short(each) if type(each) is SolveProgram else each for each in decisions])


def _short(asked: SolveProgram) -> StoredRequest:
    return StoredRequest(asked.request, hashlib.sha256(json.encode(asked)).hexdigest())


class StoredStep(NamedTuple):
    """A step as the journal reads it. Replaying `inputs` must give the same bytes `decisions`."""

    seq: int
    now: float
    inputs: list[Input]
    decisions: bytes


class SnapshotPart(NamedTuple):
    """A part of the snapshot that was taken after step `seq`."""

    seq: int
    part: int
    body: bytes
    last: bool
    digest: str = ""
    """Digest of the whole snapshot; only its last part has it."""


def parts_of(seq: int, snapshot: bytes) -> list[SnapshotPart]:
    """Split a snapshot into parts; it is valid once the last part is written."""
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
