"""The report's section on settings: log, options and predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors.catalog import Choice, loads_class, run_times_class
from replay.logs.preemptible import recalls
from replay.run.arrays import Replayed
from replay.run.run import BASELINE, Settings, known_in_advance
from sia.contract.labels import name_of
from sia.model import NEVER_STOPPED, StopCost
from sia.policies import load
from sia.wording import counted, duration

CLOSED_LOOP = (
    "each job of a user is submitted earlier or later by as much as the user's previous job ended "
    "earlier or later; every policy is compared with the baseline on its own submissions"
)


def facts(replayed: Replayed) -> list[tuple[str, str]]:
    """Return the log, the options and the predictors of a replay as (title, text)."""
    settings, options = replayed.settings, replayed.settings.options
    quotas = replayed.table.quotas().values()
    gpus = f"{sum(max(quota for _, quota in steps) for steps in quotas):,}"
    if replayed.table.changes:
        gpus += f", counting each pool's largest quota ({len(replayed.table.changes):,} changes)"
    begin, end = replayed.range()
    before = int(np.count_nonzero(replayed.log.submit < settings.warmup))
    from_first = f"{duration(settings.warmup - begin)} from the first submission"
    warmup = f"{from_first}: {counted(before, 'job')} excluded from the measures"
    found = [
        ("Jobs", f"{len(replayed.log.submit):,}, submitted over {duration(end - begin)}"),
        ("Pools", f"{len(replayed.table.pools):,}"),
        ("GPUs", gpus),
        *predictors_of(settings, [*replayed.outcomes]),
        ("Windows", ", ".join(map(duration, options.windows))),
        ("Warm-up", warmup if before else "none: every job is measured"),
        ("Reservation factor", f"{options.slack:g}"),
        ("Seed", str(settings.seed)),
        ("Version", f"sia {replayed.version}"),
    ]
    if lost := max(m["baseline_never_ended"] for m in replayed.measures.values()):
        found.append(("Not measured", f"{counted(lost, 'job')} that never ended under {BASELINE}"))
    if settings.closed_loop:
        found.append(("Closed loop", CLOSED_LOOP))
    if settings.cells is not None:
        found.append(("Cells", _cells(settings)))
    found += _preemption_costs(replayed)
    if options.spare_priority:
        ranks = sorted(options.spare_priority.items(), key=lambda item: (-item[1], item[0]))
        found.append(("Spare priority", ", ".join(f"{pool}: {rank}" for pool, rank in ranks)))
    if options.no_lending:
        pairs = (f"{pool} ({duration(window)})" for pool, window in sorted(options.no_lending))
        found.append(("Lending off", ", ".join(pairs)))
    return found


IN_CELLS = "a job's GPUs are close together; GPUs left over by rounding its width up stay unused"
"""What cells mean for jobs."""


def _cells(settings: Settings) -> str:
    """Describe the cells of a replay."""
    assert settings.cells is not None, "there are cells"
    nodes = sum(len(top.nodes) for top in settings.cells.tops)
    return f"{counted(nodes, 'node')}; {IN_CELLS}"


def quantiles(choice: Choice) -> tuple[float | None, float | None]:
    """The quantiles of the load and run-time forecasts; None if a forecast has none."""
    load_quantile, run_time_quantile = choice.load_quantile, choice.run_time_quantile
    if load_quantile is None:
        load_quantile = loads_class(choice.forecast).usual_quantile
    if run_time_quantile is None:
        run_time_quantile = run_times_class(choice.durations).usual_quantile
    return load_quantile, run_time_quantile


def predictors_of(settings: Settings, labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return the predictors of the policies that use them, as (title, text)."""
    lines: dict[tuple[str, str], list[str]] = {}
    for label in labels:
        try:
            choice = settings.choice(label)
            needs = load(choice.policy).needs
        except KeyError:  # the policy is not installed here
            continue
        load_quantile, run_time_quantile = quantiles(choice)
        if needs.loads:
            how = loads_class(choice.forecast).describe(choice.load_quantile, settings.recent)
            words = f"{choice.forecast}: {how}{_at(load_quantile)}"
            lines.setdefault(("Load forecast", words), []).append(label)
        if needs.run_times:
            asked = choice.run_time_quantile
            how = run_times_class(choice.durations).describe(asked, settings.recent)
            words = f"{choice.durations}: {how}{_at(run_time_quantile)}"
            lines.setdefault(("Run times", words), []).append(label)
        if needs.loads and choice.guard is not None:
            words = f"reduces lending when over {choice.guard:g} % of a pool's jobs were slowed"
            lines.setdefault(("Share controller", words), []).append(label)
    order = ("Load forecast", "Run times", "Share controller")
    found = [(title, f"{words} ({', '.join(who)})") for (title, words), who in lines.items()]
    return sorted(found, key=lambda line: order.index(line[0]))


