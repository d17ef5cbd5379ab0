"""The engine's part for the ledger: who lends whose job how many GPUs, and what it came to."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from daemon.model.account import Lent, Loan
from daemon.model.book import Book


class LoanBook:
    """Keeps the book's loans under way, and rows of those that are over.

    Attributes:
        now: The time of what is being told.
    """

    def __init__(self, book: Book) -> None:
        """Keep this book's."""
        self._book = book
        self.now = -inf

    def lend(self, job_id: str, borrower: str, lender: str, gpus: int) -> None:
        """From now on a pool lends a job so many GPUs; what a pool's own jobs use is no loan."""
        if lender != borrower and gpus > 0:
            self._book.lent.setdefault(job_id, {})[lender] = Loan(borrower, gpus, self.now)

    def take_back(self, job_id: str, lender: str) -> int:
        """A pool lends a job no more what it has lent it up to now: so many GPUs."""
        book = self._book
        loans = book.lent.get(job_id, {})
        loan = loans.pop(lender, None)
        if loan is None:
            return 0
        if not loans:
            del book.lent[job_id]
        if self.now > loan.since:
            row = Lent(job_id, lender, loan.borrower, loan.gpus, loan.since, self.now)
            if not (book.verdicts or book.rows):
                book.found = self.now
            book.rows.append(row)
            book.accounts[lender].lent += row.seconds
            book.accounts[loan.borrower].borrowed += row.seconds
        return loan.gpus

    def close(self, borrowers: Collection[str]) -> None:
        """Nothing is lent to these pools' jobs from now on. O(loans under way)."""
        for job_id, loans in [*self._book.lent.items()]:
            for lender, loan in [*loans.items()]:
                if loan.borrower in borrowers:
                    self.take_back(job_id, lender)
