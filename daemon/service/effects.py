"""The service's hands: what the backend is told, in order, and told again where it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from daemon.backends.interface import SHORT, Backend, Expected
from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Observation, StartFailed
from daemon.model.job import ON_GPUS, JobPhase
from daemon.model.limits import EFFECT_AGAIN, LAST_EFFECTS, PROBE_EVERY
from daemon.model.outputs import Effect, StartEffect
from daemon.runtime.fence import Fence
from daemon.runtime.logs import log

NEVER = "it was never started"


class EffectRunner:
    """Does effects one after the other, beside the steps: a slow backend holds up no commit."""

    def __init__(
        self, backend: Backend, fence: Fence, observe: Callable[[Observation], None]
    ) -> None:
        """Act as long as the fence holds; say what the backend cannot do as if it had seen it."""
        self._backend, self._fence = backend, fence
        self._observe = observe
        self._queue: asyncio.Queue[Effect] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._late: dict[tuple[str, int], bool] = {}
        """Starts that are put off; False where they are ended before they come up again."""

    def do(self, effects: Sequence[Effect]) -> None:
        """Have these done, after those before."""
        for effect in effects:
            self._queue.put_nowait(effect)

    async def reconcile(self, engine: Engine) -> None:
        """Compare what should run with what does, and do what was left undone; then begin."""
        there = [job for job in engine.book.jobs.values() if job.placed and job.phase in ON_GPUS]
        expected = [
            Expected(
                StartEffect(job.spec.id, job.attempt, job.spec, job.nodes, job.area), job.started
            )
            for job in there
        ]
        unseen = await self._backend.reconcile(expected)
        self._do_again(unseen, engine)
        self._worker = asyncio.create_task(self._work())

    def _do_again(self, unseen: Sequence[StartEffect], engine: Engine) -> None:
        """Start what the backend never saw and end what is to end; what is both is over."""
        over = {
            order.job for order in unseen if engine.book.jobs[order.job].phase is JobPhase.ENDING
        }
        for order in unseen:
            if order.job in over:
                self._observe(Ended(order.job, order.attempt, why=NEVER))
            else:
                self.do([order])
        self.do([effect for effect in engine.ending_jobs() if effect.job not in over])

    async def close(self) -> None:
        """Do what waits, and stop; where another daemon may act, that is its matter."""
        if self._worker is None:
            return
        if self._fence.holds():
            await asyncio.wait([asyncio.create_task(self._queue.join())], timeout=LAST_EFFECTS)
        self._worker.cancel()

    async def _work(self) -> None:
        while True:
            effect = await self._queue.get()
            while not self._fence.holds():  # noqa: ASYNC110  time tells, and no event
                await asyncio.sleep(PROBE_EVERY)
            try:
                await self._do(effect)
            finally:
                self._queue.task_done()

    async def _do(self, effect: Effect) -> None:
        key = effect.job, effect.attempt
        if isinstance(effect, StartEffect):
            if not self._late.pop(key, True):
                return
        elif self._late.get(key):
            if effect.kind == "end":
                self._late[key] = False
                self._observe(Ended(*key, why=NEVER))
            return
        try:
            if isinstance(effect, StartEffect):
                await self._backend.start(effect)
            else:
                await self._backend.stop(effect.job, effect.attempt, effect.kind)
        except Exception as error:  # noqa: BLE001  whatever a backend raises, the others go on
            self._failed(effect, error)

    def _failed(self, effect: Effect, error: Exception) -> None:
        """What is short for a moment is no fault of a job's: it is started a bit later."""
        short = isinstance(error, OSError) and error.errno in SHORT
        if isinstance(effect, StartEffect) and not short:
            why = str(error).encode(errors="backslashreplace").decode()  # it may name a file
            self._observe(StartFailed(effect.job, effect.attempt, why))
            return
        if isinstance(effect, StartEffect):
            self._late[effect.job, effect.attempt] = True
            log().warning("a start is put off", job=effect.job, why=str(error))
        asyncio.get_running_loop().call_later(EFFECT_AGAIN, self._queue.put_nowait, effect)
