"""What an operator is given, held to the program: rules, dashboard and runbook name only what there is."""

import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tenure.events import IdempotencyOutcome
from tenure.instrumentation import PrometheusHook

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ROOT / "docs" / "operations"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((OPERATIONS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
DASHBOARD: dict[str, Any] = json.loads((OPERATIONS / "dashboard.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [rule["expr"] for rule in RULES.values()] + QUERIES

_FOREIGN = {"pg_stat_user_tables_n_live_tup": {"relname", "datname"}}
"""Metrics of other exporters, which the documents say."""

_OF_EVERY_TARGET = {"job", "instance"}
_METRIC = re.compile(r"\b((?:tenure|pg)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left|without)\s*\(([^)]*)\)")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")


def _hook_metrics() -> dict[str, set[str]]:
    """Every series that the hook can have, with its labels as Prometheus stores them."""
    registry = CollectorRegistry()
    PrometheusHook(registry)
    found: dict[str, set[str]] = {}
    for collector in registry._collector_to_names:
        labels = {{"job": "exported_job"}.get(name, name) for name in collector._labelnames}
        for name in registry._collector_to_names[collector]:
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


METRICS = _hook_metrics() | _FOREIGN


def _strange(expression: str) -> list[str]:
    """What *expression* names that no exporter has."""
    strange, known = [], set(_OF_EVERY_TARGET)
    for name, matchers in _METRIC.findall(re.sub(r"relname=\"[^\"]*\"", 'relname=""', expression)):
        if name not in METRICS:
            strange.append(name)
            continue
        known |= METRICS[name]
        for label, _ in _LABEL.findall(matchers):
            if label not in METRICS[name] | _OF_EVERY_TARGET:
                strange.append(f"{name}{{{label}}}")
    grouped = {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")} - {""}
    return strange + sorted(grouped - known)


# ------------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_of_an_expression_is_one_that_the_hook_has(expression: str) -> None:
    assert _strange(expression) == []


@pytest.mark.parametrize(
    "planted",
    [
        "tenure_leases_gone_total > 0",
        'tenure_leases_lost_total{cause="refused"}',
        "sum by (key) (tenure_leading)",
        "sum by (exported_job) (tenure_leases_lost_total)",
    ],
)
def test_a_metric_or_a_label_that_the_hook_has_not_is_found(planted: str) -> None:
    assert _strange(planted)


def test_every_value_of_an_outcome_that_is_asked_for_is_one_that_the_hook_counts() -> None:
    asked = {
        value
        for expression in EXPRESSIONS
        for label, values in _LABEL.findall(expression)
        if label == "outcome"
        for value in values.split("|")
    }
    assert asked
    assert asked <= {outcome.name.lower() for outcome in IdempotencyOutcome}


def test_every_metric_of_the_hook_stands_in_the_index_with_its_labels_and_in_the_dashboard() -> None:
    table = dict(
        re.findall(r"^\| `(tenure_\w+)` \| ([^|]*)\|", (OPERATIONS / "index.md").read_text("utf-8"), re.MULTILINE)
    )
    # A counter is told with its `_total`, a histogram and a gauge by their names.
    registry = CollectorRegistry()
    PrometheusHook(registry)
    told = {f"{one.name}_total" if one.type == "counter" else one.name for one in registry.collect()}
    assert set(table) == told
    for name, labels in table.items():
        own = {{"job": "exported_job"}.get(label, label) for label in re.findall(r"`(\w+)`", labels)}
        assert own == METRICS[name], name
    assert all(any(name in query for query in QUERIES) for name in told)


def test_a_counter_that_an_alert_looks_at_is_there_before_its_first_event() -> None:
    registry = CollectorRegistry()
    PrometheusHook(registry)
    for outcome in IdempotencyOutcome:  # or the first stale completion would be no increase
        assert registry.get_sample_value("tenure_requests_total", {"outcome": outcome.name.lower()}) == 0
    for after in ("released", "expired", "unknown"):
        assert registry.get_sample_value("tenure_leases_acquired_total", {"after": after}) == 0


# --------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("name", RULES)
def test_a_rule_waits_has_a_severity_says_what_is_wrong_and_leads_to_a_part_of_the_runbook(name: str) -> None:
    rule = RULES[name]
    assert re.fullmatch(r"[1-9]\d*[smh]", rule["for"])
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert len(rule["annotations"]["summary"]) > 20
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_rule_has_a_history_that_fires_it() -> None:
    histories = yaml.safe_load((OPERATIONS / "alerts.test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for one in histories for case in one["alert_rule_test"] if case["exp_alerts"]}
    assert fired == set(RULES)


def _promtool(folder: Path) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("promtool")
    if program is None and not os.environ.get("CI"):
        pytest.skip("promtool is not on the PATH: apt-get install prometheus brings it")
    assert program, "promtool is not on the PATH; .ci/run installs it"
    command = [program, "test", "rules", "alerts.test.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_rules_fire_on_the_histories_that_they_are_for_and_on_no_other() -> None:
    run = _promtool(OPERATIONS)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.matrix  # a second each
@pytest.mark.parametrize(
    ("right", "planted"),
    [
        ('reason=~"refused|expired|stalled|forked"', 'reason=~".+"'),
        (">= on (job) group_left ()", "> on (job) group_left ()"),
        ("sum by (job) (tenure_leading) > 1", "sum by (job) (tenure_leading) > 2"),
        ("sum by (job) (tenure_leading) > 1\n        for: 2m", "sum by (job) (tenure_leading) > 1\n        for: 0s"),
        ('outcome=~"stale|gone"', 'outcome=~"gone"'),
    ],
)
def test_a_bug_that_is_planted_in_a_rule_fails_a_history(right: str, planted: str, tmp_path: Path) -> None:
    rules = (OPERATIONS / "alerts.yml").read_text(encoding="utf-8")
    assert right in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(right, planted, 1), encoding="utf-8")
    shutil.copy(OPERATIONS / "alerts.test.yml", tmp_path)
    assert _promtool(tmp_path).returncode != 0


# ----------------------------------------------------------------------------------------- dashboard


def test_panels_have_ids_of_their_own_fit_the_grid_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 <= place["y"]
        assert place["x"] + place["w"] <= 24, panel["title"]
    for one, other in itertools.combinations(panels, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), f"{one['title']} and {other['title']}"


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[edge] < other[edge] + other[size] and other[edge] < one[edge] + one[size]
        for edge, size in (("x", "w"), ("y", "h"))
    )


def test_panels_that_overlap_are_found() -> None:
    assert _overlap({"x": 0, "y": 0, "w": 12, "h": 8}, {"x": 11, "y": 7, "w": 2, "h": 2})
    assert not _overlap({"x": 0, "y": 0, "w": 12, "h": 8}, {"x": 12, "y": 0, "w": 12, "h": 8})


def test_every_panel_and_query_reads_the_data_source_that_is_chosen() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["targets"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used <= set(variables)
    assert DASHBOARD["schemaVersion"] >= 36
    assert "id" not in DASHBOARD  # Grafana gives it one; a foreign id would overwrite another dashboard
