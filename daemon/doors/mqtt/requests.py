"""The door: a message from anybody, as what is asked for, or as why not. Pure."""

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
from daemon.doors.mqtt.schemas import JobId, PoolCommand, PoolJob, PoolJobs
from daemon.doors.mqtt.topics import CommandTopic, Topics
from daemon.doors.views.submission import specs_of
from daemon.model.inputs import Cancel, Command, Hold, Release, SetPriority, Submit
from daemon.model.job import JobSpec
from daemon.wire.bodies import TOO_MANY, at_once, decoded, is_batch, read_batch
from daemon.wire.jobs import MAX_JOBS
from daemon.wire.problems import ProblemError

ACTOR = "mqtt:{}"
"""Who asked, as the journal says: whoever the broker lets write to that pool's topics."""


class Message(NamedTuple):
    """A message as it came."""

    topic: str
    payload: bytes
    retained: bool = False
    reply: str = ""
    """Where an answer is wanted."""
    correlation: bytes = b""
    """What is to come back with it."""
    qos: int = 1
    content: str = ""
    """Of which content type it says that it is (MQTT 5)."""


class ParsedMessage(NamedTuple):
    """What a message asks for: jobs, or one command for a job.

    Each job is a group, of several if it is an array.
    """

    pool: str
    door: CommandTopic
    groups: Sequence[Sequence[JobSpec]] = ()
    command: Command | None = None

    @property
    def jobs(self) -> int:
        """New jobs at most."""
        return sum(map(len, self.groups))

    @property
    def job(self) -> str:
        """Whom the command is for."""
        return getattr(self.command, "job", "")

    def submits(self, group: int) -> list[Command]:
        """A group's jobs, to be asked for."""
        actor = ACTOR.format(self.pool)
        return [Submit(spec, actor=actor) for spec in self.groups[group]]


JSON = re.compile(r'(application/json *(; *charset="?utf-?8"?)?)?', re.IGNORECASE)
"""Content types of messages that are read; most say none."""

SEE = "what sia asyncapi prints"
"""Where it stands what messages may be."""

_one = msgspec.json.Decoder(PoolJob)
_command = msgspec.json.Decoder(PoolCommand)


class _Any(Struct):
    """For words on a command that is none: what it could be."""

    do: Literal["cancel", "hold", "release", "priority"]
    job: JobId
    priority: int = 0


class _Named(Struct):
    """Which job a message is about, whatever else is wrong with it."""

    id: JobId = ""
    job: JobId = ""


_name = msgspec.json.Decoder(_Named)


def named(payload: bytes) -> str:
    """The one job that a message names, if it names one, so that whoever sent it can tell."""
    if len(payload) > MAX_PAYLOAD:
        return ""
    try:
        found = _name.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found.id or found.job


def read(mail: Message, topics: Topics, pool: str, door: CommandTopic) -> ParsedMessage:
    """What is asked for. Raises ProblemError for whatever is wrong."""
    if mail.retained:
        raise _wrong("a retained message", "publish without retain: it would come again and again")
    if not mail.qos:
        raise _wrong("QoS 0, with which a message may be lost on its way", "publish with QoS 1")
    if len(mail.payload) > MAX_PAYLOAD:
        why = f"{len(mail.payload):,} bytes, more than {MAX_PAYLOAD:,}"
        raise ProblemError(413, "too large", why, "send several messages, or a batch over HTTP")
    if not JSON.fullmatch(mail.content):
        raise ProblemError(
            415, "wrong content type", f"the content type is {mail.content[:MAX_SHOWN]!r}",
            "send JSON in UTF-8, as application/json",
        )  # fmt: skip
    if mail.reply and not topics.is_reply(mail.reply, pool):
        below = topics.pool(pool, "reply/")
        raise _wrong("the response topic is not ours to write", f"name one below {below}")
    if len(mail.correlation) > MAX_CORRELATION:
        raise _wrong(f"correlation data longer than {MAX_CORRELATION} bytes", "send a UUID")
    if door == "submit":
        return _submission(mail, pool)
    return ParsedMessage(pool, door, command=_commanded(mail.payload, pool))


def _wrong(detail: str, mend: str) -> ProblemError:
    return ProblemError(422, "invalid", detail, mend)


def _submission(mail: Message, pool: str) -> ParsedMessage:
    jobs = _jobs(mail.payload)
    groups = []
    for i, job in enumerate(jobs):
        if job.pool not in (None, pool):
            raise _wrong(f"a job of pool {job.pool!r} on the topic of {pool!r}", "leave pool out")
        if job.id is None and len(mail.correlation) < MIN_CORRELATION:
            raise _wrong(
                "a job without id, of which a second one would be made if the message came twice",
                f"give it an id, or the message a UUID as correlation data ({MIN_CORRELATION} "
                "bytes at least)",
            )
        key = f"mqtt {pool} {mail.correlation.hex()} {i}"
        groups.append(specs_of(replace(job, pool=pool), key))
    return ParsedMessage(pool, "submit", groups)


def _jobs(payload: bytes) -> list[PoolJob]:
    """One job, a list of them, or `{"jobs": [...]}`, as over HTTP and in files."""
    if payload.lstrip().startswith(b"["):
        payload = b'{"jobs":' + payload + b"}"
    if is_batch(payload):
        return at_once(read_batch(payload, _one, PoolJob, PoolJobs, SEE))
    job = decoded(payload, _one, PoolJob, SEE)
    if (job.array or 1) > MAX_JOBS:
        raise TOO_MANY
    return [job]


def _commanded(payload: bytes, pool: str) -> Command:
    asked: PoolCommand = decoded(payload, _command, _Any, SEE)
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
