"""Look up when a job would have started in the baseline (its pool without sharing)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.model.book import JobRecord
from daemon.model.job import OVER

if TYPE_CHECKING:
    from daemon.service.service import Service


async def alone_of(service: Service, record: JobRecord) -> float | None:
    """Return the baseline start of a job, or None if unknown or never. O(1)."""
    spec = record.spec
    service.engine.settle_accounts()
    if record.phase not in OVER:
        account = service.book.accounts.get(spec.pool)
        twin = None if account is None else account.clock.twins.get(record.core)
        return twin.began if twin is not None and twin.judged else None
    new = (verdict for verdict in reversed(service.book.verdicts) if verdict.job == spec.id)
    verdict = next(new, None) or await service.journal(lambda journal: journal.verdict(spec.id))
    return None if verdict is None else verdict.alone
