"""Alerts, their tests and runbooks, and the dashboard are consistent with each other.

``.ci/rules`` tests with promtool that alerts fire when they should.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any, get_args

import pytest
import yaml

from streamdedup.observe.catalogue import CATALOGUE, MetricSpec
from streamdedup.roles.app import Role
from tests.support.paths import ROOT

FILES = ROOT / "helm" / "streamdedup" / "files"
RUNBOOKS = (
    (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("\n## Alerts\n")[2]
)
GROUPS = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
COLLAPSED = [row for row in ROWS if row["collapsed"]]
PANELS = [*DASHBOARD["panels"], *(panel for row in COLLAPSED for panel in row["panels"])]
SHOWING = [panel for panel in PANELS if panel["type"] != "row"]
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
PROMTOOL_TESTS = [
    test
    for path in sorted((ROOT / "deploy" / "prometheus").glob("*_test.yaml"))
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    for test in group["alert_rule_test"]
]
RUNBOOK_PARTS = ["Means", "Risk", "Check", "Fix"]
GRAFANA_WIDTH = 24
CHOSEN = 'namespace=~"$namespace", job=~"$release", pod=~"$pod", instance=~"$instance"}'


def series(entry: MetricSpec) -> set[str]:
    """Return the names of a metric's series."""
    suffixes = HISTOGRAM_SUFFIXES if entry.kind.endswith("histogram") else ("",)
    return {entry.full_name + suffix for suffix in suffixes}


HELP_OF = {name: entry.help for entry in CATALOGUE for name in series(entry)}
LABELS_OF = {name: {entry.label} - {""} for entry in CATALOGUE for name in series(entry)} | {
    "streamdedup_role_info": {"role"}
}
VALUES_OF = {
    (name, entry.label): set(entry.values)
    for entry in CATALOGUE
    for name in series(entry)
    if entry.values
} | {("streamdedup_role_info", "role"): set(get_args(Role))}


def names(expression: str) -> set[str]:
    """Return the names of our metrics in an expression, including recorded ones."""
    return set(re.findall(r"\b(?:\w+:)?streamdedup_\w+(?::\w+)?", expression))


def matchers(expression: str) -> Iterator[tuple[str, str, str]]:
    """Yield metric, label and value of each matcher in an expression."""
    for name, inside in re.findall(r"\b(streamdedup_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', inside):
            yield name, label, value


def queries(panel: dict[str, Any]) -> list[str]:
    """Return the expressions of a panel."""
    return [target["expr"] for target in panel.get("targets", [])]


EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in RULES),
    *(pytest.param(expr, id=panel["title"]) for panel in SHOWING for expr in queries(panel)),
    *(
        pytest.param(variable["query"]["query"], id=f"${variable['name']}")
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_queried_metric_exists(expression: str) -> None:
    """Rules, panels and variables name metrics of the catalogue, or recorded ones."""
    assert names(expression)
    assert names(expression) - set(HELP_OF) - RECORDED == set()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_queried_label_exists(expression: str) -> None:
    """Matchers name labels of the metric or of its target, and possible values."""
    for name, label, value in matchers(expression):
        assert label in LABELS_OF[name] | {"namespace", "job", "pod", "instance"}, (name, label)
        if known := VALUES_OF.get((name, label)):
            assert set(value.split("|")) <= known, (name, value)


def test_the_dashboard_needs_no_recorded_metric() -> None:
    """The dashboard also works without the rules."""
    assert (
        RECORDED & {name for panel in SHOWING for query in queries(panel) for name in names(query)}
        == set()
    )


def test_every_metric_is_on_the_dashboard() -> None:
    """Each metric of the catalogue is in a panel."""
    shown = {name for panel in SHOWING for query in queries(panel) for name in names(query)}
    assert [entry.name for entry in CATALOGUE if not series(entry) & shown] == []


def test_every_recorded_metric_is_used() -> None:
    """A recorded metric is for a rule; one is for users, the time until the lag is zero."""
    used = {name for rule in RULES for name in names(rule["expr"])}
    assert RECORDED - used == {"worker:streamdedup_catch_up:seconds"}


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_has_severity_and_annotations(alert: str) -> None:
    """An alert has a severity, names the worker and the problem, and links to its runbook."""
    rule = ALERTS[alert]
    assert re.fullmatch(r"Streamdedup([A-Z][a-z]+)+", alert)
    assert rule["labels"]["severity"] in {"critical", "warning"}
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    # absent() has no labels that could name a worker.
    worker = r"\$labels\.(instance|worker|job)" if alert != "StreamdedupAbsent" else "streamdedup"
    assert re.search(worker, annotations["summary"])
    assert annotations["description"].endswith(".")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """The headings of the runbooks are the alerts, in the same order."""
    assert re.findall(r"^### (.+)$", RUNBOOKS, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_runbook_has_all_parts(alert: str) -> None:
    """A runbook explains the meaning, the risk, the checks, and the fix."""
    section = RUNBOOKS.partition(f"### {alert}\n")[2].partition("\n#")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*: \S", section, re.MULTILINE) == RUNBOOK_PARTS


def test_links_between_runbooks_lead_somewhere() -> None:
    """An anchor in the runbooks is a heading of the document."""
    document = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.+)$", document, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOKS)) <= anchors


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_is_tested_both_ways(alert: str) -> None:
    """One promtool test sees the alert fire, and another sees it silent."""
    expected = {bool(test["exp_alerts"]) for test in PROMTOOL_TESTS if test["alertname"] == alert}
    assert expected == {True, False}


def test_every_tested_alert_exists() -> None:
    """A misspelled alert would be silent in every test."""
    assert {test["alertname"] for test in PROMTOOL_TESTS} == set(ALERTS)


def test_the_dashboard_can_be_imported() -> None:
    """It has the fields that Grafana requires, and no id of a database."""
    assert DASHBOARD["uid"]
    assert DASHBOARD["title"]
    assert DASHBOARD.get("id") is None
    assert isinstance(DASHBOARD["version"], int)
    # The version of Grafana 10.4; newer releases migrate it.
    assert DASHBOARD["schemaVersion"] == 39


def test_panels_have_unique_ids() -> None:
    """Grafana treats two panels with one id as the same panel."""
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)


