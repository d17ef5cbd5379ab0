"""Where each hook is, made durable for all together, once a second at most."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from daemon.config.webhook_limits import SAVE_EVERY
from daemon.journal.attachments import NoteStore
from daemon.model.errors import JournalError

PREFIX = "webhook:"


class WebhookCursor(Struct, frozen=True, omit_defaults=True):
    """Where a hook is: all events up to `cursor` are done with."""

    cursor: int = 0
    last: int = 0
    """The last event of the delivery that failed: it is made of the same ones again."""
    tries: int = 0
    refusals: int = 0
    gone: str = ""
    """The digest of the URL that wants no more."""


_read = msgspec.json.Decoder(WebhookCursor).decode


def key(name: str) -> str:
    """Of the mark of a hook."""
    return PREFIX + name


def text(place: WebhookCursor) -> str:
    """As it is kept."""
    return msgspec.json.encode(place).decode()


class CursorStore:
    """The places of all hooks. On the loop's thread."""

    def __init__(self, notes: NoteStore) -> None:
        """Keep them there."""
        self._notes = notes
        self._places: dict[str, WebhookCursor] = {}
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()

    async def open(self, names: Iterable[str], newest: int) -> None:
        """Go on where hooks were; new ones begin after the newest event. Raises JournalError."""
        kept = await self._notes.read(PREFIX)
        new = {}
        for name in names:
            said = kept.get(key(name))
            place = self._places[name] = WebhookCursor(newest) if said is None else _read(said)
            if said is None:
                new[key(name)] = text(place)
        if new:
            await self._notes.write(new)

    def __getitem__(self, name: str) -> WebhookCursor:
        return self._places[name]

    def put(self, name: str, place: WebhookCursor) -> None:
        """A hook is there now; durable within seconds."""
        self._places[name] = place
        self._changed[name] = None
        self._news.set()

    async def run(self) -> None:
        """Save what changes, for ever."""
        while True:
            await self._news.wait()
            await asyncio.sleep(SAVE_EVERY)
            await self.save()

    async def save(self) -> None:
        """Make all places durable; where the database cannot, they are as changed as before."""
        changed, self._changed = self._changed, {}
        self._news.clear()
        if not changed:
            return
        try:
            await self._notes.write({key(name): text(self._places[name]) for name in changed})
        except Exception as error:
            self._changed |= changed
            self._news.set()
            if not isinstance(error, JournalError):
                raise
