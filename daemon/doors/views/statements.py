"""Accounts and monthly statements, made of the book and of the journal's rows."""

from __future__ import annotations

import re
from calendar import timegm
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum

from daemon.lending.accounts import KEEP_OVER
from daemon.lending.lateness import late_of
from daemon.model.account import Account, Lent, Verdict
from daemon.model.book import Book, job_of
from daemon.wire.accounts import AccountView, LoanRow, Statement, Totals, VerdictRow
from sia.console.errors import UserError
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
        "Rows are numbered over all pools, loans and verdicts each by themselves, in the order of "
        "booking: numbers that are missing here are rows of other pools."
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
        f"Of jobs that are over at most {KEEP_OVER:,} wait for their turn alone. Of more nothing "
        "will be known; they are counted, and are in no other sum. Jobs behind those, or behind a "
        "wait so long that it was cut short, may be said to start alone too early, or, by "
        "priorities or quotas that changed, too late."
    ),
    (
        "Where an account was begun anew after a defect (the event account_renewed), nothing is "
        "said of jobs that were there then."
    ),
    (
        "GPUs of nodes that were out count as there, and in cells GPUs are counted without places: "
        "alone, too, some jobs might have started later than is said here."
    ),
)
"""What a sceptical owner has to know."""

CanShow = Callable[[str], bool]
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
    """A pool's account, with what is under way. O(loans under way, jobs of the pool)."""
    account = book.accounts[pool]
    open_ = [*open_loans(book, pool, now, lambda _: True)]
    lent = fsum(row.gpu_hours for row in open_ if row.lender == pool)
    borrowed = fsum(row.gpu_hours for row in open_ if row.borrower == pool)
    late = late_of(account.clock, now)
    return AccountView(
        pool, account.since, now, account.jobs, len(unknown_of(account)), account.slowed,
        _percent(account.slowed, account.jobs), account.never, account.gained / HOUR,
        account.lost / HOUR, account.took_alone / account.took if account.took else None,
        account.lent / HOUR + lent, account.borrowed / HOUR + borrowed, account.forgotten,
        account.renewed, late.waiting, late.running,
    )  # fmt: skip


def unknown_of(account: Account) -> list[str]:
    """Jobs that are over, and of which it is not known yet when they would have run."""
    twins = account.clock.twins
    return [
        job_of(core_id)
        for core_id, twin in twins.items()
        if twin.judged and twin.ended is not None and twin.began is None
    ]


def open_loans(book: Book, pool: str, now: float, shown: CanShow) -> Iterable[LoanRow]:
    """Loans of a pool's, or to it, that are under way. O(loans under way)."""
    for job, loans in book.lent.items():
        for lender, (borrower, gpus, since) in loans.items():
            if pool in (lender, borrower):
                hours = gpus * max(0.0, now - since) / HOUR
                name = job if shown(borrower) else ""
                yield LoanRow(lender, borrower, gpus, since, hours, None, name)


def loan_row(number: int, row: Lent, shown: CanShow) -> LoanRow:
    """A row of the ledger, as somebody may see it."""
    job = row.job if shown(row.borrower) else ""
    hours = row.seconds / HOUR
    return LoanRow(row.lender, row.borrower, row.gpus, row.start, hours, row.end, job, number)


def verdict_row(number: int, verdict: Verdict) -> VerdictRow:
    """A verdict as it is shown."""
    return VerdictRow(
        number, verdict.job, verdict.gpus, verdict.submitted, verdict.ended, verdict.started,
        verdict.alone, later_of(verdict), verdict.forgotten,
    )  # fmt: skip


def later_of(verdict: Verdict) -> float | None:
    """Seconds by which a job started later than alone; None: never alone, or nobody knows."""
    if verdict.alone is None:
        return None
    return (verdict.ended if verdict.started is None else verdict.started) - verdict.alone


