"""Build accounts and monthly statements from the live state and the journal's rows."""

from __future__ import annotations

import re
from calendar import timegm
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import NamedTuple

from daemon.doors.views.resources import turns_view
from daemon.lending.accounts import KEEP_OVER
from daemon.lending.lateness import late_of
from daemon.model.account import Account, Lent, Verdict
from daemon.model.book import Book, job_of
from daemon.wire.accounts import AccountView, LoanRow, Statement, Totals, VerdictRow
from sia.console.errors import UserError
from sia.limits import SLOWED

HOUR = 3600.0

LISTED = 20_000
"""Maximum listed loans, and listed verdicts: a page of a few megabytes. Sums cover all rows."""

UNKNOWN_LISTED = 1000
"""Maximum listed jobs without a verdict."""

NOTES = (
    (
        "In the baseline, a pool's jobs start in order of priority and arrival within its own "
        "quota, with their actual run times. A job is slowed if it started more than "
        f"{SLOWED:g} s later than in the baseline."
    ),
    (
        "A row counts in the month in which it was booked: a loan when it ended or changed, a "
        "verdict when the job had ended and had started in the baseline."
    ),
    (
        "Rows are numbered in booking order over all pools, loans and verdicts separately. A "
        "missing number is a row of another pool."
    ),
    (
        "Speed-up is the sum of job completion times in the baseline divided by the actual sum, "
        "over jobs that started in both."
    ),
    (
        "A job that was cancelled while pending, although the baseline had started it, counts as "
        "slowed by the time from its baseline start to its cancellation."
    ),
    (
        f"At most {KEEP_OVER:,} ended jobs wait for their start in the baseline. Jobs beyond that "
        "limit are counted as forgotten and are in no other sum. For jobs queued behind them the "
        "baseline start may be too early, or, after changes of priorities or quotas, too late."
    ),
    (
        "After a defect an account can be restarted (event account_renewed). Jobs that existed "
        "then have no verdict."
    ),
    (
        "The baseline counts GPUs of nodes out of service as available, and ignores the location "
        "of GPUs in cells. Some jobs would have started later in reality than stated here."
    ),
)
"""Method and limits of the sums, for an owner who wants to check them."""


class StatementPeriod(NamedTuple):
    """Range of time of a statement: [start, end) in epoch seconds."""

    start: float
    end: float
    month: str = ""
    """The month, like 2026-11, if the range is one; else ""."""


CanShow = Callable[[str], bool]
"""Returns True if the caller may see the jobs of this pool."""


def month_of(text: str) -> tuple[float, float]:
    """Return the start and end (seconds, UTC) of a month like 2026-11. Raises UserError."""
    found = re.fullmatch(r"(20\d\d)-(0[1-9]|1[0-2])", text)
    if found is None:
        raise UserError(f"{text!r} is not a month; write one like 2026-11")
    year, month = int(found[1]), int(found[2])
    after = (year, month + 1) if month < 12 else (year + 1, 1)
    return float(timegm((year, month, 1, 0, 0, 0))), float(timegm((*after, 1, 0, 0, 0)))


def account_view(book: Book, pool: str, now: float) -> AccountView:
    """Convert a pool's account, open loans included. O(open loans + jobs of the pool)."""
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
        turns_view(pool, book.turns[pool]) if pool in book.turns else None,
    )  # fmt: skip


def unknown_of(account: Account) -> list[str]:
    """Return the ended jobs whose baseline start is not known yet."""
    twins = account.clock.twins
    return [
        job_of(core_id)
        for core_id, twin in twins.items()
        if twin.judged and twin.ended is not None and twin.began is None
    ]


def open_loans(book: Book, pool: str, now: float, shown: CanShow) -> Iterable[LoanRow]:
    """Yield the open loans in which a pool is lender or borrower. O(open loans)."""
    for job, loans in book.lent.items():
        for lender, (borrower, gpus, since) in loans.items():
            if pool in (lender, borrower):
                hours = gpus * max(0.0, now - since) / HOUR
                name = job if shown(borrower) else ""
                yield LoanRow(lender, borrower, gpus, since, hours, None, name)


def loan_row(number: int, row: Lent, shown: CanShow) -> LoanRow:
    """Convert a loan; the job's name is empty if the caller may not see the job."""
    job = row.job if shown(row.borrower) else ""
    hours = row.seconds / HOUR
    return LoanRow(row.lender, row.borrower, row.gpus, row.start, hours, row.end, job, number)


