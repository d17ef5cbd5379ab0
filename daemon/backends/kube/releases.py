"""Jobs that were released after the backup from which the journal was restored.

They run on GPUs of which the restored journal knows nothing. Their jobs are held, and the Jobs are
ignored until they end. The release annotation carries an HMAC, because anyone with write access to
a Job can write annotations.
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
"""Key of the note with the HMAC key. Backups include it."""

LEFT = "kube/left/"
"""Prefix of the notes that name an ignored Job."""

SHOWN = 8
"""Maximum number of such Jobs named in a message."""

SECRET = 32
"""Bytes of the HMAC key."""


class ReleasedJobs:
    """The Jobs released after the backup."""

    def __init__(self, notes: Notes, name: str, key: str, refs: dict[Ref, str]) -> None:
        """Create the set for the daemon of this name; `refs` maps Jobs to descriptions."""
        self._notes, self._name, self._refs = notes, name, refs
        self._key: Final = bytes.fromhex(key)

    @classmethod
    async def of(cls, notes: Notes, name: str, marks: dict[str, str]) -> ReleasedJobs:
        """Load the set from notes. Raises JournalError."""
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
        """Return the annotation of a release: HMAC of uid, attempt and hosts, then the hosts."""
        where = ",".join(sorted(hosts))
        message = f"{uid}\n{attempt}\n{where}".encode()
        return f"{hmac.digest(self._key, message, 'sha256').hex()} {where}"

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._refs

    def runs(self, job: KubeJob, job_id: str, attempt: int) -> bool:
        """Return whether a Job runs because of a later release than the journal knows."""
        meta = job.metadata
        if job.suspended or (meta.note(DAEMON), meta.note(JOB)) != (self._name, job_id):
            return False
        if Ref(meta.namespace, meta.name, meta.uid) in self._refs:
            return True
        number, released = meta.note(ATTEMPT), meta.note(RELEASED)
        if not (number.isascii() and number.isdecimal() and len(number) < 9):
            return False
        hosts = released.partition(" ")[2].split(",")
        ours = hmac.compare_digest(
            released.encode(), self.seal(meta.uid, int(number), hosts).encode()
        )
        return ours and int(number) >= attempt and is_bound(job.spec.template.spec, hosts)

    @property
    def trouble(self) -> tuple[str, str]:
        """Reason and fix if there are such Jobs; else empty."""
        if not self._refs:
            return "", ""
        # Notes of older daemons have no description.
        some = [
            plain(f"{ref.namespace}/{ref.name}" + (f" ({words})" if words != "1" else ""))
            for ref, words in sorted(self._refs.items())[:SHOWN]
        ]
        more = f" and {len(self._refs) - SHOWN} more" if len(self._refs) > SHOWN else ""
        why = (
            "Jobs are running that were released after this journal's backup; their jobs are held "
            f"and the Jobs are ignored: {', '.join(some)}{more}"
        )
        return why, "their GPUs count as free: drain their nodes until the Jobs end"

    async def leave(self, ref: Ref, job: KubeJob, job_id: str) -> None:
        """Add a Job durably. Raises JournalError."""
        if ref in self._refs:
            return
        words = f"{job_id} on {job.metadata.note(RELEASED).partition(' ')[2]}"
        await self._notes.write({f"{LEFT}{ref}": words})
        self._refs[ref] = words

    async def forget(self, ref: Ref) -> None:
        """Remove a Job that has ended or is suspended. Raises JournalError."""
        if ref in self._refs:
            await self._notes.write({f"{LEFT}{ref}": None})
            del self._refs[ref]
