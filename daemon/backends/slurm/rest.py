"""Slurm client for slurmrestd over a unix socket or TCP, for several versions of its API."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from msgspec import DecodeError, json

from daemon.backends.slurm.cli import Commands
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
    number,
    partition_of,
)

OLDEST, NEWEST = 38, 44
"""API versions 0.0.38 (Slurm 22.05) to 0.0.44 (25.11)."""

MAX_UNFLAGGED = 39
"""Newest API version that sends a signal to the whole job by default."""

TIMEOUT = 10.0
"""Timeout of a request: without slurmctld, slurmrestd would wait for about a minute."""

SLOP = 2.0
"""Seconds subtracted from the time of the last listing, because Slurm rounds to whole seconds."""

WHOLE = 60.0
"""Seconds between full listings, in case Slurm's clock was set."""

FEW, LONG = 100, 1 << 18
"""Maximum jobs, and bytes, parsed on the event loop: 1-2 ms. More are parsed on a thread."""

HELD, UNKNOWN_JOB, ALREADY_DONE = 2042, 2017, 2021
"""Slurm's error codes: submitted in held state; no such job; job has ended."""

OURS = range(2000, 5000)
"""Error codes of refused requests; other codes are communication errors."""

GONE = "check that slurmctld and slurmrestd are running"
NO_ANSWER = "check which server answers at backend.rest, and that its version is supported"
TOKEN = "write a new token to jwt_file (scontrol token username=… lifespan=…)"  # noqa: S105


class _Answer(NamedTuple):
    status: int
    body: Mapping[str, Any]

    @property
    def errors(self) -> list[tuple[int, str]]:
        """Error codes and messages."""
        found = self.body.get("errors") or []
        return [
            (
                int(number(e.get("error_number", e.get("error_code", e.get("errno")))) or 0),
                str(e.get("description") or e.get("error") or "no reason given"),
            )
            for e in found
            if isinstance(e, dict)
        ]


