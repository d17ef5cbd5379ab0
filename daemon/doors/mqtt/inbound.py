"""Receive messages of pools' users: execute them in batches, reply, and acknowledge.

A message is acknowledged only after its effect is durable and the reply has reached the broker.
While the journal is unavailable, commands are retried and the broker holds further messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

import paho.mqtt.client as mqtt

from daemon.answers.estimates.estimator import EtaService
from daemon.config.mqtt_limits import GROAN_EVERY, READ_AT_ONCE, UNACKNOWLEDGED
from daemon.doors.mqtt.executor import CommandHandler
from daemon.doors.mqtt.reconnecting import Link
from daemon.doors.mqtt.replies import Replies, reply_to
from daemon.doors.mqtt.requests import Message, ParsedMessage, read
from daemon.doors.mqtt.schemas import Reply
from daemon.doors.mqtt.topics import CommandTopic, Topics
from daemon.model.limits import MAX_BATCH
from daemon.runtime.logs import log
from daemon.service.admission import Admission
from daemon.service.service import Service
from daemon.wire.problems import ProblemError


class InboundMessage(NamedTuple):
    """A message on a pool's topic, and the session in which it arrived."""

    mail: Message
    message: mqtt.MQTTMessage
    session: int
    pool: str
    door: CommandTopic


class Inbound:
    """A bounded queue of messages, and one worker."""

    def __init__(
        self,
        service: Service,
        link: Link,
        topics: Topics,
        replies: Replies,
        admission: Admission | None,
        eta: EtaService | None,
    ) -> None:
        """Create an empty queue."""
        self._service, self._link, self._topics = service, link, topics
        self._replies, self._handler = replies, CommandHandler(service, admission, eta)
        self._queue: deque[InboundMessage] = deque()
        self._news = asyncio.Event()
        self._paused = False
        self._logged_at = -GROAN_EVERY

    def receive(self, message: mqtt.MQTTMessage) -> None:
        """Queue a message. A message for no pool is acknowledged at once."""
        found, topic = None, "a topic that is not UTF-8"
        try:
            mail = _mail(message)
            topic = mail.topic
            found = self._topics.read(topic)
        except UnicodeDecodeError:
            pass  # not a topic of ours
        if found is None:
            self._log_unknown(topic)
            self._link.ack(message, self._link.session)
            return
        if not message.qos and len(self._queue) >= UNACKNOWLEDGED:
            return  # QoS 0 is refused anyway, and a flood of it must not delay other messages
        while self._queue and self._queue[0].session != self._link.session:
            self._queue.popleft()  # the broker sends it again later
        self._queue.append(InboundMessage(mail, message, self._link.session, *found))
        self._news.set()
        if len(self._queue) >= 2 * UNACKNOWLEDGED:
            self._paused = True
            self._link.pause(on=True)

    async def run(self) -> None:
        """Execute messages until cancelled."""
        while True:
            await self._news.wait()
            batch = await self._gather()
            try:
                await self._answer(batch)
            except Exception:  # noqa: BLE001  one message must not block all others
                log().exception("messages failed", messages=len(batch))
                for each in batch:
                    await self._execute_alone(*each)

    async def _answer(self, batch: Sequence[tuple[InboundMessage, ParsedMessage | Reply]]) -> None:
        """Execute messages, publish replies and acknowledge; on failure reconnect for a resend."""
        answers = await self._handler.answers([parsed for _, parsed in batch])
        pairs = zip(batch, answers, strict=True)
        sent = await self._replies.tell(
            [(came.pool, came.mail, reply) for (came, _), reply in pairs]
        )
        for came, _ in batch:
            if sent:
                self._link.ack(came.message, came.session)
            else:
                self._link.drop(came.session)

    async def _execute_alone(self, came: InboundMessage, parsed: ParsedMessage | Reply) -> None:
        """Execute one message separately; if it fails again, refuse it to stop the resends."""
        try:
            await self._answer([(came, parsed)])
        except Exception as error:  # noqa: BLE001  any defect
            with suppress(Exception):
                await self._answer([(came, self._defect(came, error))])
                return
            self._link.ack(came.message, came.session)

    async def _gather(self) -> list[tuple[InboundMessage, ParsedMessage | Reply]]:
        """Take messages for one step, in order. Yields to the event loop in between."""
        batch: list[tuple[InboundMessage, ParsedMessage | Reply]] = []
        jobs = read = 0
        while self._queue and jobs < MAX_BATCH and len(batch) < UNACKNOWLEDGED:
            came = self._queue.popleft()
            if came.session != self._link.session:
                continue  # the broker sends it again
            if came.mail.retained and not came.mail.payload:
                self._link.ack(came.message, came.session)
                continue  # the sender cleared a retained message
            parsed = self._open(came)
            batch.append((came, parsed))
            read += len(came.mail.payload)
            if read > READ_AT_ONCE:
                read = 0
                await asyncio.sleep(0)
            jobs += parsed.jobs if isinstance(parsed, ParsedMessage) else 0
        if not self._queue:
            self._news.clear()
        if self._paused and len(self._queue) < UNACKNOWLEDGED:
            self._paused = False
            self._link.pause(on=False)
        return batch

    def _open(self, came: InboundMessage) -> ParsedMessage | Reply:
        """Parse a message, or return the reply that refuses it."""
        try:
            if came.pool not in self._service.book.pools:
                self._log_unknown(came.mail.topic)
                raise ProblemError(404, "no such pool", "the topic names no existing pool", "")
            parsed = read(came.mail, self._topics, came.pool, came.door)
        except ProblemError as problem:
            return reply_to(problem)
        except Exception as error:  # noqa: BLE001  one message must not block all others
            return self._defect(came, error)
        return parsed

    def _defect(self, came: InboundMessage, error: Exception) -> Reply:
        """Return the reply for a defect of the daemon."""
        log().exception("message failed", topic=came.mail.topic[:200])
        why = f"internal error: {error!r}"
        return reply_to(ProblemError(500, "defect", why, "report this defect"))

    def _log_unknown(self, topic: str) -> None:
        """Log a message for no pool, rate-limited; there is no topic to report it on."""
        if monotonic() - self._logged_at > GROAN_EVERY:
            self._logged_at = monotonic()
            log().warning("message for no pool", topic=topic[:200])


def _mail(message: mqtt.MQTTMessage) -> Message:
    """Convert a message. Raises UnicodeDecodeError if its topic is not UTF-8."""
    properties = message.properties
    return Message(
        message.topic,
        bytes(message.payload),
        bool(message.retain),
        getattr(properties, "ResponseTopic", ""),
        getattr(properties, "CorrelationData", b""),
        message.qos,
        getattr(properties, "ContentType", ""),
    )
