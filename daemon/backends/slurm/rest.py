"""Slurm by slurmrestd, on a unix socket or by TCP, in whichever version of its API it speaks."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
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
    number,
    partition_of,
)

OLDEST, NEWEST = 38, 44
"""Versions 0.0.38 (Slurm 22.05) to 0.0.44 (25.11) of the API."""

TIMEOUT = 10.0
"""Seconds for an answer: where slurmctld is away, slurmrestd itself waits for it a minute or so."""

SLOP = 2.0
"""Seconds by which what was seen last is said to be older: Slurm counts in whole ones."""

WHOLE = 60.0
"""Seconds until all jobs are asked for though none has changed: Slurm's clock may be set too."""

FEW, LONG = 100, 1 << 18
"""Jobs, and bytes, that are read at once: a millisecond or two. More are read in a thread."""

HELD, UNKNOWN_JOB, ALREADY_DONE = 2042, 2017, 2021
"""Slurm's numbers: a job was submitted, and is held; there is no such job; it is over."""

OURS = range(2000, 5000)
"""Slurm's numbers of requests that cannot be; others are of communication."""

GONE = "see that slurmctld and slurmrestd run"
NO_ANSWER = "see what answers at backend.rest, and that slurmrestd's version is known here"
TOKEN = "write a fresh one to jwt_file (scontrol token username=… lifespan=…); it is read again"  # noqa: S105