class Rest:
    """Implements `Slurm` over HTTP.

    Args:
        address: `unix:/PATH` or `http://HOST:PORT`.
        jwt_file: file with a token, read for each request; None for no token.
        user: user of the token.
        commands: Slurm's commands for what slurmrestd cannot do; None if it must do without.
    """

    single = True

    def __init__(
        self,
        address: str,
        jwt_file: Path | None = None,
        user: str = "",
        commands: Commands | None = None,
    ) -> None:
        """Create the client without contacting Slurm."""
        self._address, self._jwt_file, self._user = address, jwt_file, user
        self._commands = commands
        self._session: aiohttp.ClientSession | None = None
        self._version = 0
        self._ahead = 0.0  # Slurm's clock minus the loop's
        self._seen = 0.0
        self._whole_due = 0.0
        self._expires: float | None = None

    @property
    def requeues(self) -> bool:
        """Whether jobs can be requeued: only by commands, because slurmrestd cannot do it."""
        return self._commands is not None

    @property
    def _base(self) -> str:
        return "http://localhost" if self._address.startswith("unix:") else self._address

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """Return all jobs; None if nothing changed."""
        loop = asyncio.get_running_loop()  # a monotonic clock
        changed = changed and loop.time() < self._whole_due
        if not changed:
            self._ahead = await self._clock() - loop.time()
        now = loop.time() + self._ahead
        params = {"update_time": str(int(self._seen - SLOP))} if changed else {}
        found = await self._ask("GET", "jobs", params=params)
        if found.status == 304:
            return None
        jobs = await self._jobs(found)
        self._seen = now
        if not changed:
            self._whole_due = loop.time() + WHOLE
        return jobs

    async def _jobs(self, found: _Answer) -> list[SlurmJob]:
        """Parse the jobs of a response, on a thread if there are many."""
        rows = self._rows(found, "jobs")
        try:
            return jobs_of(rows) if len(rows) <= FEW else await asyncio.to_thread(jobs_of, rows)
        except ValueError as error:
            raise SlurmError(f"slurmrestd returned {error}", NO_ANSWER) from None

    async def _clock(self) -> float:
        """Return the time of Slurm's clock."""
        found = await self._ask("GET", "diag")
        statistics = found.body.get("statistics")
        time_of_request = (
            number(statistics.get("req_time")) if isinstance(statistics, dict) else None
        )
        return time_of_request or time.time()

    async def job(self, ref: str) -> list[SlurmJob]:
        """Return a job, and the tasks pending with it."""
        found = await self._ask("GET", f"job/{ref}")
        if any(code == UNKNOWN_JOB for code, _ in found.errors):
            return []
        return await self._jobs(found)

    async def nodes(self) -> list[SlurmNode]:
        """Return all nodes."""
        found = await self._ask("GET", "nodes")
        return each_of(node_of, self._rows(found, "nodes"))

    async def partitions(self) -> list[SlurmPartition]:
        """Return all partitions."""
        found = await self._ask("GET", "partitions")
        return each_of(partition_of, self._rows(found, "partitions"))

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a held job."""
        await self._connected()
        job = self._description(wanted)
        body = {"job": job} if self._version > 40 else {"job": job, "script": job.pop("script")}
        found = await self._ask("POST", "job/submit", body=body)
        job_id = number(found.body.get("job_id"))
        if not job_id:
            self._refused(found)
            if found.status == 200:  # it may have been accepted
                raise SlurmError("slurmrestd returned no job id", NO_ANSWER)
            raise SlurmRefusedError(f"the submission failed (HTTP {found.status})")
        return str(int(job_id))

    def _description(self, wanted: SlurmSubmission) -> dict[str, Any]:
        """Return the job description in the format of the API version."""
        place, many = wanted.place, len(wanted.place.nodes)
        job: dict[str, Any] = {
            "name": wanted.name,
            "comment": wanted.comment,
            "partition": place.partition,
            "current_working_directory": wanted.folder,
            "standard_output": wanted.out,
            "standard_error": wanted.err,
            "hold": True,
            "script": wanted.script,
        }
        if wanted.minutes is not None:
            job["time_limit"] = self._number(wanted.minutes)
        if self._version == OLDEST:
            gpus = {"gpus": place.gpus} if place.alike is None else {"gres": f"gpu:{place.alike}"}
            job |= {"nodes": [many, many], "nodelist": place.names, "no_requeue": True, **gpus}
            return {**job, "environment": {"PATH": PATH}}
        each = (
            ("tres_per_job", place.gpus) if place.alike is None else ("tres_per_node", place.alike)
        )
        job |= {"minimum_nodes": many, "maximum_nodes": many, each[0]: f"gres/gpu:{each[1]}"}
        job |= {"required_nodes": [name for name, _ in place.nodes], "requeue": False}
        return {**job, "environment": [f"PATH={PATH}"]}

    def _number(self, value: int) -> Any:
        return value if self._version == OLDEST else {"set": True, "number": value}

    async def release(self, ref: str, place: SlurmTarget) -> None:
        """Set partition and nodes of a job, and release it."""
        await self._connected()
        names: dict[str, Any] = {"nodelist": place.names, "begin_time": "now"}
        if self._version > OLDEST:
            names = {"required_nodes": [name for name, _ in place.nodes]}
            names["begin_time"] = self._number(int(time.time()))
        await self._update(ref, {"partition": place.partition, **names, "hold": False})

    async def hold(self, ref: str) -> None:
        """Hold a job."""
        await self._update(ref, {"hold": True})

    async def _update(self, ref: str, changes: Mapping[str, Any]) -> None:
        found = await self._ask("POST", f"job/{ref}", body=changes)
        if "_" in ref and not any(code in OURS for code, _ in found.errors):
            return  # 22.05 may report failures of tasks that succeeded; the next poll decides
        self._refused(found)

    async def signal(self, ref: str, name: str, to: SignalTarget) -> None:
        """Send a signal by commands; without them to all processes of a job."""
        if self._commands is not None:  # old slurmrestd cannot choose processes
            await self._commands.signal(ref, name, to)
            return
        await self._connected()
        params = {"signal": name}
        if self._version > MAX_UNFLAGGED:
            params["flags"] = "FULL_JOB"
        self._refused(await self._ask("DELETE", f"job/{ref}", params=params))

    async def requeue(self, ref: str, *, ended: bool = False) -> None:
        """Requeue a job in held state, by commands."""
        if self._commands is None:
            raise SlurmRefusedError("slurmrestd cannot requeue jobs; set commands = true as well")
        await self._commands.requeue(ref, ended=ended)

    async def cancel(self, ref: str) -> None:
        """Cancel a job; no effect if it has ended."""
        found = await self._ask("DELETE", f"job/{ref}")
        if not any(code in (UNKNOWN_JOB, ALREADY_DONE) for code, _ in found.errors):
            self._refused(found)

    def _well(self, found: _Answer) -> None:
        """Raise SlurmError for an error response."""
        for _, why in found.errors:
            raise self._trouble(why)
        if found.status != 200:
            raise SlurmError(f"slurmrestd answered HTTP {found.status}", GONE)

    def _rows(self, found: _Answer, key: str) -> list[Any]:
        """Return a list from a response. A missing list is an error, not an empty list."""
        self._well(found)
        rows = found.body.get(key)
        if not isinstance(rows, list):
            raise SlurmError(f"the response of slurmrestd has no {key}", NO_ANSWER)
        return rows

    def _trouble(self, why: str) -> SlurmError:
        """Return the error; for an expired token Slurm's message does not say so."""
        if self._expires is not None and self._expires < time.time():
            return SlurmError("the token in jwt_file has expired", TOKEN)
        return SlurmError(f"Slurm error: {why}", GONE)

    def _refused(self, found: _Answer) -> None:
        """Raise SlurmRefusedError for a refusal, and SlurmError for a communication error."""
        for code, why in found.errors:
            if code == HELD:
                continue
            if code in OURS or code in (1, -1) or code > 9000:
                raise SlurmRefusedError(why)
            raise self._trouble(why)
        if found.status >= 500:
            raise SlurmError(f"slurmrestd answered HTTP {found.status}", GONE)

    async def _connected(self) -> None:
        """Find the newest API version that both sides support."""
        if self._version:
            return
        for version in range(NEWEST, OLDEST - 1, -1):
            found = await self._send("GET", f"/slurm/v0.0.{version}/ping")
            if found.status not in (404, 405):
                self._version = version
                return
        raise SlurmError(
            f"slurmrestd supports none of the API versions 0.0.{OLDEST} to 0.0.{NEWEST}",
            f"start it with -s openapi/v0.0.{OLDEST} (openapi/slurmctld in newer versions), or set "
            "commands = true in [backend]",
        )

    async def _ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> _Answer:
        await self._connected()
        found = await self._send(method, f"/slurm/v0.0.{self._version}/{path}", params, body)
        if found.status in (404, 405) and not found.body:  # slurmrestd was replaced
            self._version = 0
            raise SlurmError(f"slurmrestd does not know {path.split('/', maxsplit=1)[0]}", GONE)
        return found

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None
    ) -> _Answer:
        session = self._open()
        data = None if body is None else json.encode(body)
        try:
            headers = {**await self._headers(), "Content-Type": "application/json"}
            async with session.request(
                method,
                self._base + path,
                params=params,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                text, status = await answer.read(), answer.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            what = str(error) or type(error).__name__
            raise SlurmError(f"slurmrestd does not answer ({what})", GONE) from None
        if status in (301, 302, 303, 307, 308):  # never send the token elsewhere
            raise SlurmError(f"slurmrestd redirects (HTTP {status})", "correct backend.rest")
        if status in (401, 403):
            raise SlurmError(f"slurmrestd rejects the token (HTTP {status})", TOKEN)
        return _Answer(status, await _decoded(text, status))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector | None = None
            if self._address.startswith("unix:"):
                connector = aiohttp.UnixConnector(self._address.removeprefix("unix:"))
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    async def _headers(self) -> dict[str, str]:
        """Return the authentication headers. The token is read for each request: it rotates."""
        if self._jwt_file is None:
            return {}
        try:
            token = (await asyncio.to_thread(self._jwt_file.read_text, "ascii")).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is not ASCII text"
            raise SlurmError(f"jwt_file: {why}", TOKEN) from None
        token = token.removeprefix("SLURM_JWT=")
        if not token.isascii() or not token.isprintable():
            raise SlurmError("jwt_file: contains no token", TOKEN)
        self._expires = _expiry(token)
        user = {"X-SLURM-USER-NAME": self._user} if self._user else {}
        return {**user, "X-SLURM-USER-TOKEN": token}


async def _decoded(text: bytes, status: int) -> Mapping[str, Any]:
    """Decode a response. Raises SlurmError if it is not from slurmrestd."""
    if not text:
        return {}
    try:
        if len(text) <= LONG:
            return json.decode(text, type=dict)
        return await asyncio.to_thread(json.decode, text, type=dict)
    except DecodeError:
        if status in (404, 405):  # slurmrestd's answer for an unsupported API version
            return {}
        raise SlurmError(f"slurmrestd returned no JSON (HTTP {status})", NO_ANSWER) from None


def _expiry(token: str) -> float | None:
    """Return the expiry time in a token, without verifying its signature."""
    middle = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.decode(urlsafe_b64decode(middle + "=" * (-len(middle) % 4)), type=dict)
    except (ValueError, DecodeError):
        return None
    return number(claims.get("exp"))
