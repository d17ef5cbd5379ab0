"""Writes `sia.json`, a Grafana dashboard, from the metrics that a daemon really has.

python deploy/grafana/dashboard.py >deploy/grafana/sia.json
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from daemon.config.config import Address, Config
from daemon.process.serve import serving
from daemon.runtime.logs import begin
from daemon.runtime.token_file import read_token

NAME = re.compile(r"\bsia_[a-z_]+")
PARTS = re.compile(r"_(total|bucket|sum|count|created)$")
"""Suffixes that Prometheus adds to a metric's name."""

WIDE, HIGH, ROW = 8, 7, 24
"""Sizes of a panel, and of a row of panels, in units of Grafana's grid."""

OF_JOB = 'job="$job"'
OF_POOL = 'job="$job",pool=~"$pool"'


class Panel(NamedTuple):
    """A panel: its title, unit, and the expressions that it draws, each with a legend."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    kind: str = "timeseries"


def gpus(use: str, legend: str) -> tuple[str, str]:
    """Return GPUs of the selected pools, by use."""
    return f'sum by (pool) (sia_pool_gpus{{{OF_POOL},use="{use}"}})', legend


def share(metric: str, outcome: str, by: str, where: str = OF_JOB) -> str:
    """Return the share of the last day's counts that had an outcome."""
    of = f'{metric}{{{where},outcome="{outcome}"}}', f"{metric}{{{where}}}"
    part, whole = (f"sum by ({by}) (increase({each}[1d]))" for each in of)
    return f"{part} / {whole}"


def quantiles(metric: str) -> list[tuple[str, str]]:
    """Return the median and the 99th percentile of a histogram."""
    rate = f"sum by (le) (rate({metric}_bucket{{{OF_JOB}}}[5m]))"
    return [(f"histogram_quantile({q}, {rate})", f"p{q * 100:g}") for q in (0.5, 0.99)]


