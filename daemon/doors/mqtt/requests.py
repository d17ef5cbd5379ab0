"""Parse and validate messages from clients. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from daemon.config.mqtt_limits import MAX_CORRELATION, MAX_PAYLOAD, MIN_CORRELATION
from daemon.config.validation import MAX_SHOWN
from daemon.doors.mqtt import schemas
from daemon.doors.mqtt.schemas import JobId, JobProgress, PoolCommand, PoolJob, PoolJobs
from daemon.doors.mqtt.topics import CommandTopic, Topics
from daemon.doors.views.submission import specs_of
from daemon.model.inputs import Cancel, Command, Hold, Release, Reported, SetPriority, Submit
from daemon.model.job import JobSpec
from daemon.wire.bodies import TOO_MANY, at_once, decoded, is_batch, read_batch
from daemon.wire.jobs import MAX_JOBS, Priority
from daemon.wire.problems import ProblemError

ACTOR = "mqtt:{}"
"""Actor in the journal: anyone whom the broker lets write to the pool's topics."""


class Message(NamedTuple):
    """A message as received."""

    topic: str
    payload: bytes
    retained: bool = False
    reply: str = ""
    """Response topic."""
    correlation: bytes = b""
    """Correlation data, returned with the reply."""
    qos: int = 1
    content: str = ""
    """Content type (MQTT 5)."""


class ParsedMessage(NamedTuple):
    """A valid message: jobs to submit, or one command for a job.

    Each group holds one job, or all jobs of an array.
    """

    pool: str
    door: CommandTopic
    groups: Sequence[Sequence[JobSpec]] = ()
    command: Command | None = None

    @property
    def jobs(self) -> int:
        """Number of jobs to submit."""
        return sum(map(len, self.groups))

    @property
    def job(self) -> str:
        """Id of the job that the command is for."""
        return getattr(self.command, "job", "")

    def submits(self, group: int) -> list[Command]:
        """Return the submit commands of a group."""
        actor = ACTOR.format(self.pool)
        return [Submit(spec, actor=actor) for spec in self.groups[group]]


JSON = re.compile(r'(application/json *(; *charset="?utf-?8"?)?)?', re.IGNORECASE)
"""Accepted content types; most clients send none."""

SEE = "the output of sia asyncapi"
"""Reference for the message format."""

_one = msgspec.json.Decoder(PoolJob)
_progress = msgspec.json.Decoder(JobProgress)
_command = msgspec.json.Decoder(PoolCommand)


class _Any(Struct):
    """Shape of a command that says not or wrongly what to do."""

    do: Literal["cancel", "hold", "release", "priority"]
    job: JobId
    priority: int = 0


class _Plain(Struct):
    """Shape of a command that has only a job."""

    do: str
    job: JobId


class _WithPriority(Struct):
    """Shape of a command that sets a priority."""

    do: str
    job: JobId
    priority: Priority


class _Do(Struct):
    """Shape of a message that may be a command, to read which one."""

    do: str = ""


_SHAPES: dict[str, type[Struct]] = {
    "cancel": _Plain,
    "hold": _Plain,
    "release": _Plain,
    "priority": _WithPriority,
}
_do = msgspec.json.Decoder(_Do)


def _shape(payload: bytes) -> type[Struct]:
    """Return the shape that the command of a message has, to find what is wrong with it."""
    try:
        return _SHAPES.get(_do.decode(payload).do, _Any)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Any


class _Named(Struct):
    """Shape of a message with a job id, to read the id of a message that is otherwise invalid."""

    id: JobId = ""
    job: JobId = ""


_name = msgspec.json.Decoder(_Named)


def named(payload: bytes) -> str:
    """Return the job id in a message, so that a refusal can name the job; "" if there is none."""
    if len(payload) > MAX_PAYLOAD:
        return ""
    try:
        found = _name.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found.id or found.job


def read(mail: Message, topics: Topics, pool: str, door: CommandTopic) -> ParsedMessage:
    """Parse a message. Raises ProblemError if it is invalid."""
    if mail.retained:
        raise _wrong(
            "the message is retained", "publish without retain, or it is delivered repeatedly"
        )
    if not mail.qos:
        raise _wrong("the message has QoS 0 and could be lost", "publish with QoS 1")
    if len(mail.payload) > MAX_PAYLOAD:
        why = f"the message has {len(mail.payload):,} bytes, more than {MAX_PAYLOAD:,}"
        raise ProblemError(413, "too large", why, "send several messages, or a batch over HTTP")
    if not JSON.fullmatch(mail.content):
        raise ProblemError(
            415, "wrong content type", f"the content type is {mail.content[:MAX_SHOWN]!r}",
            "send JSON in UTF-8, as application/json",
        )  # fmt: skip
    if mail.reply and not topics.is_reply(mail.reply, pool):
        below = topics.pool(pool, "reply/")
        raise _wrong("the response topic is not one of this pool", f"use a topic below {below}")
    if len(mail.correlation) > MAX_CORRELATION:
        raise _wrong(f"correlation data longer than {MAX_CORRELATION} bytes", "send a UUID")
    if door == "submit":
        return _submission(mail, pool)
    if door == "progress":
        return ParsedMessage(pool, door, command=_reported(mail.payload, pool))
    return ParsedMessage(pool, door, command=_commanded(mail.payload, pool))


def _wrong(detail: str, mend: str) -> ProblemError:
    return ProblemError(422, "invalid", detail, mend)


def _submission(mail: Message, pool: str) -> ParsedMessage:
    jobs = _jobs(mail.payload)
    groups = []
    for i, job in enumerate(jobs):
        if job.pool not in (None, pool):
            raise _wrong(f"a job of pool {job.pool!r} on the topic of {pool!r}", "omit pool")
        if job.id is None and len(mail.correlation) < MIN_CORRELATION:
            raise _wrong(
                "the job has no id, so a repeated delivery would submit it twice",
                "set an id, or set a UUID as the message's correlation data (at least "
                f"{MIN_CORRELATION} bytes)",
            )
        key = f"mqtt {pool} {mail.correlation.hex()} {i}"
        groups.append(specs_of(replace(job, pool=pool), key))
    return ParsedMessage(pool, "submit", groups)


def _jobs(payload: bytes) -> list[PoolJob]:
    """Decode one job, a list, or `{"jobs": [...]}`."""
    if payload.lstrip().startswith(b"["):
        payload = b'{"jobs":' + payload + b"}"
    if is_batch(payload):
        return at_once(read_batch(payload, _one, PoolJob, PoolJobs, SEE))
    job = decoded(payload, _one, PoolJob, SEE)
    if (job.array or 1) > MAX_JOBS:
        raise TOO_MANY
    return [job]


def _reported(payload: bytes, pool: str) -> Command:
    progress: JobProgress = decoded(payload, _progress, JobProgress, SEE)
    return Reported(
        progress.job,
        progress.attempt,
        progress.done,
        progress.speed,
        progress.regime,
        ACTOR.format(pool),
        progress.trials,
        progress.iterations,
    )


def _commanded(payload: bytes, pool: str) -> Command:
    asked: PoolCommand = decoded(payload, _command, _shape(payload), SEE)
    actor = ACTOR.format(pool)
    match asked:
        case schemas.CancelCommand(job):
            return Cancel(job, actor)
        case schemas.HoldCommand(job):
            return Hold(job, actor)
        case schemas.ReleaseCommand(job):
            return Release(job, actor)
        case schemas.PriorityCommand(job, priority):
            return SetPriority(job, priority, actor)
