"""An external cluster manager that lives on MQTT alone: orders go out, reports come in.

What should run is kept here, and asked after whenever somebody was away: the manager answers for
each, and what it never saw is ordered again. Nothing is taken for lost because nobody answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec
import paho.mqtt.client as mqtt

from daemon.backends.interface import Ability, BackendContext, Expected, StopKind
from daemon.config.mqtt import MqttConfig
from daemon.config.mqtt_limits import MAX_PAYLOAD, RESEND_AFTER, UNACKNOWLEDGED
from daemon.doors.mqtt.connection import DENIED, TOO_LARGE, WireError
from daemon.doors.mqtt.manager.roster import AttemptKey, DesiredAttempts
from daemon.doors.mqtt.reconnecting import Link
from daemon.doors.mqtt.schemas import ManagerState, Order, Report, StartOrder, StopOrder
from daemon.doors.mqtt.supervised import again
from daemon.doors.mqtt.topics import Topics
from daemon.model.errors import JournalError
from daemon.model.inputs import StartFailed
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import StartEffect
from daemon.runtime.logs import log
from sia.model import Nodes

PART = "backend"

LOOK_EVERY = 0.5
"""Seconds between two looks whether the manager is there, and whether something is to be asked."""

_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report)
_state = msgspec.json.Decoder(ManagerState)


OTHER_DATABASE = (
    "give the daemon the database that it had; or, once nothing runs there, begin the manager with "
    "an empty memory"
)
"""What to do about epochs that went back: jobs would be taken for others of the same name."""


class MqttBackend:
    """Orders, and tells what is reported.

    Args:
        config: the broker.
        gone_after: seconds without a heartbeat after which the manager counts as gone.
    """

    can: frozenset[Ability] = frozenset({"commands", "requeue"})
    gpus: Nodes | None = None

    def __init__(self, config: MqttConfig, gone_after: float) -> None:
        """Nobody is there yet."""
        self._config, self._gone_after = config, gone_after
        self._topics = Topics(config.cluster)
        self._key = f"mqtt:{config.cluster}:manager"
        self._reports: asyncio.Queue[tuple[mqtt.MQTTMessage, int]] = asyncio.Queue()
        self._orders: asyncio.Queue[AttemptKey | StopOrder] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._manager = 0  # its epoch
        self._beat = float("-inf")
        self._here = False
        self._heard = 0  # the session of that beat
        self._session = 0  # in which all was asked after
        self._ask = True  # whether it is to be, again
        self._link_trouble = "", ""
        self._obeys = 0  # the newest epoch of a daemon that the manager has heard of

    async def open(self, house: BackendContext) -> None:
        """Remember who the manager is; `reconcile` begins."""
        self._house = house
        self._roster = DesiredAttempts(house.fence.epoch)
        try:
            self._manager = int((await house.notes.read(self._key)).get(self._key, "0"))
        except JournalError:
            self._manager = 0  # whoever comes is believed, and noted
        self._link = Link(
            self._config,
            f"{self._config.name}-orders",
            [self._topics.manager("report"), self._topics.manager("state")],
            self._receive,
            self._say_link,
            may=house.fence.holds,
            as_published=False,
        )

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Ask the manager after all of it as soon as it is there."""
        for each in expected:
            self._roster.want(each.order, monotonic(), seen=each.started is not None)
        self._beat = monotonic()  # it has its time to come
        work = (self._link.run, self._hear, self._send, self._watch)
        self._tasks = [asyncio.create_task(again(each, self._say_defect)) for each in work]
        return []

    async def start(self, order: StartEffect) -> None:
        """Order it, now or when the manager is there; it is asked after until it is answered."""
        if self._roster.want(order, monotonic()) and self._ready:
            self._orders.put_nowait((order.job, order.attempt))

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Order it, now or when the manager is there."""
        self._roster.stop((job, attempt), kind, monotonic())
        if self._ready:
            epoch = self._house.fence.epoch
            self._orders.put_nowait(StopOrder(epoch=epoch, job=job, attempt=attempt, kind=kind))

    async def close(self) -> None:
        """Say and hear nothing more."""
        if self._tasks:
            self._link.stop()
            for task in self._tasks[1:]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """None: what jobs write stays with the manager."""
        return None

    @property
    def _ready(self) -> bool:
        """Whether orders are heard now; if not, all is asked after later."""
        return self._hears and not self._ask

    @property
    def _hears(self) -> bool:
        """Whether the manager is there, and was heard on this connection.

        It may not have come back to a broker that has forgotten it before.
        """
        return self._link.up.is_set() and self._here and self._heard == self._link.session

    def _receive(self, message: mqtt.MQTTMessage) -> None:
        if message.qos or self._reports.qsize() < UNACKNOWLEDGED:  # no broker holds back QoS 0
            self._reports.put_nowait((message, self._link.session))

    async def _hear(self) -> None:
        while True:
            message, session = await self._reports.get()
            try:
                await self._take(message, session)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                log().warning("not understood", topic=message.topic[:200], why=str(error)[:200])
            self._link.ack(message, session)

    async def _take(self, message: mqtt.MQTTMessage, session: int) -> None:
        """One message of the manager's. Raises what msgspec does for what is none."""
        if message.topic == self._topics.manager("state"):
            if message.payload:
                state = _state.decode(message.payload)
                await self._heartbeat(state, session, stored=bool(message.retain))
            return
        if len(message.payload) > MAX_PAYLOAD:
            raise msgspec.ValidationError("too large")
        report = _report.decode(message.payload)
        if not await self._believes(report.manager):
            return
        seen, again = self._roster.hear(report)
        for each in seen:
            self._house.sink(each)
        if again is not None:
            self._orders.put_nowait(again)

    async def _heartbeat(self, state: ManagerState, session: int, *, stored: bool) -> None:
        """A stored one says who the manager is, and not that it lives."""
        if not await self._believes(state.epoch):
            return
        self._obeys = state.daemon
        if not state.here:
            self._beat = float("-inf")
        elif not stored:
            self._beat, self._heard = monotonic(), session
        self._look()

    async def _believes(self, epoch: int) -> bool:
        """Whether it is the manager who speaks, and not one from before; a new one is noted."""
        if epoch > self._manager:
            await self._note(epoch)
            self._manager, self._ask = epoch, True
        elif epoch < self._manager:
            log().warning("report of a manager from before", epoch=epoch, now=self._manager)
        return epoch == self._manager

    async def _note(self, epoch: int) -> None:
        while True:
            try:
                await self._house.notes.write({self._key: str(epoch)})
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return

    async def _watch(self) -> None:
        """See who is there; ask after all when somebody was away, or something has no answer."""
        while True:
            self._look()
            if self._hears and self._house.fence.holds():
                try:
                    await self._ask_after()
                except WireError:
                    self._ask = True
            await asyncio.sleep(LOOK_EVERY)

    async def _ask_after(self) -> None:
        """Ask what is to be asked now. Raises WireError where it does not go out."""
        now, only = monotonic(), None
        if self._ask or self._session != self._link.session:
            self._session, self._ask = self._link.session, False
        elif not (only := self._roster.overdue(now, RESEND_AFTER)):
            return
        for order in self._roster.ask(self._house.fence.epoch, now, only):
            await self._order(order)

    def _look(self) -> None:
        here = monotonic() - self._beat < self._gone_after
        if not here or not self._here:
            self._ask = True  # whatever was ordered may not have been heard
        self._here = here
        if self._link_trouble[0]:
            self._house.parts.say(PART, *self._link_trouble)
        elif not here:
            why = f"no heartbeat of the cluster manager within {self._gone_after:g} s"
            if self._beat == float("-inf"):
                why = "the cluster manager says, or has left word, that it is gone"
            mend = f"look whether it lives and writes {self._topics.manager('state')}"
            self._house.parts.say(PART, why, mend)
        elif self._obeys > (epoch := self._house.fence.epoch):
            why = f"the manager obeys epoch {self._obeys} of a daemon, and this one is {epoch}"
            self._house.parts.say(PART, why, OTHER_DATABASE)
        else:
            self._house.parts.say(PART)

    def _say_defect(self, why: str, mend: str) -> None:
        self._ask = True  # what was under way may not have gone out
        self._house.parts.say(PART, why, mend)

    def _say_link(self, why: str, mend: str) -> None:
        self._link_trouble = why, mend
        self._look()

    async def _send(self) -> None:
        """Orders, one after the other."""
        while True:
            each = await self._orders.get()
            fence = self._house.fence
            order = each if isinstance(each, StopOrder) else self._roster.start(each, fence.epoch)
            if order is None:
                continue
            try:
                await self._order(order)
            except WireError:
                self._ask = True

    async def _order(self, order: Order) -> None:
        """Publish it, if we may. Raises WireError while there is no connection."""
        if not self._house.fence.holds():
            raise WireError("another daemon acts")
        sent = await self._link.send(self._topics.manager("order"), _encode(order))
        sent.add_done_callback(partial(self._sent, order))

    def _sent(self, order: Order, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._ask = True
        elif future.result() == TOO_LARGE and isinstance(order, StartOrder):
            if self._roster.drop((order.job, order.attempt)):
                size, most = len(_encode(order)), self._link.most
                why = f"its order has {size:,} bytes, the broker takes {most:,} (max_packet_size)"
                self._house.sink(StartFailed(order.job, order.attempt, why))
        elif future.result() >= DENIED:
            self._ask = True