class StatementTally:
    """Sums of a pool's rows, all made anew of them, as they are read, and the newest as a list.

    Attributes:
        verdicts: The first `LISTED` of those that were added, with their numbers.
        loans: The same.
    """

    def __init__(self, pool: str) -> None:
        """Nothing is added yet."""
        self._pool = pool
        self.verdicts: list[tuple[int, Verdict]] = []
        self.loans: list[tuple[int, Lent]] = []
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.lenders: dict[str, float] = defaultdict(float)
        self.borrowers: dict[str, float] = defaultdict(float)

    def add_verdicts(self, rows: Sequence[tuple[int, Verdict]]) -> None:
        """Enter a page, newest first."""
        self.verdicts += rows[: LISTED - len(self.verdicts)]
        counts, seconds = self._counts, self._seconds
        for _, verdict in rows:
            counts["rows"] += 1
            later = later_of(verdict)
            if later is None:
                counts["forgotten" if verdict.forgotten else "never"] += 1
                continue
            counts["withdrawn"] += verdict.started is None
            if later > SLOWED:
                counts["slowed"] += 1
                seconds["later"] += later
            elif later < 0:
                seconds["sooner"] -= later
            if verdict.started is not None:
                seconds["took"] += verdict.ended - verdict.submitted
                seconds["alone"] += verdict.ended - verdict.submitted - later

    def add_loans(self, rows: Sequence[tuple[int, Lent]]) -> None:
        """Enter a page, newest first."""
        self.loans += rows[: LISTED - len(self.loans)]
        self._counts["loans"] += len(rows)
        for _, row in rows:
            if row.lender == self._pool:
                self.borrowers[row.borrower] += row.seconds
            else:
                self.lenders[row.lender] += row.seconds

    def totals(self) -> Totals:
        """The sums so far."""
        counts, seconds = self._counts, self._seconds
        jobs = counts["rows"] - counts["forgotten"]
        return Totals(
            jobs=jobs,
            slowed=counts["slowed"],
            slowed_pct=_percent(counts["slowed"], jobs),
            never=counts["never"],
            withdrawn=counts["withdrawn"],
            sooner_hours=seconds["sooner"] / HOUR,
            later_hours=seconds["later"] / HOUR,
            speed_up=seconds["alone"] / seconds["took"] if seconds["took"] else None,
            lent_gpu_hours=fsum(self.borrowers.values()) / HOUR,
            borrowed_gpu_hours=fsum(self.lenders.values()) / HOUR,
            forgotten=counts["forgotten"],
        )

    def left_out(self) -> dict[str, int]:
        """How many rows of each kind are in the sums and not in the lists."""
        counts = self._counts
        return {
            "verdicts": counts["rows"] - len(self.verdicts),
            "loans": counts["loans"] - len(self.loans),
        }


def statement(
    book: Book, tally: StatementTally, pool: str, month: str, now: float, shown: CanShow
) -> Statement:
    """A month's statement of the rows that were added up."""
    start, end = month_of(month)
    account = book.accounts[pool]
    unknown = unknown_of(account) if now < end else []
    late = late_of(account.clock, now)
    left_out = {**tally.left_out(), "unknown": max(0, len(unknown) - UNKNOWN_LISTED)}
    return Statement(
        pool=pool, month=month, start=start, end=end, made=now, since=account.since,
        totals=tally.totals(),
        lenders=_hours(tally.lenders),
        borrowers=_hours(tally.borrowers),
        loans=[loan_row(number, row, shown) for number, row in tally.loans],
        verdicts=[verdict_row(number, verdict) for number, verdict in tally.verdicts],
        open=[*open_loans(book, pool, now, shown)] if now < end else [],
        unknown=unknown[:UNKNOWN_LISTED],
        left_out={kind: count for kind, count in left_out.items() if count},
        notes=[*NOTES],
        late_waiting=late.waiting if now < end else 0,
        late_running=late.running if now < end else 0,
    )  # fmt: skip


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """GPU-hours by pool, the most first."""
    ordered = sorted(seconds.items(), key=lambda each: (-each[1], each[0]))
    return {pool: each / HOUR for pool, each in ordered}


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
