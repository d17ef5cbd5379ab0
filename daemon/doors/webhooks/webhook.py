"""One webhook: a task that delivers in order, backs off after failures and may give up."""

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
from daemon.journal.attachments import DeadLetters
from daemon.journal.journal import DeadLetter
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.limits import PROBE_EVERY
from daemon.runtime.fence import Fence
from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log

DeliveryState = Literal["delivering", "retrying", "gone", "full"]


class WebhookContext(NamedTuple):
    """Services of the daemon that webhooks use."""

    page: Page
    newest: Callable[[], int]
    """Returns the number of the newest event."""
    ledger: CursorStore
    letters: DeadLetters
    parts: HealthRegistry
    fence: Fence
    now: Callable[[], float]
    """Returns the current time of the daemon's clock."""


class DeliveryCounts:
    """Counts since the daemon started."""

    delivered = 0
    """Deliveries, including dead letters sent again."""
    failed = 0
    """Failed requests."""


class WebhookSender:
    """Delivers events to one receiver.

    Attributes:
        config: Configuration of the webhook.
        counts: Deliveries and failures since the start.
        dead: Number of dead letters.
        last: Result of the last request; None before the first.
        asked: Time of the last request in seconds since the epoch.
        due: Time of the next try in seconds since the epoch; 0 if none is scheduled.
    """

    def __init__(self, config: WebhookConfig, secrets: Secrets, means: WebhookContext) -> None:
        """Create the sender; `run` starts it."""
        self.config, self._context = config, means
        self._post = WebhookClient(config, secrets)
        self._batcher = DeliveryBatcher(config, means.page)
        self._url = hashlib.sha256(config.url.encode()).hexdigest()
        self._sending = asyncio.Lock()  # one request to a receiver at a time
        self._wake = asyncio.Event()
        self._since: float | None = None  # first failure of the current delivery, monotonic
        self._ending = False
        self._again: dict[int, None] = {}
        self._letter: asyncio.Task[None] | None = None
        self.counts, self.dead = DeliveryCounts(), 0
        self.last: PostResult | None = None
        self.asked = self.due = 0.0

    @property
    def place(self) -> WebhookCursor:
        """Current cursor."""
        return self._context.ledger[self.config.name]

    @property
    def lag(self) -> int:
        """Number of events after the cursor, including those filtered out."""
        return max(0, self._context.newest() - self.place.cursor)

    @property
    def state(self) -> DeliveryState:
        """Current delivery state."""
        if self.place.gone == self._url:
            return "gone"
        if self.dead >= MOST_DEAD:
            return "full"
        return "retrying" if self.place.tries else "delivering"

    async def run(self) -> None:
        """Deliver until cancelled or `end` is called."""
        counted = self._ending = False
        try:
            while not self._ending:
                try:
                    if not counted:
                        await self._count()
                        counted = True
                    if not await self._once():
                        return
                except JournalError:  # the journal reports its own health
                    await asyncio.sleep(PROBE_EVERY)
                except Exception:  # noqa: BLE001  a defect must not stop the other webhooks
                    await self._broke()
        finally:
            if self._letter is not None:
                self._letter.cancel()
                with suppress(asyncio.CancelledError):
                    await self._letter
            await self._post.close()

    def end(self) -> bool:
        """Stop after the current request; return whether one is in progress."""
        self._ending = True
        self._wake.set()
        return self._sending.locked()

    async def _broke(self) -> None:
        log().exception("webhook failed and will be retried", webhook=self.config.name)
        part = f"webhook {self.config.name}"
        self._context.parts.say(
            part, "internal error", "see the daemon's log, and report the defect"
        )
        await asyncio.sleep(LONGEST_PAUSE)

    async def _count(self) -> None:
        self.dead = len(await self._context.letters.numbers(self.config.name))

    async def _once(self) -> bool:
        """Deliver once, or wait for an operator; return False at the end of the events."""
        if not self._ending:
            self._wake.clear()
        if self.state in ("gone", "full"):
            self._say()
            await self._wake.wait()
            return True
        place = self.place
        before = self._batcher.gone
        delivery = await self._batcher.next(place.cursor, place.last)
        if (gone := self._batcher.gone) != before and gone is not None:
            log().warning(
                "webhook missed events that were deleted before delivery",
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
        """Send a delivery once, then advance, schedule a retry, or give up."""
        while (outcome := await self._send(delivery)) is None:  # noqa: ASYNC110  lease has no event
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
        elif self._is_hopeless(place):
            await self._give_up(delivery, place)
        else:
            self._put(place)
            self._say()
            await self._pause(max(backoff(place.tries), outcome.wait))

    async def _send(self, delivery: Delivery) -> PostResult | None:
        """Send one request after the previous one; None without sending if not the leader."""
        async with self._sending:
            if not self._context.fence.holds():
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
        self._context.ledger.put(self.config.name, place)

    def _is_hopeless(self, place: WebhookCursor) -> bool:
        config = self.config
        tried = 0.0 if self._since is None else time.monotonic() - self._since
        return place.refusals >= config.refusals or tried >= config.give_up

    async def _give_up(self, delivery: Delivery, place: WebhookCursor) -> None:
        """Store a dead letter and advance the cursor, in one transaction."""
        assert self.last is not None, "a request was sent"
        times = f", {place.tries} times" if place.tries > 1 else ""
        why = f"{self.last.why}{times}"
        name, following = self.config.name, WebhookCursor(delivery.until)
        letter = DeadLetter(0, name, delivery.first, time.time(), why, delivery.body.decode())
        await self._context.letters.add(letter, {key(name): text(following)})
        self._put(following)
        self.dead += 1
        self._say(buried=True)

    async def _pause(self, seconds: float) -> None:
        """Wait for a retry; `resume` ends the wait."""
        self.due = time.time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self.due = 0.0

    def _say(self, *, buried: bool = False) -> None:
        """Report the health of the webhook; short failures are not reported."""
        part, last, state = f"webhook {self.config.name}", self.last, self.state
        if state == "full":
            mend = f"run sia webhook retry {self.config.name}, or sia webhook drop"
            self._context.parts.say(part, f"deliveries stopped: {MOST_DEAD} dead letters", mend)
        elif state == "gone":
            why = last.why if last is not None and last.why else "the receiver answered 410 (gone)"
            mend = f"change its url, remove it, or run: sia webhook retry {self.config.name}"
            self._context.parts.say(part, why, mend)
        elif buried or self.place.tries >= TROUBLE_AFTER:
            assert last is not None, "a request failed"
            self._context.parts.say(part, last.why, last.mend)
        elif not self.place.tries:
            self._context.parts.say(part)

    async def test(self) -> PostResult:
        """Send a test event once, independent of deliveries.

        Raises UnavailableError if another daemon may be the leader.
        """
        if not self._context.fence.holds():
            raise UnavailableError(503, "another daemon may be the leader", PROBE_EVERY)
        delivery = trial(self.config.name, self._context.now())
        outcome = await self._post.send(delivery.body, delivery.id, TRIAL_WITHIN)
        if outcome.verdict is DeliveryVerdict.DELIVERED:
            self._say()
        return outcome

    def resume(self) -> None:
        """Retry at once, even after 410 Gone."""
        if self.place.gone:
            self._put(replace(self.place, gone="", tries=0, refusals=0))
        self._wake.set()

    def again(self, numbers: Sequence[int]) -> None:
        """Send dead letters again in order, in parallel to new deliveries."""
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
                self._again.clear()  # the remaining ones stay dead letters
            except Exception:  # noqa: BLE001  a defect: they remain dead letters
                log().exception("a dead letter could not be sent", webhook=self.config.name)
                self._again.clear()

    async def _send_letter(self, number: int) -> None:
        name, letters = self.config.name, self._context.letters
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
            self._again.clear()  # the receiver is failing: keep the other dead letters

    async def drop(self, numbers: Sequence[int]) -> None:
        """Delete dead letters. Raises JournalError."""
        left = await self._context.letters.remove(self.config.name, numbers)
        full, self.dead = self.state == "full", left
        if full:
            self._wake.set()


def backoff(tries: int) -> float:
    """Return a random delay in seconds until the next try (exponential, full jitter)."""
    most = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16))
    return random.uniform(0.0, most)  # noqa: S311  jitter is not a secret
