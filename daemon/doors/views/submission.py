"""Jobs as they come over HTTP and MQTT: what the daemon makes of them, and what it says of it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence

from daemon.backends.interface import Ability
from daemon.model.job import JobSpec
from daemon.model.outputs import Accepted, Answer, Refused
from daemon.wire.jobs import BatchLine, JobRequest


def nothing_to_run(spec: JobSpec, can: Collection[Ability]) -> Refused | None:
    """Why a job without a command is not taken, where jobs are commands."""
    if spec.command or "commands" not in can:
        return None
    detail = "a job without a command, and this daemon runs commands"
    return Refused(
        422,
        "invalid",
        detail,
        "give it a command: after --, or as a list of words",
    )


def new_id(key: str) -> str:
    """An id for a job that has none: always the same for one key."""
    if key:
        return "k" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return "j" + secrets.token_hex(8)


def specs_of(job: JobRequest, key: str) -> list[JobSpec]:
    """A job as the daemon has it; several if it is an array."""
    job_id = job.id or new_id(key)
    if job.array is None:
        return [_spec(job, job_id, None)]
    return [_spec(job, f"{job_id}.{i}", (i, job.array)) for i in range(job.array)]


def _spec(job: JobRequest, job_id: str, array: tuple[int, int] | None) -> JobSpec:
    return JobSpec(
        job_id, job.pool, job.gpus, job.command, job.env, job.cwd, job.user, job.name, job.tags,
        job.priority, job.hold, job.time_limit, job.warn, job.run_time, job.duration,
        job.preemptible, job.requeue, array,
    )  # fmt: skip


def array_name(spec: JobSpec) -> str:
    """The id that it was submitted under."""
    return spec.id if spec.array is None else spec.id.rpartition(".")[0]


def together(answers: Sequence[Answer]) -> Answer:
    """One answer for an array: refused if one is, new if one is."""
    if len(answers) == 1:
        return answers[0]
    refused = next((a for a in answers if isinstance(a, Refused)), None)
    if refused is not None:
        return refused
    return Accepted(new=any(isinstance(a, Accepted) and a.new for a in answers))


def line_of(specs: Sequence[JobSpec], found: Answer) -> BatchLine:
    """What became of one job of a batch, or of one array."""
    name = array_name(specs[0])
    if isinstance(found, Refused):
        return BatchLine(name, found.status, found.detail, found.mend, found.retry_after)
    return BatchLine(name, 201 if found.new else 200)
