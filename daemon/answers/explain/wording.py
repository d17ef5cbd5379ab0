"""Sentences that explain why a job is pending, runs or has ended."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.engine.guardrails import DRIFT, MINUTES, PERCENT
from daemon.engine.lending_budgets import HOURS
from daemon.model.book import JobRecord, Progress
from daemon.model.job import JobPhase
from daemon.wire.explain import (
    JobWhy,
    ObstacleView,
    OutlookView,
    PoolNotLending,
    TurnView,
    WayView,
)
from sia.contract.policy import Awaited
from sia.explain.obstacles import (
    EarlyObstacle,
    EndingJob,
    Explanation,
    GuestObstacle,
    LeastTime,
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    Rival,
    RoomObstacle,
    RoundObstacle,
    StartPath,
    TurnOnly,
    Width,
)
from sia.limits import MAX_GROUP
from sia.model import Stream
from sia.wording import HOUR, counted, duration

NAMED = 3
"""Maximum number of jobs that a line names of those that would have to end, to keep it short."""

REMEDIES = {
    HOURS: "sia pool set {} --lend-budget-hours none",
    PERCENT: "sia pool set {} --slowed-budget-pct none",
    MINUTES: "sia pool set {} --slowed-budget-minutes none",
    DRIFT: 'drift = "say" in [daemon]',
}
"""Commands and settings that let a pool lend again, by reason; other reasons end by themselves."""

TURN_ONLY = {
    "stops": "it was stopped as often as the policy allows (option stops)",
    "hard": "it must not be stopped, and the policy has the option hard",
}
"""Why a job starts at its turn only, by the reason of `TurnOnly`."""

WAYS = {"turn": "within its pool's quota", "spare": "on spare GPUs"}


def needed(explanation: Explanation | JobWhy, now: float) -> list[str]:
    """Return a line for each way to start a pending job, with its obstacles; the best way first."""
    if explanation.exact and not explanation.obstacles:
        return ["It has no obstacle, and starts in the next scheduling pass"]
    ways: list[StartPath | WayView] = [*explanation.ways]
    ways.sort(
        key=lambda way: (way.obstacles != explanation.obstacles, not way.exact, len(way.obstacles))
    )
    lines: list[str] = []
    for way in (way for way in ways if way.open and way.obstacles):
        begin = f"Or it could start {WAYS[way.name]}, waiting" if lines else "Waiting"
        lines.append(f"{begin} for {'; and for '.join(_word(o, now) for o in way.obstacles)}")
    lines += [_never(way.name, way.obstacles) for way in ways if not way.open]
    if not any(way.open for way in explanation.ways):
        lines.append("It can never start as things are: it needs a larger quota, or fewer GPUs")
    return lines


def doubt(explanation: Explanation, awaited: Awaited | None, now: float) -> list[str]:
    """Return a line on what else may keep a job waiting, or nothing if the obstacles are exact.

    `awaited` is what the job waits for by the policy's own rules, if these determine it. That also
    holds where a simulation has confirmed obstacles without which the job would start at once.
    """
    starts_now = explanation.exact and not explanation.obstacles
    if starts_now or not any(way.open for way in explanation.ways):
        return []
    if awaited is not None:
        when = "" if awaited.at is None else f" (in {duration(max(0.0, awaited.at - now))})"
        return [f"By the rules of the policy, it waits for {awaited.what}{when}"]
    if not explanation.obstacles:
        return ["It has no known obstacle, and waits for the policy's next decision"]
    if explanation.exact or any(isinstance(each, RoundObstacle) for each in explanation.obstacles):
        return []
    return ["There may be other obstacles: no simulation has confirmed this list"]


def _never(way: str, obstacles: Sequence[ObstacleView]) -> str:
    """Return why a job can never start in this way."""
    (only,) = obstacles
    if isinstance(only, TurnOnly):
        return f"It starts at its turn only: {TURN_ONLY[only.why]}"
    assert isinstance(only, Width), "no other obstacle closes a way"
    most = "the quota is" if way == "turn" else "the most that could be lent to it is"
    needs = f"it needs {counted(only.gpus, 'GPU')}, and {most} {only.most:,}"
    return f"It can never start {WAYS[way]}: {needs}"


def _word(each: ObstacleView, now: float) -> str:
    """Return an obstacle as a phrase that follows "Waiting for"."""
    match each:
        case QuotaObstacle() | RoomObstacle():
            return _short(each, now)
        case LimitObstacle() | PoolNotLending():
            return _limit(each) if isinstance(each, LimitObstacle) else _not_lending(each)
        case Out() | RoundObstacle() | EarlyObstacle():
            return _later(each, now)
        case Length() | LeastTime():
            return _length(each)
        case OrderObstacle() | GuestObstacle() | Rival() | Reservation() | OtherPools():
            return _ahead(each)
    return ""


def _later(each: Out | RoundObstacle | EarlyObstacle, now: float) -> str:
    """Return a phrase for GPUs of nodes that are out, the next round, or the job's turn."""
    if isinstance(each, EarlyObstacle):
        return f"its turn: until then a job of priority {each.priority} may need its GPUs"
    if isinstance(each, Out):
        gpus = counted(each.gpus, "GPU")
        return f"{gpus} on nodes that are out: as many others stay idle for owners (sia nodes)"
    begins = duration(max(0.0, each.begins - now))
    return f"its round: who runs is decided when a round begins, the next one in {begins}"


