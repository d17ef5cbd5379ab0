"""Convert grants and their use to wire structs."""

from __future__ import annotations

from daemon.model.access import Principal
from daemon.model.book import Book
from daemon.wire.access import GrantList, GrantUse, GrantView
from sia.model import NEVER_STOPPED


def grants_view(book: Book, who: Principal) -> GrantList:
    """Return the grants and their use by user and pool, of pools that `who` sees. O(live jobs)."""
    grants = [
        GrantView(each.user, each.pool, each.max_value, each.never_jobs, each.never_gpus)
        for each in book.setup.grants
        if not each.pool or who.sees(each.pool)
    ]
    used: dict[tuple[str, str], GrantUse] = {}
    for record in book.jobs.values():
        spec, never = record.spec, record.spec.preemptible == NEVER_STOPPED
        if (never or spec.value is not None) and who.sees(spec.pool):
            key = spec.user, spec.pool
            use = used.setdefault(key, GrantUse(*key, 0, 0.0, 0.0, 0, 0))
            use.jobs += 1
            use.value += spec.value or 0.0
            use.top_value = max(use.top_value, spec.value or 0.0)
            use.never_jobs += never
            use.never_gpus += spec.gpus * never
    return GrantList(grants, [used[key] for key in sorted(used)])
