"""Parse Slurm's jobs, nodes and partitions in all known JSON formats.

The format changes with the version: numbers become `{"set": …, "infinite": …, "number": …}`, states
become lists, exit codes become objects. Only this module knows the formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from daemon.backends.slurm.hostlist import names_of, numbers_of
from daemon.runtime.logs import log

JsonObject = Mapping[str, Any]

BASES = (
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL",
    "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
)  # fmt: skip
"""Base states of a job; all other words are flags."""

STANDS_FOR = {
    "REQUEUED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "STOPPED": "RUNNING",
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
}
"""Flags that older versions return instead of a base state."""

CUT_HERE = "..."
"""Marker of a shortened task list; Slurm's default limit is 64 characters."""

CUT = (
    "Slurm shortened the task list; set SLURM_BITSTR_LEN=0 in slurmrestd's environment, or submit "
    "the array without gaps"
)
HET = "the job is part of a heterogeneous job, whose parts start together; submit without --hold"
ODD = "the job requests GPUs per socket or unevenly per node; request GPUs with --gres"

UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError)
"""Exceptions raised by parsing an unknown format."""

_GPU = re.compile(r"(?:gres[:/])?gpu(?::[^:=(,]+)??(?:[:=](\d+))?(?:\(.*)?")


class SlurmJob(Struct, frozen=True):
    """A Slurm job, or the pending tasks of an array that share a record. Times are seconds."""

    id: int
    state: str
    flags: frozenset[str] = frozenset()
    array: int = 0
    """Array job id; 0 without an array."""
    task: int | None = None
    tasks: tuple[int, ...] = ()
    """Pending tasks of the record."""
    reason: str = ""
    partition: str = ""
    name: str = ""
    user: str = ""
    comment: str = ""
    nodes: tuple[str, ...] = ()
    held: bool = False
    nice: int = 0
    restarts: int = 0
    code: int | None = None
    signal: int | None = None
    time_limit: float | None = None
    gpus: int = 0
    """Total GPUs; -1 if the request is not supported."""
    on: int | None = None
    """Number of nodes, if each has the same number of GPUs; None for any number of nodes."""
    dependency: str = ""
    eligible: float = 0.0
    submitted: float = 0.0
    unsupported: str = ""
    """Why the job is ignored although it may request GPUs, and the fix; "" if it is not ignored."""
    nodelist: tuple[str, ...] = ()
    """Required nodes, also of a pending job."""
    requeues: bool = True
    """Whether Slurm would requeue it: a batch job that was not submitted with `--no-requeue`."""
    unread: bool = False
    """Whether the record could not be parsed. Only its job numbers are known."""

    @property
    def refs(self) -> list[str]:
        """Slurm job ids of all jobs in this record."""
        if self.tasks:
            return [f"{self.array or self.id}_{task}" for task in self.tasks]
        return [str(self.id) if self.task is None else f"{self.array}_{self.task}"]

    @property
    def where(self) -> tuple[str, frozenset[str]]:
        """Requested partition and nodes."""
        return self.partition, frozenset(self.nodelist)

    def may_be(self, ref: str) -> bool:
        """Return whether the record has this Slurm job id, or may have it if unreadable."""
        number = ref.partition("_")[0]
        unclear = self.unread and number == str(self.array)
        return unclear or ref in self.refs or ref == str(self.id)


class SlurmNode(Struct, frozen=True):
    """A Slurm node. `against`: why no job starts there; "" if jobs can start."""

    name: str
    gpus: int
    against: str
    partitions: tuple[str, ...] = ()


class SlurmPartition(Struct, frozen=True):
    """A Slurm partition."""

    name: str
    nodes: tuple[str, ...]
    up: bool


def number(value: Any) -> float | None:
    """Parse a number in any format; None if unset or infinite."""
    if isinstance(value, dict):
        is_set = value.get("set", True) and not value.get("infinite", False)
        return number(value.get("number")) if is_set else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _int(value: Any) -> int:
    return int(number(value) or 0)


