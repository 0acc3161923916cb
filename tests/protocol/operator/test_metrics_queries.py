"""Dashboard, alerts and documentation use metrics and labels that the operator actually has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_metrics import OF_THE_PROCESS, metrics, table

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts/elastrain/files/rules.yaml"
DASHBOARD = ROOT / "charts/elastrain/files/dashboard.json"

KNOWN = {series: set(m.labels) for m in metrics() for series in m.series} | {n: set() for n in OF_THE_PROCESS}
OF_THE_TARGET = {"instance"}
"""Labels that Prometheus adds to what it scrapes."""

# ---- PromQL, as much of it as is used here ---------------------------------------------------------------------------
TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]+\])|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/<>=(){},])""",
    re.VERBOSE,
)
AGGREGATIONS = {"sum", "min", "max"}
FUNCTIONS = {"rate", "increase", "histogram_quantile", "absent", "time", "label_values"}
GROUPINGS = {"by", "on"}
WORDS = {"and", "or", "unless"}


@dataclass
class Query:
    """The metrics and labels of a query."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    """Labels that it selects by, by metric."""
    groupings: set[str] = field(default_factory=set)
    """Labels of ``by (...)`` and ``on (...)``, or whose values it lists."""
    ranged: list[tuple[str, str]] = field(default_factory=list)
    """(function, metric) of each ``rate(metric[...])``."""


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """The tokens of a query. Raises ``ValueError`` at an invalid token or an unmatched bracket."""
    at, open_brackets = 0, []
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found:
            raise ValueError(f"{text[at : at + 20]!r} is no PromQL that this test knows")
        at = found.end()
        if found.lastgroup == "space":
            continue
        if found[0] in "({":
            open_brackets.append({"(": ")", "{": "}"}[found[0]])
        elif found[0] in (")", "}") and (not open_brackets or open_brackets.pop() != found[0]):
            raise ValueError(f"{found[0]!r} closes nothing in {text!r}")
        yield str(found.lastgroup), found[0]
    if open_brackets:
        raise ValueError(f"{open_brackets[-1]!r} is missing in {text!r}")


def parse(text: str) -> Query:
    """Metrics, labels and groupings of ``text``. A name before ``(`` must be a listed function."""
    query, todo = Query(), list(tokens(text))
    previous: list[str] = []
    while todo:
        kind, word = todo.pop(0)
        following = todo[0][1] if todo else ""
        if kind == "name" and word in GROUPINGS:
            query.groupings |= set(_inside(todo, ")"))
        elif kind == "name" and word in AGGREGATIONS | FUNCTIONS | WORDS:
            if word in FUNCTIONS and following != "(":
                raise ValueError(f"{word} is called with nothing in {text!r}")
        elif kind == "name" and following == "(":
            raise ValueError(f"{word} is no function that this test knows")
        elif kind == "name" and "label_values" in previous and word not in KNOWN:
            query.groupings.add(word)
        elif kind == "name":
            query.metrics.setdefault(word, set()).update(_inside(todo, "}") if following == "{" else ())
            if todo and todo[0][0] == "range":
                query.ranged.append((previous[-2], word))
        previous.append(word)
    return query


def _inside(todo: list[tuple[str, str]], end: str) -> list[str]:
    """Names up to the bracket ``end``; removes them from ``todo``."""
    names = []
    while True:
        kind, word = todo.pop(0)
        if kind == "name":
            names.append(word)
        if word == end:
            return names


def faults(text: str) -> list[str]:
    """The faults of a query; empty if it is valid."""
    query = parse(text)
    found = [f"no metric {m}" for m in query.metrics if m not in KNOWN]
    labels: set[str] = set(OF_THE_TARGET)
    for metric, selected in query.metrics.items():
        known = KNOWN.get(metric, set()) | ({"le"} if metric.endswith("_bucket") else set())
        labels |= known
        found += [f"{metric} has no label {label}" for label in selected - known]
    found += [f"no metric here has a label {label}" for label in query.groupings - labels]
    found += [f"{f}() of the gauge {m}" for f, m in query.ranged if not m.endswith(("_total", "_bucket"))]
    return found if query.metrics else [*found, "asks for nothing"]


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("elastrain_job_stepp", "no metric elastrain_job_stepp"),
        ('elastrain_job_step{jobb="a"}', "elastrain_job_step has no label jobb"),
        ("sum by (cause) (elastrain_job_step)", "no metric here has a label cause"),
        ("rate(elastrain_job_step[5m])", "rate() of the gauge elastrain_job_step"),
        ("1 > 2", "asks for nothing"),
    ],
)
def test_a_wrong_query_is_found(query, fault):
    assert faults(query) == [fault]


@pytest.mark.parametrize("query", ["rate(elastrain_job_steps_total[5m]", "rat(elastrain_job_step)", "a ? b", "a)"])
def test_an_invalid_query_is_found(query):
    with pytest.raises(ValueError, match=r"missing|no function|no PromQL|closes nothing"):
        parse(query)


# ---- alerts ----------------------------------------------------------------------------------------------------------
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_alert_uses_existing_metrics_and_has_a_remedy(alert: dict[str, Any]) -> None:
    assert faults(alert["expr"]) == []
    assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[1-9][0-9]*(m|h)", alert["for"])
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert set(alert["annotations"]) == {"summary", "description"}
    query = parse(alert["expr"])
    labels = {label for metric in query.metrics for label in KNOWN[metric]}
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
    assert shown <= (query.groupings if query.groupings and " by (" in alert["expr"] else labels)


# ---- dashboard -------------------------------------------------------------------------------------------------------
BOARD = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_panel_uses_existing_metrics(panel: dict[str, Any]) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        assert faults(target["expr"]) == []
        query = parse(target["expr"])
        labels = {label for metric in query.metrics for label in KNOWN[metric]} | OF_THE_TARGET
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        assert target["datasource"]["uid"] == "${datasource}"


def test_variables_are_filled_by_metrics_that_exist() -> None:
    defined = {v["name"] for v in BOARD["templating"]["list"]}
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            assert faults(variable["query"]["query"]) == []
    used = set(re.findall(r"\$(?:\{)?([a-z]\w*)", json.dumps(BOARD)))
    assert used <= defined, "every variable that is used is defined"


def test_panels_have_distinct_ids_and_places() -> None:
    assert len({p["id"] for p in BOARD["panels"]}) == len(BOARD["panels"])
    cells = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        mine = {(x, y) for x in columns for y in lines}
        assert not mine & cells, panel["title"]
        cells |= mine


def test_every_metric_except_three_is_on_the_dashboard_or_in_an_alert() -> None:
    asked = {m for p in PANELS for t in p["targets"] for m in parse(t["expr"]).metrics}
    asked |= {m for a in ALERTS for m in parse(a["expr"]).metrics}
    left = {m.name for m in metrics() if not set(m.series) & asked}
    assert left == {
        "elastrain_job_generation", "elastrain_job_replicas", "elastrain_job_last_rescale_pause_seconds",
    }  # fmt: skip


# ---- documentation ---------------------------------------------------------------------------------------------------
def test_documentation_has_the_list_of_all_metrics() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert table() in page, "put the output of `python scripts/operator_metrics.py` into docs/metrics.md"


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in metrics():
        assert metric.name.startswith(("elastrain_operator_", "elastrain_job_"))
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not re.search(r"_(ms|milliseconds|minutes|percent|kb|mb)\b", metric.name), "base units only"
        if metric.name.startswith("elastrain_job_"):
            assert metric.labels[:2] == ("namespace", "job")
        assert not {"pod", "node", "uid", "worker", "member"} & set(metric.labels), "cardinality is bounded"
