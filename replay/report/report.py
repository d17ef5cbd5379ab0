"""The report of a replay: one self-contained HTML file without scripts.

Names of pools and policies, job IDs and notes are untrusted; the template escapes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from replay.logs.limits import POOLS_DRAWN
from replay.logs.trace import PoolTable
from replay.plotting import canvas
from replay.plotting.canvas import FloatArray, PolicyStyle, SlowedBars, Steps, TimeLine
from replay.plotting.numbers import hours, inlined, minutes, share, speed
from replay.report.aims import aim_tables
from replay.report.cluster import cells_section
from replay.report.decision import decision_section
from replay.report.provenance import facts, future_known
from replay.run.arrays import PolicyOutcome, Replayed, floats
from replay.run.run import BASELINE, Settings
from replay.run.schedule import Result
from replay.verdict.kinds import in_order
from sia.wording import NONE, counted, decimal, duration, percent

WORST_SHOWN = 10
"""Slowed jobs listed individually: a table that fits on a screen."""


class ReportRow(NamedTuple):
    """A row of a table: the name of a policy or pool, and the other cells."""

    name: str
    cells: Sequence[str]


class Slowed(NamedTuple):
    """A job that ended later under a policy than in the baseline."""

    policy: str
    job_id: str
    pool: str
    width: str
    submit: str
    alone: str
    shared: str
    later: str
    minutes: str


def write_report(
    path: Path,
    table: PoolTable,
    settings: Settings,
    summary: dict[str, Any],
    results: Sequence[Result],
) -> None:
    """Write the report of a replay to `path`. The same input gives the same bytes.

    `summary` has its verdict (`replay.verdict.build`).
    """
    places = {label: i for i, label in enumerate(in_order(settings, settings.policies))}
    ordered = sorted(results, key=lambda result: places[result.schedule.policy])
    replayed = Replayed(table, settings, summary, ordered)
    verdict = summary["verdict"]
    html = render(replayed, verdict, decision_section(replayed, verdict, results))
    path.write_text(html, encoding="utf-8", errors="replace", newline="\n")


def render(replayed: Replayed, verdict: Mapping[str, Any], evidence: Mapping[str, Any]) -> str:
    """Return the report as HTML."""
    trace = replayed.trace
    return page(
        "report.html",
        verdict=verdict,
        evidence=evidence,
        facts=facts(replayed),
        dropped=[(reason, f"{n:,}") for reason, n in sorted(trace.dropped.items())],
        notes=trace.notes,
        future_known=future_known(replayed),
        headlines=[_headline(replayed, name) for name in replayed.outcomes if name != BASELINE],
        sharing=replayed.sharing,
        styles=styles(replayed.looks),
        policies=list(replayed.outcomes),
        baseline=BASELINE,
        measures=[_measures_row(replayed, name) for name in replayed.outcomes],
        aims=aim_tables(replayed.measures),
        speedups=_speedups(replayed),
        slowed=_slowed(replayed),
        pools=_pools(replayed),
        times=_times(replayed, verdict["compared"]["today"]),
        cells=cells_section(replayed),
        colours=canvas.COLOURS,
    )


def page(template: str, **values: Any) -> str:
    """Render a template as HTML; `values` are escaped."""
    environment = Environment(
        loader=PackageLoader("replay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def styles(looks: Mapping[str, PolicyStyle]) -> dict[str, dict[str, str]]:
    """Return the colour and dash pattern of each policy for the legends."""
    return {
        name: {"colour": colour, "dash": " ".join(f"{2 * length:g}" for length in dash)}
        for name, (colour, dash) in looks.items()
    }


def _headline(replayed: Replayed, policy: str) -> dict[str, Any]:
    """Return the card of a policy: speed-up, slowed jobs, and GPU-hours lent."""
    m = replayed.measures[policy]
    if not m["measured"]:
        return {"policy": policy, "harmless": False, "words": "no job was measured", "more": []}
    slowed = f"{m['slowed']:,} of {counted(m['measured'], 'job')} slowed"
    words = f"mean speed-up {speed(m['speedup_mean'])}, {slowed}"
    if policy in replayed.sharing:
        words += f", {hours(m['gpu_hours_lent'])} GPU-hours lent"
    alone, shared = m["baseline_avg_jct_s"], m["avg_jct_s"]
    change = f"{share(abs(shared - alone), alone or inf)} {'more' if shared > alone else 'less'}"
    more = [
        f"Average completion time: {duration(shared)}, in the baseline {duration(alone)}",
        f"({change}). Median speed-up {speed(m['speedup_p50'])}, 90th percentile",
        f"{speed(m['speedup_p90'])}.",
    ]
    if m["slowed"]:
        more.append(
            f"Slowed jobs end {minutes(m['slowdown_total_min'])} later in total, the worst one "
            f"{minutes(m['slowdown_max_min'])}."
        )
    if lost := replayed.outcomes[policy].lost:
        more.append(
            f"{counted(lost, 'job')} never ended, but would have in the baseline; the measures "
            "exclude them."
        )
    return {"policy": policy, "harmless": not m["slowed"] + lost, "words": words, "more": more}


def _measures_row(replayed: Replayed, policy: str) -> ReportRow:
    m = replayed.measures[policy]
    speeds = [m[f"speedup_{key}"] for key in ("mean", "geomean", "p5", "p50", "p90", "p95")]
    slowed = f"{percent(m['slowed_pct'])} %" if m["measured"] else NONE
    used = m["utilisation_pct"]
    return ReportRow(
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
    return inlined(canvas.draw_speedups(speedups, replayed.looks))


def _slowed(replayed: Replayed) -> dict[str, Any]:
    """Return the section on slowed jobs: sentences, and figures and rows if there are any."""
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
        "tail": inlined(canvas.draw_slowdowns(late, measured, replayed.looks)),
        "bars": inlined(canvas.draw_slowed_bars(names, bars, replayed.looks)),
        "cut": len(pools) - len(shown),
        "worst": _worst(replayed, by_sharing or some),
        "by_sharing": bool(by_sharing) and by_sharing != some,
    }


def _later(outcome: PolicyOutcome) -> FloatArray:
    return outcome.jct - outcome.baseline_jct


def _slowed_sentence(outcome: PolicyOutcome) -> str:
    n = int(np.count_nonzero(outcome.measured))
    never = (
        f"; {counted(outcome.lost, 'job')} never ended, but would have in the baseline"
        if outcome.lost
        else ""
    )
    late = _later(outcome)[outcome.slowed] / 60
    if not n:
        return f"no job was measured{never}."
    if not len(late):
        return f"no job was slowed, of {n:,} measured{never}."
    median, most, total = (minutes(float(x)) for x in (np.median(late), late.max(), late.sum()))
    return (
        f"{len(late):,} of {counted(n, 'job')} ({percent(100 * len(late) / n)} %) ended later "
        f"than in the baseline: median {median}, maximum {most}, total {total}{never}."
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
    """Return the section on pools: speed-ups (Table 12), and GPU-hours lent and borrowed."""
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
        rows.append(ReportRow(name, cells + [speed(under[p]["speedup_geomean"]) for p in policies]))
        keys = ("gpu_hours_lent", "gpu_hours_borrowed")
        loans.append(
            ReportRow(name, [hours(under[p][key]) for p in replayed.sharing for key in keys])
        )
    return {"policies": policies, "rows": rows, "sharing": replayed.sharing, "loans": loans}


def _times(replayed: Replayed, today: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the section on time: a time line of each of the busiest pools under one policy.

    It is the policy of today that the verdict names, if any.
    """
    fallback = (replayed.sharing or [*replayed.outcomes])[-1]
    policy = "sia" if "sia" in replayed.outcomes else fallback
    policy = policy if today is None else today["policy"]
    begin, end = replayed.range()
    shown = replayed.pools[:POOLS_DRAWN]
    lines = time_lines(replayed, policy, shown)
    warmup = replayed.settings.warmup
    pictures = []
    for i, (place, line) in enumerate(zip(shown, lines, strict=True)):
        picture = inlined(canvas.draw_time_line(line, i, warmup))
        pictures.append((replayed.pool_name(place), _time_words(line), picture))
    return {
        "policy": policy,
        "pictures": pictures,
        "all": len(replayed.pools),
        "bin": duration((end - begin) / (len(canvas.bins(begin, end)) - 1)),
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
    """Return the time lines of the pools at `places`, indices of the table, under one policy."""
    outcome, edges = replayed.outcomes[policy], canvas.bins(*replayed.range())
    loans, quotas = outcome.schedule.loans, replayed.table.quotas()
    place = {pool.name: i for i, pool in enumerate(replayed.table.pools)}
    log, arrivals = outcome.log, outcome.trace.arrivals
    home = {a.job.id: pool for a, pool in zip(arrivals, log.pool, strict=True)}
    donor = np.asarray([place[loan.donor] for loan in loans], dtype=np.int64)
    user = np.asarray([home[loan.job_id] for loan in loans], dtype=np.int64)
    terms = floats([x for loan in loans for x in loan[2:]]).reshape(-1, 3)
    runs = [*outcome.schedule.runs(outcome.trace)]
    who = np.asarray([run.position for run in runs], dtype=np.int64)
    times = floats([x for run in runs for x in run[1:4]]).reshape(-1, 3)
    dedicated = np.asarray([not run.spare for run in runs], dtype=np.bool_)
    stays = np.where(np.isnan(outcome.ends), np.inf, outcome.ends)

    def lending(chosen: NDArray[np.bool_]) -> Steps:
        gpus, start, end = terms[chosen].T
        return canvas.during(start, end, gpus)

    lines = []
    for at in places:
        steps = quotas[replayed.pool_name(at)]
        sizes = floats([quota for _, quota in steps])
        mine, runs_here = log.pool == at, log.pool[who] == at
        start, end, gpus = times[runs_here & dedicated].T
        from_, until, _ = times[runs_here].T
        asked, stopped = log.width[mine], -log.width[who[runs_here]]
        lines.append(
            canvas.time_line(
                edges,
                owned=Steps(floats([time for time, _ in steps]), np.diff(sizes, prepend=0.0)),
                dedicated=canvas.during(start, end, gpus),
                own_spare=lending((donor == at) & (user == at)),
                lent=lending((donor == at) & (user != at)),
                borrowed=lending((donor != at) & (user == at)),
                # Submitted less running jobs: a preempted job waits again.
                waiting=canvas.during(
                    np.concatenate([log.submit[mine], from_]),
                    np.concatenate([stays[mine], until]),
                    np.concatenate([asked, stopped]),
                ),
            )
        )
    return lines
