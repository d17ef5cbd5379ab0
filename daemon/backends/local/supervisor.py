"""Runs one attempt of a job in the daemon's place, in a process that outlives it.

There is one for each job, so it imports little: `typing` or `pathlib` would cost milliseconds. Who
holds the lock of the folder supervises it; what has `started` is never started again. The job gets
a session of its own; whatever of it loses its parent becomes a child of this process, so that the
job is over when there is no child left. SIGTERM ends the job, SIGUSR1 warns it; all other signals
are kept from this process, which is not to die before the job. `started` and `exit` say what
happened, one `key=value` a line.
"""

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Iterator

ORDER, LOCK, STARTED, EXIT = "order", "lock", "started", "exit"
"""Files of an attempt: what to run (parted by NUL), who supervises it, that it runs, its end."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Another one after each start of the machine."""

SET_CHILD_SUBREAPER = 36
"""Of prctl(2): orphans among the descendants become children of this process."""

HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
"""Signals that a supervisor waits for; the others wait for its end."""

AGAIN = 0.5
"""Seconds from one SIGKILL to the next, for what was forked between: seldom, and soon enough."""

SETTLED = 0.2
"""Seconds in which a process that was just forked begins a program of its own, if it does. Until
then it seems to handle what its parent does; warned as it begins, it would die."""

RETRY = 1.0
"""Seconds until the end of a job is written again where the disk is full."""


class SupervisorOrder:
    """What is to run. All of it are bytes, as a file's name need not be text.

    `patience`: seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self,
        job: bytes,
        attempt: bytes,
        patience: float,
        cwd: bytes,
        command: list[bytes],
        env: dict[bytes, bytes],
    ) -> None:
        """As the daemon says it."""
        self.job = job
        self.attempt = attempt
        self.patience = patience
        self.cwd = cwd
        self.command = command
        self.env = env

    def packed(self) -> bytes:
        """As it stands in the file."""
        env = [name + b"=" + value for name, value in self.env.items()]
        head = [self.job, self.attempt, repr(self.patience).encode(), self.cwd]
        return b"\0".join([*head, str(len(self.command)).encode(), *self.command, *env])

    @classmethod
    def unpacked(cls, body: bytes) -> "SupervisorOrder":
        """From the bytes of the file. Raises ValueError where they are no order."""
        job, attempt, patience, cwd, number, *rest = body.split(b"\0")
        command, env = rest[: int(number)], rest[int(number) :]
        pairs = (entry.partition(b"=") for entry in env)
        return cls(job, attempt, float(patience), cwd, command, {k: v for k, _, v in pairs})


class Process:
    """A process as /proc shows it. Pid and `start` (ticks of the machine) together are its own."""

    def __init__(self, pid: int, state: bytes, parent: int, session: int, start: int) -> None:
        """As it was a moment ago."""
        self.pid = pid
        self.gone = state in b"ZX"
        """Whether only its parent has not heard yet that it ended."""
        self.parent = parent
        self.session = session
        self.start = start


def process(pid: int) -> Process | None:
    """The process that has this pid now, also one that was not waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def processes() -> Iterator[Process]:
    """All processes of this machine that can be seen. O(processes)."""
    for name in os.listdir("/proc"):
        found = process(int(name)) if name.isdigit() else None
        if found is not None:
            yield found


