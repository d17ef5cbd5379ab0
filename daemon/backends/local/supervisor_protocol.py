"""Build a supervisor's order, and interpret its end record."""

from __future__ import annotations

import errno
import getpass
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from daemon.backends.local import supervisor
from daemon.backends.local.attempt_files import PROGRESS, RUN, AttemptFiles
from daemon.backends.local.supervisor import SupervisorOrder
from daemon.model.inputs import Ended, StartFailed
from daemon.model.outputs import StartEffect
from sia.state.checkpoint import CheckpointSignal, parse_checkpoint

NOT_FOUND, NOT_RUN = 127, 126
"""Exit codes with which shells report that a command does not exist or cannot be executed."""


def unusable(order: StartEffect, node: str) -> Ended | StartFailed | None:
    """Return why an order cannot run on this node, or None if it can."""
    spec, key = order.spec, (order.job, order.attempt)
    elsewhere = [name for name, _ in order.nodes if name != node]
    if elsewhere:
        return StartFailed(*key, f"placed on node {elsewhere[0]}, but this machine is {node}")
    if not spec.command:
        return Ended(*key, code=NOT_FOUND, why="no command; submit the job with a command")
    if any(
        "\0" in text
        for text in (*spec.command, spec.cwd, spec.checkpoint, *spec.env, *spec.env.values())
    ):
        return Ended(
            *key, code=NOT_RUN, why="command, env, cwd or checkpoint contains NUL; remove it"
        )
    wrong = [name for name in spec.env if not name or "=" in name]
    if wrong:
        return Ended(*key, code=NOT_RUN, why=f"env: {wrong[0]!r} is not a valid name; rename it")
    return None


def order_of(
    order: StartEffect, attempt: AttemptFiles, kill_after: float, reports: Mapping[str, str]
) -> SupervisorOrder:
    """Build a supervisor's order. A relative or missing `cwd` starts in the home directory.

    `reports` are the variables with which the job can report its progress over HTTP.
    """
    env = environment(order, attempt) | {**reports}
    return SupervisorOrder(
        job=order.job.encode(),
        attempt=str(order.attempt).encode(),
        patience=kill_after,
        cwd=os.fsencode(Path(env["HOME"]) / order.spec.cwd),
        command=[part.encode() for part in order.spec.command],
        env={name.encode(): os.fsencode(value) for name, value in env.items()},
        checkpoint=[word.encode() for word in _words(order.spec.checkpoint)],
    )


def _words(checkpoint: str) -> tuple[str, ...]:
    """Return a checkpoint as the supervisor gets it: a signal, a command, or nothing."""
    found = parse_checkpoint(checkpoint)
    if isinstance(found, CheckpointSignal):
        return (f"{supervisor.MAIN if found.main else ''}{found.name}",)
    return () if found is None else found.command


def environment(order: StartEffect, attempt: AttemptFiles) -> dict[str, str]:
    """Return the environment: a minimal base, the job's variables, then reserved variables."""
    spec = order.spec
    gpus = [gpu for _, numbers in order.nodes for gpu in numbers]
    ours = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "SIA_JOB_ID": order.job,
        "SIA_ATTEMPT": str(order.attempt),
        "SIA_RANK": "0",  # the job has one process
        "SIA_WIDTH": str(order.gpus),
        "SIA_CHECKPOINT_DIR": str(attempt.checkpoint),
        "SIA_POOL": spec.pool,
        RUN: str(attempt.folder),
        PROGRESS: str(attempt.progress),
    }
    if spec.array is not None:
        ours |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
    return _of_the_user() | spec.env | ours


def _of_the_user() -> dict[str, str]:
    """Return the part of the daemon's environment that jobs inherit."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path("~").expanduser()),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    with suppress(KeyError, OSError):  # the user may have no name, as in some containers
        env["USER"] = getpass.getuser()
    return env


def ended(attempt: AttemptFiles, end: dict[str, str]) -> Ended | StartFailed:
    """Convert the end record of an attempt to an observation."""
    key = (attempt.job, attempt.number)
    if "failed" in end:
        return _failed(attempt, end["failed"], int(end["errno"]))
    code, number = end.get("code"), end.get("signal")
    return Ended(
        *key,
        code=None if code is None else int(code),
        signal=None if number is None else int(number),
        why=_why(attempt, end),
        by_itself="asked" not in end and "told" not in end,
    )


def _failed(attempt: AttemptFiles, what: str, number: int) -> Ended | StartFailed:
    """Classify a failed start: a user error ends the job, because a retry would fail too."""
    key, why = (attempt.job, attempt.number), os.strerror(number)
    order = attempt.order
    if what == "cwd":
        where = _shown(order.cwd)
        return Ended(*key, code=NOT_RUN, why=f"cwd: {where}: {why}; use a folder of this machine")
    if what == "command" and number == errno.ENOENT:
        name = _shown(order.command[0])
        why = f"{name}: command or its interpreter not found"
        return Ended(*key, code=NOT_FOUND, why=f"{why}; use a full path, or set PATH in env")
    if what == "command":
        return Ended(*key, code=NOT_RUN, why=f"{_shown(order.command[0])}: {why}")
    return StartFailed(*key, f"the supervisor failed ({what}: {why})")


def _shown(name: bytes) -> str:
    """Decode a name for messages; the journal stores only UTF-8."""
    return name.decode(errors="backslashreplace")


def _why(attempt: AttemptFiles, end: dict[str, str]) -> str:
    patience = f"{attempt.order.patience:g} s"
    if "told" in end and "asked" not in end:
        return "stopped on request"
    if "asked" in end:
        return f"killed {patience} after SIGTERM" if "killed" in end else "ended on request"
    if "killed" in end:
        return f"remaining processes were killed {patience} after SIGTERM"
    if end.get("signal") == str(int(signal.SIGKILL)):
        return "killed by SIGKILL from outside; the machine may be out of memory"
    return ""