def verdict_row(number: int, verdict: Verdict) -> VerdictRow:
    """Convert a verdict."""
    return VerdictRow(
        number, verdict.job, verdict.gpus, verdict.submitted, verdict.ended, verdict.started,
        verdict.alone, later_of(verdict), verdict.forgotten,
    )  # fmt: skip


def later_of(verdict: Verdict) -> float | None:
    """Return the seconds a job started later than in the baseline; None if never or unknown."""
    if verdict.alone is None:
        return None
    return (verdict.ended if verdict.started is None else verdict.started) - verdict.alone


def is_slowed(verdict: Verdict) -> bool:
    """Return whether a job counts as slowed in accounts, statements and series."""
    later = later_of(verdict)
    return later is not None and later > SLOWED and not verdict.forgotten


class StatementTally:
    """Sum a pool's journal rows page by page, and keep the newest for the list.

    Attributes:
        verdicts: The first `LISTED` verdicts added, with their numbers.
        loans: The first `LISTED` loans added, with their numbers.
    """

    def __init__(self, pool: str, *, only_slowed: bool = False) -> None:
        """Start with empty sums for a pool.

        The sums include all jobs, even if `only_slowed` restricts the list to slowed ones.
        """
        self._pool, self._only_slowed = pool, only_slowed
        self.verdicts: list[tuple[int, Verdict]] = []
        self.loans: list[tuple[int, Lent]] = []
        self._listable = 0
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.lenders: dict[str, float] = defaultdict(float)
        self.borrowers: dict[str, float] = defaultdict(float)

    def add_verdicts(self, rows: Sequence[tuple[int, Verdict]]) -> None:
        """Add a page of verdicts, newest first. O(rows)."""
        listed = [row for row in rows if is_slowed(row[1])] if self._only_slowed else rows
        self._listable += len(listed)
        self.verdicts += listed[: LISTED - len(self.verdicts)]
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
        """Add a page of loans, newest first. O(rows)."""
        self.loans += rows[: LISTED - len(self.loans)]
        self._counts["loans"] += len(rows)
        for _, row in rows:
            if row.lender == self._pool:
                self.borrowers[row.borrower] += row.seconds
            else:
                self.lenders[row.lender] += row.seconds

    def totals(self) -> Totals:
        """Return the sums of all rows added so far."""
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
        """Return the number of rows that are in the sums but not listed, by kind."""
        counts = self._counts
        return {
            "verdicts": self._listable - len(self.verdicts),
            "loans": counts["loans"] - len(self.loans),
        }


def statement(
    book: Book,
    tally: StatementTally,
    pool: str,
    period: StatementPeriod,
    now: float,
    shown: CanShow,
) -> Statement:
    """Build a statement from a complete tally. O(listed rows + open loans)."""
    start, end, month = period
    account = book.accounts[pool]
    unknown = unknown_of(account) if now <= end else []
    late = late_of(account.clock, now)
    left_out = {**tally.left_out(), "unknown": max(0, len(unknown) - UNKNOWN_LISTED)}
    return Statement(
        pool=pool, month=month, start=start, end=end, made=now, since=account.since,
        totals=tally.totals(),
        lenders=_hours(tally.lenders),
        borrowers=_hours(tally.borrowers),
        loans=[loan_row(number, row, shown) for number, row in tally.loans],
        verdicts=[verdict_row(number, verdict) for number, verdict in tally.verdicts],
        open=[*open_loans(book, pool, now, shown)] if now <= end else [],
        unknown=unknown[:UNKNOWN_LISTED],
        left_out={kind: count for kind, count in left_out.items() if count},
        notes=[*NOTES],
        late_waiting=late.waiting if now <= end else 0,
        late_running=late.running if now <= end else 0,
    )  # fmt: skip


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """Convert seconds to GPU-hours by pool, largest first."""
    ordered = sorted(seconds.items(), key=lambda each: (-each[1], each[0]))
    return {pool: each / HOUR for pool, each in ordered}


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def statement_page(made: Statement) -> str:
    """Render a statement as one HTML page without scripts or links to other files. O(rows)."""
    from daemon.doors.views.html import environment  # noqa: PLC0415  jinja2 loads slowly

    templates = environment("daemon.doors.views", "replay.report", for_files=True)
    return templates.get_template("statement.html").render(s=made)
