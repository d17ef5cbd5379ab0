"""Backend for an external cluster manager over MQTT: orders go out, reports come in.

The backend keeps the list of desired attempts. After each interruption it asks the manager about
all of them (`sync`), and repeats the orders that the manager has not seen. A job is never counted
as lost only because reports are missing.
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

from daemon.backends.interface import BackendContext, Expected, StopKind
from daemon.config.config import Ability
from daemon.config.mqtt import MqttConfig
from daemon.config.mqtt_limits import MAX_PAYLOAD, RESEND_AFTER, UNACKNOWLEDGED
from daemon.doors.mqtt.connection import DENIED, TOO_LARGE, WireError
from daemon.doors.mqtt.manager import CAN
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
"""Seconds between two checks of the heartbeat and of overdue orders."""

_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report)
_state = msgspec.json.Decoder(ManagerState)


OTHER_DATABASE = (
    "restore the daemon's earlier database; or, if no jobs run there, reset the manager's stored "
    "epoch"
)
"""Fix for a daemon epoch that is lower than the manager's. Job ids could equal those of earlier
jobs."""


class MqttBackend:
    """Sends orders and translates reports to observations.

    Args:
        config: the broker.
        gone_after: seconds without a heartbeat after which the manager counts as gone.
    """

    can: frozenset[Ability] = CAN
    gpus: Nodes | None = None

    def __init__(self, config: MqttConfig, gone_after: float) -> None:
        """Create the backend without a connection."""
        self._config, self._gone_after = config, gone_after
        self._topics = Topics(config.cluster)
        self._key = f"mqtt:{config.cluster}:manager"
        self._reports: asyncio.Queue[tuple[mqtt.MQTTMessage, int]] = asyncio.Queue()
        self._orders: asyncio.Queue[AttemptKey | StopOrder] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._manager = 0  # epoch of the manager
        self._beat = float("-inf")
        self._here = False
        self._beat_session = 0  # session of the last heartbeat
        self._session = 0  # session of the last full sync
        self._ask = True  # whether a full sync is needed
        self._link_trouble = "", ""
        self._daemon_epoch = 0  # highest daemon epoch that the manager has seen

    async def open(self, context: BackendContext) -> None:
        """Load the manager's epoch and prepare the link; `reconcile` starts it."""
        self._context = context
        self._roster = DesiredAttempts(context.fence.epoch)
        try:
            self._manager = int((await context.notes.read(self._key)).get(self._key, "0"))
        except JournalError:
            self._manager = 0  # accept and store the next epoch
        self._link = Link(
            self._config,
            f"{self._config.name}-orders",
            [self._topics.manager("report"), self._topics.manager("state")],
            self._receive,
            self._say_link,
            may=context.fence.holds,
            as_published=False,
        )

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Sync all expected attempts as soon as the manager is online."""
        for each in expected:
            self._roster.want(each.order, monotonic(), seen=each.started is not None)
        self._beat = monotonic()  # allow the full timeout for the first heartbeat
        work = (self._link.run, self._hear, self._send, self._watch)
        self._tasks = [asyncio.create_task(again(each, self._say_defect)) for each in work]
        return []

    async def start(self, order: StartEffect) -> None:
        """Send a start order now, or with the sync when the manager is back."""
        if self._roster.want(order, monotonic()) and self._ready:
            self._orders.put_nowait((order.job, order.attempt))

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Send a stop order now, or with the sync when the manager is back."""
        self._roster.stop((job, attempt), kind, monotonic())
        if self._ready:
            epoch = self._context.fence.epoch
            self._orders.put_nowait(StopOrder(epoch=epoch, job=job, attempt=attempt, kind=kind))

    async def close(self) -> None:
        """Stop all tasks and disconnect."""
        if self._tasks:
            self._link.stop()
            for task in self._tasks[1:]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return None: job output stays with the manager."""
        return None

    @property
    def _ready(self) -> bool:
        """Whether orders can be sent now; otherwise the next sync covers them."""
        return self._hears and not self._ask

    @property
    def _hears(self) -> bool:
        """Whether the manager is online and has sent a heartbeat on this connection.

        A broker that restarted may have lost the manager's subscription.
        """
        return self._link.up.is_set() and self._here and self._beat_session == self._link.session

    def _receive(self, message: mqtt.MQTTMessage) -> None:
        if message.qos or self._reports.qsize() < UNACKNOWLEDGED:  # QoS 0 has no flow control
            self._reports.put_nowait((message, self._link.session))

    def _start(self, key: AttemptKey) -> Order | None:
        """Return the start order of an attempt; None if it is no longer desired."""
        context = self._context
        return self._roster.start(key, context.fence.epoch, context.reports.of(*key))

    async def _hear(self) -> None:
        while True:
            message, session = await self._reports.get()
            try:
                await self._take(message, session)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                log().warning("message ignored", topic=message.topic[:200], why=str(error)[:200])
            self._link.ack(message, session)

    async def _take(self, message: mqtt.MQTTMessage, session: int) -> None:
        """Handle one message of the manager. Raises msgspec errors for an invalid one."""
        if message.topic == self._topics.manager("state"):
            if message.payload:
                state = _state.decode(message.payload)
                await self._heartbeat(state, session, stored=bool(message.retain))
            return
        if len(message.payload) > MAX_PAYLOAD:
            raise msgspec.ValidationError("too large")
        report = _report.decode(message.payload)
        if not await self._is_current(report.manager):
            return
        seen, again = self._roster.hear(report)
        for each in seen:
            self._context.sink(each)
        if again is not None:
            self._orders.put_nowait(again)

    async def _heartbeat(self, state: ManagerState, session: int, *, stored: bool) -> None:
        """Process a state message. A retained one has the epoch, but is no heartbeat."""
        if not await self._is_current(state.epoch):
            return
        self._daemon_epoch = state.daemon
        if not state.here:
            self._beat = float("-inf")
        elif not stored:
            self._beat, self._beat_session = monotonic(), session
        self._look()

    async def _is_current(self, epoch: int) -> bool:
        """Return whether an epoch is the current manager's; store a higher one."""
        if epoch > self._manager:
            await self._note(epoch)
            self._manager, self._ask = epoch, True
        elif epoch < self._manager:
            log().warning("message of a former manager ignored", epoch=epoch, now=self._manager)
        return epoch == self._manager

    async def _note(self, epoch: int) -> None:
        while True:
            try:
                await self._context.notes.write({self._key: str(epoch)})
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return

    async def _watch(self) -> None:
        """Check heartbeats, and send syncs after interruptions and for overdue orders."""
        while True:
            self._look()
            if self._hears and self._context.fence.holds():
                try:
                    await self._ask_after()
                except WireError:
                    self._ask = True
            await asyncio.sleep(LOOK_EVERY)

    async def _ask_after(self) -> None:
        """Send the syncs that are due. Raises WireError without a connection."""
        now, only = monotonic(), None
        if self._ask or self._session != self._link.session:
            self._session, self._ask = self._link.session, False
        elif not (only := self._roster.overdue(now, RESEND_AFTER)):
            return
        for order in self._roster.ask(self._context.fence.epoch, now, only):
            await self._order(order)

    def _look(self) -> None:
        here = monotonic() - self._beat < self._gone_after
        if not here or not self._here:
            self._ask = True  # earlier orders may have been lost
        self._here = here
        if self._link_trouble[0]:
            self._context.parts.say(PART, *self._link_trouble)
        elif not here:
            why = f"no heartbeat of the cluster manager within {self._gone_after:g} s"
            if self._beat == float("-inf"):
                why = "the cluster manager reported that it is offline"
            mend = f"check that the manager runs and publishes {self._topics.manager('state')}"
            self._context.parts.say(PART, why, mend)
        elif self._daemon_epoch > (epoch := self._context.fence.epoch):
            newest = self._daemon_epoch
            why = f"the manager obeys daemon epoch {newest}, and this daemon has epoch {epoch}"
            self._context.parts.say(PART, why, OTHER_DATABASE)
        else:
            self._context.parts.say(PART)

    def _say_defect(self, why: str, mend: str) -> None:
        self._ask = True  # the order in progress may not have been sent
        self._context.parts.say(PART, why, mend)

    def _say_link(self, why: str, mend: str) -> None:
        self._link_trouble = why, mend
        self._look()

    async def _send(self) -> None:
        """Send queued orders in sequence."""
        while True:
            each = await self._orders.get()
            order: Order | None = each if isinstance(each, StopOrder) else self._start(each)
            if order is None:
                continue
            try:
                await self._order(order)
            except WireError:
                self._ask = True

    async def _order(self, order: Order) -> None:
        """Publish an order if this daemon is the leader. Raises WireError."""
        if not self._context.fence.holds():
            raise WireError("another daemon is the leader")
        sent = await self._link.send(self._topics.manager("order"), _encode(order))
        sent.add_done_callback(partial(self._sent, order))

    def _sent(self, order: Order, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._ask = True
        elif future.result() == TOO_LARGE and isinstance(order, StartOrder):
            if self._roster.drop((order.job, order.attempt)):
                size, most = len(_encode(order)), self._link.most
                why = f"the order has {size:,} bytes; the broker allows {most:,} (max_packet_size)"
                self._context.sink(StartFailed(order.job, order.attempt, why))
        elif future.result() >= DENIED:
            self._ask = True
