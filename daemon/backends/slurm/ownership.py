"""Recognize this daemon's jobs in Slurm by submitting user and comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.interface import BackendContext
from daemon.backends.slurm.attempts import SlurmAttempt, SlurmView, key_of
from daemon.backends.slurm.schema import SlurmJob

USERS = "slurm/user/"
"""Prefix of the notes with the users as which this daemon has submitted jobs."""


class JobOwnership:
    """Recognize the daemon's own jobs.

    Any user can read and copy comments. So a comment counts only on jobs of users as which the
    daemon has submitted jobs.
    """

    def __init__(
        self, context: BackendContext, name: str, marks: Mapping[str, str], user: str = ""
    ) -> None:
        """Recognize jobs of the daemon with this name, which may be configured to use `user`."""
        self._context, self.name = context, name
        self._users = {mark.removeprefix(USERS) for mark in marks if mark.startswith(USERS)}
        self._user = user
        self._jobs: Mapping[str, SlurmJob] | None = None
        self._keys: dict[AttemptKey, list[str]] = {}

    def key_of(self, job: SlurmJob) -> AttemptKey | None:
        """Return the attempt of a Slurm job; None if the job is not of this daemon."""
        return key_of(self.name, job.comment) if self._may_be(job) else None

    def _may_be(self, job: SlurmJob) -> bool:
        """Return whether a job's user is one of the daemon's, as far as known."""
        users = self._users | ({self._user} if self._user else set())
        return not users or job.user in users

    def is_of(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Return whether a Slurm job is that of an attempt, and not a later one of its number.

        The submit time decides first, because a job can change its own comment.
        """
        if run.adopted:  # a requeue changes the submit time
            same = run.order.spec.origin.endswith(f"@{int(job.submitted)}")
            return same or (job.restarts > 0 and job.user == run.order.spec.user)
        same = run.submitted == int(job.submitted) and self._may_be(job)
        return same or self.key_of(job) == run.key

    def keys(self, view: SlurmView) -> Mapping[AttemptKey, list[str]]:
        """Return Slurm job ids by attempt. O(jobs in Slurm) if any has changed."""
        if self._jobs is not view.jobs:
            self._jobs, self._keys = view.jobs, {}
            for ref, job in view.jobs.items():
                key = self.key_of(job)
                if key is not None:
                    self._keys.setdefault(key, []).append(ref)
        return self._keys

    async def learn(self, users: Iterable[str]) -> None:
        """Store the users as which jobs were submitted. Durable on return."""
        new = {user for user in users if user} - self._users
        if new:
            await self._context.notes.write({USERS + user: "1" for user in new})
            self._users |= new
            self._jobs = None
