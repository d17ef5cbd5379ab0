"""Microsoft Philly: `cluster_job_log`, a JSON list of jobs and their attempts.

{status, vc, jobid, user, submitted_time, attempts: [{start_time, end_time, detail: [{ip, gpus}]}]}.
Attempts after the first are retries. A job's width is the largest number of GPUs of its attempts.
Its duration is the sum of the run times of its attempts, without the waits between them. The log
does not contain pool sizes: the user must provide them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from replay.logs.importers.local_time import day, midnight, seconds
from replay.logs.importers.selection import ImportedJobs
from replay.logs.limits import MAX_JSON
from replay.logs.read import reading, shown
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import OtherFormatError, UserError
from sia.limits import MAX_QUOTA
from sia.model import Job
from sia.wording import counted


class Server(msgspec.Struct):
    """The GPUs of one server that an attempt used."""

    gpus: list[str] | None = None


class PhillyAttempt(msgspec.Struct):
    """One run of a job; times may be empty or "None"."""

    start_time: str | None = None
    end_time: str | None = None
    detail: list[Server] | None = None


class PhillyJob(msgspec.Struct):
    """One job."""

    vc: str
    jobid: str
    submitted_time: str | None = None
    user: str | None = None
    status: str = ""
    attempts: list[PhillyAttempt] | None = None


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the jobs that ran. The log has no pool sizes.

    Second 0 is the midnight before the first submission. Raises UserError.
    """
    if pools is not None:
        raise UserError(f"{pools}: a Philly log has no pools file; omit this argument")
    entries = _entries(log)
    jobs_out = ImportedJobs(log, "jobid", "state")
    retried = 0
    ids: set[str] = set()
    for i, entry in enumerate(entries):
        if entry.jobid in ids:
            raise UserError(
                f"{log}: job {i + 1}: duplicate jobid {shown(entry.jobid)}; remove one of the jobs"
            )
        if not entry.jobid:
            raise UserError(f"{log}: job {i + 1}: jobid is empty; give the job an ID")
        ids.add(entry.jobid)
        try:
            ran = _job(entry, jobs_out)
        except ValueError as error:
            raise UserError(f"{log}: job {i + 1}, {shown(entry.jobid)}: {error}") from None
        retried += ran and len(entry.attempts or ()) > 1
    origin = midnight(jobs_out.first())
    jobs_out.notes.append(f"second 0 is {day(origin)} 00:00:00, local time of the cluster")
    if retried:
        jobs_out.notes.append(
            f"{counted(retried, 'job')} retried; the duration is the sum of the attempts"
        )
    return jobs_out.trace(origin), None


def _entries(log: Path) -> list[PhillyJob]:
    with reading(log):
        if log.stat().st_size > MAX_JSON:
            raise UserError(f"{log}: the file is larger than {MAX_JSON} bytes; split the list")
        text = log.read_bytes()
    try:
        return msgspec.json.decode(text, type=list[PhillyJob])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OtherFormatError(
            f"{log}: not a Philly job log ({error}); give cluster_job_log as published"
        ) from None


def _time(column: str, text: str | None) -> float | None:
    try:
        return seconds(text)
    except ValueError:
        raise ValueError(
            f"{column} {shown(text or '')} is not a time; write YYYY-MM-DD HH:MM:SS"
        ) from None


def _job(entry: PhillyJob, jobs_out: ImportedJobs) -> bool:
    """Add a job if it ran, or count the reason for dropping it. Raises ValueError."""
    submit = _time("submitted_time", entry.submitted_time)
    if submit is None:
        jobs_out.dropped["without a submission time"] += 1
        return False
    width, duration, started = 0, 0.0, False
    for attempt in entry.attempts or ():
        start, end = _time("start_time", attempt.start_time), _time("end_time", attempt.end_time)
        started |= start is not None
        gpus = sum(len(server.gpus or ()) for server in attempt.detail or ())
        if start is not None and end is not None and gpus:
            width = max(width, gpus)
            duration += max(0.0, end - start)
    if not started:
        jobs_out.dropped["never started"] += 1
    elif not width:
        jobs_out.dropped["no attempt with an end and GPUs"] += 1
    elif width > MAX_QUOTA:
        raise ValueError(f"{width} GPUs exceed the largest pool ({MAX_QUOTA}); remove the job")
    else:
        job = Job(entry.jobid, entry.vc, submit, width, entry.user or "")
        return jobs_out.add(job, duration, entry.status)
    return False
