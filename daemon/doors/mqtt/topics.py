"""Topics: `sia/v1/CLUSTER/…`. Characters of pool names that a topic cannot hold are `%XX`.

The broker controls access by topic: all topics of a pool's users are below `pool/POOL/`, all of a
cluster manager's below `manager/`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

ROOT = "sia/v1"

CommandTopic = Literal["submit", "cmd", "progress"]

DOORS: dict[str, CommandTopic] = {"submit": "submit", "cmd": "cmd", "progress": "progress"}
"""Inbound topics by their last level."""

SPECIAL = re.compile(r"[%/+#\x00-\x1f\x7f]")
"""Level separators, wildcards and control characters, and % itself."""


class Topics(NamedTuple):
    """Topics of one cluster."""

    cluster: str

    @property
    def root(self) -> str:
        """Prefix of all topics."""
        return f"{ROOT}/{self.cluster}"

    @property
    def state(self) -> str:
        """Retained topic with the daemon's presence."""
        return f"{self.root}/state"

    def pool(self, pool: str, what: str) -> str:
        """Return a pool's topic: `submit`, `cmd`, `progress`, `event`, `state`, `reply/…`."""
        return f"{self.root}/pool/{quoted(pool)}/{what}"

    def every(self, door: CommandTopic) -> str:
        """Return the filter for an inbound topic of all pools."""
        return f"{self.root}/pool/+/{door}"

    def manager(self, what: Literal["order", "report", "state"]) -> str:
        """Return a topic of an external cluster manager."""
        return f"{self.root}/manager/{what}"

    def read(self, topic: str) -> tuple[str, CommandTopic] | None:
        """Return pool and kind of an inbound topic; None for other topics.

        Each pool has exactly one spelling, so that an ACL by topic cannot be bypassed.
        """
        begin, _, rest = topic.partition(f"{self.root}/pool/")
        level, _, name = rest.partition("/")
        pool, door = unquoted(level), DOORS.get(name)
        return None if begin or door is None or quoted(pool) != level or not pool else (pool, door)

    def is_reply(self, topic: str, pool: str) -> bool:
        """Return whether a topic is a reply topic of a pool, where its users may write too."""
        below = self.pool(pool, "reply/")
        level = topic[len(below) :]
        return topic.startswith(below) and level != "" and not re.search(r"[+#\x00]", level)


def quoted(name: str) -> str:
    """Encode a name as one topic level."""
    return SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)


def unquoted(level: str) -> str:
    """Decode a topic level to a name."""
    return unquote(level, errors="surrogateescape")
