"""Topics: `sia/v1/CLUSTER/…`. Names of pools stand in them with `%XX` for what a topic cannot hold.

Access is a broker's matter, and goes by topic alone: all that a pool's people write and read lies
below `pool/POOL/`, all that a manager does below `manager/`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

ROOT = "sia/v1"

CommandTopic = Literal["submit", "cmd"]

DOORS: dict[str, CommandTopic] = {"submit": "submit", "cmd": "cmd"}
"""By what a topic ends with."""

SPECIAL = re.compile(r"[%/+#\x00-\x1f\x7f]")
"""What parts levels, stands for several topics or is no text; % because it stands for these."""


class Topics(NamedTuple):
    """Those of one cluster."""

    cluster: str

    @property
    def root(self) -> str:
        """Before all of them."""
        return f"{ROOT}/{self.cluster}"

    @property
    def state(self) -> str:
        """Whether the daemon is there; retained."""
        return f"{self.root}/state"

    def pool(self, pool: str, what: str) -> str:
        """One of a pool's: `submit`, `cmd`, `event`, `state`, `reply/…`."""
        return f"{self.root}/pool/{quoted(pool)}/{what}"

    def every(self, door: CommandTopic) -> str:
        """A filter for all pools."""
        return f"{self.root}/pool/+/{door}"

    def manager(self, what: Literal["order", "report", "state"]) -> str:
        """One of an external cluster manager's."""
        return f"{self.root}/manager/{what}"

    def read(self, topic: str) -> tuple[str, CommandTopic] | None:
        """Whose it is and what of; None for topics that are not for the daemon.

        Each pool has one topic: who may not write there must not do so by another spelling.
        """
        begin, _, rest = topic.partition(f"{self.root}/pool/")
        level, _, name = rest.partition("/")
        pool, door = unquoted(level), DOORS.get(name)
        return None if begin or door is None or quoted(pool) != level or not pool else (pool, door)

    def is_reply(self, topic: str, pool: str) -> bool:
        """Whether answers may go there: nobody has us publish where they could not themselves."""
        below = self.pool(pool, "reply/")
        level = topic[len(below) :]
        return topic.startswith(below) and level != "" and not re.search(r"[+#\x00]", level)


def quoted(name: str) -> str:
    """A name as one level of a topic."""
    return SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)


def unquoted(level: str) -> str:
    """The name that a level is."""
    return unquote(level, errors="surrogateescape")
