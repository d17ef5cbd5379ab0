"""The table `series` of the journal: sums over periods of 30 seconds, 5 minutes and an hour.

Samples and verdicts are added to the shortest periods. Once a longer period has ended, its rows are
made from the rows of shorter periods. Users have no rows of 30 seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, json

from daemon.doors.views.series.sums import Key, Sums
from daemon.journal.journal import Journal
from daemon.model.account import Verdict
from sia.wording import DAY, HOUR

STEPS = (30, 300, 3600)
"""Lengths of the periods in seconds."""

KEPT = {30: 2 * HOUR, 300: 2 * DAY, 3600: 40 * DAY}
"""Seconds for which rows are kept, by their period: 240, 576 and 960 rows for each pool, about 300
kB. So charts can show an hour, a day, or a month."""

USERS = STEPS[1]
"""Length of the shortest period of users' rows, in seconds."""

AT_ONCE = 1000
"""Maximum rows read or written at a time: a few milliseconds, during which no step commits."""

PRUNED_AT_ONCE = 3
"""Maximum periods pruned after each sample. It is above 1, the number added, so pruning keeps
up."""

LAST = 2**53
"""A time later than all others."""

CURSOR = "series:verdicts"
"""Key of the mark with the number of the last verdict included in the sums."""

MADE = "series:made:{}"
"""Key of the mark with the time up to which the rows of a period have been made from shorter
ones."""

SET_ROW = """INSERT INTO series (step, pool, member, time, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (step, member, pool, time) DO UPDATE SET body = excluded.body"""

Rows = dict[tuple[int, int, Key], Sums]
"""Sums by the length of the period, its begin (epoch seconds) and the key of the row."""

_read = json.Decoder(Sums).decode
_read_verdict = json.Decoder(Verdict).decode


class _Spec(Struct):
    user: str = ""


class _Job(Struct):
    """The part of an ended job that is decoded."""

    spec: _Spec


_read_job = json.Decoder(_Job).decode


class Judged(NamedTuple):
    """A verdict, with its number, the time at which it was booked, and the job's user."""

    number: int
    time: float
    verdict: Verdict
    user: str


