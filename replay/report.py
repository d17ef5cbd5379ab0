"""The report of a replay: one HTML file that needs nothing else, not even a script.

Names of pools and policies, job ids and notes come from strangers: the template escapes them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from replay import figures
from replay.figures import TIMES, Floats, Look, SlowedBars, Steps, TimeLine
from replay.limits import POOLS_DRAWN
from replay.run import BASELINE, Settings, known_in_advance
from replay.schedule import Result, Schedule
from replay.summary import span
from replay.text import NONE, decimal, duration, percent
from replay.trace import PoolTable, Trace
from sia.limits import SLOWED
from sia.policies import load

WORST_SHOWN = 10
"""Slowed jobs named one by one: enough to look into, few enough to read."""

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


class Row(NamedTuple):
    """A row of a table: its policy or pool, and the other cells."""

    name: str
    cells: Sequence[str]


class Slowed(NamedTuple):
    """One job that a policy made end later than in the baseline."""

    policy: str
    job_id: str
    pool: str
    width: str
    submit: str
    alone: str
    shared: str
    later: str
    minutes: str


class Log(NamedTuple):
    """The jobs of a trace, by position; `pool` is their pool's place in the table."""

    submit: Floats
    width: Floats
    duration: Floats
    pool: NDArray[np.int64]


class Outcome(NamedTuple):
    """One schedule against the baseline, by position in its log; JCTs only where `measured`."""

    trace: Trace
    log: Log
    schedule: Schedule
    starts: Floats
    ends: Floats
    jct: Floats
    baseline_jct: Floats
    measured: NDArray[np.bool_]
    slowed: NDArray[np.bool_]
    lost: int
    """Jobs that end in the baseline and never here."""


class Replayed:
    """All that a replay gave, as arrays."""

    def __init__(
        self,
        table: PoolTable,
        settings: Settings,
        summary: Mapping[str, Any],
        results: Sequence[Result],
    ) -> None:
        """O(jobs · policies)."""
        first = results[0]
        self.trace = first.loop.log if first.loop else first.trace
        self.table, self.settings = table, settings
        self.version = str(summary["version"])
        self.measures: Mapping[str, Mapping[str, Any]] = summary["policies"]
        self.log = self._log(self.trace)
        self.outcomes = {result.schedule.policy: self._outcome(result) for result in results}
        self.looks = figures.looks(self.outcomes, BASELINE)
        self.sharing = [
            name
            for name, outcome in self.outcomes.items()
            if shares(name, lent=bool(outcome.schedule.loans))
        ]

    def _log(self, trace: Trace) -> Log:
        jobs = [arrival.job for arrival in trace.arrivals]
        place = {pool.name: i for i, pool in enumerate(self.table.pools)}
        return Log(
            submit=_floats([job.submit for job in jobs]),
            width=_floats([job.width for job in jobs]),
            duration=_floats([arrival.duration for arrival in trace.arrivals]),
            pool=np.asarray([place[job.pool] for job in jobs], dtype=np.int64),
        )

    def _outcome(self, result: Result) -> Outcome:
        trace, baseline, schedule = result[:3]
        log = self.log if trace is self.trace else self._log(trace)
        base = _floats(baseline.ends)
        starts, ends = _floats(schedule.starts), _floats(schedule.ends)
        jct, baseline_jct = ends - log.submit, base - log.submit
        measured = (log.submit >= self.settings.warmup) & (jct > 0) & ~np.isnan(baseline_jct)
        slowed = measured & (jct - baseline_jct > SLOWED)
        lost = int(np.count_nonzero(np.isnan(ends) & ~np.isnan(base)))
        return Outcome(
            trace, log, schedule, starts, ends, jct, baseline_jct, measured, slowed, lost
        )

    @cached_property
    def pools(self) -> list[int]:
        """Pools by the GPU-time that their jobs ask for, most first."""
        asked = self.by_pool(self.log, self.log.width * self.log.duration)
        names = [pool.name for pool in self.table.pools]
        return sorted(range(len(names)), key=lambda i: (-asked[i], names[i]))

    def by_pool(self, log: Log, weights: Floats | NDArray[np.bool_]) -> Floats:
        """The sum over each pool's jobs."""
        return np.bincount(log.pool, weights, len(self.table.pools)).astype(np.float64)

    def pool_name(self, place: int) -> str:
        """The name of the pool at that place of the table."""
        return self.table.pools[place].name

    def range(self) -> tuple[float, float]:
        """The time lines' first and last second; where all come at once, until the last end."""
        if not len(self.log.submit):
            return 0.0, 1.0
        begin, last = float(self.log.submit[0]), span(self.trace, self.settings)[1]
        shortest = max(1.0, begin * 1e-9)  # in which the floats still tell bins apart
        if last - begin >= shortest:
            return begin, last
        ends = [np.nanmax(o.ends, initial=begin) for o in self.outcomes.values()]
        return begin, max(begin + shortest, *map(float, ends))


