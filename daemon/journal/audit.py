"""The audit log: one record per change, with its author, chained by digests.

Each digest covers its record and the previous digest. To change, remove, insert or reorder records,
an attacker must change all later digests, and the newest digest is known outside the database.
"""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, json, to_builtins
from msgspec.structs import replace

from daemon.journal.rows import AuditRow
from daemon.model.audit_facts import AuditChange
from daemon.model.inputs import AuditNote, Configured, Submit
from daemon.model.outputs import Accepted, Answer

GENESIS = "0" * 64
"""The digest before the first record."""

MACHINE = "configuration"
"""Author of changes that come from a start with another configuration."""

ACCEPT_LOSS = "journal accept-loss"
"""The command with which an operator accepts the loss of steps of a damaged journal."""

JOBS_IN_ONE = 100
"""Maximum number of jobs in a record: a few KB. A larger batch takes several records."""

TIMES = frozenset(("created", "end", "expires", "override", "start", "until"))
"""Keys of a record's values that are times, in seconds since the epoch."""


def offline_user() -> str:
    """Return the name of the user who runs this process, for changes made without a daemon."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class AuditRecord(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One change, or one denied attempt. `time` is in seconds since the epoch."""

    number: int
    time: float
    who: str
    what: str
    """The command."""
    origin: str = ""
    """Network address of the client."""
    target: str = ""
    """The job, pool, node, maintenance or token that the command names."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    status: int = 200
    """HTTP status; 403 and 404 mark denied attempts, which changed nothing."""
    note: str = ""
    jobs: tuple[tuple[str, str, int, int], ...] = ()
    """Jobs of a submission: (id, pool, GPUs, number of jobs with that id)."""


class AuditHead(NamedTuple):
    """The end of the audit log: number of records, and the newest digest."""

    number: int = 0
    head: str = GENESIS

    def rows(self, time: float, records: Iterable[AuditRecord]) -> list[AuditRow]:
        """Number the records and return the rows that append them to the log."""
        made, number, head = [], self.number, self.head
        for record in records:
            number += 1
            body = canonical(record, number, time)
            head = digest(head, body)
            made.append(AuditRow(number, body, head))
        return made

    def after(self, rows: Sequence[AuditRow]) -> AuditHead:
        """Return the end of the log after `rows`."""
        return AuditHead(rows[-1].number, rows[-1].digest) if rows else self


def trail_of(last: AuditRow | None) -> AuditHead:
    """Return the end of the log, given its newest row."""
    return AuditHead() if last is None else AuditHead(last.number, last.digest)


_encode = json.Encoder(order="sorted").encode


def canonical(record: AuditRecord, number: int, time: float) -> str:
    """Return the canonical JSON of a record: sorted keys, no spaces."""
    return _encode(replace(record, number=number, time=time)).decode()


def digest(before: str, body: str) -> str:
    """Return the digest of a record and the digest `before` it."""
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def records_of(
    asked: Iterable[tuple[str, Sequence[Any]]],
    answers: Sequence[Answer],
    traces: Sequence[AuditChange | None],
) -> Iterator[AuditRecord]:
    """Return the audit records of a step.

    `asked` has the origin and the commands of each client. The last answers and traces of the step
    belong to these commands, in order.
    """
    asked = list(asked)
    place = len(answers) - sum(len(commands) for _, commands in asked)
    for origin, commands in asked:
        own = slice(place, place + len(commands))
        yield from _of_one(origin, commands, answers[own], traces[own])
        place += len(commands)


def _of_one(
    origin: str,
    commands: Sequence[Any],
    answers: Sequence[Answer],
    traces: Sequence[AuditChange | None],
) -> Iterator[AuditRecord]:
    jobs: dict[str, dict[str, list[Any]]] = {}  # by actor: one MQTT batch can hold several
    for command, answer, trace in zip(commands, answers, traces, strict=True):
        if type(answer) is not Accepted or not answer.new:
            continue
        if type(command) is Submit:
            if not command.actor:
                continue  # no client requested it: it comes from a simulated user of `sia demo`
            spec, theirs = command.spec, jobs.setdefault(command.actor, {})
            name = spec.id if spec.array is None else spec.id.rpartition(".")[0]
            theirs.setdefault(name, [name, spec.pool, spec.gpus, 0])[3] += 1
        elif trace is not None:
            yield _record(origin, command, trace)
    for by, theirs in jobs.items():
        rows = [(name, pool, gpus, n) for name, pool, gpus, n in theirs.values()]
        for i in range(0, len(rows), JOBS_IN_ONE):
            some = tuple(rows[i : i + JOBS_IN_ONE])
            yield AuditRecord(0, 0.0, by, "submit", origin, status=201, jobs=some)


def _record(origin: str, command: Any, trace: AuditChange) -> AuditRecord:
    if isinstance(command, AuditNote):
        return AuditRecord(
            0, 0.0, command.actor, command.what, origin, command.target, status=command.status,
            note=command.note,
        )  # fmt: skip
    return AuditRecord(
        0, 0.0, command.actor, WORDS[type(command).__name__], origin, trace.target,
        dict(trace.before), dict(trace.after),
    )  # fmt: skip


WORDS = {
    "Cancel": "cancel",
    "Hold": "hold",
    "Release": "release",
    "SetPriority": "priority",
    "SetPool": "pool set",
    "Drain": "drain",
    "Resume": "resume",
    "Maintain": "maintenance add",
    "CancelMaintenance": "maintenance cancel",
    "Lending": "lending",
    "SetPolicy": "policy",
    "IssueToken": "token create",
    "RevokeToken": "token revoke",
    "SignOut": "token sign-out",
}
"""Names of the commands in audit records."""


def record_of_configuration(before: Any, news: Configured) -> AuditRecord:
    """Return the record of the settings that a new configuration changes."""
    old, new = _settings(before), _settings(news.setup)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return AuditRecord(
        0, 0.0, MACHINE, "configure",
        before={key: old[key] for key in keys if key in old},
        after={key: new[key] for key in keys if key in new},
    )  # fmt: skip


def _settings(setup: Any) -> dict[str, Any]:
    """Return the settings as flat keys, so that a record lists only changes.

    Cells can be large, so they are represented by their digest.
    """
    plain = to_builtins(setup, order="deterministic")
    plain["options"] = to_builtins(setup.options, order="deterministic")  # includes defaults
    found = {f"{word} {key}": value for word in ("options", "modes", "areas")
             for key, value in plain.pop(word, {}).items()}  # fmt: skip
    for pool in plain.pop("pools"):
        name = pool.pop("name")
        found |= {f"pool {name} {key}": value for key, value in pool.items()}
    for name, budget in plain.pop("budgets", {}).items():
        found |= {f"pool {name} {key}": value for key, value in budget.items()}
    found |= {f"node {node['name']}": node["gpus"] for node in plain.pop("nodes", ())}
    if cells := plain.pop("cells", None):
        found["cells"] = hashlib.sha256(_encode(cells)).hexdigest()
    return {"policy": setup.policy, **found}


class Finding(NamedTuple):
    """Result of a verification of the audit log."""

    trail: AuditHead
    wrong: str = ""
    """The first error and its record; empty if the log is intact."""
    losses: tuple[str, ...] = ()
    """Descriptions of the losses that an operator has accepted."""


class Verifier:
    """Verifies the audit log in chunks of rows, in order."""

    def __init__(self) -> None:
        """Start before the first record."""
        self.trail = AuditHead()
        self.wrong = ""
        self._losses: list[str] = []
        self._seen: set[str] = set()

    def look(self, rows: Iterable[AuditRow], head: str = "") -> None:
        """Check the next rows; `head` is a digest that the log must contain."""
        for row in rows:
            if self.wrong:
                return
            number = self.trail.number + 1
            if row.number != number:
                self.wrong = f"record {number} is missing or out of order"
            elif digest(self.trail.head, row.body) != row.digest:
                self.wrong = f"record {number} or an earlier record was changed"
            elif (body := _read(row.body)).get("number") != number:
                self.wrong = f"record {number} contains another record number"
            else:
                if body.get("what") == ACCEPT_LOSS:
                    self._losses.append(f"record {number}: {body.get('note', '')}")
                self.trail = AuditHead(number, row.digest)
                if row.digest == head:
                    self._seen.add(head)

    def finding(self, head: str = "") -> Finding:
        """Return the result after the last row."""
        found = head in {"", GENESIS} or head in self._seen
        wrong = self.wrong
        if not wrong and not found:
            wrong = "the newest records are missing: no record has the digest of --head"
        return Finding(self.trail, wrong, tuple(self._losses))


def _read(body: str) -> dict[str, Any]:
    """Return a record's values; an empty mapping if the text is not JSON."""
    try:
        return json.decode(body, type=dict[str, Any])
    except ValueError:
        return {}
