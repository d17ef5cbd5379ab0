"""Effects of sharing on the teams of the demo: a few lines for each day, and a table for all days.

The numbers are those of the daemon's accounts: loans that have ended, and verdicts on ended jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from daemon.journal.journal import LAST_NUMBER, Journal
from daemon.model.account import Booked, Verdict
from sia.limits import SLOWED
from sia.wording import HOUR, NONE, counted, duration

PAGE = 1000
"""Maximum number of rows read from the journal at a time."""

NAMED = 3
"""Maximum number of lenders, borrowers and teams that a line names, the largest first."""

T = TypeVar("T")

_Read = Callable[[str, int, int], list[tuple[int, float, T]]]

HEADER = ("pool", "GPUs", "jobs", "waited", "alone", "sooner", "slowed")


class Tally:
    """Sums of the waits of some jobs, with sharing and alone; times are in seconds."""

    def __init__(self) -> None:
        """Start without jobs."""
        self.jobs = self.sooner = self.slowed = 0
        self.waited = self.alone = self.later = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count a job that started, and whose start alone is known."""
        if verdict.started is None or verdict.alone is None:
            return
        later = verdict.started - verdict.alone
        self.jobs += 1
        self.waited += verdict.started - verdict.submitted
        self.alone += verdict.alone - verdict.submitted
        self.sooner += later < -SLOWED
        self.slowed += later > SLOWED
        self.later += max(0.0, later)

    @property
    def saved(self) -> float:
        """Return the seconds of waiting that sharing saved; negative if waits became longer."""
        return self.alone - self.waited

    @property
    def means(self) -> tuple[str, str]:
        """Return the mean wait with sharing and alone, in words."""
        if not self.jobs:
            return NONE, NONE
        return duration(self.waited / self.jobs), duration(self.alone / self.jobs)


class Diary:
    """Sums of the current day, and of all days."""

    def __init__(self) -> None:
        """Start an empty day."""
        self.total: dict[str, Tally] = defaultdict(Tally)
        self._begin_day()

    def _begin_day(self) -> None:
        self._day: dict[str, Tally] = defaultdict(Tally)
        self._lent: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, booked: Booked) -> None:
        """Add verdicts and loans."""
        for verdict in booked.verdicts:
            self._day[verdict.pool].add(verdict)
            self.total[verdict.pool].add(verdict)
        for row in booked.lent:
            self._lent[row.lender][row.borrower] += row.seconds  # type: ignore[assignment]

    def end_day(self, title: str) -> list[str]:
        """Return the lines of the day, and begin the next one."""
        whole = Tally()
        for each in self._day.values():
            for name in vars(whole):
                setattr(whole, name, getattr(whole, name) + getattr(each, name))
        lines = [f"{title}: {counted(whole.jobs, 'job')} ended; {_waits(whole)}."]
        if self._lent:
            lines.append(f"  Lent, in GPU-hours: {'; '.join(self._lenders())}.")
        gained = sorted(self._day.items(), key=lambda each: -each[1].saved)
        better = [f"{pool} {_short(day)}" for pool, day in gained[:NAMED] if day.saved > 0]
        if better:
            lines.append(f"  Waited: {'; '.join(better)}.")
        lines.append(f"  {_sum(whole)}")
        self._begin_day()
        return lines

    def _lenders(self) -> Iterator[str]:
        """Yield what each lender lent to each borrower, the largest lenders first."""
        order = sorted(self._lent.items(), key=lambda each: -each[1].total())
        for lender, borrowers in order[:NAMED]:
            parts = [f"{s / HOUR:,.0f} to {name}" for name, s in borrowers.most_common(NAMED)]
            yield f"{lender} {' and '.join(parts)}"

    def rows(self, quotas: Sequence[tuple[str, int]]) -> list[list[str]]:
        """Return the rows of the table of all days; the columns are those of `HEADER`."""
        rows = []
        for pool, quota in quotas:
            tally = self.total[pool]
            counts = (f"{n:,}" for n in (tally.sooner, tally.slowed))
            rows.append([pool, f"{quota}", f"{tally.jobs:,}", *tally.means, *counts])
        return rows


def _waits(tally: Tally) -> str:
    here, alone = tally.means
    return f"mean wait {here}, without sharing {alone}"


def _short(tally: Tally) -> str:
    here, alone = tally.means
    return f"{here} instead of {alone}"


def _sum(tally: Tally) -> str:
    slowed = "No job was slowed."
    if tally.slowed:
        mean = duration(tally.later / tally.slowed)
        were = "was" if tally.slowed == 1 else "were"
        slowed = f"{counted(tally.slowed, 'job')} {were} slowed, by {mean} on average."
    return f"Saved: {tally.saved / HOUR:,.0f} hours of waiting. {slowed}"


class Booking(NamedTuple):
    """Numbers of the newest verdict and loan that were read."""

    verdict: int = 0
    loan: int = 0


def newest(journal: Journal, pools: Sequence[str], seen: Booking) -> tuple[Booked, Booking]:
    """Return the verdicts and loans after those that were seen, and the newest numbers.

    O(new rows + pools) queries of at most `PAGE` rows.
    """
    verdicts, lent, last = [], [], [*seen]
    for pool in pools:
        for number, _, verdict in _after(journal.verdicts, pool, seen.verdict):
            verdicts.append(verdict)
            last[0] = max(last[0], number)
        for number, _, loan in _after(journal.lent, pool, seen.loan):
            if loan.lender == pool:  # a loan is a row of its borrower, too
                lent.append(loan)
            last[1] = max(last[1], number)
    return Booked(verdicts, lent), Booking(*last)


def _after(read: _Read[T], pool: str, seen: int) -> Iterator[tuple[int, float, T]]:
    """Yield a pool's rows after number `seen`, newest first."""
    before = LAST_NUMBER
    while page := read(pool, before, PAGE):
        for row in page:
            if row[0] <= seen:
                return
            yield row
        before = page[-1][0]
