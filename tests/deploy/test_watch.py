"""Alerts, their runbook and the dashboard speak of metrics that the daemon has."""

import asyncio
import importlib.util
import json
import re
import shutil

import pytest
import yaml

from tests.support.daemons.deployed import DEPLOY, DOCS, run
from tests.support.files import written
from tests.support.servers.servers import needs

RULES = DEPLOY / "prometheus" / "sia-alerts.yml"
TESTS = sorted(DEPLOY.glob("prometheus/*-test.yml"))
DASHBOARD = DEPLOY / "grafana" / "sia.json"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("dashboard", DEPLOY / "grafana" / "dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(maker):
    """The metrics of a daemon."""
    return asyncio.run(maker.metrics())


def alerts():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def expressions():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_stored_dashboard_is_the_generated_one(maker, found):
    made = json.dumps(maker.dashboard(found), indent=1) + "\n"
    assert made == DASHBOARD.read_text(), "python deploy/grafana/dashboard.py >…/sia.json"


def test_each_metric_of_the_daemon_is_drawn_and_no_other(maker, found):
    drawn = set().union(*map(maker.named, expressions()))
    assert drawn == {metric.name for metric in found}


def test_a_metric_without_a_chosen_panel_is_drawn_too(maker, found):
    names = ("sia_a_seconds", "histogram"), ("sia_b", "gauge"), ("sia_c", "counter")
    new = [type(found[0])(name, "New.", kind) for name, kind in names]
    lines = {panel.title: panel.lines[0][0] for panel in maker.rest([*found, *new])}
    begins = [lines[name].split("(")[0] for name, _ in names]
    assert begins == ["histogram_quantile", "sum", "sum"]
    titles = [panel["title"] for panel in maker.dashboard([*found, *new])["panels"]]
    assert titles.index("Other metrics") < titles.index("sia_a_seconds")


def test_panels_do_not_overlap(maker, found):
    taken = set()
    for panel in maker.dashboard(found)["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken
                assert x < 24
                taken.add((x, y))


def test_alerts_use_existing_metrics(maker, found):
    there = {metric.name for metric in found}
    for name, rule in alerts().items():
        asked = maker.named(rule["expr"])
        assert asked <= there, name
        assert asked or rule["expr"].startswith("up{"), name


def test_each_alert_has_its_section_in_the_runbook_and_no_other_has():
    sections = re.findall(r"(?m)^## (Sia\w+)$", (DOCS / "operate/runbook.md").read_text())
    assert sections == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/operate/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"page", "ticket", "info"}


@pytest.mark.server
def test_prometheus_accepts_the_rules(tmp_path):
    needs("promtool")
    for path in DEPLOY.glob("prometheus/*.yml"):
        shutil.copy(path, tmp_path)
    scrape = tmp_path / "scrape.yml"
    scrape.rename(tmp_path / "prometheus.yml")
    code, said = run("promtool", "check", "config", "--syntax-only", tmp_path / "prometheus.yml")
    assert code == 0, said
    for path in TESTS:
        code, said = run("promtool", "test", "rules", tmp_path / path.name)
        assert code == 0, said


def test_each_alert_fires_in_a_test_of_promtool():
    """A test of rules that does not name one would pass without it."""
    text = "".join(path.read_text() for path in TESTS)
    for name, rule in alerts().items():
        seen = rf'alertname="{name}", severity="{rule["labels"]["severity"]}"|alertname: {name}\n'
        assert re.search(seen, text), name


@pytest.mark.server
def test_prometheus_accepts_each_expression_of_the_dashboard(tmp_path):
    needs("promtool")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$pool", ".*")}
        for number, expression in enumerate(expressions())
    ]
    text = json.dumps({"groups": [{"name": "panels", "rules": rules}]})  # which is YAML
    code, said = run("promtool", "check", "rules", written(tmp_path, text, "panels.yml"))
    assert code == 0, said
