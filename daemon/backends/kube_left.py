"""Jobs that this daemon has released in a life of which its journal, a backup's, knows nothing.

They run, on GPUs that were theirs, and nobody here gives them any: they are held and left alone,
until they are over. What says so is sealed, for anybody who may write to a Job may write its
annotations.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from daemon.backends.kube_bodies import is_bound
from daemon.backends.kube_runs import Ref
from daemon.backends.kube_shapes import ATTEMPT, DAEMON, JOB, RELEASED, Job
from daemon.logs import log
from daemon.notes import Notes

KEY = "kube/key"
"""The mark with what seals are made with. It is in the backup, as all marks are."""

LEFT = "kube/left/"
"""How marks begin that name a Job that is left alone."""

SECRET = 32
"""Bytes: nobody guesses 256 bits."""


class Left:
    """Which Jobs these are."""

    def __init__(self, notes: Notes, name: str, key: str, refs: set[Ref]) -> None:
        """Of the daemon of that name; `refs` are known."""
        self._notes, self._name, self._refs = notes, name, refs
        self._key: Final = bytes.fromhex(key)

    @classmethod
    async def of(cls, notes: Notes, name: str, marks: dict[str, str]) -> Left:
        """As the marks have it. Raises JournalError."""
        key = marks.get(KEY)
        if key is None:
            key = secrets.token_hex(SECRET)
            await notes.write({KEY: key})
        refs = {Ref.of(mark.removeprefix(LEFT)) for mark in marks if mark.startswith(LEFT)}
        return cls(notes, name, key, refs)

    def seal(self, uid: str, attempt: int, hosts: Sequence[str]) -> str:
        """What a Job bears that is released: for which attempt, and on which nodes."""
        where = ",".join(sorted(hosts))
        said = f"{uid}\n{attempt}\n{where}".encode()
        return f"{hmac.digest(self._key, said, 'sha256').hex()} {where}"

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._refs

    def runs(self, job: Job, job_id: str, attempt: int) -> bool:
        """Whether a Job runs by no will of this life: released for that attempt, or a later one."""
        meta = job.metadata
        if job.suspended or (meta.note(DAEMON), meta.note(JOB)) != (self._name, job_id):
            return False
        if Ref(meta.namespace, meta.name, meta.uid) in self._refs:
            return True
        number, said = meta.note(ATTEMPT), meta.note(RELEASED)
        if not (number.isascii() and number.isdecimal() and len(number) < 9):
            return False
        hosts = said.partition(" ")[2].split(",")
        ours = hmac.compare_digest(said.encode(), self.seal(meta.uid, int(number), hosts).encode())
        return ours and int(number) >= attempt and is_bound(job.spec.template.spec, hosts)

    async def leave(self, ref: Ref, job: Job, job_id: str) -> None:
        """Have it be one of them, durably. Raises JournalError."""
        if ref in self._refs:
            return
        await self._notes.write({f"{LEFT}{ref}": "1"})
        self._refs.add(ref)
        log().warning(
            "a Job runs that was released after this journal's backup: it is held here, and left "
            "alone; its GPUs count as free, so drain its nodes until it is over",
            job=job_id, nodes=job.metadata.note(RELEASED).partition(" ")[2],
        )  # fmt: skip

    async def forget(self, ref: Ref) -> None:
        """It is over, or waits again. Raises JournalError."""
        if ref in self._refs:
            await self._notes.write({f"{LEFT}{ref}": None})
            self._refs.remove(ref)