def period(step: int, time: float) -> int:
    """Return the begin of the period of this length at a time."""
    return int(time // step) * step


def verdicts_after(journal: Journal, number: int) -> list[Judged]:
    """Return up to `AT_ONCE` verdicts after a number, in order."""
    sql = """SELECT v.number, v.time, v.body, h.body FROM verdicts v
        LEFT JOIN history h ON h.id = v.job WHERE v.number > ? ORDER BY v.number LIMIT ?"""
    return [
        Judged(number, time, _read_verdict(body), _read_job(job).spec.user if job else "")
        for number, time, body, job in journal.store.all(sql, (number, AT_ONCE))
    ]


def marks(journal: Journal) -> tuple[int, dict[int, int]]:
    """Return the number of the last verdict in the sums, and until when each period is made."""
    found = journal.marks("series:")
    made = {step: int(found.get(MADE.format(step), 0)) for step in STEPS[1:]}
    return int(found.get(CURSOR, 0)), made


def add(journal: Journal, rows: Rows, cursor: int) -> None:
    """Add sums to those that are stored, and move the cursor, in one transaction. O(rows)."""
    for step in STEPS:
        times = [time for each, time, _ in rows if each == step]
        if times:
            sql = "SELECT pool, member, time, body FROM series WHERE step = ? AND time >= ?"
            for pool, user, time, body in journal.store.all(sql, (step, min(times))):
                if (key := (step, time, Key(pool, user))) in rows:
                    rows[key].add(_read(body))
    with journal.store.transaction():
        journal.store.many(SET_ROW, _encoded(rows))
        _mark(journal, CURSOR, cursor)


def _encoded(rows: Mapping[tuple[int, int, Key], Sums]) -> Iterator[tuple[int, str, str, int, str]]:
    for (step, time, key), sums in rows.items():
        sums.cut()
        yield step, key.pool, key.user, time, json.encode(sums).decode()


def _mark(journal: Journal, key: str, value: int) -> None:
    journal.store.run(
        "INSERT INTO marks VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )


def periods_to_make(journal: Journal, step: int, made: int, now: float) -> list[int]:
    """Return the ended periods of this length whose shorter periods have rows, from `made` on."""
    finer = STEPS[STEPS.index(step) - 1]
    sql = "SELECT DISTINCT time FROM series WHERE step = ? AND time >= ? AND time < ? ORDER BY time"
    rows = journal.store.all(sql, (finer, made, period(step, now)))
    return list(dict.fromkeys(period(step, time) for (time,) in rows))


def parts_of(journal: Journal, step: int, begin: int) -> dict[Key, list[str]]:
    """Return the rows from which a period is made, encoded, by key."""
    finer = STEPS[STEPS.index(step) - 1]
    sql = "SELECT pool, member, body FROM series WHERE step = ? AND time >= ? AND time < ?"
    found: dict[Key, list[str]] = {}
    for pool, user, body in journal.store.all(sql, (finer, begin, begin + step)):
        found.setdefault(Key(pool, user), []).append(body)
    return found


def merged(parts: Mapping[Key, Sequence[str]]) -> list[tuple[Key, Sums]]:
    """Return the sums of encoded rows. O(rows)."""
    return [(key, _total(bodies)) for key, bodies in parts.items()]


def _total(bodies: Iterable[str]) -> Sums:
    found = Sums()
    for body in bodies:
        found.add(_read(body))
    return found


def make(journal: Journal, step: int, begin: int, rows: Sequence[tuple[Key, Sums]]) -> None:
    """Store rows of a period, at most `AT_ONCE`, that were made from shorter periods."""
    with journal.store.transaction():
        journal.store.many(SET_ROW, _encoded({(step, begin, key): sums for key, sums in rows}))


def made_until(journal: Journal, step: int, time: int) -> None:
    """Record that all rows of this length up to a time have been made."""
    with journal.store.transaction():
        _mark(journal, MADE.format(step), time)


def prune(journal: Journal, now: float) -> None:
    """Delete the oldest rows that have expired."""
    for step, kept in KEPT.items():
        sql = "SELECT DISTINCT time FROM series WHERE step = ? AND time < ? ORDER BY time LIMIT ?"
        times = journal.store.all(sql, (step, int(now - kept), PRUNED_AT_ONCE))
        if times:
            with journal.store.transaction():
                journal.store.many(
                    "DELETE FROM series WHERE step = ? AND time = ?",
                    [(step, time) for (time,) in times],
                )


class Stored(NamedTuple):
    """A row as it is read."""

    pool: str
    time: int
    body: str


def read(journal: Journal, key: Key, step: int, start: float, end: float = LAST) -> list[Stored]:
    """Return the rows of a pool, of a user in all pools, or of the cluster, in [start, end).

    The rows have periods of `step` seconds, or shorter ones where these are not made yet. O(rows).
    """
    _, made = marks(journal)
    where = "member = ?" if key.user else "member = '' AND pool = ?"
    whose = key.user or key.pool
    found: list[Stored] = []
    since = period(step, start)
    for each in reversed(STEPS[: STEPS.index(step) + 1]):
        until = made[each] if each > (USERS if key.user else STEPS[0]) else LAST
        sql = f"SELECT pool, time, body FROM series WHERE step = ? AND {where}"  # noqa: S608
        sql += " AND time >= ? AND time < ?"
        asked = (each, whose, since, min(until, int(end)))
        found += [Stored(*row) for row in journal.store.all(sql, asked)]
        since = max(since, until)
    return found


def buckets(rows: Iterable[Stored], width: int) -> list[tuple[int, Sums]]:
    """Return the sums of rows by period of `width` seconds, in order. O(rows)."""
    found: dict[int, Sums] = {}
    for row in rows:
        begin = period(width, row.time)
        if begin not in found:
            found[begin] = Sums()
        found[begin].add(_read(row.body))
    return sorted(found.items())
