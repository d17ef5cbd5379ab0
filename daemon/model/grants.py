"""Grants: bounds on values, budgets, deadlines and jobs that must not be stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from daemon.model.book import JobRecord
from daemon.model.job import JobSpec
from daemon.model.outputs import Refused
from daemon.model.setup import EACH, Grant
from sia.model import NEVER_STOPPED
from sia.wording import HOUR

ASK = "or ask an operator, who grants it in sia.toml under [[grant]]"

MILLIONTHS = 1_000_000
"""Factor by which budgets are multiplied before they are summed: the sums are in millionths."""

MILLISECONDS = 1000
"""Factor by which GPU-seconds are multiplied before they are summed: the sums are in
milliseconds."""


class Asked(NamedTuple):
    """The amounts of jobs that a grant bounds by a sum; the fields are those of `Grant`.

    Whole numbers, so that a sum does not depend on the order in which jobs came and went: after a
    recovery, the daemon must refuse the same jobs as before.
    """

    never_jobs: int = 0
    never_gpus: int = 0
    extra_budget: int = 0
    """Millionths of the budget above 1."""
    gpu_hours: int = 0
    """Run time in milliseconds, summed over GPUs."""

    def plus(self, other: Asked, times: int = 1) -> Asked:
        """Return the sum of these amounts and `times` times the others."""
        return Asked(*(a + times * b for a, b in zip(self, other, strict=True)))


NOTHING = Asked()


def asked_by(spec: JobSpec) -> Asked:
    """Return the amounts of one job. O(1)."""
    never = spec.preemptible == NEVER_STOPPED
    if not never and spec.budget is None and spec.deadline is None:
        return NOTHING  # this is so for almost all jobs
    budget = 0 if spec.budget is None else max(0, round((spec.budget - 1.0) * MILLIONTHS))
    seconds = guaranteed_seconds(spec) if spec.deadline is not None else None
    hours = 0 if seconds is None else spec.gpus * round(seconds * MILLISECONDS)
    return Asked(int(never), spec.gpus * never, budget, hours)


def guaranteed_seconds(spec: JobSpec) -> float | None:
    """Return the run time in seconds that counts for a job with a deadline; None if it states none.

    It is the user's estimate, at most the time limit. Forecasts are not used: they change, and then
    the sum would change, too.
    """
    said = [each for each in (spec.run_time, spec.time_limit) if each is not None]
    return min(said, default=None)


class _Bound(NamedTuple):
    """How a bound of a grant is named in a refusal."""

    key: str
    each: int
    """The size of its unit in `Asked`."""
    unit: str
    of: str
    mend: str


_NEVER = "that must not be stopped (preemptible = never)", "omit preemptible"
_DEADLINE = "in jobs with a deadline", "omit deadline"
_BOUNDS = (
    _Bound("never_jobs", 1, "job", *_NEVER),
    _Bound("never_gpus", 1, "GPU", *_NEVER),
    _Bound("extra_budget", MILLIONTHS, "", "of budget beyond 1 for each job", "give less budget"),
    _Bound("gpu_hours", int(HOUR) * MILLISECONDS, "GPU-hour", *_DEADLINE),
)


class _Scope(NamedTuple):
    """The user and the pool whose jobs are counted together; None means all of them."""

    user: str | None
    pool: str | None


class GrantedUse:
    """Sum the amounts of unended jobs, by user and pool."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        """Count the jobs of these records that have not ended. O(records)."""
        self._used: defaultdict[_Scope, Asked] = defaultdict(Asked)
        for record in records:
            self.add(record.spec)

    def add(self, spec: JobSpec) -> None:
        """Count an accepted job. O(1)."""
        self._change(spec, 1)

    def drop(self, spec: JobSpec) -> None:
        """Stop counting a job that has ended. O(1)."""
        self._change(spec, -1)

    def _change(self, spec: JobSpec, times: int) -> None:
        asked = asked_by(spec)
        if asked is NOTHING or asked == NOTHING:
            return
        for user in (spec.user, None):
            for pool in (spec.pool, None):
                scope = _Scope(user, pool)
                self._used[scope] = left = self._used[scope].plus(asked, times)
                if left == NOTHING:
                    del self._used[scope]

    def under(self, grant: Grant, user: str) -> Asked:
        """Return the amounts that count against a grant if `user` submits. O(1)."""
        return self._used.get(_Scope(user if grant.user else None, grant.pool or None), NOTHING)

    def refusal(self, grants: Sequence[Grant], spec: JobSpec, jobs: int = 1) -> Refused | None:
        """Return why `jobs` new jobs like this one exceed a grant; None if they exceed none."""
        asked = asked_by(spec)
        if asked == NOTHING and spec.worth is None and spec.deadline is None:
            return None
        for grant in valid_for(grants, spec):
            why = (
                _too_valuable(grant, spec)
                or _endless(grant, spec)
                or self._too_much(grant, spec, asked, jobs)
            )
            if why is not None:
                return why
        return None

    def _too_much(self, grant: Grant, spec: JobSpec, asked: Asked, jobs: int) -> Refused | None:
        used = self.under(grant, spec.user)
        for bound in _BOUNDS:
            most, wants = getattr(grant, bound.key), jobs * getattr(asked, bound.key)
            has = getattr(used, bound.key)
            if most is not None and wants and has + wants > round(most * bound.each):
                return _not_granted(
                    f"{_who(grant, spec)} may have {_amount(most, bound.unit)} {bound.of}, has "
                    f"{_amount(has / bound.each)} and would get {_amount(wants / bound.each)} more",
                    f"wait until such a job has ended, {bound.mend}, {ASK}",
                )
        return None


def valid_for(grants: Sequence[Grant], spec: JobSpec) -> Iterator[Grant]:
    """Yield the grants that apply to a job: a grant to its user replaces one to each user."""
    own = {
        grant.pool for grant in grants if grant.user not in ("", EACH) and grant.user == spec.user
    }
    for grant in grants:
        if grant.pool in ("", spec.pool) and (
            grant.user in ("", spec.user) or (grant.user == EACH and grant.pool not in own)
        ):
            yield grant


def _too_valuable(grant: Grant, spec: JobSpec) -> Refused | None:
    most = grant.max_value
    worth = None if most is None else spec.worth
    if most is None or worth is None or worth <= most:
        return None
    return _not_granted(
        f"{_who(grant, spec)} may give a job a value of at most {most:g} (got {worth:g})",
        f"give at most {most:g}, {ASK}",
    )


def _endless(grant: Grant, spec: JobSpec) -> Refused | None:
    """Refuse a deadline for a job of unknown run time, if a grant bounds the GPU-hours."""
    most = grant.gpu_hours
    if most is None or spec.deadline is None or guaranteed_seconds(spec) is not None:
        return None
    return _not_granted(
        f"{_who(grant, spec)} may have {_amount(most, 'GPU-hour')} in jobs with a deadline, and "
        "this job does not say how long it runs",
        f"give an estimate or a time limit, omit deadline, {ASK}",
    )


def _amount(value: float, unit: str = "") -> str:
    number = f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{number} {unit}{'' if value == 1 else 's'}" if unit else number


def _who(grant: Grant, spec: JobSpec) -> str:
    user = f"user {spec.user!r}" if grant.user else ""
    pool = f"pool {grant.pool!r}" if grant.pool else ""
    return " in ".join(filter(None, (user, pool))) or "the whole site"


def _not_granted(detail: str, fix: str) -> Refused:
    return Refused(403, "not granted", detail, fix)