def _at(quantile: float | None) -> str:
    """Format a quantile as a phrase."""
    return "" if quantile is None else f", {quantile:g} quantile"


def _preemption_costs(replayed: Replayed) -> list[tuple[str, str]]:
    """Return the cost of preemption, and the policies that did not preempt any job."""
    who = [name for name, o in replayed.outcomes.items() if o.schedule.segments is not None]
    spared = [n for n in who if recalls(n) and not replayed.measures[n]["interruptions"]]
    return preemption_costs(replayed.settings, who) + (
        [("Not preempted", f"no job under {', '.join(spared)}")] if spared else []
    )


def preemption_costs(settings: Settings, who: Sequence[str]) -> list[tuple[str, str]]:
    """Return the cost of preemption for the policies in `who`, as (title, text)."""
    if not who:
        return []
    options = settings.options
    cost = duration(options.resume_cost) if options.resume_cost else "nothing, the best case"
    lines = [("Preemption", f"by {', '.join(who)}; resuming costs a job {cost}")]
    if settings.preemptible is not None:
        percent, each = settings.preemptible
        words = f"; a random {percent:g} % of the jobs {_stops(each)}"
        lines[0] = ("Preemption", f"by {', '.join(who)}{words}")
    for label in filter(recalls, who):
        part = f"up to {100 * settings.policy(label).params.recall:g} % of a window"
        lines.append(("Recall", f"relies on preempting spare jobs if this costs {part}"))
    for label in [name for name in who if name_of(name) == "las"]:
        las = settings.policy(label).params
        queues = ", ".join(map(duration, las.thresholds))
        promote = f"a job is promoted after waiting {las.promote:g} times its run time"
        lines.append(("LAS", f"queue thresholds at GPU-times of {queues}; {promote}"))
    return lines


def future_known(replayed: Replayed) -> dict[str, Any] | None:
    """Return which future facts were known, and to which policies; None if to none."""
    known_to = {name: _known_to(replayed.settings, name) for name in replayed.outcomes}
    who = [name for name, known in known_to.items() if known]
    if not who:
        return None
    known = [
        ("future load", any("arrivals" in words for words in known_to.values())),
        ("run times", any("run times" in words for words in known_to.values())),
    ]
    words = " and ".join(words for words, perfect in known if perfect)
    settings = replayed.settings
    perfect = loads_class(settings.forecast).needs_log
    perfect = perfect or run_times_class(settings.durations).needs_log
    avoidable = perfect and any("@" not in name for name in who)
    return {"who": who, "known": words, "avoidable": avoidable}


def _known_to(settings: Settings, label: str) -> list[str]:
    try:
        return known_in_advance(settings, label)
    except KeyError:  # the policy is not installed here: assume the worst
        return ["arrivals", "run times"]


def _stops(cost: StopCost) -> str:
    """Describe what each stop costs a job."""
    if cost == NEVER_STOPPED:
        return "must never be stopped"
    if isinstance(cost, str):
        return "is preemptible and loses all of its work at each stop"
    return f"is preemptible, at a cost of {duration(cost) if cost else 'nothing'} each"
