"""Convert submitted jobs to specs, and the engine's answers to batch lines, for HTTP and MQTT."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from daemon.config.config import Ability
from daemon.doors.views.notes import notes_of, planned_for
from daemon.doors.views.resources import promise_of
from daemon.model.job import JobSpec
from daemon.model.outputs import Accepted, Answer, Refused
from daemon.wire.jobs import BatchLine, JobRequest

if TYPE_CHECKING:
    from daemon.service.service import Service


def nothing_to_run(spec: JobSpec, can: Collection[Ability]) -> Refused | None:
    """Return a refusal for a job without a command on a backend that runs commands, else None."""
    if spec.command or "commands" not in can:
        return None
    detail = "the job has no command, and this daemon's backend runs commands"
    return Refused(
        422,
        "invalid",
        detail,
        "add a command: after --, or as a list of words",
    )


def new_id(key: str) -> str:
    """Return an id for a job without one. The same idempotency key gives the same id."""
    if key:
        return "k" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return "j" + secrets.token_hex(8)


def specs_of(job: JobRequest, key: str) -> list[JobSpec]:
    """Convert a request to specs: one, or one for each job of an array. O(array size)."""
    job_id = job.id or new_id(key)
    if job.array is None:
        return [_spec(job, job_id, None)]
    return [_spec(job, f"{job_id}.{i}", (i, job.array)) for i in range(job.array)]


def _spec(job: JobRequest, job_id: str, array: tuple[int, int] | None) -> JobSpec:
    return JobSpec(
        job_id, job.pool, job.gpus, job.command, job.env, job.cwd, job.user, job.name, job.tags,
        job.priority, job.hold, job.time_limit, job.warn, job.expected, job.duration,
        job.preemptible, job.requeue, array,
        min_width=job.min_width or 0, max_width=job.max_width or 0, demand=job.demand,
        deadline=job.deadline, soft=job.steps, value=job.value, budget=job.budget,
        prefers=job.prefers,
        slowdown=job.slowdown, strl=job.strl, checkpoint=job.checkpoint, mode=job.mode,
        min_run_time=job.min_run_time, model=job.model, regimes=job.regimes,
        iterations=job.iterations,
    )  # fmt: skip


def array_name(spec: JobSpec) -> str:
    """Return the id under which the job or its array was submitted."""
    return spec.id if spec.array is None else spec.id.rpartition(".")[0]


def together(answers: Sequence[Answer]) -> Answer:
    """Combine the answers of an array's jobs: refused if one is refused, new if one is new."""
    if len(answers) == 1:
        return answers[0]
    refused = next((a for a in answers if isinstance(a, Refused)), None)
    if refused is not None:
        return refused
    return Accepted(new=any(isinstance(a, Accepted) and a.new for a in answers))


def line_of(service: Service, specs: Sequence[JobSpec], found: Answer, jobs: int) -> BatchLine:
    """Build the result line of one job or array of a batch of so many."""
    name = array_name(specs[0])
    if isinstance(found, Refused):
        return BatchLine(name, found.status, found.detail, found.mend, found.retry_after)
    planned = planned_for(service, specs[0], jobs) if len(specs) == 1 else None
    return BatchLine(
        name, 201 if found.new else 200, notes=notes_of(service, specs[0], planned),
        promise=promise_of(service, specs),
    )  # fmt: skip
