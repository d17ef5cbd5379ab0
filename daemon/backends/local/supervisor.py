"""Supervise one attempt of a job in a process that outlives the daemon.

There is one supervisor for each job, so it imports little: `typing` or `pathlib` would cost
milliseconds. The holder of the folder's lock is the supervisor; an attempt with a `started` file is
never started again. The job runs in its own session. Orphaned descendants become children of the
supervisor, so the job has ended when there are no children left. SIGTERM ends the job, SIGUSR1
warns it, SIGUSR2 tells it to save its work and stop; all other signals are blocked, because the
supervisor must outlive the job. The files `started` and `exit` record what happened, one
`key=value` a line.
"""

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Iterator

ORDER, LOCK, STARTED, EXIT = "order", "lock", "started", "exit"
"""Files of an attempt: the order (NUL-separated), the lock, the start record, the end record."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""File whose content changes with each boot."""

SET_CHILD_SUBREAPER = 36
"""Option of prctl(2): orphaned descendants become children of this process."""

HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
"""Signals that the supervisor waits for; all others are blocked."""

AGAIN = 0.5
"""Seconds between SIGKILLs, to catch processes forked in the meantime."""

SETTLED = 0.2
"""Seconds in which a forked process usually calls exec. Before exec it has its parent's signal
handlers, so a SIGUSR1 sent in that time could kill the new program."""

MAIN = "B:"
"""Prefix of a checkpoint signal for the main process only."""

RETRY = 1.0
"""Seconds between two attempts to write the end record while the disk is full."""


class SupervisorOrder:
    """What to run. All values are bytes, since file names need not be UTF-8.

    `patience`: seconds from SIGTERM to SIGKILL.
    `checkpoint`: how the job is told to save its work: the name of a signal such as SIGUSR1, with
    `B:` before it for the main process alone; or a command; or nothing, for SIGTERM.
    """

    def __init__(
        self,
        job: bytes,
        attempt: bytes,
        patience: float,
        cwd: bytes,
        command: list[bytes],
        env: dict[bytes, bytes],
        checkpoint: list[bytes],
    ) -> None:
        """Create an order."""
        self.job = job
        self.attempt = attempt
        self.patience = patience
        self.cwd = cwd
        self.command = command
        self.env = env
        self.checkpoint = checkpoint

    def packed(self) -> bytes:
        """Encode the order for its file."""
        env = [name + b"=" + value for name, value in self.env.items()]
        head = [self.job, self.attempt, repr(self.patience).encode(), self.cwd]
        words = [*_counted(self.checkpoint), *_counted(self.command)]
        return b"\0".join([*head, *words, *env])

    @classmethod
    def unpacked(cls, body: bytes) -> "SupervisorOrder":
        """Decode an order. Raises ValueError if it is malformed."""
        job, attempt, patience, cwd, *rest = body.split(b"\0")
        checkpoint, rest = _first(rest)
        command, rest = _first(rest)
        pairs = (entry.partition(b"=") for entry in rest)
        env = {key: value for key, _, value in pairs}
        return cls(job, attempt, float(patience), cwd, command, env, checkpoint)


def _counted(words: list[bytes]) -> list[bytes]:
    """Return words with their number before them."""
    return [str(len(words)).encode(), *words]


