"""Publish each pool's usage as a retained message, on change and at most once a second."""

from __future__ import annotations

import asyncio

import msgspec

from daemon.config.mqtt_limits import STATE_EVERY
from daemon.doors.mqtt.connection import DENIED, WireError
from daemon.doors.mqtt.reconnecting import Link
from daemon.doors.mqtt.topics import Topics
from daemon.doors.views.resources import pool_view, unplaced
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.limits import PROBE_EVERY
from daemon.service.service import Service

_encode = msgspec.json.Encoder().encode
_names = msgspec.json.Decoder(list[str])


class States:
    """Publishes the states of pools, and all of them after each reconnect."""

    def __init__(self, service: Service, link: Link, topics: Topics) -> None:
        """Publish a service's pools over a link."""
        self._service, self._link, self._topics = service, link, topics
        self._key = f"mqtt:{topics.cluster}:pools"
        self._published: dict[str, bytes] = {}
        self._session = 0
        self._steps = -1

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._clear()
        while True:
            await self._link.up.wait()
            try:
                await self._look()
            except (WireError, UnavailableError):
                self._published.clear()
            await asyncio.sleep(STATE_EVERY)

    async def _clear(self) -> None:
        """Delete the retained states of pools that no longer exist."""
        notes, pools = self._service.notes, self._service.book.pools
        while True:
            try:
                before = (await notes.read(self._key)).get(self._key, "[]")
                for name in _names.decode(before):
                    if name not in pools:
                        self._published[name] = b""
                await self._link.up.wait()
                for name in [*self._published]:
                    topic = self._topics.pool(name, "state")
                    await (await self._link.send(topic, b"", retain=True))
                await notes.write({self._key: _encode([*pools]).decode()})
            except (WireError, JournalError):
                await asyncio.sleep(PROBE_EVERY)
            else:
                self._published.clear()
                return

    async def _look(self) -> None:
        """Publish the changed states. O(pools) if anything changed."""
        service = self._service
        steps = service.status().steps
        if self._session != self._link.session:
            self._session, self._steps = self._link.session, -1
            self._published.clear()
        if steps == self._steps or not service.fence.holds():
            return
        await service.settled()
        self._steps = service.status().steps
        widths, sent = unplaced(service.book), []
        for name in service.book.pools:
            engine = service.engine
            view = _encode(pool_view(engine, name, engine.core.state.now, widths.get(name, ())))
            if self._published.get(name) != view:
                sent.append(
                    await self._link.send(self._topics.pool(name, "state"), view, retain=True)
                )
                self._published[name] = view
        if max([await each for each in sent], default=0) >= DENIED:
            self._published.clear()
            self._steps = -1  # retry until the broker accepts the state