CHOSEN: dict[str, Sequence[Panel]] = {
    "At a glance": [
        Panel("Serving", "bool_yes_no", [(f"min(sia_ready{{{OF_JOB}}})", "")], "stat"),
        Panel(
            "Leader", "none",
            [(f"sia_leader{{{OF_JOB}}}", "{{instance}}"), (f"sia_epoch{{{OF_JOB}}}", "epoch")],
        ),
        Panel("Health of components", "bool_yes_no", [(f"sia_part_ok{{{OF_JOB}}}", "{{part}}")]),
        Panel(
            "Jobs", "none",
            [
                (f"sum(sia_running_jobs{{{OF_JOB}}})", "on GPUs"),
                (f"sum(sia_pool_waiting_jobs{{{OF_JOB}}})", "pending"),
                (f"sum(sia_starting_jobs{{{OF_JOB}}})", "starting"),
            ],
        ),
        Panel("GPUs lent", "none", [(f"sum(sia_lent_gpus{{{OF_JOB}}})", "lent")]),
        Panel("Lending", "bool_on_off", [(f"min(sia_lending{{{OF_JOB}}})", "")], "stat"),
    ],
    "Pools": [
        Panel("Quota", "none", [gpus("quota", "{{pool}}")]),
        Panel("Dedicated jobs", "none", [gpus("dedicated", "{{pool}}")]),
        Panel("Idle", "none", [gpus("idle", "{{pool}}")]),
        Panel("Lent", "none", [gpus("lent", "{{pool}}")]),
        Panel("Borrowed", "none", [gpus("borrowed", "{{pool}}")]),
        Panel("GPUs requested by pending jobs", "none", [gpus("waiting", "{{pool}}")]),
        Panel("Pending jobs", "none", [(f"sia_pool_waiting_jobs{{{OF_POOL}}}", "{{pool}}")]),
        Panel("Lending stopped, by reason", "none",
              [(f"sia_pool_kept{{{OF_POOL}}}", "{{pool}}: {{reason}}")]),
    ],
    "Effect of sharing": [
        Panel(
            "GPU-hours lent (above) and borrowed (below) per day", "none",
            [
                (f'increase(sia_loan_gpu_seconds_total{{{OF_POOL},side="lent"}}[1d]) / 3600',
                 "{{pool}} lent"),
                (f'-increase(sia_loan_gpu_seconds_total{{{OF_POOL},side="borrowed"}}[1d]) / 3600',
                 "{{pool}} borrowed"),
            ],
        ),
        Panel("Slowed jobs, last day", "percentunit",
              [(share("sia_alone_jobs_total", "slowed", "pool", OF_POOL), "{{pool}}")]),
        Panel("Hours earlier and later than without sharing, last day", "none",
              [(f"increase(sia_alone_seconds_total{{{OF_POOL}}}[1d]) / 3600",
                "{{pool}} {{outcome}}")]),
        Panel("GPU-hours lent in shadow mode", "none",
              [(f"sia_shadow_lent_gpu_seconds{{{OF_POOL}}} / 3600", "{{pool}}")]),
    ],
    "Forecasts and estimates": [
        Panel("Loads above their forecast, last day", "percentunit",
              [(share("sia_load_forecasts_total", "missed", "window"), "{{window}} s")]),
        Panel("GPUs above the forecast, last day", "none",
              [(f"increase(sia_load_missed_gpus_total{{{OF_JOB}}}[1d])", "{{window}} s")]),
        Panel("Run time / estimate", "none", quantiles("sia_run_time_ratio")),
        Panel("Coverage of estimates, last day", "percentunit",
              [(share("sia_estimates_total", "covered", "what,quantile", OF_POOL),
                "{{what}} by {{quantile}}")]),
        Panel("Median error of p50", "s",
              [(f"sia_estimate_error_seconds{{{OF_POOL}}}",
                "{{pool}} {{what}} within {{horizon}}")]),
        Panel("Median prediction error of ends", "none",
              [(f"sia_estimate_pred_err{{{OF_POOL}}}", "{{pool}} within {{horizon}}")]),
    ],
    "The daemon": [
        Panel("Duration of a step", "s", quantiles("sia_pass_seconds")),
        Panel("Duration of a commit", "s", quantiles("sia_commit_seconds")),
        Panel("Commit lag", "s",
              [(f"sia_journal_lag_seconds{{{OF_JOB}}}", "{{instance}}")]),
        Panel("Requests per second", "reqps",
              [(f"sum by (status) (rate(sia_http_requests_total{{{OF_JOB}}}[5m]))", "{{status}}")]),
        Panel("Inputs per second", "ops",
              [(f"rate(sia_inputs_total{{{OF_JOB}}}[5m])", "{{instance}}")]),
        Panel("Failed commits and defects, last hour", "none",
              [(f"increase(sia_commit_failures_total{{{OF_JOB}}}[1h])", "failed commits"),
               (f"increase(sia_defects_total{{{OF_JOB}}}[1h])", "defects")]),
        Panel("Decisions per second", "ops",
              [(f"sum by (kind) (rate(sia_decisions_total{{{OF_JOB}}}[5m]))", "{{kind}}")]),
        Panel("Events per second", "ops",
              [(f"sum by (kind) (rate(sia_events_total{{{OF_JOB}}}[5m]))", "{{kind}}")]),
        Panel("Webhooks: events behind", "none",
              [(f"sia_webhook_lag_events{{{OF_JOB}}}", "{{webhook}}")]),
        Panel("Webhooks: requests per second", "reqps",
              [(f"rate(sia_webhook_requests_total{{{OF_JOB}}}[5m])", "{{webhook}} {{outcome}}")]),
        Panel("Webhooks: dead letters", "none",
              [(f"sia_webhook_dead_letters{{{OF_JOB}}}", "{{webhook}}")]),
    ],
}  # fmt: skip
"""Panels for those who operate the daemon, in the order in which they look."""