def open_process(pid: int, start: int) -> int | None:
    """A pidfd of this very process; None if it is gone, or its pid another's by now."""
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
    """Signal this very process, if it still is and is this user's."""
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
    """Write a file that is there whole, on the disk, or not at all. Raises OSError."""
    with open(path + ".new", "wb", opener=_private) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    sync_folder(os.path.dirname(path) or ".")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def sync_folder(path: str) -> None:
    """Have on the disk which files are in it."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def packed(fields: dict[str, object]) -> bytes:
    """As `started` and `exit` are written."""
    return "".join(f"{key}={value}\n" for key, value in fields.items()).encode()


class Supervisor:
    """The job that this process runs, until nothing of it is left."""

    def __init__(self, order: SupervisorOrder) -> None:
        """Nothing runs yet."""
        self._order = order
        self._job = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._end: dict[str, object] = {}

    def run(self) -> None:
        """Start it, wait for its end, say how it was."""
        trouble = self._launch()
        if trouble:
            what, _, number = trouble.partition(b" ")
            self._end |= {"failed": what.decode(), "errno": int(number)}
        else:
            self._news()
        while self._reap():
            if self._status is not None:
                self._finish()  # what the job left behind
            self._hear()
        if self._status is not None:
            code = os.waitstatus_to_exitcode(self._status)
            self._end |= {"code": code} if code >= 0 else {"signal": -code}
        self._say_end()

    def _launch(self) -> bytes:
        """Fork the job, let it run once that is written; what went wrong, and its errno."""
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
            os.close(go)  # the job sees it and ends
            return f"started {error.errno}".encode()
        os.write(go, b"!")
        return os.read(trouble, 100)

    def _claim(self) -> None:
        """From here on nobody starts this attempt again, not even after a power failure."""
        me, job = process(os.getpid()), process(self._job)
        assert me is not None
        assert job is not None, "it waits"
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
        """In the forked process: wait, then be the job."""
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
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            command = self._order.command
            os.execvpe(command[0], command, self._order.env)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(say, f"{stage} {error.errno}".encode())
        finally:
            os._exit(127)

    def _news(self) -> None:
        """Tell the daemon, if it still listens, to look into the folder."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.write(1, b"!")
        except OSError:
            pass
        finally:
            os.dup2(nowhere, 1)

    def _reap(self) -> bool:
        """Wait for what has ended; False where no child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._job:
                    self._status = status
        except ChildProcessError:
            return False

    def _hear(self) -> None:
        """Wait for a child's end, an order, or the time to kill."""
        if self._kill_at is None:
            number = signal.sigwait(HEARD)
        else:
            heard = signal.sigtimedwait(HEARD, _left(self._kill_at) or AGAIN)
            number = heard.si_signo if heard else 0
        if number == signal.SIGTERM:
            self._end["asked"] = 1
            self._finish()
        elif number == signal.SIGUSR1:
            warn()
        if self._kill_at is not None and not _left(self._kill_at):
            self._end["killed"] = 1
            for found in descendants():
                send(found, signal.SIGKILL)

    def _finish(self) -> None:
        """Ask all of it to end; those that sleep stopped are woken for it."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._order.patience
            for found in descendants():
                send(found, signal.SIGTERM)
                send(found, signal.SIGCONT)

    def _say_end(self) -> None:
        while True:
            try:
                write_whole(EXIT, packed(self._end | {"time": time.time()}))
            except FileNotFoundError:  # somebody deleted the folder: nobody wants to know
                return
            except OSError:  # the disk is full: nothing else is left to do than to wait
                time.sleep(RETRY)
            else:
                return


def _left(until: float) -> float:
    """Seconds, 0 where it is past."""
    return max(0.0, until - time.monotonic())


def descendants() -> list[Process]:
    """All processes below this one, parents before children. O(processes of the machine)."""
    children: dict[int, list[Process]] = {}
    for found in processes():
        children.setdefault(found.parent, []).append(found)
    below = children.get(os.getpid(), [])
    for found in below:  # it grows as it is walked
        below += children.get(found.pid, [])
    return below


def warn() -> None:
    """SIGUSR1 to those that handle it: the others would die of it."""
    there = {(found.pid, found.start) for found in descendants()}
    time.sleep(SETTLED)
    bit = 1 << (signal.SIGUSR1 - 1)
    for found in descendants():
        if (found.pid, found.start) in there and caught(found.pid) & bit:
            send(found, signal.SIGUSR1)


def caught(pid: int) -> int:
    """The signals that a process handles, as a set of bits."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            rows = [row for row in file if row.startswith(b"SigCgt:")]
    except OSError:
        return 0
    return int(rows[0].split()[1], 16)


def main(folder: str) -> None:
    """Supervise the attempt of this folder, unless somebody does or did."""
    inherited = map(int, os.listdir("/proc/self/fd"))
    os.closerange(3, max(inherited) + 1)  # what the daemon's own parent left open in it
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
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
    with open(ORDER, "rb") as file:
        order = SupervisorOrder.unpacked(file.read())
    Supervisor(order).run()