def test_all_rows_but_the_first_three_are_collapsed() -> None:
    """A collapsed row holds its panels; those of an open row follow it."""
    assert [row["title"] for row in ROWS if not row["collapsed"]] == [
        "Overview",
        "Latency and batches",
        "Similarity",
    ]
    assert DASHBOARD["panels"][-len(COLLAPSED) :] == COLLAPSED == ROWS[3:]
    assert all(row["panels"] for row in COLLAPSED)


def test_namespace_and_release_can_be_chosen() -> None:
    """Each variable offers what those before it have left; "All" includes series without labels."""
    chosen = [one for one in DASHBOARD["templating"]["list"] if one.get("includeAll")]
    names_ = ["namespace", "release", "pod", "instance"]
    assert [one["name"] for one in chosen] == names_
    for row, one in enumerate(chosen):
        assert one["allValue"] == ".*"
        assert re.findall(r"\$(\w+)", one["query"]["query"]) == names_[:row]


def test_panels_do_not_overlap() -> None:
    """Panels are within the width of the grid, and none covers another one of its list."""
    for panel in PANELS:
        box = panel["gridPos"]
        assert box["x"] >= 0, panel["title"]
        assert box["x"] + box["w"] <= GRAFANA_WIDTH, panel["title"]
        assert min(box["w"], box["h"]) > 0, panel["title"]
    lists = [DASHBOARD["panels"], *([row, *row["panels"]] for row in COLLAPSED)]
    for one, other in (pair for panels in lists for pair in combinations(panels, 2)):
        first, second = one["gridPos"], other["gridPos"]
        apart = (
            first["x"] + first["w"] <= second["x"]
            or second["x"] + second["w"] <= first["x"]
            or first["y"] + first["h"] <= second["y"]
            or second["y"] + second["h"] <= first["y"]
        )
        assert apart, (one["title"], other["title"])


@pytest.mark.parametrize("panel", SHOWING, ids=lambda panel: panel["title"])
def test_panel(panel: dict[str, Any]) -> None:
    """A panel queries the chosen source and workers, and has a unit and a description."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == source
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)
    for target in panel["targets"]:
        assert target["datasource"] == source
        selectors = re.findall(r"\bstreamdedup_\w+(\{[^}]*\})?", target["expr"])
        assert all(CHOSEN in selector for selector in selectors)
    explained = {HELP_OF[name] for query in queries(panel) for name in names(query)}
    assert [sentence for sentence in explained if sentence not in panel["description"]] == []


def test_the_title_of_the_heatmap_names_the_threshold() -> None:
    """Titles only use variables of the dashboard."""
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = {name for panel in PANELS for name in re.findall(r"\$(\w+)", panel["title"])}
    assert used == {"threshold"}
    assert used <= declared
