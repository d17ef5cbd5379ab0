"""Run functions in forked child processes, which have a copy of the daemon's state.

The daemon forks between two steps, so the engine in the child is consistent. Later changes of
either process stay invisible to the other (copy-on-write). The child has one thread and one open
file descriptor, a pipe, and always ends by itself. It must not use the journal, logs, sockets, or
the thread pools of numpy and xgboost, because these need other threads.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import warnings
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import perf_counter
from weakref import WeakKeyDictionary

from daemon.model.errors import UnavailableError
from daemon.runtime.children import end_first, end_with

ASIDE_AT_ONCE = 2
"""Maximum number of child processes at a time. Each uses one core, and memory that grows as its
copy of the state diverges."""

ASIDE_WAITING = 8
"""Maximum number of waiting questions. At one second each, the last one is answered before users
give up. Further questions get an error that asks to retry."""

ASIDE_AGAIN = 2.0
"""Seconds after which a rejected client should retry: by then some questions are answered."""

ASIDE_LATE = 1.0
"""A child ends itself this many seconds after its deadline, in case the daemon is gone. On Linux
the kernel ends the child together with the daemon."""

PIECE = 2**18
"""Read size for child pipes; 256 KiB takes under 1 ms, so the event loop stays responsive."""

REAP_EVERY = 0.002
"""Seconds between two checks whether a child has ended: the kernel takes some ms to free memory."""

DONE, FAILED = b"+", b"-"
"""First byte of what a child writes to its pipe: whether its function succeeded."""

FAILED_COPY = 255
"""Exit status of a failed copy of a child (`in_copy`)."""

ChildTask = Callable[[], bytes]


class ChildFailedError(Exception):
    """A child failed: its function raised an exception, which is a defect of the daemon."""


class ChildTimeoutError(UnavailableError):
    """A child timed out or could not be forked. Retry later, or with less work."""

    def __init__(self, why: str) -> None:
        """Create the error with a reason of one line."""
        super().__init__(503, why, ASIDE_AGAIN)


class ChildKilledError(UnavailableError):
    """A child was killed by another process, or by the kernel when memory ran out."""

    def __init__(self) -> None:
        """Create the error."""
        super().__init__(503, "the worker process was killed, possibly out of memory", ASIDE_AGAIN)


class WorkerQueue:
    """Admit child processes in order of request, at most `ASIDE_AT_ONCE` at a time."""

    def __init__(self) -> None:
        """Start with no child and an empty queue."""
        self._free = ASIDE_AT_ONCE
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    async def enter(self, count: int) -> None:
        """Wait until `count` children may start. Raises UnavailableError if the queue is full."""
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        if len(self._waiting) >= ASIDE_WAITING:
            why = f"too many questions are waiting ({ASIDE_WAITING})"
            raise UnavailableError(503, why, ASIDE_AGAIN)
        turn: Future[None] = asyncio.get_running_loop().create_future()
        place = count, turn
        self._waiting.append(place)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(count)
            else:
                self._waiting.remove(place)
                self.leave(0)  # a later request may need fewer children
            raise

    def leave(self, count: int) -> None:
        """Release the places of `count` children."""
        self._free += count
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done() or wanted > self._free:  # a cancelled request calls leave() itself
                return
            self._waiting.popleft()
            self._free -= wanted
            turn.set_result(None)


_LINES: WeakKeyDictionary[AbstractEventLoop, WorkerQueue] = WeakKeyDictionary()
"""The queue of the event loop. A daemon has one event loop."""


async def child_worker(
    work: ChildTask,
    *,
    seconds: float,
    nice: int = 0,
    settled: Callable[[], Awaitable[None]] | None = None,
    line: WorkerQueue | None = None,
    paused: Callable[[float], None] | None = None,
) -> bytes:
    """Run `work` in a child and return its result: see `asides`."""
    (found,) = await asides(
        [work], seconds=seconds, nice=nice, settled=settled, line=line, paused=paused
    )
    return found


async def asides(
    works: Sequence[ChildTask],
    *,
    seconds: float,
    nice: int = 0,
    settled: Callable[[], Awaitable[None]] | None = None,
    line: WorkerQueue | None = None,
    paused: Callable[[float], None] | None = None,
) -> list[bytes]:
    """Run these functions in parallel, in children forked from the same state; return the results.

    Args:
        works: At most `ASIDE_AT_ONCE` functions; each runs in a child of its own.
        seconds: Time limit, after which the children are killed.
        nice: Added to the niceness of the daemon.
        settled: Awaited before the fork, so that children see only durable steps:
            `Reading.settled`.
        line: Queue to wait in. Long-running callers use one of their own, so that they do not block
            others.
        paused: Called with the seconds that the event loop was blocked by each fork.

    Raises:
        UnavailableError: Too many questions are waiting.
        ChildTimeoutError: The time limit was reached, or no process could be forked.
        ChildKilledError: A child was killed.
        ChildFailedError: A function raised an exception.
    """
    assert 1 <= len(works) <= ASIDE_AT_ONCE, "a request for more children would never be admitted"
    loop = asyncio.get_running_loop()
    line = line or _LINES.setdefault(loop, WorkerQueue())
    await line.enter(len(works))
    children: list[_Child] = []
    try:
        if settled is not None:
            await settled()
        # Not a comprehension: after a failed fork the earlier children must be in the list to end.
        for work in works:
            began = perf_counter()
            children.append(_Child(loop, work, seconds, nice))
            if paused is not None:
                paused(perf_counter() - began)
        async with asyncio.timeout(seconds):
            return [await child.answer for child in children]
    except TimeoutError:
        raise ChildTimeoutError(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise ChildTimeoutError(f"cannot start a worker process: {error.strerror}") from None
    finally:
        for child in children:
            child.end(line)
        line.leave(len(works) - len(children))


class _Child:
    """A child process.

    Attributes:
        answer: Future with its answer.
    """

    def __init__(self, loop: AbstractEventLoop, work: ChildTask, seconds: float, nice: int) -> None:
        """Fork the child. Raises OSError if no process can be created."""
        self._loop = loop
        self._received = bytearray()
        self.answer: Future[bytes] = loop.create_future()
        self._pipe, end = os.pipe()
        try:
            self._pid = _fork(work, end, seconds, nice)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(end)
        os.set_blocking(self._pipe, False)
        loop.add_reader(self._pipe, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            if piece := os.read(self._pipe, PIECE):
                self._received += piece
                return
            self._loop.remove_reader(self._pipe)
            if not self.answer.done():
                self._settle()

    def _settle(self) -> None:
        kind, answer = bytes(self._received[:1]), bytes(self._received[1:])
        if kind == DONE:
            self.answer.set_result(answer)
        else:
            why = answer.decode(errors="replace")
            error = ChildFailedError(why) if kind == FAILED else ChildKilledError()
            self.answer.set_exception(error)

    def end(self, line: WorkerQueue) -> None:
        """Release the child, and kill it if it still runs."""
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # avoids a warning about an exception that was never retrieved
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._reap(line)

    def _reap(self, line: WorkerQueue) -> None:
        """Wait for the child without blocking, then release its place."""
        with suppress(ChildProcessError):
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                self._loop.call_later(REAP_EVERY, self._reap, line)
                return
        line.leave(1)


def _fork(work: ChildTask, pipe: int, seconds: float, nice: int) -> int:
    """Fork a child that runs `work` and writes to the pipe; return its process id."""
    # Block signals: until the child resets the handlers, it would run those of the daemon.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Python 3.12 and later warn that other threads may hold locks. The child takes none.
            warnings.simplefilter("ignore", DeprecationWarning)
            parent, pid = os.getpid(), os.fork()
        if not pid:
            _be_child(work, pipe, seconds, nice, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_copy(work: Callable[[], int]) -> int:
    """Run `work` in a copy of this child process, and return its result: 0 to `FAILED_COPY` - 1.

    Changes made by `work` are lost with the copy. Call this only in a child, which has one thread.
    Raises ChildFailedError.
    """
    parent, pid = os.getpid(), os.fork()
    if not pid:
        code = FAILED_COPY
        try:
            end_with(parent)
            code = work()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not 0 <= code < FAILED_COPY:
        raise ChildFailedError(f"a copy of the worker process ended with status {code}")
    return code


def _be_child(work: ChildTask, pipe: int, seconds: float, nice: int, parent: int) -> None:
    """Run the child from start to end; never returns."""
    code = 1
    try:
        gc.disable()  # a collection would copy the daemon's memory and run its finalizers
        end_with(parent)
        end_first()
        _leave_all(pipe, seconds)
        if nice:
            os.nice(nice)
        _write(pipe, DONE + work())
        code = 0
    except BaseException as error:  # noqa: BLE001  the child must not return into the daemon's code
        with suppress(BaseException):
            _write(pipe, FAILED + repr(error).encode(errors="replace"))
    finally:
        os._exit(code)


def _leave_all(pipe: int, seconds: float) -> None:
    """Close the daemon's file descriptors and reset its signal handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + ASIDE_LATE)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(0, pipe)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))


def _write(pipe: int, message: bytes) -> None:
    left = memoryview(message)
    while left:
        left = left[os.write(pipe, left) :]
