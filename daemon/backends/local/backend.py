"""Processes on this machine. Each job has a supervisor, a process that outlives the daemon."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from daemon.backends.interface import (
    SHORT,
    Ability,
    BackendContext,
    Expected,
    ObservationSink,
    StopKind,
)
from daemon.backends.local import supervisor
from daemon.backends.local.attempt_files import AttemptFiles, all_alive
from daemon.backends.local.gpus import count_gpus
from daemon.backends.local.machine import settle
from daemon.backends.local.supervisor_protocol import ended, order_of, unusable
from daemon.model.inputs import Ended, Lost, Started, StartFailed, Stray
from daemon.model.outputs import StartEffect
from sia.console.errors import UserError
from sia.model import Nodes

KILL_AFTER = 10.0
"""Seconds from SIGTERM to SIGKILL: enough to write a small checkpoint, soon enough for a lender."""

LOOK_AGAIN = 1.0
"""Seconds until an attempt is looked at again whose supervisor says nothing yet by itself."""

SIGNALS = {"end": signal.SIGTERM, "warn": signal.SIGUSR1}
"""What the supervisor hears."""

REBOOTED = "the machine was started anew while it ran"
DELETED = "its folder was deleted while it ran"


class _Run:
    """An attempt that is followed."""

    def __init__(self, attempt: AttemptFiles) -> None:
        self.attempt = attempt
        self.ready = False  # its supervisor was started
        self.told = False  # that it runs
        self.asked: StopKind | None = None
        self.pidfd: int | None = None  # of its supervisor: readable when that ends
        self.news: int | None = None  # a pipe: readable when the supervisor has begun
        self.burial: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.attempt.job, self.attempt.number

    def close_news(self) -> None:
        """Listen no more for the beginning."""
        if self.news is not None:
            asyncio.get_running_loop().remove_reader(self.news)
            os.close(self.news)
            self.news = None

    def close(self) -> None:
        """Listen no more at all; a supervisor that ended is waited for."""
        self.close_news()
        if self.pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(self.pidfd)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        self.pidfd = None


class LocalBackend:
    """Runs jobs as processes of the daemon's user on the one machine that it is on.

    A start costs a process of some MB that waits for the job; nothing is polled.

    Args:
        folder: keeps states and logs; it is made, for this user alone. Two daemons cannot share it.
        gpus: how many GPUs the machine has; None asks the driver.
        kill_after: seconds from SIGTERM to SIGKILL where a job is ended.
        node: what the configuration calls this machine.
        boot: which start of the machine this is, for tests; None asks the kernel.
    """

    can: frozenset[Ability] = frozenset({"commands", "logs", "preempt", "requeue"})

    def __init__(
        self,
        folder: Path,
        gpus: int | None = None,
        kill_after: float = KILL_AFTER,
        node: str = "local",
        boot: str | None = None,
    ) -> None:
        """Find the GPUs; nothing is written yet."""
        self._root = folder.absolute()
        self._node = node
        self._gpus = tuple(range(count_gpus() if gpus is None else gpus))
        self._kill_after = kill_after
        self._boot = boot or Path(supervisor.BOOT_ID).read_text(encoding="ascii").strip()
        self._runs: dict[tuple[str, int], _Run] = {}
        self._sink: ObservationSink
        self._lock: int | None = None
        self._looker: asyncio.Task[None] | None = None

    @property
    def gpus(self) -> Nodes | None:
        """One node, with the GPUs as the driver numbers them."""
        return ((self._node, self._gpus),)

    async def open(self, house: BackendContext) -> None:
        """Take the folder. Raises UserError where it cannot be used, or another daemon has it."""
        self._sink = house.sink
        try:
            self._take_folder()
        except BlockingIOError:
            await self.close()
            raise UserError(
                f"{self._root}: another daemon runs its jobs there; stop it, or give this one "
                "another folder"
            ) from None
        except OSError as error:
            raise UserError(
                f"{self._root}: cannot keep jobs ({error.strerror}); give [backend] another folder"
            ) from None
        try:
            await settle(house, self._root)
        except UserError:
            await self.close()
            raise
        self._looker = asyncio.get_running_loop().create_task(self._look_again())

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Find again what was started before. O(expected + what may run)."""
        wanted: set[AttemptFiles] = set()
        unseen = []
        for job in expected:
            attempt = AttemptFiles(self._root, job.order.job, job.order.attempt)
            wanted.add(attempt)
            if not self._find(attempt, seen=job.started is not None):
                unseen.append(job.order)
        for attempt in all_alive(self._root):
            if attempt not in wanted:
                self._find_stray(attempt)
        return unseen

    async def start(self, order: StartEffect) -> None:
        """Write down the order and start a supervisor, which starts the job once."""
        run = _Run(AttemptFiles(self._root, order.job, order.attempt))
        if run.key in self._runs:
            return
        trouble = unusable(order, self._node)
        if trouble is not None:
            self._sink(trouble)
            return
        self._runs[run.key] = run
        try:
            asked = order_of(order, run.attempt, self._kill_after)
            self._begun(run, *await asyncio.to_thread(run.attempt.begin, asked))
        except OSError as error:
            self._runs.pop(run.key, None)
            if error.errno in SHORT:
                raise
            self._sink(StartFailed(*run.key, f"{error.filename or self._root}: {error.strerror}"))

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Tell its supervisor; it ends the job's processes, all of them."""
        run = self._runs.get((job, attempt))
        if run is not None:
            run.asked = kind
            self._ask(run)

    async def close(self) -> None:
        """Let go of the folder; all jobs run on."""
        for run in self._runs.values():
            run.close()
            if run.burial is not None:
                run.burial.cancel()
        self._runs.clear()
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """The file that the job writes its output to; None where it leads out of the folder."""
        path = AttemptFiles(self._root, job, attempt).folder / stream
        inside = path.resolve().is_relative_to(self._root.resolve())
        return path if inside and path.exists() else None

    def check(self) -> None:
        """Assert that whatever runs is followed."""
        for key, run in self._runs.items():
            assert key == run.key, "a job under another's name"
            assert self._lock is not None, "jobs are followed by who has let go of them"

    def _take_folder(self) -> None:
        """Make it where it is not there, and lock it, for this process alone.

        A process that is just being started has this one's files for a moment, and with them all
        locks by `flock`: a daemon killed in that moment would still seem to be there.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)  # environments may hold secrets
        for name in ("jobs", "alive"):
            (self._root / name).mkdir(exist_ok=True)
        self._lock = os.open(self._root / "daemon", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def _look_again(self) -> None:
        """Those that nothing else tells of: a supervisor that has only just come to be."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            for run in list(self._runs.values()):
                if run.ready and run.pidfd is None and run.burial is None:
                    with suppress(OSError):  # what the disk does not say now, it may say then
                        self._look(run)

    def _find(self, attempt: AttemptFiles, *, seen: bool) -> bool:
        """Follow an attempt of a daemon before this one; False where it never began."""
        if not attempt.begun:
            return False
        run = _Run(attempt)
        run.told, run.ready = seen, True
        run = self._runs.setdefault(run.key, run)
        if attempt.end is None and self._rebooted(attempt):
            self._done(run, Lost(*run.key, REBOOTED))
        else:
            self._look(run)
        return True

    def _find_stray(self, attempt: AttemptFiles) -> None:
        if attempt.end is not None or self._rebooted(attempt) or attempt.give_up():
            attempt.alive.unlink()  # it will not run any more
            return
        if attempt.supervised:
            self._sink(Stray(attempt.job, attempt.number))
        self._find(attempt, seen=True)

    def _rebooted(self, attempt: AttemptFiles) -> bool:
        return attempt.started.get("boot", self._boot) != self._boot

    def _begun(self, run: _Run, pid: int, news: int) -> None:
        """Listen to its supervisor, a child of this process."""
        if self._runs.get(run.key) is not run:  # closed meanwhile: the next daemon finds it
            os.close(news)
            return
        loop = asyncio.get_running_loop()
        run.ready, run.news = True, news
        loop.add_reader(news, self._heard, run)
        with suppress(OSError):  # too many files are open: it is looked at again
            run.pidfd = os.pidfd_open(pid)
            loop.add_reader(run.pidfd, self._supervisor_gone, run)
        self._ask(run)

    def _heard(self, run: _Run) -> None:
        run.close_news()
        self._look(run)

    def _supervisor_gone(self, run: _Run) -> None:
        run.close()
        self._look(run)

    def _look(self, run: _Run) -> None:
        """Say what the files say of it."""
        attempt = run.attempt
        supervised = attempt.supervised  # first: what it wrote at its end is there when it is gone
        started, end = attempt.started, attempt.end
        if started and not run.told and "failed" not in (end or {}):
            run.told = True
            self._sink(Started(*run.key))
        if supervised:
            self._follow(run, started)
        elif end is not None:
            self._done(run, ended(attempt, end))
        elif started:
            run.burial = asyncio.get_running_loop().create_task(self._bury(run))
        elif not attempt.folder.exists():
            self._done(run, Lost(*run.key, DELETED))
        elif attempt.give_up():
            self._done(run, StartFailed(*run.key, f"its supervisor failed ({attempt.trouble})"))

    def _follow(self, run: _Run, started: dict[str, str]) -> None:
        """Be told of the end of a supervisor that is not this process's child."""
        if run.pidfd is not None or not started:
            return
        pidfd = supervisor.open_process(
            int(started["supervisor"]), int(started["supervisor_start"])
        )
        if pidfd is not None:
            run.pidfd = pidfd
            asyncio.get_running_loop().add_reader(pidfd, self._supervisor_gone, run)
            self._ask(run)

    def _ask(self, run: _Run) -> None:
        if run.asked is not None and run.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(run.pidfd, SIGNALS[run.asked])

    async def _bury(self, run: _Run) -> None:
        """Kill what has no supervisor any more: nobody would say when it ends, or how."""
        while remains := await asyncio.to_thread(run.attempt.remains):
            for process in remains:
                supervisor.send(process, signal.SIGKILL)
            await asyncio.sleep(supervisor.AGAIN)
        why = f"its supervisor ended before it ({run.attempt.trouble}); all of it was killed"
        self._done(run, Lost(*run.key, why))

    def _done(self, run: _Run, last: Ended | StartFailed | Lost) -> None:
        run.close()
        del self._runs[run.key]
        run.attempt.alive.unlink(missing_ok=True)
        self._sink(last)