def _short(each: QuotaObstacle | RoomObstacle, now: float) -> str:
    """Return the number of missing GPUs and, if known, the jobs that would have to end."""
    if isinstance(each, QuotaObstacle):
        more, there = counted(each.short, "more GPU"), f"{each.pool} has {each.left:,}"
        there += f" of {each.quota:,} free"
    else:
        more = counted(each.short, "more idle GPU")
        there = f"its sharing group has {each.idle:,} idle"
    return f"{more}: {there}" + (f", {_jobs(each.ends, now)}" if each.ends else "")


def _length(each: Length | LeastTime) -> str:
    if isinstance(each, LeastTime):
        asked = f"{duration(each.min_run_time)} is asked for"
        return f"a minimum run time of {duration(each.longest)} or less: {asked}"
    limit = f"a time limit of {duration(each.longest)} or less"
    if each.run_time is None:
        return f"a known run time: give it {limit}"
    return f"a shorter run time: {duration(each.run_time)} is expected; give it {limit}"


def _ahead(
    each: OrderObstacle | GuestObstacle | Rival | Reservation | OtherPools,
) -> str:
    """Return a phrase for jobs or reservations that come before the job."""
    match each:
        case OrderObstacle():
            return f"{counted(each.jobs, 'job')} ahead of it ({counted(each.gpus, 'GPU')})"
        case GuestObstacle():
            more = "" if each.jobs == 1 else f" and {counted(each.jobs - 1, 'other guest')}"
            gpus = counted(each.gpus, "GPU")
            return f"its pool's guest {each.first}{more} to end: placed before it ({gpus})"
        case Rival():
            jobs, gpus = counted(each.jobs, "pending job"), counted(each.gpus, "GPU")
            return f"{jobs} of pool {each.pool}, served first ({gpus})"
        case Reservation():
            return _reservation(each)
        case OtherPools():
            return _others(each)


def _others(each: OtherPools) -> str:
    pools = counted(each.pools, "other pool")
    if not each.held:
        pending = f"{counted(each.jobs, 'pending job')}, {counted(each.gpus, 'GPU')}"
        return f"{pools} with jobs that are served first ({pending})"
    names = ", ".join(f"{gpus:,} for {name}" for name, gpus in each.largest if gpus)
    reserved = f"{counted(each.held, 'GPU')} reserved for {duration(each.window)}"
    return f"{pools} with {reserved} (most: {names})"


def _reservation(each: Reservation) -> str:
    causes = []
    if each.waiting:
        causes.append(f"its pending jobs need {counted(each.waiting, 'GPU')}")
    if each.load >= MAX_GROUP:
        causes.append("no forecast of its demand is ready yet")
    elif each.load:
        causes.append(f"the forecast is {counted(each.load, 'GPU')}")
    held = f"{counted(each.gpus, 'GPU')} reserved for pool {each.pool} for {duration(each.window)}"
    return f"{held} ({' and '.join(causes)})"


