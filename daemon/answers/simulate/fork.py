"""Questions answered in a child process: it has a copy of all that the daemon knows, for nothing.

The daemon forks between two steps, so that the child's engine is whole; copy-on-write has it go its
own way from there. The child has one thread, no descriptor but a pipe, and ends by itself whatever
happens. It must not use what needs other threads: the journal, logs, sockets, numpy's and
xgboost's pools.
"""

from __future__ import annotations

import asyncio
import ctypes
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

ASIDE_AT_ONCE = 2
"""Children at a time: each takes a core and, as it goes on, memory of its own."""

ASIDE_WAITING = 8
"""Questions that wait for their turn: at a second each, nobody waits longer than people do for
an answer; more are asked to come again."""

ASIDE_AGAIN = 2.0
"""Seconds after which whoever was turned away is to come again: some others are done then."""

ASIDE_LATE = 1.0
"""Seconds after its time at which a child ends itself, should the daemon be gone that would. Where
the kernel can (Linux), it ends with the daemon."""

PIECE = 2**18
"""Bytes read from a child at a time: within a millisecond."""

REAP_EVERY = 0.002
"""Seconds between two looks whether a child is gone: giving back its memory takes some of these."""

PR_SET_PDEATHSIG = 1
"""Of prctl(2): a signal for when the parent dies."""

_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: a child loads nothing

DONE, FAILED = b"+", b"-"
"""What a child's words begin with."""

FAILED_COPY = 255
"""Exit status of a copy of a child that failed."""

ChildTask = Callable[[], bytes]


class ChildFailedError(Exception):
    """A child could not answer: a defect of what it was to do."""


class ChildTimeoutError(UnavailableError):
    """A child took too long, or there was no room for it: less work, or later, may do."""

    def __init__(self, why: str) -> None:
        """Say why, in a line."""
        super().__init__(503, why, ASIDE_AGAIN)


class ChildKilledError(UnavailableError):
    """A child was ended by somebody else: by the kernel, where memory runs out."""

    def __init__(self) -> None:
        """Say so, in a line."""
        super().__init__(503, "what works it out was ended, as where memory runs out", ASIDE_AGAIN)


class WorkerQueue:
    """Whose turn it is: first come, first served."""

    def __init__(self) -> None:
        """Nobody waits, and all places are free."""
        self._free = ASIDE_AT_ONCE
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    async def enter(self, count: int) -> None:
        """Wait for room for so many children. Raises UnavailableError where too many wait."""
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        if len(self._waiting) >= ASIDE_WAITING:
            why = f"{ASIDE_WAITING} questions wait already"
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
                self.leave(0)  # those behind it may need less
            raise

    def leave(self, count: int) -> None:
        """So many children are gone."""
        self._free += count
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done() or wanted > self._free:  # one that is withdrawn comes here then
                return
            self._waiting.popleft()
            self._free -= wanted
            turn.set_result(None)


_LINES: WeakKeyDictionary[AbstractEventLoop, WorkerQueue] = WeakKeyDictionary()
"""One for each loop, which is one for each daemon."""


