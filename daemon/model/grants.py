"""What jobs may ask for only as far as the site grants it: a value, and never to be stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from daemon.model.book import JobRecord
from daemon.model.job import JobSpec
from daemon.model.outputs import Refused
from daemon.model.setup import EACH, Grant
from sia.model import NEVER_STOPPED
from sia.wording import counted

ASK = "or ask an operator, who grants it in sia.toml under [[grant]]"


class _Scope(NamedTuple):
    """Whose jobs are counted together; None stands for all users, or all pools."""

    user: str | None
    pool: str | None


class GrantedUse:
    """Counts the unended jobs that must not be stopped, by user and pool."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        """Count the jobs of these records that have not ended. O(records)."""
        self._jobs: Counter[_Scope] = Counter()
        self._gpus: Counter[_Scope] = Counter()
        for record in records:
            self.add(record.spec)

    def add(self, spec: JobSpec) -> None:
        """Count an accepted job. O(1)."""
        self._change(spec, 1)

    def drop(self, spec: JobSpec) -> None:
        """Stop counting a job that has ended. O(1)."""
        self._change(spec, -1)

    def _change(self, spec: JobSpec, by: int) -> None:
        if spec.preemptible == NEVER_STOPPED:
            for user in (spec.user, None):
                for pool in (spec.pool, None):
                    self._jobs[_Scope(user, pool)] += by
                    self._gpus[_Scope(user, pool)] += by * spec.gpus

    def under(self, grant: Grant, user: str) -> tuple[int, int]:
        """Return the jobs and GPUs that count against a grant if `user` submits. O(1)."""
        scope = _Scope(user if grant.user else None, grant.pool or None)
        return self._jobs[scope], self._gpus[scope]

    def refusal(self, grants: Sequence[Grant], spec: JobSpec, jobs: int = 1) -> Refused | None:
        """Return why so many new jobs like this one exceed a grant; None if none is exceeded."""
        if spec.value is None and spec.preemptible != NEVER_STOPPED:
            return None
        for grant in valid_for(grants, spec):
            why = _too_valuable(grant, spec) or self._too_many(grant, spec, jobs)
            if why is not None:
                return why
        return None

    def _too_many(self, grant: Grant, spec: JobSpec, jobs: int) -> Refused | None:
        if spec.preemptible != NEVER_STOPPED:
            return None
        used = self.under(grant, spec.user)
        bounds = (grant.never_jobs, "job"), (grant.never_gpus, "GPU")
        for (most, what), has, new in zip(bounds, used, (jobs, jobs * spec.gpus), strict=True):
            if most is not None and has + new > most:
                return _not_granted(
                    f"{_who(grant, spec)} may have {counted(most, what)} that must not be stopped "
                    f"(preemptible = never), has {has:,} and would get {new:,} more",
                    f"wait until such a job has ended, omit preemptible, {ASK}",
                )
        return None


def valid_for(grants: Sequence[Grant], spec: JobSpec) -> Iterator[Grant]:
    """Yield the grants that bound a job: a grant to its user replaces that to each user."""
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
    if most is None or spec.value is None or spec.value <= most:
        return None
    return _not_granted(
        f"{_who(grant, spec)} may give a job a value of at most {most:g} (got {spec.value:g})",
        f"give at most {most:g}, {ASK}",
    )


def _who(grant: Grant, spec: JobSpec) -> str:
    user = f"user {spec.user!r}" if grant.user else ""
    pool = f"pool {grant.pool!r}" if grant.pool else ""
    return " in ".join(filter(None, (user, pool))) or "the whole site"


def _not_granted(detail: str, fix: str) -> Refused:
    return Refused(403, "not granted", detail, fix)