def _limit(each: LimitObstacle) -> str:
    if each.kind == "lending":
        return "lending, which is off: sia lending on"
    if not each.pool:
        return "other pools to lend more: limits or guard rails prevent it (sia pool list)"
    option = f"sia pool set {each.pool} --{each.kind}-limit none"
    return f"a limit of {each.pool}: it may {each.kind} {counted(each.limit, 'GPU')} ({option})"


def _not_lending(each: PoolNotLending) -> str:
    """Return a phrase that a pool does not lend now, why, and what lets it lend again."""
    whys = [_with_remedy(each.pool, reason, why) for reason, why in each.why.items() if why]
    if each.limit is not None:
        whys.append(_limit(LimitObstacle("lend", each.pool, each.limit)))
    return f"pool {each.pool} to lend again" + (f": {', and '.join(whys)}" if whys else "")


def _with_remedy(pool: str, reason: str, why: str) -> str:
    return f"{why} ({REMEDIES[reason].format(pool)})" if reason in REMEDIES else why


def _jobs(ends: Sequence[EndingJob], now: float) -> str:
    """Return a phrase that names the jobs whose ends free GPUs, and their expected ends."""
    named = ", ".join(_end(each, now) for each in ends[:NAMED])
    more = f" and {len(ends) - NAMED:,} more" if len(ends) > NAMED else ""
    gpus = counted(sum(each.gpus for each in ends), "GPU")
    freed = "comes" if gpus == counted(1, "GPU") else "come"
    return f"{gpus} {freed} free when {named}{more} {'ends' if len(ends) == 1 else 'end'}"


def _end(each: EndingJob, now: float) -> str:
    if not each.job:
        return f"jobs of {each.pool} ({counted(each.gpus, 'GPU')})"
    if each.end is None:
        return f"job {each.job} (at an unknown time)"
    if each.late or each.end < now:
        return f"job {each.job} (later than expected already)"
    return f"job {each.job} (expected in {duration(each.end - now)})"


def _progress(progress: Progress, now: float) -> str:
    """Return a line with the last progress report of a running job."""
    speed = "" if progress.speed == 1.0 else f" at {progress.speed:g} times its nominal speed"
    regime = "" if progress.regime is None else f" in regime {progress.regime}"
    ago = duration(max(0.0, now - progress.at))
    words = f"it reported {ago} ago that {progress.done:.1%} of its work is done{speed}{regime}"
    if progress.end is None:
        return words
    if progress.end > now:
        return f"{words}, so it ends in about {duration(progress.end - now)}"
    return f"{words}, so it should have ended {duration(now - progress.end)} ago"


def run_words(record: JobRecord, now: float) -> list[str]:
    """Return lines on why a job was started, its loans, its progress and why it is being ended."""
    if record.stream is None:
        return []
    where = "in its pool's quota" if record.stream is Stream.DEDICATED else "on spare GPUs"
    lines = [f"it runs {where}: {record.reason}"]
    if record.trial is not None:
        gpus = counted(record.gpus, "GPU")
        lines.append(f"it is in a trial on {gpus}; if it does not end there, its work is lost")
    if record.loans:
        loans = ", ".join(f"{gpus:,} of {pool}" for pool, gpus in record.loans)
        lines.append(f"its GPUs are {loans}")
    if record.progress is not None:
        lines.append(_progress(record.progress, now))
    if record.stop:
        lines.append(f"it is being ended: {record.stop}")
    return lines


def turn_words(
    turn: TurnView | None, now: float, *, running: bool, stoppable: bool = True
) -> list[str]:
    """Return lines on when a job's turn comes or came, and whether it can be stopped until then.

    A job that is not `stoppable` says itself that it must not be stopped.
    """
    if turn is None:
        return []
    alone = "its turn, which is its start in its pool alone,"
    if turn.came:
        ago = duration(max(0.0, now - (now if turn.time is None else turn.time)))
        stays = "; it will not be stopped for other jobs" if running else ""
        return [f"{alone} came {ago} ago{stays}"]
    when = (
        "comes at an unknown time"
        if turn.time is None
        else f"is expected in {duration(max(0.0, turn.time - now))}"
    )
    if turn.guest:
        stopped = (
            "until then it may be stopped when the turn of another job comes"
            if stoppable
            else "it will not be stopped before, because its preemptible does not allow it"
        )
        return [f"it is a guest: {alone} {when}; {stopped}"]
    return [f"{alone} {when}"]


