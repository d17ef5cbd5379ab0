"""Cursors of all webhooks, written to the journal together, at most once a second."""

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
    """Delivery state of a webhook: all events up to `cursor` are delivered or given up."""

    cursor: int = 0
    last: int = 0
    """Number of the last event of the failed delivery, so that a retry sends the same events."""
    tries: int = 0
    refusals: int = 0
    gone: str = ""
    """Digest of the URL that answered 410 Gone."""


_read = msgspec.json.Decoder(WebhookCursor).decode


def key(name: str) -> str:
    """Return the note key of a webhook."""
    return PREFIX + name


def text(place: WebhookCursor) -> str:
    """Encode a cursor for the journal."""
    return msgspec.json.encode(place).decode()


class CursorStore:
    """Cursors of all webhooks. Use from the event loop's thread."""

    def __init__(self, notes: NoteStore) -> None:
        """Store the cursors in `notes`."""
        self._notes = notes
        self._places: dict[str, WebhookCursor] = {}
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()

    async def open(self, names: Iterable[str], newest: int) -> None:
        """Load the cursors; new webhooks start after the newest event. Raises JournalError."""
        stored = await self._notes.read(PREFIX)
        new = {}
        for name in names:
            value = stored.get(key(name))
            place = self._places[name] = WebhookCursor(newest) if value is None else _read(value)
            if value is None:
                new[key(name)] = text(place)
        if new:
            await self._notes.write(new)

    def __getitem__(self, name: str) -> WebhookCursor:
        return self._places[name]

    def put(self, name: str, place: WebhookCursor) -> None:
        """Set a cursor. It becomes durable within seconds."""
        self._places[name] = place
        self._changed[name] = None
        self._news.set()

    async def run(self) -> None:
        """Save changed cursors until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(SAVE_EVERY)
            await self.save()

    async def save(self) -> None:
        """Save changed cursors; keep them marked as changed if the journal is unavailable."""
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