async def metrics() -> list[Metric]:
    """Return the metrics of a daemon that has just started."""
    with TemporaryDirectory() as folder:
        config = replace(Config.embedded(Path(folder)), listen=Address("127.0.0.1", 0))
        async with serving(config) as (_, address):
            token = read_token(config.token_file)
            head = {"Authorization": f"Bearer {token}"}
            asked = urllib.request.Request(f"{address.url}/metrics", headers=head)  # noqa: S310
            text = await asyncio.to_thread(_answer, asked)
    found = text_string_to_metric_families(text)
    return [metric for metric in found if not metric.name.endswith("_created")]


def _answer(asked: urllib.request.Request) -> str:
    with urllib.request.urlopen(asked) as answer:  # noqa: S310  the daemon's own address
        return str(answer.read().decode())


def named(text: str) -> set[str]:
    """Return the names of the metrics in an expression, as the daemon defines them."""
    return {PARTS.sub("", name) for name in NAME.findall(text)}


def rest(found: Sequence[Metric]) -> Iterator[Panel]:
    """Yield a panel for each metric that no chosen panel shows, drawn by its type."""
    chosen = {
        name
        for panels in CHOSEN.values()
        for panel in panels
        for expression, _ in panel.lines
        for name in named(expression)
    }
    for metric in found:
        if metric.name in chosen:
            continue
        line = f"sum(rate({metric.name}_total{{{OF_JOB}}}[5m]))", "{{instance}}"
        if metric.type == "gauge":
            line = f"sum({metric.name}{{{OF_JOB}}})", "{{instance}}"
        lines = quantiles(metric.name) if metric.type == "histogram" else [line]
        yield Panel(metric.name, "none", lines)


def dashboard(found: Sequence[Metric]) -> dict[str, Any]:
    """Return the dashboard as JSON for Grafana. Descriptions are the help texts of the metrics."""
    about = {metric.name: metric.documentation for metric in found}
    panels: list[dict[str, Any]] = []
    top = 0
    left = list(rest(found))
    for title, chosen in (CHOSEN | ({"Other metrics": left} if left else {})).items():
        panels.append(
            {
                "type": "row", "title": title, "collapsed": False, "panels": [],
                "gridPos": {"x": 0, "y": top, "w": ROW, "h": 1},
            }
        )  # fmt: skip
        for number, panel in enumerate(chosen):
            down, right = divmod(number * WIDE, ROW)
            where = {"x": right, "y": top + 1 + down * HIGH, "w": WIDE, "h": HIGH}
            panels.append(_panel(panel, where, about))
        top += 1 + -(-len(chosen) * WIDE // ROW) * HIGH
    for number, shown in enumerate(panels, 1):
        shown["id"] = number
    return {
        "uid": "sia", "title": "SIA", "tags": ["sia"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": list(_choices())}, "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel, where: dict[str, int], about: dict[str, str]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = sorted({name for expression, _ in panel.lines for name in named(expression)})
    return {
        "type": panel.kind, "title": panel.title, "gridPos": where, "datasource": source,
        "description": " ".join(about.get(name, name) for name in asked),
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": source, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.lines)
        ],
    }  # fmt: skip


def _choices() -> Iterator[dict[str, Any]]:
    """Return the variables that a reader selects: the data source, the cluster, pools."""
    yield {"name": "datasource", "type": "datasource", "query": "prometheus"}
    source = {"type": "prometheus", "uid": "${datasource}"}
    for name, asked, many in (
        ("job", "label_values(sia_leader, job)", False),
        ("pool", 'label_values(sia_pool_gpus{job="$job"}, pool)', True),
    ):
        yield {
            "name": name, "type": "query", "datasource": source, "query": asked, "refresh": 2,
            "sort": 1, "multi": many, "includeAll": many, "allValue": ".*" if many else None,
        }  # fmt: skip


def main() -> None:
    """Print the dashboard."""
    begin("error")
    json.dump(dashboard(asyncio.run(metrics())), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