def write_report(
    path: Path,
    table: PoolTable,
    settings: Settings,
    summary: dict[str, Any],
    results: Sequence[Result],
) -> None:
    """Write the report of a replay to `path`. Same input, same bytes."""
    replayed = Replayed(table, settings, summary, results)
    path.write_text(render(replayed), encoding="utf-8", errors="replace", newline="\n")


def render(replayed: Replayed) -> str:
    """The report as HTML."""
    trace = replayed.trace
    return page(
        "report.html",
        facts=_facts(replayed),
        dropped=[(reason, f"{n:,}") for reason, n in sorted(trace.dropped.items())],
        notes=trace.notes,
        foreseen=_foreseen(replayed),
        headlines=[_headline(replayed, name) for name in replayed.outcomes if name != BASELINE],
        sharing=replayed.sharing,
        styles=styles(replayed.looks),
        policies=list(replayed.outcomes),
        baseline=BASELINE,
        measures=[_measures_row(replayed, name) for name in replayed.outcomes],
        speedups=_speedups(replayed),
        slowed=_slowed(replayed),
        pools=_pools(replayed),
        times=_times(replayed),
        colours=figures.COLOURS,
    )


def page(template: str, **values: Any) -> str:
    """A page as HTML; what stands in `values` is escaped."""
    environment = Environment(
        loader=PackageLoader("replay"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def shares(label: str, *, lent: bool) -> bool:
    """Whether a policy shares; one that is not installed does if it `lent` anything."""
    try:
        return load(label.partition("@")[0]).shares
    except KeyError:  # a schedule from elsewhere
        return lent


def _told(settings: Settings, label: str) -> list[str]:
    try:
        return known_in_advance(settings, label)
    except KeyError:  # a schedule from elsewhere: whatever it is, it was offered both
        return ["arrivals", "run times"]


def styles(looks: Mapping[str, Look]) -> dict[str, dict[str, str]]:
    """How the page's keys show each policy."""
    return {
        name: {"colour": colour, "dash": " ".join(f"{2 * length:g}" for length in dash)}
        for name, (colour, dash) in looks.items()
    }


def speed(value: float | None) -> str:
    """A speed-up with about three digits, as `28.5x`."""
    if value is None:
        return NONE
    for least, digits in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{digits}f}{TIMES}"
    return f"{value:.2g}{TIMES}"


def hours(value: float) -> str:
    """GPU-hours, with digits after the point where there are few; some never show as none."""
    if 0 < value < 0.095:
        return f"{value:.1g}"
    return f"{value:,.1f}" if 0 < value < 99.95 else f"{value:,.0f}"


def minutes(value: float) -> str:
    """Minutes as a human would say them; a small time that is not zero never shows as zero."""
    return duration(value * 60) if value == 0 or value * 60 >= 1 else f"{value * 60:.2g} s"


def around(seconds: float) -> str:
    """A time that is likely round: `12 h` and not `12 h 0 m`."""
    return re.sub(r"(?<=\w) 0 [smh]$", "", duration(seconds))


def share(part: float, whole: float) -> str:
    """A part in percent, with a digit after the point."""
    value = 100 * part / whole
    return "under 0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def _jobs(count: int) -> str:
    return f"{count:,} job" if count == 1 else f"{count:,} jobs"


def _facts(replayed: Replayed) -> list[tuple[str, str]]:
    settings, options = replayed.settings, replayed.settings.options
    quotas = replayed.table.quotas().values()
    gpus = f"{sum(max(quota for _, quota in steps) for steps in quotas):,}"
    if replayed.table.changes:
        gpus += f", each pool at its largest ({len(replayed.table.changes):,} changes of size)"
    begin, end = replayed.range()
    before = int(np.count_nonzero(replayed.log.submit < settings.warmup))
    warmup = (
        f"{around(settings.warmup - begin)} from the first submission: {_jobs(before)} not measured"
    )
    facts = [
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
        facts.append(("Closed loop", CLOSED_LOOP))
    facts += _stopping(replayed)
    if options.spare_priority:
        ranks = sorted(options.spare_priority.items(), key=lambda item: (-item[1], item[0]))
        facts.append(("Spare priority", ", ".join(f"{pool}: {rank}" for pool, rank in ranks)))
    if options.no_lending:
        pairs = (f"{pool} ({around(window)})" for pool, window in sorted(options.no_lending))
        facts.append(("Lending off", ", ".join(pairs)))
    return facts


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
    facts = [("Preemption", f"by {', '.join(who)}; to go on costs a job {cost}")]
    if any(name.partition("@")[0] == "las" for name in who):
        queues = ", ".join(map(around, options.las_thresholds))
        promote = f"promoted after waiting {options.las_promote:g} times the run"
        facts.append(("LAS", f"queues end at GPU-times of {queues}; {promote}"))
    return facts


def _foreseen(replayed: Replayed) -> dict[str, Any] | None:
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


def _headline(replayed: Replayed, policy: str) -> dict[str, Any]:
    """What an operator wants to know first of a sharing policy."""
    m = replayed.measures[policy]
    if not m["measured"]:
        return {"policy": policy, "harmless": False, "words": "no job was measured", "more": []}
    words = (
        f"mean speed-up {speed(m['speedup_mean'])}, {m['slowed']:,} of {_jobs(m['measured'])} "
        "slowed"
    )
    if policy in replayed.sharing:
        words += f", {hours(m['gpu_hours_lent'])} GPU-hours lent"
    alone, shared = m["baseline_avg_jct_s"], m["avg_jct_s"]
    change = f"{share(abs(shared - alone), alone or inf)} {'more' if shared > alone else 'less'}"
    more = [
        f"Average completion time: {duration(shared)}, alone {duration(alone)} ({change}).",
        f"Speed-up of the median job {speed(m['speedup_p50'])}, of the best tenth at least",
        f"{speed(m['speedup_p90'])}.",
    ]
    if m["slowed"]:
        more.append(
            f"Slowed jobs end {minutes(m['slowdown_total_min'])} later in all, the worst of them "
            f"{minutes(m['slowdown_max_min'])}."
        )
    if lost := replayed.outcomes[policy].lost:
        more.append(f"{_jobs(lost)} never ended that would have alone; no measure has them.")
    return {"policy": policy, "harmless": not m["slowed"] + lost, "words": words, "more": more}


def _measures_row(replayed: Replayed, policy: str) -> Row:
    m = replayed.measures[policy]
    speeds = [m[f"speedup_{key}"] for key in ("mean", "geomean", "p5", "p50", "p90", "p95")]
    slowed = f"{percent(m['slowed_pct'])} %" if m["measured"] else NONE
    used = m["utilisation_pct"]
    return Row(
        policy,
        [
            *map(speed, speeds),
            duration(m["avg_jct_s"]),
            slowed,
            minutes(m["slowdown_total_min"]),
            minutes(m["slowdown_max_min"]),
            NONE if used is None else f"{decimal(used, 1)} %",
            hours(m["gpu_hours_lent"]) if policy in replayed.sharing else NONE,
        ],
    )


def _speedups(replayed: Replayed) -> Markup | None:
    speedups = {
        name: outcome.baseline_jct[outcome.measured] / outcome.jct[outcome.measured]
        for name, outcome in replayed.outcomes.items()
    }
    if not any(len(values) for values in speedups.values()):
        return None
    return inlined(figures.draw_speedups(speedups, replayed.looks))


def _slowed(replayed: Replayed) -> dict[str, Any]:
    """Section 4: sentences, and pictures and rows where any job was slowed."""
    outcomes = replayed.outcomes
    some = [name for name, outcome in outcomes.items() if outcome.slowed.any()]
    sentences = [
        (name, _slowed_sentence(outcome)) for name, outcome in outcomes.items() if name != BASELINE
    ]
    answer: dict[str, Any] = {"sentences": sentences, "some": some, "worst": [], "cut": 0}
    if not some:
        return answer
    late = {name: _later(outcomes[name])[outcomes[name].slowed] for name in some}
    measured = {name: int(np.count_nonzero(outcomes[name].measured)) for name in some}
    counts = {n: replayed.by_pool(outcomes[n].log, outcomes[n].slowed) for n in some}
    hit = sum(counts.values(), np.zeros(len(replayed.table.pools)))
    pools = [place for place in replayed.pools if hit[place]]
    shown = sorted(pools, key=lambda place: -hit[place])[:POOLS_DRAWN]
    bars = []
    for name in some:
        of_all = replayed.by_pool(outcomes[name].log, outcomes[name].measured)
        chosen = [int(counts[name][place]) for place in shown]
        shares = [100 * n / max(1, of_all[place]) for n, place in zip(chosen, shown, strict=True)]
        bars.append(SlowedBars(name, chosen, [float(share) for share in shares]))
    names = [replayed.pool_name(place) for place in shown]
    by_sharing = [name for name in some if name in replayed.sharing]
    return answer | {
        "tail": inlined(figures.draw_slowdowns(late, measured, replayed.looks)),
        "bars": inlined(figures.draw_slowed_bars(names, bars, replayed.looks)),
        "cut": len(pools) - len(shown),
        "worst": _worst(replayed, by_sharing or some),
        "by_sharing": bool(by_sharing) and by_sharing != some,
    }


def _later(outcome: Outcome) -> Floats:
    return outcome.jct - outcome.baseline_jct


def _slowed_sentence(outcome: Outcome) -> str:
    n = int(np.count_nonzero(outcome.measured))
    never = f"; {_jobs(outcome.lost)} never ended that would have alone" if outcome.lost else ""
    late = _later(outcome)[outcome.slowed] / 60
    if not n:
        return f"no job was measured{never}."
    if not len(late):
        return f"no job was slowed, of {n:,} measured{never}."
    median, most, total = (minutes(float(x)) for x in (np.median(late), late.max(), late.sum()))
    return (
        f"{len(late):,} of {_jobs(n)} ({percent(100 * len(late) / n)} %) ended later than alone: "
        f"by {median} in the median, {most} at most, {total} in all{never}."
    )


def _worst(replayed: Replayed, policies: Sequence[str]) -> list[Slowed]:
    ranked = []
    for name in policies:
        outcome = replayed.outcomes[name]
        late = np.where(outcome.slowed, _later(outcome), 0.0)
        worst = np.argsort(-late, kind="stable")[:WORST_SHOWN]
        ranked += [(-float(late[i]), name, int(i)) for i in worst if late[i]]
    rows = []
    for minus, name, i in sorted(ranked, key=lambda row: row[0])[:WORST_SHOWN]:
        outcome = replayed.outcomes[name]
        job = outcome.trace.arrivals[i].job
        rows.append(
            Slowed(
                name,
                job.id,
                job.pool,
                f"{job.width:,}",
                f"day {(job.submit - replayed.log.submit[0]) / 86400:,.2f}",
                duration(float(outcome.baseline_jct[i])),
                duration(float(outcome.jct[i])),
                minutes(-minus / 60),
                f"{-minus / 60:,.1f}",
            )
        )
    return rows


def _pools(replayed: Replayed) -> dict[str, Any]:
    """Section 5: rows of speed-ups (Table 12), and rows of what each pool lent and borrowed."""
    policies = [name for name in replayed.outcomes if name != BASELINE] or [*replayed.outcomes]
    rows, loans = [], []
    for place in replayed.pools:
        name = replayed.pool_name(place)
        under = {policy: m["pools"][name] for policy, m in replayed.measures.items()}
        pool = under[policies[0]]
        load_pct = pool["load_pct"]
        cells = [
            f"{pool['quota']:,}",
            NONE if load_pct is None else f"{decimal(load_pct, 0)} %",
            f"{pool['jobs']:,}",
            decimal(pool["median_width"], 0),
            duration(pool["median_duration_s"]),
        ]
        rows.append(Row(name, cells + [speed(under[p]["speedup_geomean"]) for p in policies]))
        keys = ("gpu_hours_lent", "gpu_hours_borrowed")
        loans.append(Row(name, [hours(under[p][key]) for p in replayed.sharing for key in keys]))
    return {"policies": policies, "rows": rows, "sharing": replayed.sharing, "loans": loans}


def _times(replayed: Replayed) -> dict[str, Any]:
    """Section 6: a time line for each of the busiest pools, under one policy."""
    fallback = (replayed.sharing or [*replayed.outcomes])[-1]
    policy = "sia" if "sia" in replayed.outcomes else fallback
    begin, end = replayed.range()
    shown = replayed.pools[:POOLS_DRAWN]
    lines = time_lines(replayed, policy, shown)
    warmup = replayed.settings.warmup
    pictures = []
    for i, (place, line) in enumerate(zip(shown, lines, strict=True)):
        picture = inlined(figures.draw_time_line(line, i, warmup))
        pictures.append((replayed.pool_name(place), _time_words(line), picture))
    return {
        "policy": policy,
        "pictures": pictures,
        "all": len(replayed.pools),
        "bin": around((end - begin) / (len(figures.bins(begin, end)) - 1)),
        "warmup": begin < warmup < end,
    }


def _time_words(line: TimeLine) -> str:
    owned = float(line.owned.sum())
    if not owned:
        return "owns no GPUs"
    parts = ((line.dedicated + line.own_spare, "used by itself"), (line.lent, "lent"))
    words = [f"{share(float(part.sum()), owned)} {what}" for part, what in parts]
    words.append(f"{share(float(line.idle.sum()), owned)} idle")
    least, most = (f"{f(line.owned):,.0f}" for f in (np.min, np.max))
    gpus = most if least == most else f"{least} to {most}"
    return f"{gpus} GPUs: {', '.join(words)}"


def time_lines(replayed: Replayed, policy: str, places: Sequence[int]) -> list[TimeLine]:
    """The time lines of the pools at these places of the table, under one policy."""
    outcome, edges = replayed.outcomes[policy], figures.bins(*replayed.range())
    loans, quotas = outcome.schedule.loans, replayed.table.quotas()
    place = {pool.name: i for i, pool in enumerate(replayed.table.pools)}
    log, arrivals = outcome.log, outcome.trace.arrivals
    home = {a.job.id: pool for a, pool in zip(arrivals, log.pool, strict=True)}
    donor = np.asarray([place[loan.donor] for loan in loans], dtype=np.int64)
    user = np.asarray([home[loan.job_id] for loan in loans], dtype=np.int64)
    terms = _floats([x for loan in loans for x in loan[2:]]).reshape(-1, 3)
    runs = [*outcome.schedule.runs(outcome.trace)]
    who = np.asarray([run.position for run in runs], dtype=np.int64)
    times = _floats([x for run in runs for x in run[1:4]]).reshape(-1, 3)
    dedicated = np.asarray([not run.spare for run in runs], dtype=np.bool_)
    stays = np.where(np.isnan(outcome.ends), np.inf, outcome.ends)

    def lending(chosen: NDArray[np.bool_]) -> Steps:
        gpus, start, end = terms[chosen].T
        return figures.during(start, end, gpus)

    lines = []
    for at in places:
        steps = quotas[replayed.pool_name(at)]
        sizes = _floats([quota for _, quota in steps])
        mine, runs_here = log.pool == at, log.pool[who] == at
        start, end, gpus = times[runs_here & dedicated].T
        from_, until, _ = times[runs_here].T
        asked, stopped = log.width[mine], -log.width[who[runs_here]]
        lines.append(
            figures.time_line(
                edges,
                owned=Steps(_floats([time for time, _ in steps]), np.diff(sizes, prepend=0.0)),
                dedicated=figures.during(start, end, gpus),
                own_spare=lending((donor == at) & (user == at)),
                lent=lending((donor == at) & (user != at)),
                borrowed=lending((donor != at) & (user == at)),
                # There, less running: a job that is preempted waits again.
                waiting=figures.during(
                    np.concatenate([log.submit[mine], from_]),
                    np.concatenate([stays[mine], until]),
                    np.concatenate([asked, stopped]),
                ),
            )
        )
    return lines


def inlined(text: str) -> Markup:
    """A picture for a page: not escaped once more."""
    return Markup(text)  # noqa: S704  matplotlib has escaped the names in it
