"""`sia` processes, forked from one that has imported the daemon.

Starting Python and importing takes most of the processor time of a daemon that lives for a test.
Apart from that they are processes of their own, with signals, files and exit codes.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

BEGUN = []
"""All processes that were started; `leaves_nothing` ends those of a test."""


@cache
def server():
    """Return the line to the process that forks, which ends with this one."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        process = Popen(
            [sys.executable, Path(__file__).with_name("fork_server.py"), str(other.fileno())],
            stdin=DEVNULL, stdout=DEVNULL, pass_fds=[other.fileno()],
            start_new_session=True,  # an interrupt from the keyboard reaches the tests alone
        )  # fmt: skip

    def end():
        own.close()
        process.wait()

    atexit.register(end)
    return own


class ForkedProcess:
    """`sia` with these arguments; has the methods of `subprocess.Popen` that tests use.

    Attributes:
        stdout: What it prints, if `stdout` is `PIPE`.
    """

    def __init__(self, *arguments, stdout, stderr):
        request = {
            "arguments": [*map(str, arguments)],
            "env": {**os.environ},
            "cwd": str(Path.cwd()),
        }
        self.returncode, self.stdout = None, None
        self._line, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with line, Path(os.devnull).open() as nothing:
            if stdout == PIPE:
                reader, written = os.pipe()
                self.stdout = os.fdopen(reader)
            else:
                written = os.dup(stdout.fileno())
            files = [nothing.fileno(), written, stderr.fileno(), line.fileno()]
            socket.send_fds(server(), [json.dumps(request).encode()], files)
            os.close(written)
        self.pid = int(self._line.recv(16))
        BEGUN.append(self)

    def poll(self):
        """Return its exit code, negative for a signal; None while it runs."""
        return self._settled(0)

    def wait(self, timeout=None):
        """Return its exit code when it has ended."""
        if self._settled(timeout) is None:
            raise TimeoutExpired("sia", timeout)
        return self.returncode

    def communicate(self, timeout=None):
        """Wait for its end, and return the rest of the little that it prints."""
        self.wait(timeout)
        return "" if self.stdout is None else self.stdout.read(), None

    def send_signal(self, number):
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def _settled(self, timeout):
        if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
            self.returncode = int(self._line.recv(16))
            self._line.close()
        return self.returncode