def outlook_words(outlook: OutlookView | None, now: float) -> list[str]:
    """Return lines on a job's weight, its next rounds by the plan, and expected changes."""
    if outlook is None:
        return []
    weight = (
        f"its weight is {outlook.weight:.3g}, number {outlook.place} of "
        f"{counted(outlook.jobs, 'job')} in its pool; its finish-time fairness is estimated as "
        f"{outlook.fairness:.2f}, where above 1 is unfair"
    )
    lines = [weight]
    lines.append(
        _plan_words(outlook, now)
        if outlook.plan
        else "no round is planned for it yet: the next plan, made when a round begins, includes it"
    )
    if outlook.other:
        lines.append(
            f"one more round for it would take one from job {outlook.other}, which would lose "
            f"{outlook.loss:.3g} times as much as it gains"
        )
    if outlook.changes_after:
        lines.append(
            f"after {duration(outlook.changes_after)} of work it is expected to run "
            f"{outlook.speed:.3g} times as fast"
        )
    return lines


def _plan_words(outlook: OutlookView, now: float) -> str:
    """Return a line that says when a job starts or is paused by the plan."""
    first, length = outlook.plan[0], len(outlook.plan)
    anew = "each arrival, end or change of a job makes a new plan"

    def at(rounds: int) -> str:
        return duration(max(0.0, outlook.begins + rounds * outlook.round - now))

    changes = next((t for t, runs in enumerate(outlook.plan) if runs != first), None)
    if changes is None:
        what = "goes on" if first else "does not run"
        return f"by the plan it {what} for the next {at(length)} at least; {anew}"
    if not first:
        return f"by the plan its next round begins in {at(changes)}; {anew}"
    rest = outlook.plan[changes:]
    again = duration(rest.index(1) * outlook.round) if 1 in rest else "the rest of the plan"
    return f"by the plan it will be paused in {at(changes)} for {again}; {anew}"


def stop_words(record: JobRecord, most: int) -> list[str]:
    """Return lines on why a job is being stopped, or how often it was stopped and what it keeps.

    `most` is the maximum number of stops of a job; 0 means no limit.
    """
    work = f"{duration(record.kept)} of work" if record.kept else "no work"
    keeps = f"the daemon assumes that it keeps {work}"
    if record.phase is JobPhase.STOPPING:
        lines = [f"it is being stopped, and will start again later: {record.preempted}"]
        if record.forced:
            lines.append("its grace time is over, so the backend ends it")
        return lines
    if not record.stops:
        return []
    times = "once" if record.stops == 1 else f"{record.stops:,} times"
    lines = [f"it was stopped {times}, the last time because {record.preempted}; {keeps}"]
    if 0 < most <= record.stops - record.trials:
        lines.append(f"it will not be stopped again: stops_per_job = {most:,} in [daemon]")
    return lines


def stop_limit_words(stops: Sequence[float], most: int, now: float) -> list[str]:
    """Return a line if the hourly limit on stops prevents stops for pending jobs.

    `stops` are the times of recent stops, in order, and `most` is the limit; 0 means none.
    """
    recent = [time for time in stops if time > now - HOUR]
    if not most or len(recent) < most:
        return []
    again = duration(recent[-most] + HOUR - now)
    return [f"No job is stopped for it in the next {again}: stops_per_hour = {most:,} in [daemon]"]


def over_words(record: JobRecord) -> list[str]:
    """Return lines on how a job ended."""
    how = [f"it is over: {record.phase.value}"]
    if record.why:
        how.append(record.why)
    if record.code is not None:
        how.append(f"exit code {record.code}")
    if record.signal:
        how.append(f"signal {record.signal}")
    return [", ".join(how)]
