"""Where the local backend keeps what it knows of each attempt of a job: files in a folder."""

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
"""Bytes of a folder's name for a job: names end at 255, and an attempt's number follows."""

RUN = "SIA_RUN"
"""The variable that marks all processes of an attempt: its folder, which no other one has."""

TROUBLE = "trouble"
"""What a supervisor says on its stderr: nothing, unless it is a bug or the machine's failing."""

PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); import supervisor; supervisor.main(sys.argv[2])"
)
"""An import rather than a script, for Python keeps its bytecode: milliseconds for each job."""


def folder_name(job: str) -> str:
    """The name of a job's folder: every id has one, no two have the same, none leads elsewhere.

    Letters, digits, `-` and `_` are themselves, as are dots but the first; all else is %XX, byte by
    byte. A long one is cut and ends in `=` and a digest.
    """
    body = job.encode()
    name = re.sub(rb"[^A-Za-z0-9_.-]|^\.", lambda found: b"%%%02X" % found[0][0], body).decode()
    if 0 < len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 65]}={hashlib.sha256(body).hexdigest()}"


class AttemptFiles(NamedTuple):
    """An attempt of a job, by the files in its folder."""

    root: Path
    job: str
    number: int

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.root / "jobs" / folder_name(self.job) / str(self.number)

    @property
    def alive(self) -> Path:
        """An empty file that is there while it may run: so that no past one is looked at."""
        return self.root / "alive" / f"{folder_name(self.job)}.{self.number}"

    @property
    def order(self) -> supervisor.SupervisorOrder:
        """What was to run."""
        return supervisor.SupervisorOrder.unpacked((self.folder / supervisor.ORDER).read_bytes())

    @property
    def started(self) -> dict[str, str]:
        """Who runs it, on which boot of the machine; empty where nobody began to."""
        return self._read(supervisor.STARTED) or {}

    @property
    def end(self) -> dict[str, str] | None:
        """How it ended; None while it has not."""
        return self._read(supervisor.EXIT)

    @property
    def begun(self) -> bool:
        """Whether somebody supervises it, or did."""
        return self.supervised or bool(self.started) or self.end is not None

    @property
    def supervised(self) -> bool:
        """Whether its supervisor lives: then it holds the lock."""
        with self._locked() as free:
            return not free

    @property
    def trouble(self) -> str:
        """The last thing that its supervisor complained of."""
        said = (self.folder / TROUBLE).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(said) if line), "it said nothing")

    @property
    def command(self) -> list[str]:
        """The supervisor's command line."""
        python = [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM]
        return [*python, str(Path(supervisor.__file__).parent), str(self.folder)]

    def begin(self, order: supervisor.SupervisorOrder) -> tuple[int, int]:
        """Write down what is to run and start a supervisor, who sees whether that was done before.

        Returns the supervisor's pid, and a pipe that can be read when it has started the job, or
        ended. Raises OSError.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        supervisor.write_whole(str(self.folder / supervisor.ORDER), order.packed())
        self.alive.touch(mode=0o600)
        return self._spawn()

    def give_up(self) -> bool:
        """See to it that nobody starts it any more; False where somebody did, or may yet."""
        with self._locked() as free:
            if not free or self.started:
                return False
            body = supervisor.packed({"failed": "supervisor", "errno": 0})
            supervisor.write_whole(str(self.folder / supervisor.EXIT), body)
            return True

    def remains(self) -> list[supervisor.Process]:
        """What still runs of it where its supervisor is gone. O(processes of the machine)."""
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
        """Nobody begins to supervise it meanwhile; False where somebody does already."""
        try:
            lock = os.open(self.folder / supervisor.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # not even a folder
            yield True
            return
        try:
            yield _taken(lock)
        finally:
            os.close(lock)

    def _spawn(self) -> tuple[int, int]:
        """A process with nothing of this one's: no signals that it ignores, files, environment."""
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
                setsigmask=signal.valid_signals(),  # until it is ready for them
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
    """All attempts that may run, as the folder says, in the order of their names."""
    found = []
    for entry in sorted((root / "alive").iterdir()):
        name, _, number = entry.name.rpartition(".")
        try:
            body = (root / "jobs" / name / number / supervisor.ORDER).read_bytes()
        except FileNotFoundError:  # the machine went down before it was on the disk
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
