"""Files of an attempt: the local backend's durable state."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from daemon.backends.local import supervisor

LONGEST = 200
"""Maximum bytes of the name of a job's folder: below the limit of 255, with room for a suffix."""

RUN = "SIA_RUN"
"""Environment variable that marks all processes of an attempt; its value is the attempt's
folder."""

PROGRESS = "SIA_PROGRESS_FILE"
"""Environment variable with the path of the file in which a job may report its progress."""

TROUBLE = "trouble"
"""File with the supervisor's stderr. It is empty unless the supervisor or the machine fails."""

PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); import supervisor; supervisor.main(sys.argv[2])"
)
"""An import instead of a script: Python caches its bytecode, which saves milliseconds a job."""


def folder_name(job: str) -> str:
    """Return a job's folder name: unique, a single path component, for every id.

    Letters, digits, `-`, `_` and dots except a leading one stay; other bytes become %XX. A long
    name is cut and ends in `=` and a digest.
    """
    body = job.encode()
    name = re.sub(rb"[^A-Za-z0-9_.-]|^\.", lambda found: b"%%%02X" % found[0][0], body).decode()
    if 0 < len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 65]}={hashlib.sha256(body).hexdigest()}"


class AttemptFiles(NamedTuple):
    """An attempt of a job, and the files in its folder."""

    root: Path
    job: str
    number: int

    @property
    def folder(self) -> Path:
        """Folder of the attempt."""
        return self.root / "jobs" / folder_name(self.job) / str(self.number)

    @property
    def alive(self) -> Path:
        """Empty file that exists while the attempt may run; the daemon scans only these."""
        return self.root / "alive" / f"{folder_name(self.job)}.{self.number}"

    @property
    def order(self) -> supervisor.SupervisorOrder:
        """The stored order."""
        return supervisor.SupervisorOrder.unpacked((self.folder / supervisor.ORDER).read_bytes())

    @property
    def started(self) -> dict[str, str]:
        """Supervisor and boot id of the running attempt; empty if it was never started."""
        return self._read(supervisor.STARTED) or {}

    @property
    def end(self) -> dict[str, str] | None:
        """How the attempt ended, or None."""
        return self._read(supervisor.EXIT)

    @property
    def begun(self) -> bool:
        """Whether a supervisor has taken or completed the attempt."""
        return self.supervised or bool(self.started) or self.end is not None

    @property
    def supervised(self) -> bool:
        """Whether the supervisor is alive; it holds the lock."""
        with self._locked() as free:
            return not free

    @property
    def trouble(self) -> str:
        """Last line that the supervisor wrote to stderr."""
        lines = (self.folder / TROUBLE).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line), "no message")

    @property
    def checkpoint(self) -> Path:
        """Folder in which the job may save its work; all of its attempts have the same."""
        return self.folder.parent / "checkpoint"

    @property
    def progress(self) -> Path:
        """File in which the job may report its progress."""
        return self.folder / "progress"

    @property
    def command(self) -> list[str]:
        """Command line of the supervisor."""
        python = [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM]
        return [*python, str(Path(supervisor.__file__).parent), str(self.folder)]

    def begin(self, order: supervisor.SupervisorOrder) -> tuple[int, int]:
        """Store the order and start a supervisor, which detects an earlier start.

        Returns the supervisor's pid, and a pipe that becomes readable when the job has started or
        the supervisor has ended. Raises OSError.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.checkpoint.mkdir(mode=0o700, exist_ok=True)
        supervisor.write_whole(str(self.folder / supervisor.ORDER), order.packed())
        self.alive.touch(mode=0o600)
        return self._spawn()

    def give_up(self) -> bool:
        """Prevent the attempt from starting; return False if it has started or may be starting."""
        with self._locked() as free:
            if not free or self.started:
                return False
            body = supervisor.packed({"failed": "supervisor", "errno": 0})
            supervisor.write_whole(str(self.folder / supervisor.EXIT), body)
            return True

    def remains(self) -> list[supervisor.Process]:
        """Return the attempt's processes after its supervisor died. O(processes of the machine)."""
        started = self.started
        leader = int(started["job"])
        now = supervisor.process(leader)
        ours = now is None or now.start == int(started["job_start"])
        mark = f"{RUN}={self.folder}".encode()
        return [
            found
            for found in supervisor.processes()
            if not found.gone
            and ((ours and found.session == leader) or mark in _environment(found.pid))
        ]

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock, so that no supervisor starts; yields False if one has the lock."""
        try:
            lock = os.open(self.folder / supervisor.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the folder does not exist
            yield True
            return
        try:
            yield _taken(lock)
        finally:
            os.close(lock)

    def _spawn(self) -> tuple[int, int]:
        """Start the supervisor without inheriting ignored signals, files or environment."""
        news, tell = os.pipe()
        trouble = str(self.folder / TROUBLE)
        try:
            pid = os.posix_spawn(
                sys.executable,
                self.command,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, tell, 1),
                    (os.POSIX_SPAWN_OPEN, 2, trouble, os.O_WRONLY | os.O_CREAT, 0o600),
                ],
                setsid=True,
                setsigmask=signal.valid_signals(),  # until the supervisor handles them
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError:
            os.close(news)
            raise
        finally:
            os.close(tell)
        return pid, news

    def _read(self, name: str) -> dict[str, str] | None:
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return dict(line.split("=", 1) for line in text.splitlines())


def all_alive(root: Path) -> list[AttemptFiles]:
    """Return all attempts that may be running, ordered by name."""
    found = []
    for entry in sorted((root / "alive").iterdir()):
        name, _, number = entry.name.rpartition(".")
        try:
            body = (root / "jobs" / name / number / supervisor.ORDER).read_bytes()
        except FileNotFoundError:  # the machine crashed before the order was on disk
            entry.unlink()
            continue
        found.append(
            AttemptFiles(root, supervisor.SupervisorOrder.unpacked(body).job.decode(), int(number))
        )
    return found


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
