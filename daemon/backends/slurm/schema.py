"""What Slurm says of jobs, nodes and partitions, in each of the shapes in which it has said it.

Its JSON changes with each version: numbers become `{"set": …, "infinite": …, "number": …}`, states
become lists, exit codes become tables. All of them are read here, and nowhere else.
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
"""States of a job; all else that stands there are flags."""

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
"""Flags that older versions say instead of a state."""

CUT_HERE = "..."
"""Where Slurm cuts a list of tasks, at 64 characters unless it is told not to."""

CUT = (
    "the list of its tasks is cut; let slurmrestd have SLURM_BITSTR_LEN=0 in its environment, or "
    "give the array tasks without gaps"
)
HET = "it is a part of a heterogeneous job, whose parts start together; submit one without --hold"
ODD = "its GPUs are asked for by socket, or not as many on each node; ask for them by --gres"

UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError)
"""What comes of words in shapes that are not known here."""

_GPU = re.compile(r"(?:gres[:/])?gpu(?::[^:=(,]+)??(?:[:=](\d+))?(?:\(.*)?")


class SlurmJob(Struct, frozen=True):
    """A job as Slurm knows it, or the tasks of an array that wait together. Times are seconds."""

    id: int
    state: str
    flags: frozenset[str] = frozenset()
    array: int = 0
    """The id of its array; 0 without one."""
    task: int | None = None
    tasks: tuple[int, ...] = ()
    """Those that wait together under this id."""
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
    """On all its nodes together; -1 where they are asked for in a way that is not understood."""
    on: int | None = None
    """Over how many nodes, the same number of GPUs on each; None for any."""
    dependency: str = ""
    eligible: float = 0.0
    submitted: float = 0.0
    strange: str = ""
    """Why it is left alone although it may ask for GPUs, with the mend; empty for others."""
    nodelist: tuple[str, ...] = ()
    """Nodes that it has to have, whether it runs or not."""
    unread: bool = False
    """Whether no more is known of it than its numbers: it is there, in words not understood."""

    @property
    def refs(self) -> list[str]:
        """What each job that this stands for is called in Slurm."""
        if self.tasks:
            return [f"{self.array or self.id}_{task}" for task in self.tasks]
        return [str(self.id) if self.task is None else f"{self.array}_{self.task}"]

    @property
    def where(self) -> tuple[str, frozenset[str]]:
        """The partition and nodes that it asks for."""
        return self.partition, frozenset(self.nodelist)

    def may_be(self, ref: str) -> bool:
        """Whether it is what is called so, or, where it cannot be read, could be."""
        number = ref.partition("_")[0]
        unclear = self.unread and number == str(self.array)
        return unclear or ref in self.refs or ref == str(self.id)


class SlurmNode(Struct, frozen=True):
    """A node as Slurm knows it. `against`: why no job starts there; empty where jobs do."""

    name: str
    gpus: int
    against: str
    partitions: tuple[str, ...] = ()


class SlurmPartition(Struct, frozen=True):
    """A partition as Slurm knows it."""

    name: str
    nodes: tuple[str, ...]
    up: bool


def number(value: Any) -> float | None:
    """A number in any of its shapes; None where there is none, or it is infinite."""
    if isinstance(value, dict):
        said = value.get("set", True) and not value.get("infinite", False)
        return number(value.get("number")) if said else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _int(value: Any) -> int:
    return int(number(value) or 0)


def _words(value: Any) -> list[str]:
    """A word, or a list of words."""
    if isinstance(value, str):
        return value.split()
    return [str(each) for each in value] if isinstance(value, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else ""


def gpus_of(text: str) -> int:
    """How many GPUs a request like `gres:gpu:a100:2,gres:nic:1` asks for."""
    total = 0
    for each in text.split(","):
        found = _GPU.fullmatch(each.strip())
        if found is not None:
            total += int(found[1] or 1)
    return total


def _width(job: JsonObject) -> tuple[int, int | None]:
    """GPUs that a job asks for, and over how many nodes alike."""
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
    """Code and signal; the older shape is what `wait` says."""
    if isinstance(value, dict):
        signal = value.get("signal")
        if isinstance(signal, dict):
            signal = number(signal.get("id", signal.get("signal_id")))
        code = number(value.get("return_code"))
        return (None, int(signal)) if signal else (None if code is None else int(code), None)
    status = _int(value)
    return (None, status & 127) if status & 127 else (status >> 8 & 255, None)


def job_of(job: JsonObject) -> SlurmJob:
    """A job out of what REST or `--json` say. Raises ValueError, KeyError where it is none."""
    words = _words(job["job_state"])
    base = next((word for word in words if word in BASES), "")
    base = base or next((STANDS_FOR[word] for word in words if word in STANDS_FOR), "")
    flags = {word for word in [*words, *_words(job.get("flags", []))] if word not in BASES}
    task = number(job.get("array_task_id"))
    array = _int(job.get("array_job_id"))
    waiting = _text(job.get("array_task_string"))
    strange = HET if _int(job.get("het_job_id")) else ""
    if CUT_HERE in waiting:
        waiting, strange = waiting.partition(CUT_HERE)[0].rpartition(",")[0], CUT
    tasks = tuple(numbers_of(waiting)) if waiting and task is None else ()
    minutes = number(job.get("time_limit"))
    gpus, on = _width(job)
    strange = strange or (ODD if gpus < 0 else "")
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
        strange=strange if gpus else "", nodelist=_names(job.get("required_nodes")),
    )  # fmt: skip


def jobs_of(rows: Sequence[Any]) -> list[SlurmJob]:
    """All of these; one that cannot be read is there as `unread`, for it is not gone.

    Raises ValueError where one has not even a number: it may be any.
    """
    found = []
    for row in rows:
        try:
            found.append(job_of(row))
        except UNREADABLE as error:
            _say_once("job_of", type(error).__name__)
            number_of = _int(row.get("job_id")) if isinstance(row, dict) else 0
            if not number_of:
                raise ValueError("a job without a number") from None
            array = _int(row.get("array_job_id"))
            found.append(SlurmJob(number_of, "", array=array, unread=True))
    return found


def _held(job: JsonObject) -> bool:
    """Whether it waits to be released: newer versions say so, older ones have no priority then."""
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
    "REBOOT_REQUESTED": "is to be booted",
    "REBOOT_ISSUED": "is being booted",
    "INVALID_REG": "has registered with less than it should have",
    "DOWN": "down",
    "ERROR": "in error",
    "UNKNOWN": "not seen yet",
    "FUTURE": "not there yet",
}
"""States and flags of nodes on which no job starts, in words. Powered down ones are woken."""


def node_of(node: JsonObject) -> SlurmNode:
    """A node. Raises KeyError where it is none."""
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
    """A partition. Raises KeyError where it is none."""
    nodes, state = part.get("nodes"), part.get("state")
    if isinstance(nodes, dict):
        nodes = nodes.get("configured", "")
    if isinstance(part.get("partition"), dict):
        state = part["partition"].get("state", state)
    return SlurmPartition(str(part["name"]), _names(nodes), "UP" in _words(state))


def each_of(kind: Any, rows: Sequence[Any]) -> list[Any]:
    """All of these that are formed as they should be; one that is not is left out."""
    found = []
    for row in rows:
        try:
            found.append(kind(row))
        except UNREADABLE as error:
            _say_once(kind.__name__, type(error).__name__)
    return found


@cache
def _say_once(kind: str, error: str) -> None:
    """A row that cannot be read comes again with each look."""
    log().warning("Slurm says what is not understood; it is left alone", what=kind, error=error)
