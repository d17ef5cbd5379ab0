"""Slurm by its commands, where there is no slurmrestd: as the daemon's user, with `--json`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, json

from daemon.backends.slurm.interface import (
    PATH,
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
"""Seconds for a command: where slurmctld is away, they wait for it a minute or so."""

AT_ONCE = 4
"""Commands that run at a time: each is a process, and slurmctld has its own limits."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "PATH", "HOME", "USER", "LOGNAME", "LANG", "KRB5CCNAME")
"""What commands see of the daemon's environment: nothing that would change what they do."""

REFUSALS = (
    "Invalid",
    "Requested",
    "not available",
    "denied",
    "specification",
    "already",
    "violates",
)
"""Words of commands that were asked for what cannot be."""

GONE = "see that slurmctld runs, and that the daemon's user may run Slurm's commands"


class Commands:
    """See `Slurm`. Each question is a process.

    Args:
        conf: Slurm's configuration file, if not the usual one.
    """

    single = False

    def __init__(self, conf: str = "") -> None:
        """Nothing is asked yet."""
        self._env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._env |= {"LC_ALL": "C.UTF-8", "SLURM_BITSTR_LEN": "0"}  # 0: no list of tasks is cut
        if conf:
            self._env["SLURM_CONF"] = conf
        self._few = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Nothing is open."""

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """All that Slurm has not forgotten: no command says only what has changed."""
        rows = await self._rows("jobs", "squeue", "--json", "--all", "--states=all")
        try:
            return await asyncio.to_thread(jobs_of, rows)
        except ValueError as error:
            raise SlurmError(f"squeue says {error}", GONE) from None

    async def job(self, ref: str) -> list[SlurmJob]:
        """One, and the tasks that wait with it."""
        return [job for job in await self.jobs() or [] if job.may_be(ref)]

    async def nodes(self) -> list[SlurmNode]:
        """All of them."""
        try:
            rows = await self._rows("nodes", "scontrol", "show", "nodes", "--json")
        except (SlurmError, SlurmRefusedError):
            rows = []
        if not rows:  # before 23.02 scontrol has no --json, and sinfo says the same
            rows = await self._rows("nodes", "sinfo", "--json")
        return each_of(node_of, rows)

    async def partitions(self) -> list[SlurmPartition]:
        """All of them; in words without spaces, as in each version."""
        text = await self._run("scontrol", "--oneliner", "show", "partition")
        rows = []
        for line in text.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            row = {"name": words.get("PartitionName"), "nodes": words.get("Nodes")}
            rows.append({**row, "state": words.get("State")})
        return each_of(partition_of, rows)

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a job that waits to be released."""
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
        """Have a job run there."""
        where = (f"Partition={place.partition}", f"NodeList={place.names}", "StartTime=now")
        await self._run("scontrol", "update", f"JobId={ref}", *where)
        await self._run("scontrol", "release", ref)

    async def hold(self, ref: str) -> None:
        """Have a job wait until it is released."""
        await self._run("scontrol", "hold", ref)

    async def cancel(self, ref: str) -> None:
        """End a job; one that is over is let be."""
        await self._run("scancel", "--quiet", ref)

    async def _rows(self, key: str, *words: str) -> list[Any]:
        text = await self._run(*words)
        try:
            said = await asyncio.to_thread(json.decode, text.encode(), type=dict[str, Any])
        except DecodeError:
            raise SlurmError(
                f"{words[0]} says no JSON", "use Slurm 21.08 or newer, or slurmrestd"
            ) from None
        rows = said.get(key)
        if said.get("errors") or not isinstance(rows, list):  # with exit code 0 (22.05)
            raise SlurmError(f"{words[0]} could not ask Slurm{_why(said.get('errors'))}", GONE)
        return rows

    async def _run(self, *words: str, given: str = "") -> str:
        async with self._few:
            code, out, err = await self._process(words, given)
        if code == 0:
            return out
        why = " ".join(err.split())[-300:] or f"{words[0]} ended with {code}"
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
            raise SlurmError(f"{words[0]} does not end within {TIMEOUT:g} s", GONE) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def _why(errors: Any) -> str:
    """What Slurm says of it, if it does."""
    rows = errors if isinstance(errors, list) else []
    said = [row.get("description") or row.get("error") for row in rows if isinstance(row, dict)]
    words = "; ".join(str(each) for each in said if each)
    return f": {words[:300]}" if words else ""
