"""A process that has imported `sia serve` and forks one for each request; see `forked`."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

import daemon.backends.kube.backend
import daemon.process.build
import daemon.process.serve  # noqa: F401  what `sia serve` imports when it starts
from daemon.answers.estimates import estimator
from daemon.answers.whatif import questions
from daemon.forecasts import retraining
from sia.console.main import main

LONGEST = 2**17
"""Bytes of a request: arguments and environment."""

FILES = 4
"""The descriptors of a request: standard input, output, error, and a line to who asked."""


def serve(requests: socket.socket) -> bool:
    """Fork a process for each request until there are no more; return whether this is one."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, LONGEST, FILES)
        reap()
        if not request:
            return False
        if not os.fork():
            requests.close()
            return keep(json.loads(request), files)
        for file in files:
            os.close(file)


def reap() -> None:
    """Forget the processes that have ended, without waiting for others."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def keep(request: dict[str, object], files: list[int]) -> bool:
    """Fork the process, and tell its id and exit code; kill it if nobody listens any more."""
    pid = os.fork()
    if not pid:
        become(request, files)
        return True
    for file in files[:3]:
        os.close(file)
    with socket.socket(fileno=files[3]) as line:
        line.send(b"%d" % pid)
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, line], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            line.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become(request: dict[str, object], files: list[int]) -> None:
    """Take the files, environment and arguments of the request."""
    for target, file in enumerate(files[:3]):
        os.dup2(file, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["sia", *request["arguments"]]


if __name__ == "__main__":
    # As in the tests' own process: of busy cores, children of low priority get next to nothing.
    estimator.KINDNESS = questions.WHATIF_KINDNESS = retraining.KINDNESS = 0
    gc.collect()
    gc.freeze()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        main()
