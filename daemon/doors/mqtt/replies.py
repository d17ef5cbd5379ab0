"""Publish replies: to the response topic if there is one, and as events without a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from daemon.config.mqtt_limits import MAX_CORRELATION, MAX_PACKET, OVERHEAD, REPLY_LINES
from daemon.doors.mqtt.connection import WireError
from daemon.doors.mqtt.reconnecting import Link
from daemon.doors.mqtt.requests import Message, named
from daemon.doors.mqtt.schemas import Reply
from daemon.doors.mqtt.topics import Topics
from daemon.wire.jobs import BatchLine, EventView
from daemon.wire.problems import ProblemError

FRAME = MAX_CORRELATION + 2 * OVERHEAD
"""Bytes of a reply's packet besides topic and body."""

_encode = msgspec.json.Encoder().encode


def reply_to(problem: ProblemError) -> Reply:
    """Return the reply that refuses a whole message."""
    details = problem.details
    return Reply(details.status, [], details.detail, details.mend, details.errors)


class Replies:
    """Publishes the results of messages."""

    def __init__(
        self, link: Link, topics: Topics, now: Callable[[], float], known: Callable[[str], bool]
    ) -> None:
        """Publish over a link; only pools that are `known` have an event topic."""
        self._link, self._topics, self._now, self._known = link, topics, now, known

    async def tell(self, answers: Sequence[tuple[str, Message, Reply]]) -> bool:
        """Publish replies; return False if the connection was lost, so the messages come again.

        A reply that the broker refuses counts as published; `Link` reports the problem.
        """
        sent = []
        try:
            for pool, mail, reply in answers:
                if mail.reply and self._topics.is_reply(mail.reply, pool):
                    room = min(self._link.most, MAX_PACKET) - len(mail.reply.encode()) - FRAME
                    body = fitting(reply, room)
                    sent.append(await self._link.send(mail.reply, body, with_=_back(mail)))
                if self._known(pool):
                    topic = self._topics.pool(pool, "event")
                    events = self._events(pool, reply, mail)
                    sent += [await self._link.send(topic, _encode(event)) for event in events]
            for each in sent:
                await each
        except WireError:
            return False
        return True

    def _events(self, pool: str, reply: Reply, mail: Message) -> list[EventView]:
        """Return events for refused jobs, and for known ones if there is no response topic."""
        now = self._now()
        if not reply.jobs:
            data = {"status": reply.status, "why": reply.detail, "mend": reply.mend}
            return [EventView(0, now, "refused", named(mail.payload), pool, data=data)]
        lines = [
            line
            for line in reply.jobs
            if line.status >= 400 or (line.status == 200 and not mail.reply)
        ]
        events = []
        for line in lines[:REPLY_LINES]:
            if line.status >= 400:
                data = {"status": line.status, "why": line.detail, "mend": line.mend}
                events.append(EventView(0, now, "refused", line.id, pool, data=data))
            else:
                events.append(EventView(0, now, "known", line.id, pool))
        if more := sum(line.status >= 400 for line in lines[REPLY_LINES:]):
            why = f"{more:,} more jobs of the message"
            data = {
                "status": 413,
                "why": why,
                "mend": "see the reply, or send fewer jobs at a time",
            }
            events.append(EventView(0, now, "refused", pool=pool, data=data))
        return events


def fitting(reply: Reply, room: int) -> bytes:
    """Encode a reply within a size: drop the texts of all jobs, then the jobs."""
    body = _encode(reply)
    if len(body) <= room:
        return body
    why = f"the reply has {len(body):,} bytes, more than the broker allows"
    lines = [BatchLine(each.id, each.status, retry_after=each.retry_after) for each in reply.jobs]
    short = Reply(reply.status, lines, f"{why}; texts are omitted", "send fewer jobs at a time")
    body = _encode(short)
    if len(body) <= room:
        return body
    mend = "query the jobs over HTTP, and send fewer at a time"
    return _encode(Reply(reply.status, [], why, mend))


def _back(mail: Message) -> Properties | None:
    """Return the properties of a reply."""
    if not mail.correlation:
        return None
    found = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    found.CorrelationData = mail.correlation
    return found