def _words(value: Any) -> list[str]:
    """Parse a word or a list of words."""
    if isinstance(value, str):
        return value.split()
    return [str(each) for each in value] if isinstance(value, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else ""


def gpus_of(text: str) -> int:
    """Return the number of GPUs in a request like `gres:gpu:a100:2,gres:nic:1`."""
    total = 0
    for each in text.split(","):
        found = _GPU.fullmatch(each.strip())
        if found is not None:
            total += int(found[1] or 1)
    return total


def _width(job: JsonObject) -> tuple[int, int | None]:
    """Return the requested GPUs, and the number of nodes if they are even."""
    least = max(1, _int(job.get("node_count")))
    each = gpus_of(_text(job.get("tres_per_node")))
    if each:
        return each * least, least
    if gpus_of(_text(job.get("tres_per_socket"))):
        return -1, None
    tasks = max(1, _int(job.get("tasks")))
    gpus = gpus_of(_text(job.get("tres_per_job")))
    gpus = gpus or tasks * gpus_of(_text(job.get("tres_per_task")))
    if least == 1:
        return gpus, None
    return (gpus, least) if gpus % least == 0 else (-1, None)


def _exit(value: Any) -> tuple[int | None, int | None]:
    """Return exit code and signal; the older format is a wait status."""
    if isinstance(value, dict):
        signal = value.get("signal")
        if isinstance(signal, dict):
            signal = number(signal.get("id", signal.get("signal_id")))
        code = number(value.get("return_code"))
        return (None, int(signal)) if signal else (None if code is None else int(code), None)
    status = _int(value)
    return (None, status & 127) if status & 127 else (status >> 8 & 255, None)


def job_of(job: JsonObject) -> SlurmJob:
    """Parse a job from REST or `--json`. Raises ValueError or KeyError if it is malformed."""
    words = _words(job["job_state"])
    base = next((word for word in words if word in BASES), "")
    base = base or next((STANDS_FOR[word] for word in words if word in STANDS_FOR), "")
    flags = {word for word in [*words, *_words(job.get("flags", []))] if word not in BASES}
    task = number(job.get("array_task_id"))
    array = _int(job.get("array_job_id"))
    waiting = _text(job.get("array_task_string"))
    unsupported = HET if _int(job.get("het_job_id")) else ""
    if CUT_HERE in waiting:
        waiting, unsupported = waiting.partition(CUT_HERE)[0].rpartition(",")[0], CUT
    tasks = tuple(numbers_of(waiting)) if waiting and task is None else ()
    minutes = number(job.get("time_limit"))
    gpus, on = _width(job)
    unsupported = unsupported or (ODD if gpus < 0 else "")
    code, signal = _exit(job.get("exit_code"))
    return SlurmJob(
        _int(job["job_id"]), base, frozenset(flags), array, None if task is None else int(task),
        tasks, reason=_text(job.get("state_reason")), partition=_text(job.get("partition")),
        name=_text(job.get("name")), user=_text(job.get("user_name")),
        comment=_text(job.get("comment")), nodes=_names(job.get("nodes")),
        held=_held(job), nice=_int(job.get("nice")), restarts=_int(job.get("restart_cnt")),
        code=code, signal=signal, time_limit=None if minutes is None else 60.0 * minutes,
        gpus=gpus, on=on, dependency=_text(job.get("dependency")),
        eligible=_int(job.get("eligible_time")), submitted=_int(job.get("submit_time")),
        unsupported=unsupported if gpus else "", nodelist=_names(job.get("required_nodes")),
        requeues=bool(job.get("requeue", True)) and bool(job.get("batch_flag", True)),
    )  # fmt: skip


def jobs_of(rows: Sequence[Any]) -> list[SlurmJob]:
    """Parse all jobs; a malformed one becomes `unread`, because it still exists.

    Raises ValueError if a job has no number: it could be any job.
    """
    found = []
    for row in rows:
        try:
            found.append(job_of(row))
        except UNREADABLE as error:
            _say_once("job_of", type(error).__name__)
            number_of = _int(row.get("job_id")) if isinstance(row, dict) else 0
            if not number_of:
                raise ValueError("a job without an id") from None
            array = _int(row.get("array_job_id"))
            found.append(SlurmJob(number_of, "", array=array, unread=True))
    return found


def _held(job: JsonObject) -> bool:
    """Return whether a job is held. Newer versions say so; in older ones its priority is 0."""
    if isinstance(job.get("hold"), bool) and job["hold"]:
        return True
    return number(job.get("priority")) == 0


def _names(value: Any) -> tuple[str, ...]:
    return tuple(names_of(_text(value)))


AGAINST = {
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained",
    "FAIL": "failing",
    "FAILING": "failing",
    "NOT_RESPONDING": "does not respond",
    "MAINTENANCE": "reserved for maintenance",
    "MAINT": "reserved for maintenance",
    "RESERVED": "reserved",
    "REBOOT_REQUESTED": "waiting for a reboot",
    "REBOOT_ISSUED": "rebooting",
    "INVALID_REG": "registered with fewer resources than configured",
    "DOWN": "down",
    "ERROR": "in error state",
    "UNKNOWN": "not seen yet",
    "FUTURE": "not there yet",
}
"""Node states and flags that prevent starts. Powered-down nodes are not among them."""


def node_of(node: JsonObject) -> SlurmNode:
    """Parse a node. Raises KeyError if it is malformed."""
    words = [*_words(node.get("state")), *_words(node.get("state_flags", []))]
    why = [
        AGAINST[word] for word in dict.fromkeys(word.upper() for word in words) if word in AGAINST
    ]
    reason = _text(node.get("reason"))
    against = ", ".join(dict.fromkeys(why)) + (f": {reason}" if why and reason else "")
    parts = node.get("partitions") or []
    named = tuple(parts) if isinstance(parts, list) else tuple(str(parts).split(","))
    return SlurmNode(str(node["name"]), gpus_of(_text(node.get("gres"))), against, named)


def partition_of(part: JsonObject) -> SlurmPartition:
    """Parse a partition. Raises KeyError if it is malformed."""
    nodes, state = part.get("nodes"), part.get("state")
    if isinstance(nodes, dict):
        nodes = nodes.get("configured", "")
    if isinstance(part.get("partition"), dict):
        state = part["partition"].get("state", state)
    return SlurmPartition(str(part["name"]), _names(nodes), "UP" in _words(state))


def each_of(kind: Any, rows: Sequence[Any]) -> list[Any]:
    """Parse all rows; malformed ones are skipped."""
    found = []
    for row in rows:
        try:
            found.append(kind(row))
        except UNREADABLE as error:
            _say_once(kind.__name__, type(error).__name__)
    return found


@cache
def _say_once(kind: str, error: str) -> None:
    """Log a malformed row once, since it comes back with each poll."""
    log().warning("unknown format in Slurm's output; row ignored", what=kind, error=error)
