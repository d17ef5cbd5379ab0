"""Accounts and monthly statements, made of the book and of the journal's rows."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Iterable, Sequence
from math import fsum

from daemon.account import Account, Lent, Verdict
from daemon.book import Book, job_of
from daemon.schemas_accounts import AccountView, LoanRow, Statement, Totals, VerdictRow
from replay.errors import UserError
from sia.limits import SLOWED

HOUR = 3600.0

LISTED = 20_000
"""Loans, and verdicts, that a statement lists: a page of some megabytes. Sums are over all."""

UNKNOWN_LISTED = 1000
"""Jobs named of which nothing is known yet: of more, the sums are of no use anyway."""

NOTES = (
    (
        "Alone, a pool's jobs start in order, by priority and then by arrival, in its own quota; "
        "each runs as long as it did. A job is slowed where it started more than "
        f"{SLOWED:g} s later than that."
    ),
    (
        "A row counts in the month in which it became known: a loan when it ended or changed, a "
        "verdict when the job was over, really, and had its turn alone."
    ),
    (
        "Speed-up is the time from submission to end, summed over jobs that ran and would have "
        "alone: alone / as it was."
    ),
    (
        "A job withdrawn while it waited, though alone it would have run by then, counts as slowed "
        "by the time from its start alone to its withdrawal."
    ),
    (
        "GPUs of nodes that were out count as there, and in cells GPUs are counted without places: "
        "alone, too, some jobs might have started later than is said here."
    ),
)
"""What a sceptical owner has to know."""

Shown = Callable[[str], bool]
"""Whether somebody may know of a pool's jobs."""


def month_of(text: str) -> tuple[float, float]:
    """From when until when a month like 2026-11 is (seconds, UTC). Raises UserError."""
    found = re.fullmatch(r"(20\d\d)-(0[1-9]|1[0-2])", text)
    if found is None:
        raise UserError(f"{text!r} is no month; write one like 2026-11")
    year, month = int(found[1]), int(found[2])
    after = (year, month + 1) if month < 12 else (year + 1, 1)
    return float(timegm((year, month, 1, 0, 0, 0))), float(timegm((*after, 1, 0, 0, 0)))


def account_view(book: Book, pool: str, now: float) -> AccountView:
    """A pool's account, with what loans under way have come to. O(loans under way)."""
    account = book.accounts[pool]
    open_ = [*open_loans(book, pool, now, lambda _: True)]
    lent = fsum(row.gpu_hours for row in open_ if row.lender == pool)
    borrowed = fsum(row.gpu_hours for row in open_ if row.borrower == pool)
    return AccountView(
        pool, account.since, now, account.jobs, len(unknown_of(account)), account.slowed,
        _percent(account.slowed, account.jobs), account.never, account.gained / HOUR,
        account.lost / HOUR, account.took_alone / account.took if account.took else None,
        account.lent / HOUR + lent, account.borrowed / HOUR + borrowed,
    )  # fmt: skip


def unknown_of(account: Account) -> list[str]:
    """Jobs that are over, and of which it is not known yet when they would have run."""
    twins = account.clock.twins
    return [
        job_of(core_id)
        for core_id, twin in twins.items()
        if twin.judged and twin.ended is not None and twin.began is None
    ]


def open_loans(book: Book, pool: str, now: float, shown: Shown) -> Iterable[LoanRow]:
    """Loans of a pool's, or to it, that are under way. O(loans under way)."""
    for job, loans in book.lent.items():
        for lender, (borrower, gpus, since) in loans.items():
            if pool in (lender, borrower):
                hours = gpus * max(0.0, now - since) / HOUR
                name = job if shown(borrower) else ""
                yield LoanRow(lender, borrower, gpus, since, hours, None, name)


def loan_row(number: int, row: Lent, shown: Shown) -> LoanRow:
    """A row of the ledger, as somebody may see it."""
    job = row.job if shown(row.borrower) else ""
    hours = row.seconds / HOUR
    return LoanRow(row.lender, row.borrower, row.gpus, row.start, hours, row.end, job, number)


def verdict_row(number: int, verdict: Verdict) -> VerdictRow:
    """A verdict as it is shown."""
    return VerdictRow(
        number, verdict.job, verdict.gpus, verdict.submitted, verdict.ended, verdict.started,
        verdict.alone, later_of(verdict),
    )  # fmt: skip


def later_of(verdict: Verdict) -> float | None:
    """Seconds by which a job started later than alone; None where it never would have."""
    if verdict.alone is None:
        return None
    return (verdict.ended if verdict.started is None else verdict.started) - verdict.alone


def totals_of(verdicts: Sequence[Verdict], loans: Sequence[Lent], pool: str) -> Totals:
    """The sums, all made anew of the rows."""
    laters = [later for verdict in verdicts if (later := later_of(verdict)) is not None]
    ran = [v for v in verdicts if v.started is not None and v.alone is not None]
    took = fsum(v.ended - v.submitted for v in ran)
    alone = fsum(v.ended - v.submitted - (later_of(v) or 0.0) for v in ran)
    slowed = [later for later in laters if later > SLOWED]
    return Totals(
        jobs=len(verdicts),
        slowed=len(slowed),
        slowed_pct=_percent(len(slowed), len(verdicts)),
        never=len(verdicts) - len(laters),
        withdrawn=sum(verdict.started is None for verdict in verdicts),
        sooner_hours=fsum(-later for later in laters if later < 0) / HOUR,
        later_hours=fsum(slowed) / HOUR,
        speed_up=alone / took if took else None,
        lent_gpu_hours=fsum(row.seconds for row in loans if row.lender == pool) / HOUR,
        borrowed_gpu_hours=fsum(row.seconds for row in loans if row.borrower == pool) / HOUR,
    )


def statement(
    book: Book,
    pool: str,
    month: str,
    now: float,
    verdicts: Sequence[tuple[int, Verdict]],
    loans: Sequence[tuple[int, Lent]],
    shown: Shown,
) -> Statement:
    """A month's statement of these rows, newest first."""
    start, end = month_of(month)
    account = book.accounts[pool]
    rows = [row for _, row in loans]
    unknown = unknown_of(account) if now < end else []
    left_out = {
        "verdicts": max(0, len(verdicts) - LISTED),
        "loans": max(0, len(loans) - LISTED),
        "unknown": max(0, len(unknown) - UNKNOWN_LISTED),
    }
    return Statement(
        pool=pool, month=month, start=start, end=end, made=now, since=account.since,
        totals=totals_of([verdict for _, verdict in verdicts], rows, pool),
        lenders=_by((row.lender, row) for row in rows if row.borrower == pool),
        borrowers=_by((row.borrower, row) for row in rows if row.lender == pool),
        loans=[loan_row(number, row, shown) for number, row in loans[:LISTED]],
        verdicts=[verdict_row(number, verdict) for number, verdict in verdicts[:LISTED]],
        open=[*open_loans(book, pool, now, shown)] if now < end else [],
        unknown=unknown[:UNKNOWN_LISTED],
        left_out={kind: count for kind, count in left_out.items() if count},
        notes=[*NOTES],
    )  # fmt: skip


def _by(rows: Iterable[tuple[str, Lent]]) -> dict[str, float]:
    """GPU-hours by pool, the most first."""
    found: dict[str, list[float]] = {}
    for pool, row in rows:
        found.setdefault(pool, []).append(row.seconds)
    sums = {pool: fsum(seconds) / HOUR for pool, seconds in found.items()}
    return dict(sorted(sums.items(), key=lambda each: (-each[1], each[0])))


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