class _Answer(NamedTuple):
    status: int
    body: Mapping[str, Any]

    @property
    def errors(self) -> list[tuple[int, str]]:
        """Numbers and words."""
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
    """See `Slurm`.

    Args:
        address: `unix:/PATH`, or `http://HOST:PORT`.
        jwt_file: holds a token, which is read again when it is refused; None for none.
        user: whose token that is.
    """

    single = True

    def __init__(self, address: str, jwt_file: Path | None = None, user: str = "") -> None:
        """Nothing is asked yet."""
        self._address, self._jwt_file, self._user = address, jwt_file, user
        self._session: aiohttp.ClientSession | None = None
        self._version = 0
        self._ahead = 0.0  # Slurm's clock, compared to the loop's
        self._seen = 0.0
        self._whole_due = 0.0
        self._expires: float | None = None

    @property
    def _base(self) -> str:
        return "http://localhost" if self._address.startswith("unix:") else self._address

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def jobs(self, *, changed: bool = False) -> list[SlurmJob] | None:
        """All; None where nothing has changed."""
        loop = asyncio.get_running_loop()  # whose clock nobody sets
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
        """Those of an answer; of many, the loop does not wait for them all to be read."""
        rows = self._rows(found, "jobs")
        try:
            return jobs_of(rows) if len(rows) <= FEW else await asyncio.to_thread(jobs_of, rows)
        except ValueError as error:
            raise SlurmError(f"slurmrestd says {error}", NO_ANSWER) from None

    async def _clock(self) -> float:
        """What time it is for Slurm."""
        found = await self._ask("GET", "diag")
        statistics = found.body.get("statistics")
        said = number(statistics.get("req_time")) if isinstance(statistics, dict) else None
        return said or time.time()

    async def job(self, ref: str) -> list[SlurmJob]:
        """One, and the tasks that wait with it."""
        found = await self._ask("GET", f"job/{ref}")
        if any(code == UNKNOWN_JOB for code, _ in found.errors):
            return []
        return await self._jobs(found)

    async def nodes(self) -> list[SlurmNode]:
        """All of them."""
        found = await self._ask("GET", "nodes")
        return each_of(node_of, self._rows(found, "nodes"))

    async def partitions(self) -> list[SlurmPartition]:
        """All of them."""
        found = await self._ask("GET", "partitions")
        return each_of(partition_of, self._rows(found, "partitions"))

    async def submit(self, wanted: SlurmSubmission) -> str:
        """Submit a job that waits to be released."""
        await self._connected()
        job = self._description(wanted)
        body = {"job": job} if self._version > 40 else {"job": job, "script": job.pop("script")}
        found = await self._ask("POST", "job/submit", body=body)
        job_id = number(found.body.get("job_id"))
        if not job_id:
            self._refused(found)
            if found.status == 200:  # it may have been taken
                raise SlurmError("slurmrestd does not say what a job is called", NO_ANSWER)
            raise SlurmRefusedError(f"no job came of it (HTTP {found.status})")
        return str(int(job_id))

    def _description(self, wanted: SlurmSubmission) -> dict[str, Any]:
        """The job in the words of the version."""
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
        """Have a job run there."""
        await self._connected()
        names: dict[str, Any] = {"nodelist": place.names, "begin_time": "now"}
        if self._version > OLDEST:
            names = {"required_nodes": [name for name, _ in place.nodes]}
            names["begin_time"] = self._number(int(time.time()))
        await self._update(ref, {"partition": place.partition, **names, "hold": False})

    async def hold(self, ref: str) -> None:
        """Have a job wait until it is released."""
        await self._update(ref, {"hold": True})

    async def _update(self, ref: str, changes: Mapping[str, Any]) -> None:
        found = await self._ask("POST", f"job/{ref}", body=changes)
        if "_" in ref and not any(code in OURS for code, _ in found.errors):
            return  # of tasks it says that it failed, also where it did not (22.05): a look tells
        self._refused(found)

    async def cancel(self, ref: str) -> None:
        """End a job; one that is over is let be."""
        found = await self._ask("DELETE", f"job/{ref}")
        if not any(code in (UNKNOWN_JOB, ALREADY_DONE) for code, _ in found.errors):
            self._refused(found)

    def _well(self, found: _Answer) -> None:
        """Raise SlurmError where this is no answer."""
        for _, why in found.errors:
            raise self._trouble(why)
        if found.status != 200:
            raise SlurmError(f"slurmrestd answers with HTTP {found.status}", GONE)

    def _rows(self, found: _Answer, key: str) -> list[Any]:
        """What it lists; no list is no answer, and does not say that there is nothing."""
        self._well(found)
        rows = found.body.get(key)
        if not isinstance(rows, list):
            raise SlurmError(f"slurmrestd answers without {key}", NO_ANSWER)
        return rows

    def _trouble(self, why: str) -> SlurmError:
        """Of a token that has expired Slurm says no more than that it cannot."""
        if self._expires is not None and self._expires < time.time():
            return SlurmError("the token of jwt_file has expired", TOKEN)
        return SlurmError(f"Slurm says: {why}", GONE)

    def _refused(self, found: _Answer) -> None:
        """Raise SlurmRefusedError where it says no, SlurmError where it could not be asked."""
        for code, why in found.errors:
            if code == HELD:
                continue
            if code in OURS or code in (1, -1) or code > 9000:
                raise SlurmRefusedError(why)
            raise self._trouble(why)
        if found.status >= 500:
            raise SlurmError(f"slurmrestd answers with HTTP {found.status}", GONE)

    async def _connected(self) -> None:
        """Know which version it speaks: the newest of those that are known here."""
        if self._version:
            return
        for version in range(NEWEST, OLDEST - 1, -1):
            found = await self._send("GET", f"/slurm/v0.0.{version}/ping")
            if found.status not in (404, 405):
                self._version = version
                return
        raise SlurmError(
            f"slurmrestd speaks none of the versions 0.0.{OLDEST} to 0.0.{NEWEST} of its API",
            f"start it with -s openapi/v0.0.{OLDEST}, or openapi/slurmctld in newer ones, or say "
            "commands = true in [backend]",
        )

    async def _ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> _Answer:
        await self._connected()
        found = await self._send(method, f"/slurm/v0.0.{self._version}/{path}", params, body)
        if found.status in (404, 405) and not found.body:  # another slurmrestd is there by now
            self._version = 0
            raise SlurmError(f"slurmrestd knows no {path.split('/', maxsplit=1)[0]} any more", GONE)
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
        if status in (301, 302, 303, 307, 308):  # whoever is there shall not have the token
            raise SlurmError(f"slurmrestd sends elsewhere (HTTP {status})", "mend backend.rest")
        if status in (401, 403):
            raise SlurmError(f"slurmrestd refuses the token (HTTP {status})", TOKEN)
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
        """Who asks. The file is small, and read each time: tokens are renewed beside the daemon."""
        if self._jwt_file is None:
            return {}
        try:
            token = (await asyncio.to_thread(self._jwt_file.read_text, "ascii")).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is no text"
            raise SlurmError(f"jwt_file: {why}", TOKEN) from None
        token = token.removeprefix("SLURM_JWT=")
        if not token.isascii() or not token.isprintable():
            raise SlurmError("jwt_file: is no token", TOKEN)
        self._expires = _expiry(token)
        user = {"X-SLURM-USER-NAME": self._user} if self._user else {}
        return {**user, "X-SLURM-USER-TOKEN": token}


async def _decoded(text: bytes, status: int) -> Mapping[str, Any]:
    """What an answer says. Raises SlurmError for what only somebody else can have said."""
    if not text:
        return {}
    try:
        if len(text) <= LONG:
            return json.decode(text, type=dict)
        return await asyncio.to_thread(json.decode, text, type=dict)
    except DecodeError:
        if status in (404, 405):  # slurmrestd says so of a version that it does not speak
            return {}
        raise SlurmError(f"slurmrestd says no JSON (HTTP {status})", NO_ANSWER) from None


def _expiry(token: str) -> float | None:
    """When a token expires, as it says itself; nobody here can check its signature."""
    middle = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        said = json.decode(urlsafe_b64decode(middle + "=" * (-len(middle) % 4)), type=dict)
    except (ValueError, DecodeError):
        return None
    return number(said.get("exp"))
