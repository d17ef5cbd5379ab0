"""Which jobs of Slurm are this daemon's: by who submitted them, and by what their comments say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.interface import BackendContext
from daemon.backends.slurm.attempts import SlurmAttempt, SlurmView, key_of
from daemon.backends.slurm.schema import SlurmJob

USERS = "slurm/user/"
"""How marks begin that say as which users this daemon has submitted jobs."""


class JobOwnership:
    """Knows its own jobs.

    Whoever may look at jobs sees the comments of all, and may write the same: a comment counts
    only on jobs of the users as which the daemon has submitted some.
    """

    def __init__(
        self, house: BackendContext, name: str, marks: Mapping[str, str], user: str = ""
    ) -> None:
        """Of the daemon of that name, which may be configured to be that user."""
        self._house, self.name = house, name
        self._users = {mark.removeprefix(USERS) for mark in marks if mark.startswith(USERS)}
        self._user = user
        self._jobs: Mapping[str, SlurmJob] | None = None
        self._keys: dict[AttemptKey, list[str]] = {}

    def key_of(self, job: SlurmJob) -> AttemptKey | None:
        """Of which job here this is which attempt, if it is one of this daemon's."""
        return key_of(self.name, job.comment) if self._may_be(job) else None

    def _may_be(self, job: SlurmJob) -> bool:
        """Whether it is of a user as which the daemon submits, as far as that is known."""
        users = self._users | ({self._user} if self._user else set())
        return not users or job.user in users

    def is_of(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Whether this is the job of that attempt, and not a later one with its number.

        What it was submitted at tells, whatever its comment says by now: a job may change that.
        """
        if run.adopted:  # one that is queued again counts as submitted then
            same = run.order.spec.origin.endswith(f"@{int(job.submitted)}")
            return same or (job.restarts > 0 and job.user == run.order.spec.user)
        same = run.submitted == int(job.submitted) and self._may_be(job)
        return same or self.key_of(job) == run.key

    def keys(self, view: SlurmView) -> Mapping[AttemptKey, list[str]]:
        """What this daemon's jobs are called, by attempt. O(jobs in Slurm) where any changed."""
        if self._jobs is not view.jobs:
            self._jobs, self._keys = view.jobs, {}
            for ref, job in view.jobs.items():
                key = self.key_of(job)
                if key is not None:
                    self._keys.setdefault(key, []).append(ref)
        return self._keys

    async def learn(self, users: Iterable[str]) -> None:
        """As whom jobs were submitted. Durable on return."""
        new = {user for user in users if user} - self._users
        if new:
            await self._house.notes.write({USERS + user: "1" for user in new})
            self._users |= new
            self._jobs = None
