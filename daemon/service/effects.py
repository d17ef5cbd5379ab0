"""Effects: the service's orders to the backend, in order, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from daemon.backends.interface import (
    SHORT,
    Backend,
    Expected,
    PreemptingBackend,
    ResizingBackend,
)
from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Observation, StartFailed, Stopped
from daemon.model.job import ON_GPUS, JobPhase
from daemon.model.limits import EFFECT_AGAIN, LAST_EFFECTS, PROBE_EVERY
from daemon.model.outputs import Effect, PreemptEffect, StartEffect, StopEffect
from daemon.runtime.fence import Fence
from daemon.runtime.logs import log

NEVER_STARTED = "never started"


class EffectRunner:
    """Applies effects to the backend in order.

    It works on a task of its own, so that a slow backend delays no commit.
    """

    def __init__(
        self, backend: Backend, fence: Fence, observe: Callable[[Observation], None]
    ) -> None:
        """Act while the fence holds. Failed starts are passed to `observe`, like observations."""
        self._backend, self._fence = backend, fence
        self._observe = observe
        self._queue: asyncio.Queue[Effect] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._delayed: dict[tuple[str, int], bool] = {}
        """Starts that will be retried; False for a job that was ended before its retry."""

    def do(self, effects: Sequence[Effect]) -> None:
        """Queue these effects."""
        for effect in effects:
            self._queue.put_nowait(effect)

    async def reconcile(self, engine: Engine) -> None:
        """Reconcile the book with the backend, then begin to apply effects."""
        on_gpus = [job for job in engine.book.jobs.values() if job.placed and job.phase in ON_GPUS]
        expected = [Expected(engine.start_order(job), job.started, job.since) for job in on_gpus]
        unseen = await self._backend.reconcile(expected)
        self._repair(unseen, engine)
        self._worker = asyncio.create_task(self._work())

    def _repair(self, unseen: Sequence[StartEffect], engine: Engine) -> None:
        """Repeat the orders that an earlier daemon did not complete.

        Jobs that the backend has never seen are started, and jobs with an order to end or stop get
        it again. If both apply to a job, the job counts as ended or stopped.
        """
        gone = set()
        for order in unseen:
            phase = engine.book.jobs[order.job].phase
            if phase is JobPhase.ENDING:
                self._observe(Ended(order.job, order.attempt, why=NEVER_STARTED))
            elif phase is JobPhase.STOPPING:
                self._observe(Stopped(order.job, order.attempt, why=NEVER_STARTED, lost=True))
            else:
                self.do([order])
                continue
            gone.add(order.job)
        self.do([effect for effect in engine.open_orders() if effect.job not in gone])

    async def close(self) -> None:
        """Apply the queued effects, and stop.

        If another daemon may be the leader, they are not applied: that daemon will do it.
        """
        if self._worker is None:
            return
        if self._fence.holds():
            await asyncio.wait([asyncio.create_task(self._queue.join())], timeout=LAST_EFFECTS)
        self._worker.cancel()

    async def _work(self) -> None:
        while True:
            effect = await self._queue.get()
            while not self._fence.holds():  # noqa: ASYNC110  no event says when the fence holds
                await asyncio.sleep(PROBE_EVERY)
            try:
                await self._do(effect)
            finally:
                self._queue.task_done()

    async def _do(self, effect: Effect) -> None:
        key = effect.job, effect.attempt
        if isinstance(effect, StartEffect):
            if not self._delayed.pop(key, True):
                return
        elif self._delayed.get(key):
            self._drop_delayed(effect)
            return
        try:
            await self._order(effect)
        except Exception as error:  # noqa: BLE001  one failed effect must not stop the others
            self._failed(effect, error)

    async def _order(self, effect: Effect) -> None:
        backend = self._backend
        if isinstance(effect, StartEffect):
            await backend.start(effect)
        elif isinstance(effect, StopEffect):
            await backend.stop(effect.job, effect.attempt, effect.kind)
        elif isinstance(effect, PreemptEffect):
            assert isinstance(backend, PreemptingBackend), "the configuration is checked"
            await backend.preempt(effect)
        else:
            assert isinstance(backend, ResizingBackend), "the configuration is checked"
            await backend.resize(effect)

    def _drop_delayed(self, effect: Effect) -> None:
        """Drop a start that waits for its retry, if the attempt must end or stop."""
        key = effect.job, effect.attempt
        if isinstance(effect, StopEffect) and effect.kind == "end":
            self._delayed[key] = False
            self._observe(Ended(*key, why=NEVER_STARTED))
        elif isinstance(effect, PreemptEffect):
            self._delayed[key] = False
            self._observe(Stopped(*key, why=NEVER_STARTED, lost=True))

    def _failed(self, effect: Effect, error: Exception) -> None:
        """Handle a failed effect.

        A start that lacked a resource is retried; any other failed start fails the attempt.
        """
        short = isinstance(error, OSError) and error.errno in SHORT
        if isinstance(effect, StartEffect) and not short:
            why = str(error).encode(errors="backslashreplace").decode()  # may hold a file name
            self._observe(StartFailed(effect.job, effect.attempt, why))
            return
        if isinstance(effect, StartEffect):
            self._delayed[effect.job, effect.attempt] = True
            log().warning("a start is delayed", job=effect.job, why=str(error))
        asyncio.get_running_loop().call_later(EFFECT_AGAIN, self._queue.put_nowait, effect)
