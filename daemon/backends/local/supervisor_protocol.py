"""What the local backend tells a job's supervisor, and what it makes of the answer."""

from __future__ import annotations

import errno
import getpass
import os
import signal
from contextlib import suppress
from pathlib import Path

from daemon.backends.local.attempt_files import RUN, AttemptFiles
from daemon.backends.local.supervisor import SupervisorOrder
from daemon.model.inputs import Ended, StartFailed
from daemon.model.outputs import StartEffect

NOT_FOUND, NOT_RUN = 127, 126
"""The codes by which shells say that there is no such command, or that it cannot be run."""


def unusable(order: StartEffect, node: str) -> Ended | StartFailed | None:
    """Why this can be no process on this node; None where it can."""
    spec, key = order.spec, (order.job, order.attempt)
    elsewhere = [name for name, _ in order.nodes if name != node]
    if elsewhere:
        return StartFailed(*key, f"its place is on node {elsewhere[0]}, and this machine is {node}")
    if not spec.command:
        return Ended(*key, code=NOT_FOUND, why="no command was given; submit it with one")
    if any("\0" in text for text in (*spec.command, spec.cwd, *spec.env, *spec.env.values())):
        return Ended(*key, code=NOT_RUN, why="its command, env or cwd has a NUL; take it out")
    wrong = [name for name in spec.env if not name or "=" in name]
    if wrong:
        return Ended(*key, code=NOT_RUN, why=f"env: {wrong[0]!r} can be no variable; rename it")
    return None


def order_of(order: StartEffect, attempt: AttemptFiles, kill_after: float) -> SupervisorOrder:
    """The order for its supervisor. A `cwd` that is relative, or none, begins at home."""
    env = environment(order, attempt)
    return SupervisorOrder(
        job=order.job.encode(),
        attempt=str(order.attempt).encode(),
        patience=kill_after,
        cwd=os.fsencode(Path(env["HOME"]) / order.spec.cwd),
        command=[part.encode() for part in order.spec.command],
        env={name.encode(): os.fsencode(value) for name, value in env.items()},
    )


def environment(order: StartEffect, attempt: AttemptFiles) -> dict[str, str]:
    """A minimal one, then the job's own, then what it must not change: its GPUs and names."""
    spec = order.spec
    gpus = [gpu for _, numbers in order.nodes for gpu in numbers]
    ours = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi numbers them
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "SIA_JOB_ID": order.job,
        "SIA_ATTEMPT": str(order.attempt),
        "SIA_POOL": spec.pool,
        RUN: str(attempt.folder),
    }
    if spec.array is not None:
        ours |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
    return _of_the_user() | spec.env | ours


def _of_the_user() -> dict[str, str]:
    """What a process needs of the daemon's environment; nothing else of it is a job's business."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path("~").expanduser()),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    with suppress(KeyError, OSError):  # a user without a name, as in some containers
        env["USER"] = getpass.getuser()
    return env


def ended(attempt: AttemptFiles, end: dict[str, str]) -> Ended | StartFailed:
    """What became of an attempt, by what its supervisor wrote at its end."""
    key = (attempt.job, attempt.number)
    if "failed" in end:
        return _failed(attempt, end["failed"], int(end["errno"]))
    code, number = end.get("code"), end.get("signal")
    return Ended(
        *key,
        code=None if code is None else int(code),
        signal=None if number is None else int(number),
        why=_why(attempt, end),
        by_itself="asked" not in end,
    )


def _failed(attempt: AttemptFiles, what: str, number: int) -> Ended | StartFailed:
    """A user's mistake ends the job: to start it again would not help."""
    key, why = (attempt.job, attempt.number), os.strerror(number)
    order = attempt.order
    if what == "cwd":
        where = _shown(order.cwd)
        return Ended(*key, code=NOT_RUN, why=f"cwd: {where}: {why}; give a folder of this machine")
    if what == "command" and number == errno.ENOENT:
        name = _shown(order.command[0])
        why = f"{name}: there is no such command, or not what its first line names"
        return Ended(*key, code=NOT_FOUND, why=f"{why}; give its path, or PATH in env")
    if what == "command":
        return Ended(*key, code=NOT_RUN, why=f"{_shown(order.command[0])}: {why}")
    return StartFailed(*key, f"its supervisor failed ({what}: {why})")


def _shown(name: bytes) -> str:
    """For people; the journal holds no name in other bytes than UTF-8 as it is."""
    return name.decode(errors="backslashreplace")


def _why(attempt: AttemptFiles, end: dict[str, str]) -> str:
    patience = f"{attempt.order.patience:g} s"
    if "asked" in end:
        return f"killed {patience} after SIGTERM" if "killed" in end else "ended as told"
    if "killed" in end:
        return f"what it left running was killed {patience} after SIGTERM"
    if end.get("signal") == str(int(signal.SIGKILL)):
        return "killed from outside; the machine may be short of memory"
    return ""
