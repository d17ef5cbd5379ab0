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

from daemon.backends.interface import Notes
from daemon.backends.kube.attempts import Ref, plain
from daemon.backends.kube.manifests import is_bound
from daemon.backends.kube.schema import ATTEMPT, DAEMON, JOB, RELEASED, KubeJob

KEY = "kube/key"
"""The mark with what seals are made with. It is in the backup, as all marks are."""

LEFT = "kube/left/"
"""How marks begin that name a Job that is left alone."""

SHOWN = 8
"""Of them that are named."""

SECRET = 32
"""Bytes: nobody guesses 256 bits."""


class ReleasedJobs:
    """Which Jobs these are."""

    def __init__(self, notes: Notes, name: str, key: str, refs: dict[Ref, str]) -> None:
        """Of the daemon of that name; `refs` are known, in words."""
        self._notes, self._name, self._refs = notes, name, refs
        self._key: Final = bytes.fromhex(key)

    @classmethod
    async def of(cls, notes: Notes, name: str, marks: dict[str, str]) -> ReleasedJobs:
        """As the marks have it. Raises JournalError."""
        key = marks.get(KEY)
        if key is None:
            key = secrets.token_hex(SECRET)
            await notes.write({KEY: key})
        refs = {
            Ref.of(mark.removeprefix(LEFT)): words
            for mark, words in marks.items() if mark.startswith(LEFT)
        }  # fmt: skip
        return cls(notes, name, key, refs)

    def seal(self, uid: str, attempt: int, hosts: Sequence[str]) -> str:
        """What a Job bears that is released: for which attempt, and on which nodes."""
        where = ",".join(sorted(hosts))
        said = f"{uid}\n{attempt}\n{where}".encode()
        return f"{hmac.digest(self._key, said, 'sha256').hex()} {where}"

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._refs

    def runs(self, job: KubeJob, job_id: str, attempt: int) -> bool:
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

    @property
    def trouble(self) -> tuple[str, str]:
        """Which there are, and what to do; nothing where there are none."""
        if not self._refs:
            return "", ""
        # A mark of an older daemon has no words.
        some = [
            plain(f"{ref.namespace}/{ref.name}" + (f" ({words})" if words != "1" else ""))
            for ref, words in sorted(self._refs.items())[:SHOWN]
        ]
        more = f" and {len(self._refs) - SHOWN} more" if len(self._refs) > SHOWN else ""
        why = (
            "Jobs run that were released after this journal's backup; they are held here, and left "
            f"alone: {', '.join(some)}{more}"
        )
        return why, "their GPUs count as free: drain their nodes until they are over"

    async def leave(self, ref: Ref, job: KubeJob, job_id: str) -> None:
        """Have it be one of them, durably. Raises JournalError."""
        if ref in self._refs:
            return
        words = f"{job_id} on {job.metadata.note(RELEASED).partition(' ')[2]}"
        await self._notes.write({f"{LEFT}{ref}": words})
        self._refs[ref] = words

    async def forget(self, ref: Ref) -> None:
        """It is over, or waits again. Raises JournalError."""
        if ref in self._refs:
            await self._notes.write({f"{LEFT}{ref}": None})
            del self._refs[ref]
