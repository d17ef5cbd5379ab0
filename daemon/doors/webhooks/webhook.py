"""One hook: a task that delivers in order, waits longer after each failure, and may give up."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from msgspec.structs import replace

from daemon.config.webhook_limits import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_DEAD,
    TRIAL_WITHIN,
    TROUBLE_AFTER,
)
from daemon.config.webhooks import WebhookConfig
from daemon.doors.webhooks.cursors import CursorStore, WebhookCursor, key, text
from daemon.doors.webhooks.delivery import Delivery, DeliveryBatcher, Page, revived, trial
from daemon.doors.webhooks.http_post import DeliveryVerdict, PostResult, WebhookClient
from daemon.doors.webhooks.signature import Secrets
from daemon.journal.dead_letters import DeadLetters
from daemon.journal.journal import DeadLetter
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.limits import PROBE_EVERY
from daemon.runtime.fence import Fence
from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log

DeliveryState = Literal["delivering", "retrying", "gone", "full"]


class WebhookContext(NamedTuple):
    """What hooks have of the daemon."""

    page: Page
    told: Callable[[], int]
    """The number of the newest event."""
    ledger: CursorStore
    letters: DeadLetters
    parts: HealthRegistry
    fence: Fence
    now: Callable[[], float]
    """What time it is for the daemon."""


class DeliveryCounts:
    """What has come of requests since the start."""

    delivered = 0
    """Deliveries, dead letters that were sent once more too."""
    failed = 0
    """Requests."""


class WebhookSender:
    """Tells one receiver.

    Attributes:
        config: What the operator said.
        counts: What has come of it.
        dead: How many letters are dead.
        last: What came of the last request; None before the first.
        asked: When that was, in seconds since the epoch.
        due: When the next try is, likewise; 0 where none is put off.
    """

    def __init__(self, config: WebhookConfig, secrets: Secrets, means: WebhookContext) -> None:
        """Nothing is sent before `run`."""
        self.config, self._means = config, means
        self._post = WebhookClient(config, secrets)
        self._cutter = DeliveryBatcher(config, means.page)
        self._url = hashlib.sha256(config.url.encode()).hexdigest()
        self._sending = asyncio.Lock()  # a receiver gets one request at a time
        self._wake = asyncio.Event()
        self._since: float | None = None  # when what is under way failed first, here
        self._ending = False
        self._again: dict[int, None] = {}
        self._letter: asyncio.Task[None] | None = None
        self.counts, self.dead = DeliveryCounts(), 0
        self.last: PostResult | None = None
        self.asked = self.due = 0.0

    @property
    def place(self) -> WebhookCursor:
        """Where it is."""
        return self._means.ledger[self.config.name]

    @property
    def lag(self) -> int:
        """Events that it has not come to yet, those that it does not want too."""
        return max(0, self._means.told() - self.place.cursor)

    @property
    def state(self) -> DeliveryState:
        """How it is, in a word."""
        if self.place.gone == self._url:
            return "gone"
        if self.dead >= MOST_DEAD:
            return "full"
        return "retrying" if self.place.tries else "delivering"

    async def run(self) -> None:
        """Deliver, until cancelled or told to end."""
        counted = self._ending = False
        try:
            while not self._ending:
                try:
                    if not counted:
                        await self._count()
                        counted = True
                    if not await self._once():
                        return
                except JournalError:  # the database says so itself
                    await asyncio.sleep(PROBE_EVERY)
                except Exception:  # noqa: BLE001  a defect: it must not end the other hooks
                    await self._broke()
        finally:
            if self._letter is not None:
                self._letter.cancel()
                with suppress(asyncio.CancelledError):
                    await self._letter
            await self._post.close()

    def end(self) -> bool:
        """Send no more; whether an answer is still to come."""
        self._ending = True
        self._wake.set()
        return self._sending.locked()

    async def _broke(self) -> None:
        log().exception("a webhook failed; it is tried again", webhook=self.config.name)
        part = f"webhook {self.config.name}"
        self._means.parts.say(part, "a defect of the daemon", "look into its log, and report it")
        await asyncio.sleep(LONGEST_PAUSE)

    async def _count(self) -> None:
        self.dead = len(await self._means.letters.numbers(self.config.name))

    async def _once(self) -> bool:
        """Deliver once, or wait for somebody who is needed; whether there is more to come."""
        if not self._ending:
            self._wake.clear()
        if self.state in ("gone", "full"):
            self._say()
            await self._wake.wait()
            return True
        place = self.place
        before = self._cutter.gone
        delivery = await self._cutter.next(place.cursor, place.last)
        if (gone := self._cutter.gone) != before and gone is not None:
            log().warning(
                "a webhook is not told of events that are too old to be kept",
                webhook=self.config.name, first=gone[0], last=gone[1],
            )  # fmt: skip
        if delivery is None:
            return False
        if delivery.body:
            await self._try(delivery)
        else:
            self._put(WebhookCursor(delivery.until))
        return True

    async def _try(self, delivery: Delivery) -> None:
        """Send it once, see what is to be done next, and wait as long as that takes."""
        while (outcome := await self._send(delivery)) is None:  # noqa: ASYNC110  time tells
            await asyncio.sleep(PROBE_EVERY)
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self._put(WebhookCursor(delivery.until))
            self._say()
            return
        place = self.place
        place = replace(
            place,
            last=delivery.until,
            tries=place.tries + 1,
            refusals=place.refusals + (outcome.verdict is DeliveryVerdict.REFUSED),
        )
        self._since = self._since or time.monotonic()
        if outcome.verdict is DeliveryVerdict.GONE:
            self._put(replace(place, gone=self._url))
        elif self._hopeless(place):
            await self._bury(delivery, place)
        else:
            self._put(place)
            self._say()
            await self._pause(max(backoff(place.tries), outcome.wait))

    async def _send(self, delivery: Delivery) -> PostResult | None:
        """One request, when the one before is over; None, and none, where it may not act then."""
        async with self._sending:
            if not self._means.fence.holds():
                return None
            outcome = await self._post.send(delivery.body, delivery.id)
        self.last, self.asked = outcome, time.time()
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self.counts.delivered += 1
        else:
            self.counts.failed += 1
        return outcome

    def _put(self, place: WebhookCursor) -> None:
        if not place.tries:
            self._since = None
        self._means.ledger.put(self.config.name, place)

    def _hopeless(self, place: WebhookCursor) -> bool:
        config = self.config
        tried = 0.0 if self._since is None else time.monotonic() - self._since
        return place.refusals >= config.refusals or tried >= config.give_up

    async def _bury(self, delivery: Delivery, place: WebhookCursor) -> None:
        """Give it up, durably, and go on with the next; again where the database cannot."""
        assert self.last is not None, "it was sent"
        times = f", {place.tries} times" if place.tries > 1 else ""
        why = f"{self.last.why}{times}"
        name, following = self.config.name, WebhookCursor(delivery.until)
        letter = DeadLetter(0, name, delivery.first, time.time(), why, delivery.body.decode())
        await self._means.letters.bury(letter, {key(name): text(following)})
        self._put(following)
        self.dead += 1
        self._say(buried=True)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond an operator's word."""
        self.due = time.time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self.due = 0.0

    def _say(self, *, buried: bool = False) -> None:
        """How it is, to those who look: not what comes and goes."""
        part, last, state = f"webhook {self.config.name}", self.last, self.state
        if state == "full":
            mend = f"sia webhook retry {self.config.name}, or drop"
            self._means.parts.say(part, f"{MOST_DEAD} dead letters wait for somebody", mend)
        elif state == "gone":
            why = last.why if last is not None and last.why else "it wanted no more (410)"
            mend = f"give another url, leave it out, or: sia webhook retry {self.config.name}"
            self._means.parts.say(part, why, mend)
        elif buried or self.place.tries >= TROUBLE_AFTER:
            assert last is not None, "it was tried"
            self._means.parts.say(part, last.why, last.mend)
        elif not self.place.tries:
            self._means.parts.say(part)

    async def test(self) -> PostResult:
        """Send an event that nothing stands for, once, whatever else is under way.

        Raises UnavailableError where another daemon may be the one who acts.
        """
        if not self._means.fence.holds():
            raise UnavailableError(503, "another daemon may have taken over", PROBE_EVERY)
        delivery = trial(self.config.name, self._means.now())
        outcome = await self._post.send(delivery.body, delivery.id, TRIAL_WITHIN)
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self._say()
        return outcome

    def resume(self) -> None:
        """Try again at once, also one that is gone."""
        if self.place.gone:
            self._put(replace(self.place, gone="", tries=0, refusals=0))
        self._wake.set()

    def again(self, numbers: Sequence[int]) -> None:
        """Send these dead letters once more, in order, beside what happens."""
        self._again |= dict.fromkeys(numbers)
        if self._letter is None or self._letter.done():
            self._letter = asyncio.create_task(self._send_letters())

    async def _send_letters(self) -> None:
        while self._again:
            number = next(iter(self._again))
            del self._again[number]
            try:
                await self._send_letter(number)
            except JournalError:
                self._again.clear()  # they stay dead; the operator sees them there
            except Exception:  # noqa: BLE001  a defect: likewise
                log().exception("a dead letter could not be sent", webhook=self.config.name)
                self._again.clear()

    async def _send_letter(self, number: int) -> None:
        name, letters = self.config.name, self._means.letters
        found = await letters.dead(name, number - 1, 1)
        if not found or found[0].number != number:
            return
        outcome = await self._send(revived(found[0]))
        if outcome is None:
            return
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            await self.drop([number])
            self._say()
        elif outcome.verdict is not DeliveryVerdict.REFUSED:
            self._again.clear()  # the others would fare no better, and stay dead

    async def drop(self, numbers: Sequence[int]) -> None:
        """Have these letters be no more. Raises JournalError."""
        left = await self._means.letters.dig_out(self.config.name, numbers)
        full, self.dead = self.state == "full", left
        if full:
            self._wake.set()


def backoff(tries: int) -> float:
    """Seconds until the next try, by chance: many daemons then do not come all at once."""
    most = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16))
    return random.uniform(0.0, most)  # noqa: S311  nobody gains by guessing it
