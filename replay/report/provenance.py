"""What stands in a replay's report on how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors.catalog import Choice, loads_class, run_times_class
from replay.logs.preemptible import recalls
from replay.run.arrays import Replayed
from replay.run.run import BASELINE, Settings, known_in_advance
from sia.policies import load
from sia.wording import counted, duration

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
    from_first = f"{duration(settings.warmup - begin)} from the first submission"
    warmup = f"{from_first}: {counted(before, 'job')} not measured"
    found = [
        ("Jobs", f"{len(replayed.log.submit):,}, submitted over {duration(end - begin)}"),
        ("Pools", f"{len(replayed.table.pools):,}"),
        ("GPUs", gpus),
        *senses(settings, [*replayed.outcomes]),
        ("Windows", ", ".join(map(duration, options.windows))),
        ("Warm-up", warmup if before else "none: every job is measured"),
        ("Reserve factor", f"{options.slack:g}"),
        ("Seed", str(settings.seed)),
        ("Version", f"sia {replayed.version}"),
    ]
    if lost := max(m["baseline_never_ended"] for m in replayed.measures.values()):
        found.append(("In no measure", f"{counted(lost, 'job')} that never ended under {BASELINE}"))
    if settings.closed_loop:
        found.append(("Closed loop", CLOSED_LOOP))
    if settings.cells is not None:
        found.append(("Cells", _cells(settings)))
    found += _stopping(replayed)
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
    """The quantiles by which load and run times are foreseen; None where there is none."""
    load_quantile, run_time_quantile = choice.load_quantile, choice.run_time_quantile
    if load_quantile is None:
        load_quantile = loads_class(choice.forecast).usual_quantile
    if run_time_quantile is None:
        run_time_quantile = run_times_class(choice.durations).usual_quantile
    return load_quantile, run_time_quantile


def senses(settings: Settings, labels: Sequence[str]) -> list[tuple[str, str]]:
    """By what loads and run times were foreseen, for whom that matters: titles and words."""
    lines: dict[tuple[str, str], list[str]] = {}
    for label in labels:
        try:
            choice = settings.choice(label)
            needs = load(choice.policy).needs
        except KeyError:  # a schedule from elsewhere
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
            words = f"lends less where more than {choice.guard:g} % of a pool's jobs were slowed"
            lines.setdefault(("Share controller", words), []).append(label)
    order = ("Load forecast", "Run times", "Share controller")
    found = [(title, f"{words} ({', '.join(who)})") for (title, words), who in lines.items()]
    return sorted(found, key=lambda line: order.index(line[0]))


def _at(quantile: float | None) -> str:
    """A quantile in words."""
    return "" if quantile is None else f", meant to hold {100 * quantile:g} times in 100"


def _stopping(replayed: Replayed) -> list[tuple[str, str]]:
    """What stopping jobs costs those policies that do, and who did not have to."""
    who = [name for name, o in replayed.outcomes.items() if o.schedule.segments is not None]
    spared = [n for n in who if recalls(n) and not replayed.measures[n]["interruptions"]]
    return stopping(replayed.settings, who) + (
        [("Stopped", f"no job had to be, under {', '.join(spared)}")] if spared else []
    )


def stopping(settings: Settings, who: Sequence[str]) -> list[tuple[str, str]]:
    """What stopping jobs costs those policies that do: titles and words."""
    if not who:
        return []
    options = settings.options
    cost = duration(options.resume_cost) if options.resume_cost else "nothing, the most to hope for"
    lines = [("Preemption", f"by {', '.join(who)}; to go on costs a job {cost}")]
    if settings.preemptible is not None:
        percent, seconds = settings.preemptible
        each = duration(seconds) if seconds else "nothing"
        words = f"; {percent:g} % of the jobs, drawn, may be stopped at a cost of {each} each"
        lines[0] = ("Preemption", f"by {', '.join(who)}{words}")
    if any(map(recalls, who)):
        part = f"up to {100 * options.recall:g} % of a window"
        lines.append(("Recall", f"stopping spare jobs is counted on where it costs {part}"))
    if any(name.partition("@")[0] == "las" for name in who):
        queues = ", ".join(map(duration, options.las_thresholds))
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
    perfect = loads_class(settings.forecast).needs_log
    perfect = perfect or run_times_class(settings.durations).needs_log
    avoidable = perfect and any("@" not in name for name in who)
    return {"who": who, "known": words, "avoidable": avoidable}


def _told(settings: Settings, label: str) -> list[str]:
    try:
        return known_in_advance(settings, label)
    except KeyError:  # a schedule from elsewhere: whatever it is, it was offered both
        return ["arrivals", "run times"]
