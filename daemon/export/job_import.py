"""Import a job log as history, so that forecasts and estimates have a past on the first day.

Imported jobs are in a table of their own. Predictors, retraining and estimates read them after the
daemon's own ended jobs; lists, accounts and exports do not contain them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, json
from msgspec.structs import replace as changed

from daemon.config.database import DatabaseUrl, require_psycopg
from daemon.forecasts.retraining import SPAN
from daemon.journal.audit import AuditRecord, offline_user, trail_of
from daemon.journal.journal import Journal
from daemon.journal.side_tables import ADD_IMPORTED, ALL_IMPORTED, imported_rows
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError
from daemon.model.job import JobPhase, JobSpec
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.starts import source_of_starts, starts_of
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Pool
from sia.wording import counted, some

IMPORT = "journal import"
"""The command, as the audit names it."""

PREFIX = "import:"
"""Prefix of the ids of imported jobs. No submitted job can have such an id."""

OTHER = "another job of that ID was imported before; give the jobs of this log other IDs"
"""Why a job of a second log is left out."""

WEEK = 7 * 86400.0

OLDEST = 100 * 365 * 86400.0
"""Maximum age of a submission in seconds: such times can still be written as dates."""


class ImportReport(Struct):
    """What an import did. Times are seconds since the epoch."""

    database: str
    jobs: int
    """Number of jobs that were added."""
    stored: int
    """Number of imported jobs that the journal has now."""
    begin: float
    end: float
    """When the last of the added jobs ended, after the shift."""
    weeks: int
    """Number of weeks by which the log was shifted; 0 if the log does not say when it began."""
    left_out: dict[str, int]
    """Number of jobs that were not added, by reason."""
    notes: list[str]


class _Database(Protocol):
    def stored(self) -> list[JobRecord]: ...

    def store(self, records: Sequence[JobRecord], note: str, after: dict[str, Any]) -> None: ...


def import_log(
    database: Path | DatabaseUrl,
    trace: Trace,
    pools: Mapping[str, int],
    names: Mapping[str, str],
    began: float | None,
    now: float,
) -> ImportReport:
    """Add the jobs of a log to the imported jobs of a journal.

    `pools` has the quotas of the daemon's pools. `names` has the daemon's pool for each pool of the
    log that has another name there. `began` is the time of second 0 of the log; None to choose it.
    A log that ended more than a week ago, or ends in the future, is shifted by whole weeks to end
    in the last week, so that hours and weekdays stay the same. A log without dates ends now. Only
    jobs that ended in the last `SPAN` seconds are added. Raises UserError.
    """
    for theirs, named in names.items():
        if named not in pools:
            raise UserError(
                f"--map {theirs}={named}: the configuration has no pool {named}; use "
                f"{some(sorted(pools))}"
            )
    table = PoolTable([Pool(name, quota) for name, quota in pools.items()])
    ours = _of_pools(trace, pools, names)
    fitting = playable(ours, table)
    if not fitting.arrivals:
        raise UserError(_why_none(trace, ours, pools))
    starts = starts_of(fitting, table)
    runs = [
        (arrival, start)
        for arrival, start in zip(fitting.arrivals, starts, strict=True)
        if start is not None
    ]
    last = max(start + arrival.duration for arrival, start in runs)
    origin, weeks = _origin(trace.origin, began, last, now)
    left_out = Counter(fitting.dropped)
    with _opened(database) as target:
        stored = {record.spec.id: record for record in target.stored()}
        added = []
        for arrival, start in runs:
            record = _record(arrival, start, origin)
            assert record.ended is not None
            if record.submitted < now - OLDEST:
                left_out["submitted more than 100 years ago"] += 1
            elif record.ended <= now - SPAN:
                left_out[f"ended more than {SPAN / 86400:.0f} days ago"] += 1
            elif record.ended > now:
                left_out["ends in the future"] += 1
            elif (known := stored.get(record.spec.id)) is not None:
                same = _alike(known) == _alike(record)
                left_out["already imported" if same else OTHER] += 1
            else:
                added.append(record)
                stored[record.spec.id] = record
        if added:
            target.store(
                sorted(stored.values(), key=lambda record: (record.ended, record.spec.id)),
                f"{counted(len(added), 'job')} of a job log", {"jobs": len(stored)},
            )  # fmt: skip
    return ImportReport(
        str(database), len(added), len(stored),
        min((record.submitted for record in added), default=now),
        max((record.ended or 0.0 for record in added), default=now),
        weeks, dict(sorted(left_out.items())),
        [*fitting.notes, *_unused(trace, names), source_of_starts(fitting, table)],
    )  # fmt: skip


def _alike(record: JobRecord) -> tuple[object, ...]:
    """Return a key by which a job is recognized if it is imported again with another shift."""
    assert record.ended is not None
    assert record.started is not None
    spec = record.spec
    return spec.pool, spec.gpus, spec.user, spec.name, round(record.ended - record.started, 3)


def _unused(trace: Trace, names: Mapping[str, str]) -> list[str]:
    """Return a note on pools that are mapped, but have no job in the log."""
    theirs = {arrival.job.pool for arrival in trace.arrivals}
    absent = sorted(names.keys() - theirs)
    return [f"--map names {some(absent)}, of which the log has no job"] if absent else []


def _of_pools(trace: Trace, pools: Mapping[str, int], names: Mapping[str, str]) -> Trace:
    """Return the jobs of the daemon's pools, under the daemon's names, and count the others."""
    arrivals, others = [], Counter(trace.dropped)
    for job, duration in trace.arrivals:
        pool = names.get(job.pool, job.pool)
        if pool in pools:
            arrivals.append(Arrival(changed(job, pool=pool), duration))
        else:
            others[f"of pool {job.pool}, which the daemon lacks"] += 1
    return replace(trace, arrivals=arrivals, dropped=others)


def _why_none(trace: Trace, ours: Trace, pools: Mapping[str, int]) -> str:
    """Return why no job of a log can be imported, and what to do about it."""
    if ours.arrivals:
        return "each job of the log is wider than its pool in sia.toml; correct --map or the quota"
    theirs = list(dict.fromkeys(arrival.job.pool for arrival in trace.arrivals))
    if not theirs:
        return "the log has no job that can be imported; check --format"
    return (
        f"the log has no job of the daemon's pools ({some(sorted(pools))}), but of "
        f"{some(theirs)}; name them with --map LOG_POOL=POOL"
    )


def _origin(known: float | None, began: float | None, last: float, now: float) -> tuple[float, int]:
    """Return the time of second 0 of the log, and the number of weeks of the shift."""
    if began is not None:
        return began, 0
    if known is None:
        return now - last, 0
    local = datetime.fromtimestamp(known, UTC).replace(tzinfo=None).astimezone().timestamp()
    weeks = 0
    if not now - WEEK <= local + last <= now:
        weeks = -ceil((local + last - now) / WEEK)
    return local + weeks * WEEK, weeks


def _record(arrival: Arrival, start: float, origin: float) -> JobRecord:
    job, duration = arrival
    spec = JobSpec(f"{PREFIX}{job.id}", job.pool, job.width, user=job.user, name=job.name)
    began = origin + start
    return JobRecord(
        spec, origin + job.submit, duration, JobPhase.FINISHED,
        decided=began, started=began, ended=began + duration,
    )  # fmt: skip


@contextmanager
def _opened(database: Path | DatabaseUrl) -> Iterator[_Database]:
    """Open the table of imported jobs. Raises UserError."""
    try:
        if isinstance(database, DatabaseUrl):
            require_psycopg()
            with _on_server(database) as server:
                yield server
        else:
            database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(Journal(database)) as journal:
                yield _InFile(journal)
    except (JournalError, OSError) as error:
        raise UserError(f"{database}: {error}") from None


class _InFile:
    """A SQLite journal, which no daemon may have open."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def stored(self) -> list[JobRecord]:
        return [record for _, record in self._journal.imported(0, 2**31)]

    def store(self, records: Sequence[JobRecord], note: str, after: dict[str, Any]) -> None:
        journal = self._journal
        journal.replace_imported(records)
        record = AuditRecord(0, 0.0, offline_user(), IMPORT, note=note, after=after)
        now = datetime.now(UTC).timestamp()
        journal.append_audit(trail_of(journal.last_audit()).rows(now, [record]))


@contextmanager
def _on_server(url: DatabaseUrl) -> Iterator[_Database]:
    """Open the table on PostgreSQL. The daemons there may be running."""
    from daemon.journal.pg_connection import (  # noqa: PLC0415  psycopg is optional
        connect,
        translated_errors,
    )

    with closing(connect(url, "sia journal import")) as db, translated_errors(url):

        class OnServer:
            def stored(self) -> list[JobRecord]:
                rows = db.execute(ALL_IMPORTED).fetchall()
                return [json.decode(body, type=JobRecord) for (body,) in rows]

            def store(self, records: Sequence[JobRecord], note: str, after: dict[str, Any]) -> None:
                del note, after  # only the leader writes to the audit
                with db.transaction(), db.cursor() as cursor:
                    cursor.execute("DELETE FROM imported")
                    cursor.executemany(ADD_IMPORTED.replace("?", "%s"), imported_rows(records))

        yield OnServer()