def _first(parts: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the words that are counted at the beginning, and what follows them."""
    end = 1 + int(parts[0])
    return parts[1:end], parts[end:]


class Process:
    """A process in /proc, identified by pid and `start` (clock ticks since boot)."""

    def __init__(self, pid: int, state: bytes, parent: int, session: int, start: int) -> None:
        """Store the state of a process."""
        self.pid = pid
        self.gone = state in b"ZX"
        """Whether the process has ended but was not reaped (zombie)."""
        self.parent = parent
        self.session = session
        self.start = start


def process(pid: int) -> Process | None:
    """Return the process that has this pid now, including a zombie, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def processes() -> Iterator[Process]:
    """Iterate over the visible processes of this machine. O(processes)."""
    for name in os.listdir("/proc"):
        found = process(int(name)) if name.isdigit() else None
        if found is not None:
            yield found


def open_process(pid: int, start: int) -> int | None:
    """Return a pidfd of a process; None if it has ended, even if its pid was reused."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    now = process(pid)
    if now is not None and now.start == start:
        return pidfd
    os.close(pidfd)
    return None


def send(to: Process, number: int) -> None:
    """Signal a process, if it still exists and belongs to this user."""
    pidfd = open_process(to.pid, to.start)
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass
    finally:
        os.close(pidfd)


def write_whole(path: str, body: bytes) -> None:
    """Write a file atomically and durably. Raises OSError."""
    with open(path + ".new", "wb", opener=_private) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    sync_folder(os.path.dirname(path) or ".")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def sync_folder(path: str) -> None:
    """Flush a directory to disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def packed(fields: dict[str, object]) -> bytes:
    """Encode a start or end record."""
    return "".join(f"{key}={value}\n" for key, value in fields.items()).encode()


class Supervisor:
    """Runs the job until none of its processes is left."""

    def __init__(self, order: SupervisorOrder) -> None:
        """Create the supervisor; `run` starts the job."""
        self._order = order
        self._job = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._saver: int | None = None
        """The process of the checkpoint command."""
        self._end: dict[str, object] = {}

    def run(self) -> None:
        """Start the job, wait for its end, and write the end record."""
        trouble = self._launch()
        if trouble:
            what, _, number = trouble.partition(b" ")
            self._end |= {"failed": what.decode(), "errno": int(number)}
        else:
            self._news()
        while self._reap():
            if self._status is not None:
                self._finish()  # end all processes that the job left running
            self._wait()
        if self._status is not None:
            code = os.waitstatus_to_exitcode(self._status)
            self._end |= {"code": code} if code >= 0 else {"signal": -code}
        self._write_end()

    def _launch(self) -> bytes:
        """Fork the job; let it run once the start is recorded. Return a failed step and errno."""
        hold, go = os.pipe()
        trouble, say = os.pipe()
        try:
            self._job = os.fork()
        except OSError as error:
            return f"fork {error.errno}".encode()
        if self._job == 0:
            os.close(go)
            self._become(hold, say)
        os.close(say)
        try:
            self._claim()
        except OSError as error:
            os.close(go)  # the job reads end of file and exits
            return f"started {error.errno}".encode()
        os.write(go, b"!")
        return os.read(trouble, 100)

    def _claim(self) -> None:
        """Write the start record durably: the attempt is never started again from here on."""
        me, job = process(os.getpid()), process(self._job)
        assert me is not None
        assert job is not None, "the job waits for the pipe"
        with open(BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        write_whole(
            STARTED,
            packed(
                {
                    "boot": boot,
                    "supervisor": me.pid,
                    "supervisor_start": me.start,
                    "job": job.pid,
                    "job_start": job.start,
                    "time": time.time(),
                }
            ),
        )
        for above in ("..", "../.."):
            sync_folder(above)

    def _become(self, hold: int, say: int) -> None:
        """Run in the forked child: wait for the start record, then exec the job."""
        stage = "logs"
        try:
            os.setsid()
            if not os.read(hold, 1):
                os._exit(127)
            for number, name in ((1, "stdout"), (2, "stderr")):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                os.dup2(os.open(name, flags, 0o600), number)
            stage = "cwd"
            os.chdir(self._order.cwd)
            stage = "command"
            self._exec(self._order.command)
        except OSError as error:
            os.write(say, f"{stage} {error.errno}".encode())
        finally:
            os._exit(127)

    def _exec(self, command: list[bytes]) -> None:
        """Become a command, with the job's environment and usual signals. Raises OSError."""
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, self._order.env)  # noqa: S606 - no shell

    def _news(self) -> None:
        """Notify the daemon, if it is still there, to read the folder."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.write(1, b"!")
        except OSError:
            pass
        finally:
            os.dup2(nowhere, 1)

    def _reap(self) -> bool:
        """Reap ended children; return False if there are none left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._job:
                    self._status = status
                elif pid == self._saver:
                    self._finish()  # the work is saved, or cannot be
        except ChildProcessError:
            return False

    def _wait(self) -> None:
        """Wait for the end of a child, a signal from the daemon, or the time to kill."""
        if self._kill_at is None:
            number = signal.sigwait(HEARD)
        else:
            received = signal.sigtimedwait(HEARD, _left(self._kill_at) or AGAIN)
            number = received.si_signo if received else 0
        if number == signal.SIGTERM:
            self._end["asked"] = 1
            self._finish()
        elif number == signal.SIGUSR1:
            tell(signal.SIGUSR1)
        elif number == signal.SIGUSR2 and "told" not in self._end:
            self._end["told"] = 1
            self._stop()
        if self._kill_at is not None and not _left(self._kill_at):
            self._end["killed"] = 1
            for found in descendants():
                send(found, signal.SIGKILL)

    def _stop(self) -> None:
        """Tell the job to save its work. The daemon ends the job when its grace time is over.

        A job is ended at once if it has no checkpoint, or does not handle the checkpoint's signal.
        """
        words = self._order.checkpoint
        name = words[0].decode(errors="replace") if len(words) == 1 else ""
        main = self._job if name.startswith(MAIN) else None
        name = name.removeprefix(MAIN)
        if name.startswith("SIG"):
            number = getattr(signal, name)
            if number == signal.SIGTERM:
                self._terminate(main)
            elif not tell(number, main):
                self._finish()
        elif words:
            self._run_saver(words)
        else:
            self._terminate()

    def _run_saver(self, command: list[bytes]) -> None:
        """Run the checkpoint command where the job runs; its output goes to the job's."""
        try:
            self._saver = os.fork()
        except OSError:
            self._finish()
            return
        if self._saver == 0:
            try:
                os.setsid()
                for number, name in ((1, "stdout"), (2, "stderr")):
                    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
                os.chdir(self._order.cwd)
                self._exec(command)
            finally:
                os._exit(127)

    def _finish(self) -> None:
        """Send SIGTERM to all processes, and SIGCONT so that stopped ones receive it."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._order.patience
            self._terminate()

    def _terminate(self, main: int | None = None) -> None:
        for found in descendants():
            if main is None or found.pid == main:
                send(found, signal.SIGTERM)
                send(found, signal.SIGCONT)

    def _write_end(self) -> None:
        while True:
            try:
                write_whole(EXIT, packed(self._end | {"time": time.time()}))
            except FileNotFoundError:  # the folder was deleted
                return
            except OSError:  # the disk is full: retry until it is not
                time.sleep(RETRY)
            else:
                return


def _left(until: float) -> float:
    """Return the seconds until a monotonic time, at least 0."""
    return max(0.0, until - time.monotonic())


def descendants() -> list[Process]:
    """Return all descendants, parents before children. O(processes of the machine)."""
    children: dict[int, list[Process]] = {}
    for found in processes():
        children.setdefault(found.parent, []).append(found)
    below = children.get(os.getpid(), [])
    for found in below:  # the list grows during the loop
        below += children.get(found.pid, [])
    return below


def tell(number: signal.Signals, only: int | None = None) -> bool:
    """Send a signal to the processes that handle it; its default action would kill others.

    With `only`, send it to the process with this id only. Return whether any process handles it.
    """
    there = {(found.pid, found.start) for found in descendants()}
    time.sleep(SETTLED)
    bit, sent = 1 << (number - 1), False
    for found in descendants():
        if only is not None and found.pid != only:
            continue
        if (found.pid, found.start) in there and caught(found.pid) & bit:
            send(found, number)
            sent = True
    return sent


def caught(pid: int) -> int:
    """Return the signals that a process handles, as a bit set."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            rows = [row for row in file if row.startswith(b"SigCgt:")]
    except OSError:
        return 0
    return int(rows[0].split()[1], 16)


def main(folder: str) -> None:
    """Supervise the attempt in a folder, unless it has or had a supervisor."""
    inherited = map(int, os.listdir("/proc/self/fd"))
    os.closerange(3, max(inherited) + 1)  # files inherited through the daemon
    os.chdir(folder)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.path.exists(STARTED) or os.path.exists(EXIT):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    with open(ORDER, "rb") as file:
        order = SupervisorOrder.unpacked(file.read())
    Supervisor(order).run()
