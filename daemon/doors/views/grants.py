"""Convert grants and their use to wire structs."""

from __future__ import annotations

from collections import Counter

from daemon.model.access import Principal
from daemon.model.book import Book
from daemon.model.grants import MILLIONTHS, MILLISECONDS, NOTHING, Asked, asked_by
from daemon.wire.access import GrantList, GrantUse, GrantView
from sia.wording import HOUR


def grants_view(book: Book, who: Principal) -> GrantList:
    """Return the grants and their use by user and pool, of pools that `who` sees. O(live jobs)."""
    grants = [
        GrantView(
            each.user, each.pool, each.max_value, each.never_jobs, each.never_gpus,
            each.extra_budget, each.gpu_hours,
        )
        for each in book.setup.grants
        if not each.pool or who.sees(each.pool)
    ]  # fmt: skip
    used: dict[tuple[str, str], tuple[GrantUse, Asked]] = {}
    unended = Counter((record.spec.user, record.spec.pool) for record in book.jobs.values())
    for record in book.jobs.values():
        spec, asked = record.spec, asked_by(record.spec)
        worth = spec.worth
        said = worth is not None or spec.deadline is not None or asked != NOTHING
        if said and who.sees(spec.pool):
            key = spec.user, spec.pool
            use, total = used.get(key) or (GrantUse(*key), NOTHING)
            use.jobs += 1
            use.value += worth or 0.0
            use.top_value = max(use.top_value, worth or 0.0)
            use.deadline_jobs += spec.deadline is not None
            use.promised_jobs += record.is_promised
            use.all_jobs = unended[key]
            used[key] = use, total.plus(asked)
    return GrantList(grants, [_with_sums(*used[key]) for key in sorted(used)])


def _with_sums(use: GrantUse, total: Asked) -> GrantUse:
    use.never_jobs, use.never_gpus = total.never_jobs, total.never_gpus
    use.extra_budget = total.extra_budget / MILLIONTHS
    use.gpu_hours = total.gpu_hours / (HOUR * MILLISECONDS)
    return use
