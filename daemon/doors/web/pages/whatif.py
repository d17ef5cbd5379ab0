"""`/ui/whatif`: which jobs would start earlier or later after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import ROWS
from daemon.doors.web.ranges import page_query
from daemon.doors.web.tables import Column, Table, plain
from daemon.model.access import Rule
from daemon.wire.jobs import Label, ProblemDetails
from daemon.wire.problems import ProblemError
from daemon.wire.whatif import WhatIfAnswer
from sia.wording import parse_seconds

HERE = f"{UI}/whatif"

QUERY = (
    Parameter("job", Label, "Preset of the job.", default=""),
    Parameter("pool", Label, "Preset of the pool.", default=""),
)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not an integer; write one like 8") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number; write one like 1.5") from None


def _limit(text: str) -> int | None:
    return None if text == "none" else _whole(text)


Kind = Literal["pool", "job", "number", "duration", "limit"]
"""Kinds of inputs for a value of the form."""

DURATIONS = ("10m", "30m", "1h", "2h", "4h", "8h", "1d", "2d", "1w")
"""Suggested durations."""

HORIZONS = ("1h", "6h", "1d", "3d", "1w")
"""Durations of simulations that the form offers."""

SUGGESTED = 200
"""Maximum number of jobs and of nodes that the form suggests; others can be typed."""


class Field(NamedTuple):
    """A form field: the part of the request that it sets, its kind of input, and its parser."""

    name: str
    title: str
    of: str
    key: str
    kind: Kind
    read: Callable[[str], Any] = str
    hint: str = ""


FIELDS = (
    Field("new_pool", "Pool", "submit", "pool", "pool"),
    Field("new_gpus", "GPUs", "submit", "gpus", "number", _whole, "1"),
    Field("new_run_time", "Run time", "submit", "run_time", "duration", parse_seconds, "2h"),
    Field("new_time_limit", "Time limit", "submit", "time_limit", "duration", parse_seconds, "4h"),
    Field("job", "Job", "jobs", "job", "job"),
    Field("job_gpus", "GPUs", "jobs", "gpus", "number", _whole),
    Field("job_pool", "Pool", "jobs", "pool", "pool"),
    Field("job_priority", "Priority", "jobs", "priority", "number", _whole),
    Field("job_time_limit", "Time limit", "jobs", "time_limit", "duration", parse_seconds, "4h"),
    Field("pool", "Pool", "pools", "pool", "pool"),
    Field("quota", "Quota", "pools", "quota", "number", _whole),
    Field("lend_limit", "Lend limit", "pools", "lend_limit", "limit", _limit, "none"),
    Field("borrow_limit", "Borrow limit", "pools", "borrow_limit", "limit", _limit, "none"),
    Field("weight", "Weight", "pools", "weight", "number", _number, "1"),
)
"""Fields in the order of the form, grouped by `GROUPS`."""

GROUPS = {"submit": "A new job", "jobs": "Change a job", "pools": "Change a pool"}


class WhatIfPages(PageSet):
    """The what-if form and its answer."""

    menu = ((HERE, "What if"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", HERE, Rule.VIEW, self.form, "What-if form.", {200: HTML},
                parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "POST", HERE, Rule.VIEW, self.ask, "Answer of a what-if request.", {200: HTML},
                refusals=(404, 409, 413, 422),
            ),
        ]  # fmt: skip

    async def form(self, request: web.Request) -> web.Response:
        """Render the empty form."""
        return await self._page(request, page_query(request, QUERY))

    async def ask(self, request: web.Request) -> web.Response:
        """Render the form as it was submitted, with the answer or the problem."""
        given = {name: text.strip() for name, text in (await form_of(request)).items()}
        try:
            answer = await self._pages.api.ask(request, "POST /v1/whatif", body=question(given))
        except ValueError as error:
            problem = ProblemDetails("", "invalid", 422, str(error))
            return await self._page(request, given, problem=problem)
        except ProblemError as error:
            return await self._page(request, given, problem=error.details)
        return await self._page(request, given, answer=answer)

    async def _page(
        self,
        request: web.Request,
        given: Mapping[str, str],
        *,
        answer: WhatIfAnswer | None = None,
        problem: ProblemDetails | None = None,
    ) -> web.Response:
        suggested = await self._suggested(request)
        return await self._pages.page(
            request, "whatif.html", given=given, jobs=suggested["jobs"], nodes=suggested["nodes"],
            durations=DURATIONS, horizons=HORIZONS, tables=_tables(answer), answer=answer,
            problem=problem, groups=GROUPS, fields=FIELDS,
            status=200 if problem is None else problem.status,
        )  # fmt: skip

    async def _suggested(self, request: web.Request) -> dict[str, list[str]]:
        """Return ids of pending and running jobs, and names of nodes."""
        api, some = self._pages.api, {"limit": SUGGESTED // 2}
        jobs = [
            job.id
            for phase in ("pending", "running")
            for job in (await api.ask(request, "GET /v1/jobs", {**some, "phase": phase})).jobs
        ]
        nodes = (await api.ask(request, "GET /v1/nodes")).nodes
        return {"jobs": jobs, "nodes": [node.name for node in nodes[:SUGGESTED]]}


MOVED = (
    Column("job", "Job"),
    Column("pool", "Pool"),
    Column("gpus", "GPUs", number=True, term="width"),
    Column("now", "Without"),
    Column("then", "With"),
    Column("by", "By", number=True),
)
"""Columns of jobs that start or end at another time."""

ASKED = (
    Column("job", "Job"),
    Column("pool", "Pool"),
    Column("gpus", "GPUs", number=True, term="width"),
    Column("start_now", "Start without"),
    Column("end_now", "End without"),
    Column("start_then", "Start with"),
    Column("end_then", "End with"),
)
"""Columns of the jobs that the question names."""

SUMS = (
    Column("pool", "Pool"),
    Column("earlier", "Jobs earlier", number=True),
    Column("earlier_by", "by", number=True),
    Column("earlier_hours", "GPU-hours", number=True, term="GPU-hours"),
    Column("later", "Jobs later", number=True),
    Column("later_by", "by", number=True),
    Column("later_hours", "GPU-hours", number=True, term="GPU-hours"),
)
"""Columns of the sums by pool."""


def _tables(answer: WhatIfAnswer | None) -> dict[str, Table]:
    """Return the tables of an answer: the first `ROWS` rows of each."""
    if answer is None:
        return {}
    return {
        "asked": plain(ASKED, answer.jobs[:ROWS]),
        "sooner": plain(MOVED, answer.earlier[:ROWS]),
        "later": plain(MOVED, answer.later[:ROWS]),
        "sums": plain(SUMS, answer.pools[:ROWS]),
    }


def question(given: Mapping[str, str]) -> dict[str, Any]:
    """Convert the non-empty fields to the body of `/v1/whatif`.

    Raises ValueError, with the title of the field, if a value cannot be parsed.
    """
    params: dict[str, Any] = {}
    for field in FIELDS:
        if text := given.get(field.name):
            params.setdefault(field.of, [{}])[0][field.key] = _read(field.title, field.read, text)
    if given.get("job_cancel"):
        params.setdefault("jobs", [{}])[0]["cancel"] = True
    for job in params.get("submit", ()):
        job.setdefault("gpus", 1)
    if policy := given.get("policy"):
        params["policy"] = policy
    if node := given.get("drain"):
        params["drain"] = [node]
    if lending := given.get("lending"):
        params["lending"] = lending == "on"
    if horizon := given.get("horizon"):
        params["horizon"] = _read("Time to simulate", parse_seconds, horizon)
    return params


def _read(title: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from None