async def child_worker(
    work: ChildTask,
    *,
    seconds: float,
    nice: int = 0,
    settled: Callable[[], Awaitable[None]] | None = None,
    line: WorkerQueue | None = None,
    paused: Callable[[float], None] | None = None,
) -> bytes:
    """What `work` returns, done in a child: see `asides`."""
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
    """What each of these returns, done in children that begin with the same state, side by side.

    Args:
        works: At most `ASIDE_AT_ONCE`; each is called in its child, and sees all as it is then.
        seconds: After which they are killed.
        nice: Added to the niceness of the daemon.
        settled: Waited for once it is their turn, so that nobody sees what is not durable:
            `Reading.settled`.
        line: Where to wait; of one's own for who asks for minutes, or nobody else would be served.
        paused: Hears how long the loop stood still for each child.

    Raises:
        UnavailableError: Too many wait; as AsideLateError: the time is over, or no child can be.
        AsideEndedError: One of them was ended.
        AsideError: One of them raised an error.
    """
    assert 1 <= len(works) <= ASIDE_AT_ONCE, "a question of more children would wait for ever"
    loop = asyncio.get_running_loop()
    line = line or _LINES.setdefault(loop, WorkerQueue())
    await line.enter(len(works))
    children: list[_Child] = []
    try:
        if settled is not None:
            await settled()
        for work in works:  # one by one: what fails leaves those before it to be ended
            began = perf_counter()
            children.append(_Child(loop, work, seconds, nice))
            if paused is not None:
                paused(perf_counter() - began)
        async with asyncio.timeout(seconds):
            return [await child.answer for child in children]
    except TimeoutError:
        raise ChildTimeoutError(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise ChildTimeoutError(f"no process can be made: {error.strerror}") from None
    finally:
        for child in children:
            child.end(line)
        line.leave(len(works) - len(children))


class _Child:
    """A process that answers.

    Attributes:
        answer: What it said.
    """

    def __init__(self, loop: AbstractEventLoop, work: ChildTask, seconds: float, nice: int) -> None:
        """Begin. Raises OSError where there is no room for a process."""
        self._loop = loop
        self._said = bytearray()
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
                self._said += piece
                return
            self._loop.remove_reader(self._pipe)
            if not self.answer.done():
                self._settle()

    def _settle(self) -> None:
        kind, said = bytes(self._said[:1]), bytes(self._said[1:])
        if kind == DONE:
            self.answer.set_result(said)
        else:
            why = said.decode(errors="replace")
            error = ChildFailedError(why) if kind == FAILED else ChildKilledError()
            self.answer.set_exception(error)

    def end(self, line: WorkerQueue) -> None:
        """Let go of it: it is killed if it still lives."""
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # or else nobody may have looked at it
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._reap(line)

    def _reap(self, line: WorkerQueue) -> None:
        """Hear that it is gone, which makes room for another."""
        with suppress(ChildProcessError):
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                self._loop.call_later(REAP_EVERY, self._reap, line)
                return
        line.leave(1)


def _fork(work: ChildTask, pipe: int, seconds: float, nice: int) -> int:
    """A child that does the work and writes to the pipe. Returns its process id."""
    # A signal that comes before the child has its own ways would be handled as the daemon's.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # From 3.12 on: that other threads may hold locks. The child takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            parent, pid = os.getpid(), os.fork()
        if not pid:
            _be_child(work, pipe, seconds, nice, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_copy(work: Callable[[], int]) -> int:
    """Run `work` in a copy of this child process, and wait for its answer: 0 to `FAILED_COPY` - 1.

    What it changes is lost with the copy. Only a child calls this: it has one thread. Raises
    ChildFailedError.
    """
    parent, pid = os.getpid(), os.fork()
    if not pid:
        code = FAILED_COPY
        try:
            _go_with(parent)
            code = work()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not 0 <= code < FAILED_COPY:
        raise ChildFailedError(f"a copy of the child ended with {code}")
    return code


def _be_child(work: ChildTask, pipe: int, seconds: float, nice: int, parent: int) -> None:
    """All of the child's life; it does not return."""
    code = 1
    try:
        gc.disable()  # looking through all that the daemon has would copy it, and end some of it
        _go_with(parent)
        _first_to_go()
        _leave_all(pipe, seconds)
        if nice:
            os.nice(nice)
        _write(pipe, DONE + work())
        code = 0
    except BaseException as error:  # noqa: BLE001  it must not come back into the daemon's code
        with suppress(BaseException):
            _write(pipe, FAILED + repr(error).encode(errors="replace"))
    finally:
        os._exit(code)


def _go_with(parent: int) -> None:
    """End when the daemon is killed: a successor on this machine wants the cores itself."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before that was asked for
        os._exit(1)


def _first_to_go() -> None:
    """Where memory runs out the kernel takes the child, and not the daemon."""
    with suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, b"1000")
        os.close(score)


def _leave_all(pipe: int, seconds: float) -> None:
    """Let go of the daemon's descriptors and of its ways with signals."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + ASIDE_LATE)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(0, pipe)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))


def _write(pipe: int, said: bytes) -> None:
    left = memoryview(said)
    while left:
        left = left[os.write(pipe, left) :]
