"""Why a job waits, runs or is over, in words."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.engine.guardrails import DRIFT, PERCENT
from daemon.engine.lending_budgets import HOURS
from daemon.model.book import JobRecord
from daemon.wire.explain import JobWhy, ObstacleView, PoolNotLending, WayView
from sia.explain.why import (
    EndingJob,
    Explanation,
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    Rival,
    RoomObstacle,
    StartPath,
    Width,
)
from sia.limits import MAX_GROUP
from sia.model import Stream
from sia.wording import counted, duration

NAMED = 3
"""Jobs that are named of those that would have to end: more make no line."""

MENDS = {
    HOURS: "sia pool set {} --lend-budget-hours none",
    PERCENT: "sia pool set {} --slowed-budget-pct none",
    DRIFT: 'drift = "say" in [daemon]',
}
"""What ends a reason for which a pool is kept from lending, where it does not end by itself."""

WAYS = {"turn": "in its turn", "spare": "on what others do not need"}


def needed(said: Explanation | JobWhy, now: float) -> list[str]:
    """What would have to go away for it to start, a line a way; the best first."""
    if said.exact and not said.obstacles:
        return ["nothing is in its way: it starts when it is looked at next"]
    ways: list[StartPath | WayView] = [*said.ways]
    ways.sort(key=lambda way: (way.obstacles != said.obstacles, len(way.obstacles)))
    lines = [_line(way, now) for way in ways if way.open and way.obstacles]
    lines += [_never(way.name, way.obstacles[0]) for way in ways if not way.open]
    if not any(way.open for way in said.ways):
        lines.append("it can never start as things are: it would take another quota, or fewer GPUs")
    return lines


def doubt(said: Explanation) -> list[str]:
    """Why what is said may not be all, or too much."""
    if said.exact:
        return []
    if not said.unknown:
        return ["there was too much to try: some of it might stay, or there may be more to it"]
    return [f"there may be more to it: {said.unknown} is not worked out"]


def _never(way: str, each: ObstacleView) -> str:
    """Why a way leads nowhere."""
    if isinstance(each, Width):
        most = "its pool's quota is" if way == "turn" else "the most that it could be lent is"
        needs = f"it needs {counted(each.gpus, 'GPU')}, and {most} {each.most:,}"
        return f"{WAYS[way]} it never starts: {needs}"
    if isinstance(each, Length) and each.run_time is not None:
        longest = f"nobody foresees more than {duration(each.longest)}"
        return f"nobody lends to it: it is thought to run {duration(each.run_time)}, and {longest}"
    return "nobody lends to it, as nothing is known of how long it runs: a time_limit would say"


def _line(way: StartPath | WayView, now: float) -> str:
    named = "; ".join(_word(each, now) for each in way.obstacles)
    return f"{WAYS[way.name]} it would start now, but for: {named}"


def _word(each: ObstacleView, now: float) -> str:
    """An obstacle; those that close a way are said by `_never`."""
    match each:
        case QuotaObstacle() | RoomObstacle():
            return _short(each, now)
        case LimitObstacle():
            return _limit(each)
        case PoolNotLending():
            return _kept(each)
        case Out():
            gpus = counted(each.gpus, "GPU")
            return f"{gpus} on nodes that are out: as many stay idle for owners (sia nodes)"
        case OrderObstacle() | Rival() | Reservation() | OtherPools():
            return _ahead(each)
    return ""


def _short(each: QuotaObstacle | RoomObstacle, now: float) -> str:
    """GPUs that are missing, and who would have to end where that is known."""
    if isinstance(each, QuotaObstacle):
        more = f"{counted(each.short, 'more GPU')} of {each.pool}'s quota"
        there = f"it has {each.left:,} of {each.quota:,} left"
    else:
        more, there = counted(each.short, "more idle GPU"), f"there are {each.idle:,}"
    return f"{more}: {_jobs(each.ends, now)}" if each.ends else f"{more} ({there})"


def _ahead(each: OrderObstacle | Rival | Reservation | OtherPools) -> str:
    """Who waits, or is foreseen, and goes first."""
    match each:
        case OrderObstacle():
            return f"{counted(each.jobs, 'job')} before it ({counted(each.gpus, 'GPU')})"
        case Rival():
            waiting = f"{counted(each.jobs, 'job')} of {each.pool}"
            return f"{waiting} ({counted(each.gpus, 'GPU')}), served first"
        case Reservation():
            return _reservation(each)
        case OtherPools():
            return _others(each)


def _others(each: OtherPools) -> str:
    if not each.held:
        waiting = f"{counted(each.jobs, 'job')}, {counted(each.gpus, 'GPU')}"
        return f"{counted(each.pools, 'other pool')}, served first ({waiting})"
    names = ", ".join(f"{gpus:,} for {name}" for name, gpus in each.largest if gpus)
    return (
        f"{counted(each.pools, 'other pool')}, served first or with GPUs held back for "
        f"{duration(each.window)} ({each.held:,} in all; most: {names or 'none'})"
    )


def _reservation(each: Reservation) -> str:
    causes = []
    if each.waiting:
        causes.append(f"jobs for {counted(each.waiting, 'GPU')} wait there")
    if each.load >= MAX_GROUP:
        causes.append("nobody knows yet what will be needed there")
    elif each.load:
        causes.append(f"{counted(each.load, 'GPU')} foreseen there")
    if each.keeps:
        causes.append("it lends nothing for so long")
    held = f"{counted(each.gpus, 'GPU')}" if each.gpus else "what is to be"
    return f"{held} held back for {each.pool} for {duration(each.window)} ({' and '.join(causes)})"


def _limit(each: LimitObstacle) -> str:
    if each.kind == "lending":
        return "lending, which is not on: sia lending on"
    if not each.pool:
        return "what other pools may lend, by limits or as they are kept from it (sia pool list)"
    option = f"sia pool set {each.pool} --{each.kind}-limit none"
    return f"{each.pool}'s limit: it may {each.kind} {counted(each.limit, 'GPU')} ({option})"


def _kept(each: PoolNotLending) -> str:
    """Why a pool lends nothing for now, and what ends that."""
    whys = [_with_mend(each.pool, reason, why) for reason, why in each.why.items() if why]
    if each.limit is not None:
        whys.append(_limit(LimitObstacle("lend", each.pool, each.limit)))
    return f"{each.pool} lends nothing for now" + (f": {', and '.join(whys)}" if whys else "")


def _with_mend(pool: str, reason: str, why: str) -> str:
    return f"{why} ({MENDS[reason].format(pool)})" if reason in MENDS else why


def _jobs(ends: Sequence[EndingJob], now: float) -> str:
    """Who would have to end, and when they are thought to."""
    gpus = sum(each.gpus for each in ends)
    named = ", ".join(_end(each, now) for each in ends[:NAMED])
    more = f" and {len(ends) - NAMED:,} more" if len(ends) > NAMED else ""
    return f"{gpus:,} come free with the end of {named}{more}"


def _end(each: EndingJob, now: float) -> str:
    if not each.job:
        return f"{counted(each.gpus, 'GPU')} of jobs of {each.pool}"
    name = f"job {each.job}"
    if each.end is None:
        return f"{name} (nobody knows when)"
    if each.late:
        return f"{name} (longer than was thought)"
    return f"{name} (in {duration(each.end - now)}, as is thought)"


def run_words(record: JobRecord) -> list[str]:
    """Why a job runs where it runs."""
    if record.stream is None:
        return []
    where = "in its pool's quota" if record.stream is Stream.DEDICATED else "on spare GPUs"
    lines = [f"it runs {where}: {record.reason}"]
    if record.loans:
        loans = ", ".join(f"{gpus:,} of {pool}" for pool, gpus in record.loans)
        lines.append(f"its GPUs are {loans}")
    if record.stop:
        lines.append(f"it is being ended: {record.stop}")
    return lines


def over_words(record: JobRecord) -> list[str]:
    """How a job ended."""
    how = [f"it is over: {record.phase.value}"]
    if record.why:
        how.append(record.why)
    if record.code is not None:
        how.append(f"exit code {record.code}")
    if record.signal:
        how.append(f"signal {record.signal}")
    return [", ".join(how)]
