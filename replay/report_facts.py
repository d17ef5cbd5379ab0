"""What stands in a replay's report on how it was made."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.replayed import Replayed
from replay.run import Settings, known_in_advance
from replay.text import counted, duration
from replay.words import around
from sia.policies import load

FORESIGHT = {
    "perfect": "perfect: the load of the next windows was read from the log itself",
    "sliding-max": "sliding-max: the highest load seen in recent windows",
    "random": "random: a coin decides whether load arrives",
    "none": "none: no load was foreseen",
}

RUN_TIMES = {
    "perfect": "perfect: each job's run time was read from the log itself",
    "random": "random: a duration bin was drawn for each job",
    "history": "history: guessed from earlier jobs of the same name, or user, pool and width",
}


CLOSED_LOOP = (
    "each job of a user comes as much earlier or later as the one before ended; every policy "
    "brings about a log of its own, and is compared with the baseline on that log"
)


def facts(replayed: Replayed) -> list[tuple[str, str]]:
    """What was replayed, and with which options: labels and words."""
    settings, options = replayed.settings, replayed.settings.options
    quotas = replayed.table.quotas().values()
    gpus = f"{sum(max(quota for _, quota in steps) for steps in quotas):,}"
    if replayed.table.changes:
        gpus += f", each pool at its largest ({len(replayed.table.changes):,} changes of size)"
    begin, end = replayed.range()
    before = int(np.count_nonzero(replayed.log.submit < settings.warmup))
    from_first = f"{around(settings.warmup - begin)} from the first submission"
    warmup = f"{from_first}: {counted(before, 'job')} not measured"
    found = [
        ("Jobs", f"{len(replayed.log.submit):,}, submitted over {duration(end - begin)}"),
        ("Pools", f"{len(replayed.table.pools):,}"),
        ("GPUs", gpus),
        *_senses(replayed),
        ("Windows", ", ".join(map(around, options.windows))),
        ("Warm-up", warmup if before else "none: every job is measured"),
        ("Reserve factor", f"{options.slack:g}"),
        ("Seed", str(settings.seed)),
        ("Version", f"sia {replayed.version}"),
    ]
    if settings.closed_loop:
        found.append(("Closed loop", CLOSED_LOOP))
    found += _stopping(replayed)
    if options.spare_priority:
        ranks = sorted(options.spare_priority.items(), key=lambda item: (-item[1], item[0]))
        found.append(("Spare priority", ", ".join(f"{pool}: {rank}" for pool, rank in ranks)))
    if options.no_lending:
        pairs = (f"{pool} ({around(window)})" for pool, window in sorted(options.no_lending))
        found.append(("Lending off", ", ".join(pairs)))
    return found


def _senses(replayed: Replayed) -> list[tuple[str, str]]:
    """By what loads and run times were foreseen, for whom that matters."""
    forecasts: dict[str, list[str]] = {}
    durations: dict[str, list[str]] = {}
    for label in replayed.outcomes:
        try:
            choice = replayed.settings.choice(label)
            needs = load(choice.policy).needs
        except KeyError:  # a schedule from elsewhere
            continue
        if needs.loads:
            forecasts.setdefault(choice.forecast, []).append(label)
        if needs.run_times:
            durations.setdefault(choice.durations, []).append(label)
    recent = f", {replayed.settings.recent} windows back"
    return [
        *(
            (
                "Load forecast",
                f"{FORESIGHT[name]}{recent if name == 'sliding-max' else ''} ({', '.join(who)})",
            )
            for name, who in forecasts.items()
        ),
        *(
            ("Run times", f"{RUN_TIMES[name]} ({', '.join(who)})")
            for name, who in durations.items()
        ),
    ]


def _stopping(replayed: Replayed) -> list[tuple[str, str]]:
    """What stopping jobs costs those policies that do."""
    options = replayed.settings.options
    who = [name for name, o in replayed.outcomes.items() if o.schedule.segments is not None]
    if not who:
        return []
    cost = around(options.resume_cost) if options.resume_cost else "nothing, the most to hope for"
    lines = [("Preemption", f"by {', '.join(who)}; to go on costs a job {cost}")]
    if any(name.partition("@")[0] == "las" for name in who):
        queues = ", ".join(map(around, options.las_thresholds))
        promote = f"promoted after waiting {options.las_promote:g} times the run"
        lines.append(("LAS", f"queues end at GPU-times of {queues}; {promote}"))
    return lines


def foreseen(replayed: Replayed) -> dict[str, Any] | None:
    """Which foreknowledge was perfect, and which of the policies made use of it."""
    told = {name: _told(replayed.settings, name) for name in replayed.outcomes}
    who = [name for name, known in told.items() if known]
    if not who:
        return None
    known = [
        ("the load to come", any("arrivals" in words for words in told.values())),
        ("how long jobs run", any("run times" in words for words in told.values())),
    ]
    words = " and ".join(words for words, perfect in known if perfect)
    settings = replayed.settings
    perfect = "perfect" in (settings.forecast, settings.durations)
    avoidable = perfect and any("@" not in name for name in who)
    return {"who": who, "known": words, "avoidable": avoidable}


def _told(settings: Settings, label: str) -> list[str]:
    try:
        return known_in_advance(settings, label)
    except KeyError:  # a schedule from elsewhere: whatever it is, it was offered both
        return ["arrivals", "run times"]
