"""All webhooks of a daemon; each has its own task, so a slow receiver delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from daemon.config.webhook_limits import LAST_ANSWERS
from daemon.config.webhooks import WebhookConfig, read_secrets
from daemon.doors.webhooks.cursors import CursorStore
from daemon.doors.webhooks.signature import Secrets
from daemon.doors.webhooks.webhook import WebhookContext, WebhookSender
from daemon.model.errors import JournalError
from daemon.service.service import Service
from sia.console.errors import UserError


class Hooks:
    """The configured webhooks."""

    def __init__(
        self, configs: Sequence[WebhookConfig], service: Service, *, lenient: bool = False
    ) -> None:
        """Create the webhooks; `run` starts them. Raises UserError if a secret cannot be read.

        With `lenient`, a webhook whose secret cannot be read is skipped and reported as unhealthy,
        so that the takeover by a standby does not fail.
        """
        self._service, self._ledger = service, CursorStore(service.notes)
        means = WebhookContext(
            service.page, lambda: service.last_notice, self._ledger, service.letters, service.parts,
            service.fence, service.clock.now,
        )  # fmt: skip
        self._hooks: dict[str, WebhookSender] = {}
        for config in configs:
            try:
                self._hooks[config.name] = WebhookSender(
                    config, Secrets(read_secrets(config.secret_file)), means
                )
            except UserError as error:
                if not lenient:
                    raise
                why, _, mend = error.format_message().rpartition("; ")
                mend += ", and restart the daemon"
                service.parts.say(f"webhook {config.name}", f"webhook disabled: {why}", mend)
        self._open = False

    def __iter__(self) -> Iterator[WebhookSender]:
        """Iterate over the webhooks; none before `open`."""
        return iter(self._hooks.values() if self._open else ())

    def get(self, name: str) -> WebhookSender | None:
        """Return a webhook by name; None before `open`."""
        return self._hooks.get(name) if self._open else None

    async def open(self, newest: int) -> None:
        """Load the cursors; new webhooks start after the `newest` event. Raises UserError."""
        try:
            await self._ledger.open(self._hooks, newest)
        except JournalError as error:
            raise UserError(str(error)) from error
        self._open = True

    async def run(self) -> None:
        """Deliver until cancelled."""
        tasks = {asyncio.create_task(hook.run()): hook for hook in self}
        saving = asyncio.create_task(self._ledger.run())
        try:
            await asyncio.wait((saving, *tasks), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            busy = [task for task, hook in tasks.items() if hook.end()]
            if busy:
                await asyncio.wait(busy, timeout=LAST_ANSWERS)
            for task in (saving, *tasks):
                task.cancel()
            for task in (saving, *tasks):
                with suppress(asyncio.CancelledError):
                    await task
            await self._ledger.save()
