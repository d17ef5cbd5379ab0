"""The ledger of loans: lender, GPUs and borrowing job of each, and GPU-hours of closed loans."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from daemon.model.account import Lent, Loan
from daemon.model.book import Book


class LoanBook:
    """Keeps the book's open loans, and adds a row for each loan that closes.

    Attributes:
        now: Time of the event that is being processed, in seconds since the epoch.
    """

    def __init__(self, book: Book) -> None:
        """Keep the loans of this book."""
        self._book = book
        self.now = -inf

    def open(self, job_id: str, borrower: str, lender: str, gpus: int) -> None:
        """Open a loan. GPUs of the job's own pool are not a loan."""
        if lender != borrower and gpus > 0:
            self._book.lent.setdefault(job_id, {})[lender] = Loan(borrower, gpus, self.now)

    def close(self, job_id: str, lender: str) -> int:
        """Close a pool's loan to a job; return its number of GPUs, or 0 if there was no loan."""
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

    def close_all(self, borrowers: Collection[str]) -> None:
        """Close all loans to jobs of these pools. O(open loans)."""
        for job_id, loans in [*self._book.lent.items()]:
            for lender, loan in [*loans.items()]:
                if loan.borrower in borrowers:
                    self.close(job_id, lender)
