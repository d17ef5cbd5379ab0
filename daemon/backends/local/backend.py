"""Local backend: each job has a supervisor process, which outlives the daemon."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from daemon.backends.interface import (
    SHORT,
    BackendContext,
    Expected,
    ObservationSink,
    StopKind,
)
from daemon.backends.local import CAN, supervisor
from daemon.backends.local.attempt_files import AttemptFiles, all_alive
from daemon.backends.local.gpus import count_gpus
from daemon.backends.local.machine import settle
from daemon.backends.local.progress_file import ProgressFile, ProgressFileError, ProgressLine
from daemon.backends.local.supervisor_protocol import ended, order_of, unusable
from daemon.config.config import Ability
from daemon.model.errors import UnavailableError
from daemon.model.inputs import Ended, Lost, Reported, Started, StartFailed, Stray
from daemon.model.limits import REPORT_EVERY
from daemon.model.outputs import PreemptEffect, Refused, StartEffect
from daemon.runtime.logs import log
from sia.console.errors import UserError
from sia.model import Nodes

KILL_AFTER = 10.0
"""Seconds between SIGTERM and SIGKILL: enough for a small checkpoint, and short because a lender
may wait for the GPUs."""

LOOK_AGAIN = 1.0
"""Seconds between checks of attempts whose supervisor cannot notify the daemon yet."""

LOOK_AT_PROGRESS = REPORT_EVERY
"""Seconds between two checks of the progress files. Jobs may not report more often."""

Asked = StopKind | Literal["preempt"]

SIGNALS: Mapping[Asked, signal.Signals] = {
    "end": signal.SIGTERM, "warn": signal.SIGUSR1, "preempt": signal.SIGUSR2
}  # fmt: skip
"""Signals that tell a supervisor to end, warn or stop its job."""

NOT_NOW = (429, 503)
"""HTTP statuses of reports that may be sent again."""

REBOOTED = "the machine was rebooted while the job ran"
DELETED = "the job's folder was deleted while the job ran"


class _Run:
    """An attempt that the daemon watches."""

    def __init__(self, attempt: AttemptFiles) -> None:
        self.attempt = attempt
        self.ready = False  # the supervisor has been started
        self.reported = False  # `Started` has been reported
        self.asked: Asked | None = None
        self.pidfd: int | None = None  # of the supervisor: readable when it ends
        self.news: int | None = None  # pipe: readable when the supervisor has started the job
        self.cleanup: asyncio.Task[None] | None = None
        self.progress = ProgressFile(attempt.progress)
        self.refused = ""  # why its last progress report was refused, as logged

    @property
    def key(self) -> tuple[str, int]:
        return self.attempt.job, self.attempt.number

    def refuse_report(self, why: str) -> None:
        """Log why a progress report is refused, unless the reason is the same as before."""
        if why != self.refused:
            self.refused = why
            log().warning("report of progress refused", job=self.attempt.job, why=why)

    def close_news(self) -> None:
        """Stop watching for the start."""
        if self.news is not None:
            asyncio.get_running_loop().remove_reader(self.news)
            os.close(self.news)
            self.news = None

    def close(self) -> None:
        """Stop watching, and reap the supervisor if it has ended."""
        self.close_news()
        if self.pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(self.pidfd)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
        self.pidfd = None


def _read_progress(runs: Sequence[_Run]) -> list[tuple[_Run, ProgressLine]]:
    """Return the progress files that have changed; runs on a thread. O(runs)."""
    found = []
    for run in runs:
        try:
            line = run.progress.look()
        except ProgressFileError as error:
            run.refuse_report(str(error))
        else:
            if line is not None:
                found.append((run, line))
    return found


class LocalBackend:
    """Runs jobs as processes of the daemon's user on the daemon's machine.

    Each job costs one supervisor process of a few MB; nothing is polled.

    Args:
        folder: state and logs, created with access for this user only. One daemon per folder.
        gpus: number of GPUs; None asks the driver.
        kill_after: seconds from SIGTERM to SIGKILL when a job is ended.
        node: name of this machine in the configuration.
        boot: boot id of the machine, for tests; None asks the kernel.
    """

    can: frozenset[Ability] = CAN

    def __init__(
        self,
        folder: Path,
        gpus: int | None = None,
        kill_after: float = KILL_AFTER,
        node: str = "local",
        boot: str | None = None,
    ) -> None:
        """Find the GPUs. Writes nothing."""
        self._root = folder.absolute()
        self._node = node
        self._gpus = tuple(range(count_gpus() if gpus is None else gpus))
        self._kill_after = kill_after
        self._boot = boot or Path(supervisor.BOOT_ID).read_text(encoding="ascii").strip()
        self._runs: dict[tuple[str, int], _Run] = {}
        self._sink: ObservationSink
        self._lock: int | None = None
        self._lookers: list[asyncio.Task[None]] = []

    @property
    def gpus(self) -> Nodes | None:
        """One node, with GPU indices as the driver numbers them."""
        return ((self._node, self._gpus),)

    async def open(self, context: BackendContext) -> None:
        """Lock the folder. Raises UserError if it is not usable or another daemon has it."""
        self._context, self._sink = context, context.sink
        try:
            self._take_folder()
        except BlockingIOError:
            await self.close()
            raise UserError(
                f"{self._root}: another daemon uses this folder; stop it, or configure "
                "another folder under [backend]"
            ) from None
        except OSError as error:
            raise UserError(
                f"{self._root}: not usable ({error.strerror}); set another folder under [backend]"
            ) from None
        try:
            await settle(context, self._root)
        except UserError:
            await self.close()
            raise
        loop = asyncio.get_running_loop()
        self._lookers = [loop.create_task(self._look_again()), loop.create_task(self._hear_jobs())]

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Find the attempts that were started before. O(expected + possibly running)."""
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
        """Store the order and start a supervisor, which starts the job at most once."""
        run = _Run(AttemptFiles(self._root, order.job, order.attempt))
        if run.key in self._runs:
            return
        trouble = unusable(order, self._node)
        if trouble is not None:
            self._sink(trouble)
            return
        self._runs[run.key] = run
        try:
            reports = self._context.reports.of(*run.key)
            asked = order_of(order, run.attempt, self._kill_after, reports)
            self._begun(run, *await asyncio.to_thread(run.attempt.begin, asked))
        except OSError as error:
            self._runs.pop(run.key, None)
            if error.errno in SHORT:
                raise
            self._sink(StartFailed(*run.key, f"{error.filename or self._root}: {error.strerror}"))

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Signal the supervisor, which warns or ends all processes of the job."""
        self._order((job, attempt), kind)

    async def preempt(self, order: PreemptEffect) -> None:
        """Signal the supervisor, which tells the job to save its work, or ends it."""
        self._order((order.job, order.attempt), "end" if order.force else "preempt")

    def _order(self, key: tuple[str, int], asked: Asked) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.asked = asked
            self._ask(run)

    async def close(self) -> None:
        """Unlock the folder; all jobs continue to run."""
        for run in self._runs.values():
            run.close()
            if run.cleanup is not None:
                run.cleanup.cancel()
        self._runs.clear()
        for task in self._lookers:
            task.cancel()
        self._lookers = []
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return the job's output file; None if it does not exist or links out of the folder."""
        path = AttemptFiles(self._root, job, attempt).folder / stream
        inside = path.resolve().is_relative_to(self._root.resolve())
        return path if inside and path.exists() else None

    def check(self) -> None:
        """Assert that watched attempts are consistent."""
        for key, run in self._runs.items():
            assert key == run.key, "an attempt is filed under another key"
            assert self._lock is not None, "attempts are watched without the folder's lock"

    def _take_folder(self) -> None:
        """Create the folder if needed, and lock it for this process.

        Uses `lockf`, because a forked child inherits `flock` locks: if the daemon were killed
        during a fork, the folder would stay locked by the child.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)  # job environments may hold secrets
        for name in ("jobs", "alive"):
            (self._root / name).mkdir(exist_ok=True)
        self._lock = os.open(self._root / "daemon", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def _look_again(self) -> None:
        """Check the attempts whose supervisor has no pidfd yet."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            for run in list(self._runs.values()):
                if run.ready and run.pidfd is None and run.cleanup is None:
                    with suppress(OSError):  # the next check may succeed
                        self._look(run)

    async def _hear_jobs(self) -> None:
        """Forward what jobs write into their progress files, at most once a second for each job."""
        while True:
            await asyncio.sleep(LOOK_AT_PROGRESS)
            runs = [run for run in self._runs.values() if run.reported]
            found = await asyncio.to_thread(_read_progress, runs)
            if found:
                await self._report(found)

    async def _report(self, found: Sequence[tuple[_Run, ProgressLine]]) -> None:
        asked = [
            Reported(
                *run.key,
                line.done,
                line.speed,
                line.regime,
                trials=line.trials,
                iterations=line.iterations,
            )
            for run, line in found
        ]
        try:
            answers = await self._context.ask(asked)
        except UnavailableError:
            for run, _ in found:
                run.progress.again()
            return
        for (run, _), answer in zip(found, answers, strict=True):
            if not isinstance(answer, Refused):
                run.refused = ""
            elif answer.status in NOT_NOW:
                run.progress.again()
            else:
                run.refuse_report(f"{answer.detail}; {answer.mend}")

    def _find(self, attempt: AttemptFiles, *, seen: bool) -> bool:
        """Watch an attempt that an earlier daemon started; return False if it never started."""
        if not attempt.begun:
            return False
        run = _Run(attempt)
        run.reported, run.ready = seen, True
        run.progress.skip()  # the time of that report is unknown
        run = self._runs.setdefault(run.key, run)
        if attempt.end is None and self._rebooted(attempt):
            self._done(run, Lost(*run.key, REBOOTED))
        else:
            self._look(run)
        return True

    def _find_stray(self, attempt: AttemptFiles) -> None:
        if attempt.end is not None or self._rebooted(attempt) or attempt.give_up():
            attempt.alive.unlink()  # it cannot run any more
            return
        if attempt.supervised:
            self._sink(Stray(attempt.job, attempt.number))
        self._find(attempt, seen=True)

    def _rebooted(self, attempt: AttemptFiles) -> bool:
        return attempt.started.get("boot", self._boot) != self._boot

    def _begun(self, run: _Run, pid: int, news: int) -> None:
        """Watch a supervisor that this process has started."""
        if self._runs.get(run.key) is not run:  # closed in the meantime: the next daemon finds it
            os.close(news)
            return
        loop = asyncio.get_running_loop()
        run.ready, run.news = True, news
        loop.add_reader(news, self._on_news, run)
        with suppress(OSError):  # out of file descriptors: `_look_again` retries
            run.pidfd = os.pidfd_open(pid)
            loop.add_reader(run.pidfd, self._supervisor_gone, run)
        self._ask(run)

    def _on_news(self, run: _Run) -> None:
        run.close_news()
        self._look(run)

    def _supervisor_gone(self, run: _Run) -> None:
        run.close()
        self._look(run)

    def _look(self, run: _Run) -> None:
        """Read the attempt's files and report changes."""
        attempt = run.attempt
        supervised = attempt.supervised  # read first: once False, the end has been written
        started, end = attempt.started, attempt.end
        if started and not run.reported and "failed" not in (end or {}):
            run.reported = True
            self._sink(Started(*run.key))
        if supervised:
            self._follow(run, started)
        elif end is not None:
            self._done(run, ended(attempt, end))
        elif started:
            run.cleanup = asyncio.get_running_loop().create_task(self._kill_orphans(run))
        elif not attempt.folder.exists():
            self._done(run, Lost(*run.key, DELETED))
        elif attempt.give_up():
            self._done(run, StartFailed(*run.key, f"the supervisor failed ({attempt.trouble})"))

    def _follow(self, run: _Run, started: dict[str, str]) -> None:
        """Watch a supervisor that is not a child of this process."""
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

    async def _kill_orphans(self, run: _Run) -> None:
        """Kill the processes of a dead supervisor, whose end nobody would observe."""
        while remains := await asyncio.to_thread(run.attempt.remains):
            for process in remains:
                supervisor.send(process, signal.SIGKILL)
            await asyncio.sleep(supervisor.AGAIN)
        why = f"the supervisor died ({run.attempt.trouble}); the job was killed"
        self._done(run, Lost(*run.key, why))

    def _done(self, run: _Run, last: Ended | StartFailed | Lost) -> None:
        run.close()
        del self._runs[run.key]
        run.attempt.alive.unlink(missing_ok=True)
        self._sink(last)
