"""Slurm client that runs Slurm's commands with `--json` as the daemon's user."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, json

from daemon.backends.slurm.interface import (
    PATH,
    SignalTarget,
    SlurmError,
    SlurmRefusedError,
    SlurmSubmission,
    SlurmTarget,
)
from daemon.backends.slurm.schema import (
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    each_of,
    jobs_of,
    node_of,
    partition_of,
)

TIMEOUT = 15.0
"""Timeout of a command in seconds: without slurmctld commands would wait for about a minute."""

AT_ONCE = 4
"""Maximum number of concurrent commands: each is a process, and slurmctld limits requests."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "PATH", "HOME", "USER", "LOGNAME", "LANG", "KRB5CCNAME")
"""Environment variables passed to commands. Other variables could change what commands do."""

REFUSALS = (
    "Invalid",
    "Requested",
    "not available",
    "denied",
    "specification",
    "already",
    "violates",
)
"""Parts of error messages that mean a refusal."""

SIGNALLED = {"all": ("--full",), "batch": ("--batch",), "steps": ()}
"""Options of scancel, by which processes get the signal."""

GONE = "check that slurmctld is running and that the daemon's user may run Slurm's commands"


class Commands:
    """Implements `Slurm`. Each request is a process.

    Args:
        conf: path of slurm.conf, if not the default.
    """

    single = False
    requeues = True

    def __init__(self, conf: str = "") -> None:
        """Create the client without contacting Slurm."""
        self._env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._env |= {"LC_ALL": "C.UTF-8", "SLURM_BITSTR_LEN": "0"}  # 0: full task lists
        if conf:
            self._env["SLURM_CONF"] = conf
        self._few = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """Return all jobs: no command lists only changed ones."""
        rows = await self._rows("jobs", "squeue", "--json", "--all", "--states=all")
        try:
            return await asyncio.to_thread(jobs_of, rows)
        except ValueError as error:
            raise SlurmError(f"squeue returned {error}", GONE) from None

    async def job(self, ref: str) -> list[SlurmJob]:
        """Return a job, and the tasks that are pending with it."""
        return [job for job in await self.jobs() or [] if job.may_be(ref)]

    async def nodes(self) -> list[SlurmNode]:
        """Return all nodes."""
        try:
            rows = await self._rows("nodes", "scontrol", "show", "nodes", "--json")
        except (SlurmError, SlurmRefusedError):
            rows = []
        if not rows:  # before 23.02 scontrol has no --json, but sinfo has
            rows = await self._rows("nodes", "sinfo", "--json")
        return each_of(node_of, rows)

    async def partitions(self) -> list[SlurmPartition]:
        """Return all partitions, parsed from text because of old versions."""
        text = await self._run("scontrol", "--oneliner", "show", "partition")
        rows = []
        for line in text.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            row = {"name": words.get("PartitionName"), "nodes": words.get("Nodes")}
            rows.append({**row, "state": words.get("State")})
        return each_of(partition_of, rows)

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a held job."""
        place, many = wanted.place, str(len(wanted.place.nodes))
        gpus = f"--gpus={place.gpus}" if place.alike is None else f"--gres=gpu:{place.alike}"
        limit = [] if wanted.minutes is None else [f"--time={wanted.minutes}"]
        text = await self._run(
            "sbatch", "--parsable", "--hold", "--no-requeue", f"--export=PATH={PATH}",
            f"--job-name={wanted.name}", f"--comment={wanted.comment}", f"--nodes={many}-{many}",
            f"--partition={place.partition}", f"--nodelist={place.names}", gpus, *limit,
            f"--chdir={wanted.folder}", f"--output={wanted.out}", f"--error={wanted.err}",
            given=wanted.script,
        )  # fmt: skip
        return text.strip().split(";")[0]

    async def release(self, ref: str, place: SlurmTarget) -> None:
        """Set partition and nodes of a job, and release it."""
        where = (f"Partition={place.partition}", f"NodeList={place.names}", "StartTime=now")
        await self._run("scontrol", "update", f"JobId={ref}", *where)
        await self._run("scontrol", "release", ref)

    async def hold(self, ref: str) -> None:
        """Hold a job."""
        await self._run("scontrol", "hold", ref)

    async def signal(self, ref: str, name: str, to: SignalTarget) -> None:
        """Send a signal to these processes of a job."""
        await self._run("scancel", "--quiet", *SIGNALLED[to], f"--signal={name}", ref)

    async def requeue(self, ref: str, *, ended: bool = False) -> None:
        """Requeue a job in held state."""
        only = [] if ended else ["Incomplete"]  # checked by slurmctld: no end in between
        await self._run("scontrol", "requeuehold", *only, ref)

    async def cancel(self, ref: str) -> None:
        """Cancel a job; no effect if it has ended."""
        await self._run("scancel", "--quiet", ref)

    async def _rows(self, key: str, *words: str) -> list[Any]:
        text = await self._run(*words)
        try:
            answer = await asyncio.to_thread(json.decode, text.encode(), type=dict[str, Any])
        except DecodeError:
            raise SlurmError(
                f"{words[0]} returned no JSON", "use Slurm 21.08 or newer, or slurmrestd"
            ) from None
        rows = answer.get(key)
        if answer.get("errors") or not isinstance(rows, list):  # exit code 0 even so (22.05)
            raise SlurmError(f"{words[0]} failed{_why(answer.get('errors'))}", GONE)
        return rows

    async def _run(self, *words: str, given: str = "") -> str:
        async with self._few:
            code, out, err = await self._process(words, given)
        if code == 0:
            return out
        why = " ".join(err.split())[-300:] or f"{words[0]} exited with code {code}"
        if any(word in why for word in REFUSALS) and "contact" not in why:
            raise SlurmRefusedError(why)
        raise SlurmError(why, GONE)

    async def _process(self, words: Sequence[str], given: str) -> tuple[int, str, str]:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=self._env, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise SlurmError(f"{words[0]}: {error.strerror}", GONE) from None
        try:
            async with asyncio.timeout(TIMEOUT):
                out, err = await process.communicate(given.encode())
        except TimeoutError:
            raise SlurmError(f"{words[0]} timed out after {TIMEOUT:g} s", GONE) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def _why(errors: Any) -> str:
    """Return Slurm's error messages, if there are any."""
    rows = errors if isinstance(errors, list) else []
    messages = [row.get("description") or row.get("error") for row in rows if isinstance(row, dict)]
    words = "; ".join(str(each) for each in messages if each)
    return f": {words[:300]}" if words else ""
